"""Ending a study that runs, wherever its controller is."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal

from thunder_tune.storage import Database, LeaseRecord
from thunder_tune.study.lease import BEAT_S, Watch, this_process
from thunder_tune.values.study import StudyState

PATIENCE_S = 120.0
"""For a controller that lives to end: it kills what runs and stops its workers."""

How = Literal["ended", "dead", "asked", "not-running"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """What became of a study that was to be cancelled.

    Attributes:
        study: Its name.
        how: "ended": its controller has ended it; "dead": its controller was dead; "asked": its
            controller lives, was asked, and has not ended yet; "not-running": nobody ran it.
        state: Of the study, now.
        trials: Search trials that are stored.
        lease: Who ran it, None for nobody.
    """

    study: str
    how: How
    state: StudyState
    trials: int
    lease: LeaseRecord | None = None


def cancel_study(database: Database, study: str, *, patience_s: float = PATIENCE_S) -> Ending:
    """End a study as Ctrl-C does where it runs, and wait until it has ended.

    A study whose controller is dead becomes "interrupted".

    Args:
        database: Where the study is stored.
        study: Its name.
        patience_s: How long to wait for a controller that lives.

    Raises:
        NotFoundError: There is no such study, and nobody is about to run it.
        StorageError: The database cannot be written.
    """
    lease = database.lease(study)
    if lease is None:
        if database.study(study).state != "running":
            return _ending(database, study, "not-running", None)
        database.update_study(study, state="interrupted")  # its lease was lost with its controller
        return _ending(database, study, "dead", None)
    watch, until = Watch(), time.monotonic() + patience_s
    # Asking is a write: while nobody can write, nobody is found dead.
    while database.ask_to_end(study, lease.owner.token):
        found = database.lease(study)
        if found is None:
            break
        if watch.look(found) == "gone":
            if _take_from_the_dead(database, study, found):
                return _ending(database, study, "dead", lease)
        elif time.monotonic() > until:
            return _ending(database, study, "asked", lease)
        else:
            time.sleep(BEAT_S)
    return _ending(database, study, "ended", lease)


def _take_from_the_dead(database: Database, study: str, lease: LeaseRecord) -> bool:
    """Mark a study as interrupted, unless its owner lives after all or another took it over."""
    owner = this_process()
    if not database.take_lease(study, owner, instead_of=lease):
        return False
    try:
        if database.study(study).state == "running":
            database.update_study(study, state="interrupted")
    finally:
        database.release_lease(study, owner.token)
    return True


def _ending(database: Database, study: str, how: How, lease: LeaseRecord | None) -> Ending:
    state = database.study(study).state
    trials = next(s.trials for s in database.studies() if s.name == study)
    return Ending(study=study, how=how, state=state, trials=trials, lease=lease)
