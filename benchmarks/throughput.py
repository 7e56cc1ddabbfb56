"""What the controller itself costs: trials that only sleep, on ever more workers.

    python -m benchmarks.throughput --workers 1,8,64

Each number of workers runs a study of its own whose trials sleep, in threads of the controller's
process, so that neither Ray nor child processes take part: what is measured is asking the sampler,
handing out, storing and counting. Prints one JSON object: for each number of workers the trials
per hour, that as a multiple of one worker's, the controller's processor time for each trial, the
share of the time that workers slept, and how long a finished result waited until it was stored
(95th percentile and the longest, in seconds).
"""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from thunder_tune.storage import Database
from thunder_tune.study import run_study
from thunder_tune.testing.fake_pool import synthetic_description
from thunder_tune.testing.silent_observer import SilentObserver
from thunder_tune.values.comparison import Block, Round
from thunder_tune.values.job import CompareJob, DescribeJob, Description, MeasureJob, Setting
from thunder_tune.values.source import ModelSource
from thunder_tune.values.space import COMPOSED, FUSER, PROGRAM, Dimension
from thunder_tune.values.study import StudySpec, baselines_for
from thunder_tune.values.trial import Accuracy, Timing, TrialResult
from thunder_tune.workers.slot_pool import SlotPool

BASELINES = baselines_for("cpu")
CLASSES = 14
REPEATS = 200


@dataclass
class Sleeper:
    """A worker that sleeps for each candidate; see `thunder_tune.workers.slot_pool.Worker`."""

    name: str
    sleep_s: float
    finished: dict[str, float] = field(default_factory=dict)

    def describe(self, job: DescribeJob, epoch: int) -> Description:
        """Describe a program of many classes."""
        programs = Dimension(name=PROGRAM, family="whole-program", choices=(COMPOSED, *BASELINES))
        classes = (
            Dimension(name=f"{FUSER}glue-{i}", family="fuser", choices=("torch", "inductor"))
            for i in range(CLASSES)
        )
        return synthetic_description((programs, *classes))

    def measure(self, job: MeasureJob, epoch: int) -> TrialResult:
        """Sleep, and give as many repeats as a real trial does."""
        started_at = time.time()
        time.sleep(self.sleep_s)
        latency_ms = 1.0 + int(job.candidate.plan_key[:4], 16) / 65536
        self.finished[job.candidate.plan_key] = time.monotonic()
        return TrialResult(
            candidate=job.candidate,
            role=job.role,
            state="complete",
            timing=Timing(
                samples_ms=tuple(latency_ms + i * 1e-4 for i in range(REPEATS)),
                latency_ms=latency_ms,
                ci95_ms=(latency_ms, latency_ms),
            ),
            accuracy=Accuracy(error_ratio=1.0, relative_error=0.0, cosine=1.0),
            applied=1.0,
            worker=self.name,
            process_id=threading.get_native_id(),
            started_at=started_at,
            phase_s={"compile": self.sleep_s},
        )

    def compare(self, job: CompareJob, timeout_s: float, epoch: int) -> Round:
        """Answer at once: the confirmation is not what is measured."""
        blocks = tuple(
            Block(contender=c.name, position=i, samples_ms=(1.0,) * job.calls, started_at=0.0)
            for i, c in enumerate(job.contenders * job.blocks)
        )
        names = [c.name for c in job.contenders]
        accuracy = Accuracy(error_ratio=1.0, relative_error=0.0, cosine=1.0)
        return Round(
            process_id=0,
            blocks=blocks,
            accuracy=dict.fromkeys(names, accuracy),
            applied=dict.fromkeys(names, 1.0),
        )

    def cancel(self, epoch: int) -> None:
        """Do nothing."""

    def restart(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class Stopwatch(SilentObserver):
    """Notes when each search result was stored."""

    def __init__(self) -> None:
        self.stored: dict[str, float] = {}

    def on_result(self, number: int, result: TrialResult) -> None:
        """Note the time."""
        if result.role == "search":
            self.stored[result.candidate.plan_key] = time.monotonic()


def measure(
    url: str, *, workers: int, trials: int, sleep_s: float, sampler: str
) -> dict[str, float]:
    """Run a study and return its figures."""
    finished: dict[str, float] = {}
    pool = SlotPool([Sleeper(f"worker-{i}", sleep_s, finished) for i in range(workers)])
    watch = Stopwatch()
    database = Database.open(url)
    spec = StudySpec(
        name=f"sleep-{workers}",
        setting=Setting(source=ModelSource(name=f"sleep-{workers}")),
        trials=trials,
        sampler=sampler,
    )
    cpu_s = time.process_time()
    outcome = run_study(spec, pool=pool, database=database, observer=watch)
    cpu_s = time.process_time() - cpu_s
    stored = len(database.trials(spec.name, "search"))
    pool.close()
    database.close()
    assert outcome.counts.finished == stored == trials, (outcome.error, stored)
    waits = sorted(watch.stored[key] - finished[key] for key in watch.stored)
    # Without the first and the last turn of every worker, when some of them have nothing to do.
    times = sorted(watch.stored.values())[workers - 1 : trials - workers]
    per_s = (len(times) - 1) / (times[-1] - times[0])
    return {
        "trials": trials,
        "trials_per_hour": round(3600 * per_s),
        "controller_cpu_ms": round(1000 * cpu_s / trials, 1),
        "asleep": round(per_s * sleep_s / workers, 3),
        "stored_after_s_p95": round(waits[int(0.95 * (len(waits) - 1))], 3),
        "stored_after_s_max": round(waits[-1], 3),
    }


def main() -> None:
    """Measure and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", default="1,8,64", help="numbers of workers, by commas")
    parser.add_argument("--sleep-s", type=float, default=10.0, help="of a trial")
    parser.add_argument("--each", type=int, default=8, help="trials for each worker")
    parser.add_argument("--sampler", default="tpe")
    parser.add_argument("--storage", help="URL of a database; default: a file of its own")
    asked = parser.parse_args()
    found = {}
    with tempfile.TemporaryDirectory() as place:
        for workers in map(int, asked.workers.split(",")):
            found[workers] = measure(
                asked.storage or f"sqlite:///{Path(place) / 'throughput.db'}",
                workers=workers,
                trials=max(20, workers * asked.each),
                sleep_s=asked.sleep_s,
                sampler=asked.sampler,
            )
    one = found.get(1)
    for workers, figures in found.items():
        if one is not None:
            times = figures["trials_per_hour"] / one["trials_per_hour"]
            figures["times_one_worker"] = round(times, 2)
        print(json.dumps({"workers": workers, "sleep_s": asked.sleep_s, **figures}))


if __name__ == "__main__":
    main()
