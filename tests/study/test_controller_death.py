"""`kill -9` of the controller at any point loses no finished trial and counts none twice."""

from __future__ import annotations

import signal
import subprocess
import sys
from random import Random

from thunder_tune.storage import Database
from thunder_tune.values.study import baselines_for

BASELINES = len(baselines_for("cpu"))
TRIALS = 24
POINTS = ((1, 250), (250, 300), (300, 700), (300, 700), (1, 2700), (1, 2700))
"""Statements and commits between which a run dies: before its first result, at it, while it
searches, anywhere. A whole run has 2,700 or so."""


def run(url: str, dies_at: int = 0) -> tuple[int, list[str]]:
    """Run the study in a process of its own; returns its status and what it said."""
    words = [url, "study", str(TRIALS), str(dies_at)]
    done = subprocess.run(
        [sys.executable, "-m", "thunder_tune.testing.study_driver", *words],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout.splitlines()


def numbers(said: list[str]) -> list[int]:
    return [int(line.split()[1]) for line in said if line.startswith("stored ")]


def test_a_killed_controller_loses_nothing_and_counts_nothing_twice(any_url):
    random = Random(7)
    deaths, told = 0, []
    for point in POINTS:
        status, said = run(any_url, random.randint(*point))
        told += numbers(said)
        if status == 0:  # it was done before its time came
            break
        assert status == -signal.SIGKILL, said
        deaths += 1
    assert deaths >= 4
    status, said = run(any_url)
    told += numbers(said)
    assert (status, said[-1]) == (0, "done")

    database = Database.open(any_url)
    stored = database.trials("study")
    assert [t.number for t in stored] == list(range(BASELINES + TRIALS))
    assert set(told) <= set(range(BASELINES + TRIALS))
    assert len(told) == len(set(told))
    searched = [t.result.candidate.plan_key for t in stored if t.result.role == "search"]
    assert len(searched) == len(set(searched)) == TRIALS
    assert database.lease("study") is None
    database.close()
