"""A controller in a process of its own, for tests of what ends it.

`python -m thunder_tune.testing.study_driver URL STUDY TRIALS [DIES_AT]` runs a study of planted
costs, whose trials take hundredths of a second, prints "stored NUMBER" for each result, and at
last the outcome's state. With DIES_AT it kills itself, as `kill -9` does, right before or after
that statement or commit of its database's, counted from 1 over all connections.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence

from sqlalchemy import Engine, event

from thunder_tune.errors import ThunderTuneError
from thunder_tune.storage import Database
from thunder_tune.study import run_study
from thunder_tune.testing.fake_pool import CostTable, FakePool, synthetic_description
from thunder_tune.testing.silent_observer import SilentObserver
from thunder_tune.values.job import Setting
from thunder_tune.values.screening import Screening
from thunder_tune.values.source import ModelSource
from thunder_tune.values.space import COMPOSED, FUSER, PROGRAM, Dimension
from thunder_tune.values.study import StudySpec, baselines_for
from thunder_tune.values.trial import TrialResult

TRIAL_S = 0.02
PROGRAMS = dict(zip(baselines_for("cpu"), (20.0, 14.0, 13.0, 15.0), strict=True))
DIMENSIONS = (
    Dimension(name=PROGRAM, family="whole-program", choices=(COMPOSED, *PROGRAMS)),
    *(
        Dimension(name=f"{FUSER}glue-{i}", family="fuser", choices=("torch", "inductor"))
        for i in range(10)
    ),
)
CLASSES = [d.name for d in DIMENSIONS[1:]]
COSTS = CostTable(
    programs=PROGRAMS,
    choices={(name, "inductor"): -0.1 * i for i, name in enumerate(CLASSES)},
    failures={(CLASSES[0], "inductor"): "compile"},
)


class SleepingPool(FakePool):
    """A fake pool whose jobs also take a little real time."""

    def wait(self, timeout_s: float) -> list[tuple[int, TrialResult | Screening]]:
        """Sleep for the time of a trial, then return what finished."""
        time.sleep(TRIAL_S)
        return super().wait(timeout_s)


class _Printer(SilentObserver):
    """An `Observer` that prints results and notices."""

    def on_result(self, number: int, result: TrialResult) -> None:
        """Print its number."""
        _say(f"stored {number}")

    def on_notice(self, text: str) -> None:
        """Print the sentence."""
        _say(f"note: {text}")


def main(url: str, study: str, trials: int, dies_at: int = 0) -> int:
    """Run the study; returns 0 for done, 130 for interrupted, 2 for refused."""
    if dies_at:
        _die_at(dies_at)
    spec = StudySpec(
        name=study, setting=Setting(source=ModelSource(name="planted")), trials=trials
    )
    pool = SleepingPool(synthetic_description(DIMENSIONS), COSTS, capacity=2)
    database = Database.open(url)
    try:
        outcome = run_study(spec, pool=pool, database=database, observer=_Printer())
    except ThunderTuneError as error:
        _say(f"error: {error}")
        return error.exit_status
    finally:
        database.close()
    _say(outcome.state)
    return 130 if outcome.state == "interrupted" else 0


def _die_at(number: int) -> None:
    left = number

    def count(*_: object) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    for name in ("before_cursor_execute", "after_cursor_execute", "commit"):
        event.listen(Engine, name, count)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _run(words: Sequence[str]) -> int:
    url, study, trials, *dies_at = words
    return main(url, study, int(trials), *map(int, dies_at))


if __name__ == "__main__":
    sys.exit(_run(sys.argv[1:]))
