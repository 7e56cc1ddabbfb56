"""Whether a study runs slower while people look at it.

    python benchmarks/dashboard_beside.py --pairs 5 --clients 10

Runs studies of eight workers with a result every tenth of a second, in turn alone and beside a
dashboard with readers of their pages, and prints for each pair how many times longer the watched
one took, and the median.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from multiprocessing.synchronize import Event
from pathlib import Path

from thunder_tune.storage import Database
from thunder_tune.study import run_study
from thunder_tune.testing.fake_pool import FakePool, synthetic_description
from thunder_tune.testing.silent_observer import SilentObserver
from thunder_tune.testing.study_driver import COSTS, DIMENSIONS
from thunder_tune.values.job import Setting
from thunder_tune.values.source import ModelSource
from thunder_tune.values.study import StudySpec
from thunder_tune.values.trial import TrialResult

WORKERS = 8
RESULT_EVERY_S = 0.1
PATHS = ("/studies/{0}", "/api/studies/{0}/trials?sort=latency", "/studies/{0}/trials", "/")
REST_S = 1.0
"""Between two looks of one reader; a page that follows a study asks every four seconds."""


class WaitingPool(FakePool):
    """Eight workers of which one has a result every so often, and which need no processor."""

    def wait(self, timeout_s: float) -> list[tuple[int, TrialResult]]:
        """Sleep, then return what finished."""
        time.sleep(RESULT_EVERY_S)
        return super().wait(timeout_s)


def seconds_of(url: str, name: str, trials: int) -> float:
    """Run a study and return how long it took."""
    spec = StudySpec(name=name, setting=Setting(source=ModelSource(name=name)), trials=trials)
    pool = WaitingPool(synthetic_description(DIMENSIONS), COSTS, capacity=WORKERS)
    database = Database.open(url)
    begun = time.perf_counter()
    run_study(spec, pool=pool, database=database, observer=SilentObserver())
    spent = time.perf_counter() - begun
    database.close()
    return spent


@contextmanager
def watched(url: str, name: str, clients: int) -> Iterator[None]:
    """Let readers look at a study through a dashboard, inside the block."""
    command = [sys.executable, "-m", "thunder_tune.cli", "dashboard", "--port", "0"]
    server = subprocess.Popen([*command, "--storage", url], stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    found = re.search(r"http://\S+", server.stderr.readline())
    assert found
    context = multiprocessing.get_context("spawn")
    are_ready = context.Event()
    address = found.group().rstrip("/")
    readers = context.Process(target=read, args=(address, name, clients, are_ready))
    readers.start()
    are_ready.wait()  # what starting costs is no part of it
    try:
        yield
    finally:
        for process in (readers, server):
            process.terminate()
        readers.join()
        server.wait()


def read(address: str, name: str, clients: int, are_ready: Event) -> None:
    """Look at a study for ever, with so many threads."""

    def look() -> None:
        while True:
            for path in PATHS:
                with suppress(OSError):  # the study does not exist at first
                    urllib.request.urlopen(address + path.format(name), timeout=60).read()
                time.sleep(REST_S)

    urllib.request.urlopen(address, timeout=60).read()
    are_ready.set()
    for _ in range(clients):
        threading.Thread(target=look, daemon=True).start()
    threading.Event().wait()


def main() -> None:
    """Run the benchmark and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--trials", type=int, default=200)
    asked = parser.parse_args()
    ratios = []
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{Path(folder) / 'beside.db'}"
        seconds_of(url, "warm-up", 20)
        for pair in range(asked.pairs):
            spent = {}
            for is_watched in (pair % 2 == 0, pair % 2 == 1):
                name = f"study-{pair}-{'watched' if is_watched else 'alone'}"
                with watched(url, name, asked.clients) if is_watched else nullcontext():
                    spent[is_watched] = seconds_of(url, name, asked.trials)
            ratios.append(spent[True] / spent[False])
    print(
        json.dumps(
            {
                "clients": asked.clients,
                "trials": asked.trials,
                "ratios": [round(r, 3) for r in ratios],
                "median_ratio": round(statistics.median(ratios), 3),
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    main()
