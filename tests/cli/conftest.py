from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from thunder_tune.cli import services
from thunder_tune.study.pool import WorkerPool
from thunder_tune.testing.fake_pool import CostTable, FakePool, synthetic_description
from thunder_tune.values.job import Setting
from thunder_tune.values.space import Dimension
from thunder_tune.values.study import baselines_for

DIMENSIONS = (
    Dimension(name="program", family="whole-program", choices=("composed", *baselines_for("cpu"))),
    Dimension(name="executor:linear-1", family="executor", choices=("torch", "fast")),
    Dimension(name="fuser:glue-1", family="fuser", choices=("torch", "inductor")),
)
PROGRAMS = {
    "eager": 20.0,
    "torch.compile": 12.0,
    "torch.compile:max-autotune": 11.0,
    "thunder": 14.0,
}

MakePool = Callable[..., FakePool]


@pytest.fixture
def make_pool() -> MakePool:
    """Make a pool whose fastest program is composed: 8 ms, the best baseline takes 11 ms."""

    def make(*, interrupt_at: int | None = None, failure=None, **costs) -> FakePool:
        table = {
            "base_ms": 13.0,
            "programs": PROGRAMS,
            "choices": {
                ("executor:linear-1", "fast"): -3.0,
                ("fuser:glue-1", "inductor"): -2.0,
            },
            **costs,
        }
        description = synthetic_description(DIMENSIONS, failure=failure)
        return FakePool(description, CostTable(**table), interrupt_at=interrupt_at)

    return make


@pytest.fixture
def own_folder(monkeypatch, tmp_path: Path) -> Path:
    """Let commands run in a folder and with a database of their own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("THUNDER_TUNE_STORAGE", str(tmp_path / "record.db"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return tmp_path


@pytest.fixture
def use_pool(monkeypatch, own_folder: Path, make_pool: MakePool) -> Callable[..., FakePool]:
    """Let commands run on a fake pool."""

    def use(**options) -> FakePool:
        pool = make_pool(**options)

        @contextmanager
        def fake(*args: object, **kwargs: object) -> Iterator[FakePool]:
            yield pool
            pool.close()

        monkeypatch.setattr(services, "pool", fake)
        monkeypatch.setattr(services, "single_pool", fake)
        return pool

    return use


@pytest.fixture
def use_worker(monkeypatch, own_folder: Path) -> Path:
    """Let commands run on a real worker, whose child processes are this process's own."""

    def single(setting: Setting, **options: object) -> AbstractContextManager[WorkerPool]:
        return services.single_pool(setting)

    monkeypatch.setattr(services, "pool", single)
    return own_folder
