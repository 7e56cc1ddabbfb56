"""Many good and bad trials, while workers and the controller are killed at random.

    python -m benchmarks.soak --trials 2000 --workers 4

A study of trivial programs, a third of which raise, crash, hang, send nonsense or leave processes
behind, runs on four workers in a controller of its own. All the time a trial process is killed
now and then, and sometimes the controller, which is then started anew. At the end the trials must
be exactly those asked for, each once, and nothing may be left: no process, no temporary file, no
file handle in the controller. Prints one JSON object; status 1 where something is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random

import psutil

from thunder_tune.storage import Database
from thunder_tune.study import run_study
from thunder_tune.testing.fake_pool import synthetic_description
from thunder_tune.testing.scripted_session import ACT, ScriptedSession
from thunder_tune.testing.silent_observer import SilentObserver
from thunder_tune.values.job import DescribeJob, Description, Limits, MeasureJob, Setting
from thunder_tune.values.source import ModelSource
from thunder_tune.values.space import COMPOSED, FUSER, PROGRAM, Dimension
from thunder_tune.values.study import StudySpec, baselines_for
from thunder_tune.values.trial import Failure, TrialResult
from thunder_tune.workers.child_process import ChildOptions
from thunder_tune.workers.slot_pool import SlotPool
from thunder_tune.workers.strays import processes_with
from thunder_tune.workers.trial_child import TrialChild
from thunder_tune.workers.trial_process import Tell

STUDY = "soak"
MARK = "THUNDER_TUNE_SOAK"
"""Variable that every process of a soak inherits."""
CLASSES = 14
BASELINES = baselines_for("cpu")
ACTS = {
    "well": 66,
    "fail": 8,
    "defect": 4,
    "exit": 4,
    "kill": 3,
    "segfault": 3,
    "hang": 1,
    "nan": 4,
    "talk": 3,
    "fork": 2,
    "detach": 2,
}
"""What candidates do, in percent."""


class SoakSession(ScriptedSession):
    """A scripted session whose candidates do what the digest of their plan says."""

    def describe(self, job: DescribeJob, tell: Tell) -> Description:
        """Describe a program of many classes with two fusers each."""
        programs = Dimension(name=PROGRAM, family="whole-program", choices=(COMPOSED, *BASELINES))
        classes = (
            Dimension(name=f"{FUSER}glue-{i}", family="fuser", choices=("torch", "inductor"))
            for i in range(CLASSES)
        )
        return synthetic_description((programs, *classes))

    def measure(self, job: MeasureJob, tell: Tell) -> TrialResult:
        """Do it; baselines do well."""
        act = act_of(job.candidate.plan_key) if job.role == "search" else "well"
        if act == "fail":
            failure = Failure(kind="compile", phase="compile", message="planted", group="planted")
            return TrialResult(
                candidate=job.candidate, role=job.role, state="failed", failure=failure
            )
        self._play({ACT: act}, tell)
        return self._result(job, not_finite=act == "nan")


def act_of(plan_key: str) -> str:
    """Return what a candidate does."""
    drawn = int(plan_key[:8], 16) % sum(ACTS.values())
    for act, share in ACTS.items():
        drawn -= share
        if drawn < 0:
            return act
    raise AssertionError("unreachable")


def control(url: str, trials: int, workers: int) -> int:
    """Run the study or go on with it, and print what this process holds at its end."""
    limits = Limits(compile_s=1.0, time_s=5.0, host_memory_bytes=2 * 2**30)
    spec = StudySpec(
        name=STUDY,
        setting=Setting(source=ModelSource(name="soak"), limits=limits),
        trials=trials,
        sampler="random",
    )
    before = psutil.Process().num_fds()
    database = Database.open(url)
    pool = SlotPool(
        [
            TrialChild(
                ChildOptions(
                    name=f"worker-{i}", slots=workers, session="benchmarks.soak:SoakSession"
                )
            )
            for i in range(workers)
        ]
    )
    outcome = run_study(spec, pool=pool, database=database, observer=SilentObserver())
    pool.close()
    database.close()
    process = psutil.Process()
    held = {
        "state": outcome.state,
        "error": outcome.error,
        "file_handles_more": process.num_fds() - before,
        "children_left": len(process.children(recursive=True)),
        "memory_mib": process.memory_info().rss >> 20,
    }
    print(json.dumps(held))
    return 0


@dataclass
class Kills:
    """What was killed, and when the next is due.

    Attributes:
        workers_there: One of them at a time is struck, which may have no process just then.
        worker_s: Mean seconds between two strikes at a worker.
        controller_s: Mean seconds between two controllers killed.
    """

    random: Random
    workers_there: int
    worker_s: float
    controller_s: float
    workers: int = 0
    controllers: int = 0

    def __post_init__(self) -> None:
        self.next_worker = self._after(self.worker_s)
        self.next_controller = self._after(self.controller_s)

    def strike(self, controller: psutil.Process) -> None:
        """Kill what is due."""
        now = time.monotonic()
        if now >= self.next_worker:
            self.next_worker = self._after(self.worker_s)
            with suppress(psutil.Error):
                trials = [c for c in controller.children() if "--parent" in c.cmdline()]
                struck = self.random.randrange(self.workers_there)
                if struck < len(trials):
                    trials[struck].kill()
                    self.workers += 1
        if now >= self.next_controller:
            self.next_controller = self._after(self.controller_s)
            with suppress(psutil.Error):
                controller.kill()
                self.controllers += 1

    def _after(self, mean_s: float) -> float:
        return time.monotonic() + self.random.expovariate(1 / mean_s)


def soak(url: str, *, trials: int, workers: int, kills: Kills, folder: Path) -> dict[str, object]:
    """Run controllers until one ends by itself; returns what it said and what was left."""
    mark = uuid.uuid4().hex
    environment = {**os.environ, MARK: mark, "TMPDIR": str(folder)}
    words = [sys.executable, "-m", "benchmarks.soak", "--control", url]
    words += ["--trials", str(trials), "--workers", str(workers)]
    begun = time.monotonic()
    while True:
        process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment)
        watched = psutil.Process(process.pid)
        while process.poll() is None:
            time.sleep(0.05)
            kills.strike(watched)
        said = process.communicate()[0]
        if process.returncode != -signal.SIGKILL:
            break
    if process.returncode:
        raise SystemExit(f"a controller ended with status {process.returncode}")
    took_s = time.monotonic() - begun
    time.sleep(2.0)  # what was killed at the end is gone by then
    return {
        **json.loads(said),
        "seconds": round(took_s, 1),
        "processes_left": len(processes_with(MARK, mark)),
        "temporary_files_left": len(list(folder.iterdir())),
    }


def counted(url: str, trials: int) -> tuple[dict[str, object], list[str]]:
    """Count what is stored; returns the counts, and what is wrong with them."""
    database = Database.open(url)
    stored = database.trials(STUDY)
    lease = database.lease(STUDY)
    database.close()
    searched = [t.result for t in stored if t.result.role == "search"]
    kinds = Counter(r.failure.kind if r.failure else r.state for r in searched)
    acted = Counter(act_of(r.candidate.plan_key) for r in searched)
    checks = {
        f"{len(searched)} search trials, not {trials}": len(searched) == trials,
        "numbers with gaps": [t.number for t in stored] == list(range(len(stored))),
        "a plan counted twice": len({r.candidate.plan_key for r in searched}) == len(searched),
        "not every baseline": len(stored) == trials + len(BASELINES),
        "a lease is left": lease is None,
        "a candidate that was to fail did not": all(
            r.failure is not None
            for r in searched
            if act_of(r.candidate.plan_key) in ("fail", "defect", "exit", "kill", "segfault")
        ),
    }
    counts = {"trials": len(searched), "acts": dict(acted), "outcomes": dict(kinds)}
    return counts, [what for what, holds in checks.items() if not holds]


def main() -> int:
    """Soak and print one JSON object; or, with --control, be the controller."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=2_000)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--worker-kill-s", type=float, default=4.0, help="mean between two")
    parser.add_argument("--controller-kill-s", type=float, default=60.0, help="mean between two")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--storage", help="URL of an empty database; default: a file of its own")
    parser.add_argument("--control", metavar="URL", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.control:
        return control(asked.control, asked.trials, asked.workers)
    kills = Kills(Random(asked.seed), asked.workers, asked.worker_kill_s, asked.controller_kill_s)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "tmp"
        folder.mkdir()
        url = asked.storage or f"sqlite:///{place}/soak.db"
        held = soak(url, trials=asked.trials, workers=asked.workers, kills=kills, folder=folder)
        counts, wrong = counted(url, asked.trials)
    for name in ("children_left", "processes_left", "temporary_files_left", "file_handles_more"):
        if held[name]:
            wrong.append(f"{name}: {held[name]}")
    killed = {"workers_killed": kills.workers, "controllers_killed": kills.controllers}
    print(json.dumps({**counts, **killed, **held, "wrong": wrong}))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
