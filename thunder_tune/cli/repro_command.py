"""`thunder-tune repro`: one trial as a script that runs by itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from thunder_tune.cli import exits, options, services
from thunder_tune.cli.recipe_paths import check_writable
from thunder_tune.cli.repro_script import script_of
from thunder_tune.errors import NotFoundError


def repro(
    study: options.StudyArgument,
    number: Annotated[
        int, typer.Argument(metavar="TRIAL", help="Its number in `thunder-tune show STUDY`.")
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Script. Default: trialNUMBER.py here."),
    ] = None,
    storage: options.Storage = None,
    as_json: options.Json = False,
) -> int:
    """Write a script that loads the model and builds, checks and times one trial.

    It needs thunder_tune and the packages that it names, neither database nor workers.
    """
    from thunder_tune.cli import tables

    path = out or Path(f"trial{number}.py")
    check_writable(path, "script")
    text = _script(study, number, storage)
    path.write_text(text, encoding="utf-8")
    if as_json:
        print(json.dumps({"study": study, "trial": number, "script": str(path)}))
    else:
        tables.console().print(f"script: {path}", soft_wrap=True)
    return exits.DONE


def _script(study: str, number: int, storage: str | None) -> str:
    with services.database(storage) as database:
        setting = database.study(study).spec.setting
        description = database.description(study)
        trials = {t.number: t.result for t in database.trials(study)}
    if number not in trials or description is None:
        numbers = f"0 to {max(trials)}" if trials else "none yet"
        raise NotFoundError(
            f"study {study!r} has no trial {number}: its trials are {numbers}, see "
            f"thunder-tune show {study}"
        )
    return script_of(
        study,
        number,
        trials[number],
        setting=setting,
        program_hash=description.program.hash,
        front_end=description.program.front_end,
        fingerprint=description.fingerprint,
    )
