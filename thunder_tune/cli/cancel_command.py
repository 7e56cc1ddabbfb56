"""`thunder-tune cancel`: end a study that runs, wherever its controller is."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from thunder_tune.cli import exits, options, services
from thunder_tune.cli.study_commands import resume_command
from thunder_tune.errors import InputError
from thunder_tune.values.documents import Document
from thunder_tune.values.shapes import run_of_study, studies_by_shape

if TYPE_CHECKING:
    from thunder_tune.storage import Database
    from thunder_tune.study.cancelling import Ending


def cancel(
    study: options.StudyArgument,
    storage: options.Storage = None,
    as_json: options.Json = False,
) -> int:
    """End a study that runs, wherever it runs on this database; it can go on later."""
    from thunder_tune.cli.tables import console
    from thunder_tune.study.cancelling import cancel_study

    with services.database(storage) as database:
        endings = [cancel_study(database, name) for name in _running(database, study)]
    for ending in endings:
        console(stderr=as_json).print(_told(ending, storage), soft_wrap=True)
    if as_json:
        (first, *others) = [_document(ending) for ending in endings]
        print(json.dumps({"study": study, "shapes": [first, *others]} if others else first))
    return exits.FAILED if any(e.how == "asked" for e in endings) else exits.DONE


def _running(database: Database, study: str) -> list[str]:
    """Return the studies of a name that are run, one or those of several shapes.

    Raises:
        NotFoundError: There is no such study.
        InputError: It is not running.
    """
    names = [summary.name for summary in database.studies()]
    of_name = (study,) if study in names else studies_by_shape(study, names) or (study,)
    running = [name for name in of_name if database.lease(name)]
    running = running or [n for n in of_name if database.study(n).state == "running"]
    if not running:
        states = ", ".join(dict.fromkeys(database.study(name).state for name in of_name))
        raise InputError(
            f"study {study!r} is not running (state: {states}): there is nothing to cancel"
        )
    return running


def _told(ending: Ending, storage: str | None) -> str:
    name, who = ending.study, "the process that ran it"
    if ending.lease is not None:
        who = str(ending.lease.owner)
    kept = f"{ending.trials} trial{'s' * (ending.trials != 1)} kept"
    again = f"to go on: {resume_command(run_of_study(name), storage)}"
    if ending.how == "asked":
        return f"study {name}: {who} was asked to end and has not yet; if it hangs, kill it there"
    if ending.how == "dead":
        return f"study {name}: {who} was dead; {ending.state}, {kept}; {again}"
    if ending.state != "interrupted":
        return f"study {name}: it ended by itself meanwhile: {ending.state}"
    return f"study {name}: interrupted where it ran ({who}), {kept}; {again}"


def _document(ending: Ending) -> Document:
    lease = ending.lease
    return {
        "study": ending.study,
        "how": ending.how,
        "state": ending.state,
        "trials": ending.trials,
        "host": lease.owner.host if lease else None,
        "process_id": lease.owner.process_id if lease else None,
        "since": lease.since.isoformat() if lease else None,
    }
