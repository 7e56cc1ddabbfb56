from __future__ import annotations

from dataclasses import replace

import pytest

from thunder_tune.storage import Database
from thunder_tune.study import run_study
from thunder_tune.testing.fake_pool import CostTable, FakePool, synthetic_description
from thunder_tune.values.job import Setting
from thunder_tune.values.source import ModelSource
from thunder_tune.values.space import CUDA_GRAPHS, EXECUTOR, FUSER, PROGRAM, Dimension
from thunder_tune.values.study import StudySpec

WHOLE = ("eager", "torch.compile", "torch.compile:max-autotune", "thunder")


class RecordingObserver:
    """Keeps what it is told."""

    def __init__(self):
        self.statuses, self.results, self.rounds, self.notices = [], [], [], []
        self.descriptions = []

    def on_status(self, status):
        self.statuses.append(status)

    def on_description(self, description):
        self.descriptions.append(description)

    def on_result(self, number, result):
        self.results.append((number, result))

    def on_round(self, index, total, round_):
        self.rounds.append((index, total, round_))

    def on_notice(self, text):
        self.notices.append(text)


@pytest.fixture
def observer():
    return RecordingObserver()


@pytest.fixture
def database(tmp_path):
    opened = Database.open(str(tmp_path / "studies.db"))
    yield opened
    opened.close()


@pytest.fixture
def dimensions():
    """Make a space: the program dimension, glue and anchor classes, CUDA graphs where asked."""

    def make(glue=2, anchors=1, *, graphs=False, fusers=("torch", "inductor"), whole=WHOLE):
        found = [Dimension(name=PROGRAM, family="whole-program", choices=("composed", *whole))]
        for i in range(glue):
            found.append(Dimension(name=f"{FUSER}glue-{i}", family="fuser", choices=fusers))
        for i in range(anchors):
            found.append(
                Dimension(
                    name=f"{EXECUTOR}linear-{i}", family="executor", choices=("torch", "cudnn")
                )
            )
        if graphs:
            found.append(
                Dimension(name=CUDA_GRAPHS, family="cuda-graphs", choices=("none", "whole"))
            )
        return tuple(found)

    return make


@pytest.fixture
def costs():
    """Plant costs: baselines at 20, 14, 13 and 15 ms, composed programs at 10 ms."""
    table = CostTable(
        programs={
            "eager": 20.0,
            "torch.compile": 14.0,
            "torch.compile:max-autotune": 13.0,
            "thunder": 15.0,
        }
    )
    return lambda **changes: replace(table, **changes)


@pytest.fixture
def spec():
    def make(name="study", **changes):
        setting = Setting(source=ModelSource(name="mlp"))
        return StudySpec(**{"name": name, "setting": setting, "trials": 10, **changes})

    return make


@pytest.fixture
def study(database, observer):
    """Run a study on a fake pool; returns the outcome and the pool."""

    def run(spec, dimensions, costs, **pool_options):
        described = synthetic_description(dimensions)
        pool = FakePool(described, costs, **pool_options)
        outcome = run_study(
            spec, pool=pool, database=database, observer=observer, clock=pool.clock
        )
        return outcome, pool

    return run
