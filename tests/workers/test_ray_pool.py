from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import ray

import thunder_tune
from thunder_tune.errors import InputError, WorkerError
from thunder_tune.testing.pool_contract import (
    PATIENCE_S,
    SETTING,
    WorkerPoolContract,
    collect,
    run,
    trial,
)
from thunder_tune.values.job import Limits, Setting
from thunder_tune.workers import start_pool

pytestmark = pytest.mark.ray


class TestRayPool(WorkerPoolContract):
    @pytest.fixture(scope="class")
    def pool(self, ray_pool):
        return ray_pool


def test_jobs_run_side_by_side(ray_pool):
    assert ray_pool.capacity == 2
    for _ in range(2):
        ray_pool.submit(trial("hang"))
    results = collect(ray_pool, 2).values()
    assert {r.worker for r in results} == {"worker-0", "worker-1"}


def test_a_job_whose_worker_dies_is_tried_again_elsewhere(ray_pool, capfd):
    ray_pool.cancel()  # leaves no idle child that could be taken for the busy one
    patient = Setting(source=SETTING.source, limits=Limits(compile_s=8.0))
    ticket = ray_pool.submit(trial("hang", setting=patient))
    os.kill(_busy_actor(), signal.SIGKILL)
    result = collect(ray_pool, 1)[ticket]
    assert result.failure is not None
    assert result.failure.kind == "timeout"  # the second attempt ran into its limit
    assert capfd.readouterr() == ("", "")


def test_a_job_whose_worker_dies_twice_is_lost(ray_pool):
    ray_pool.cancel()
    patient = Setting(source=SETTING.source, limits=Limits(compile_s=10 * PATIENCE_S))
    ticket = ray_pool.submit(trial("hang", setting=patient))
    first = _busy_actor()
    os.kill(first, signal.SIGKILL)
    os.kill(_busy_actor(other_than=first), signal.SIGKILL)
    result = collect(ray_pool, 1)[ticket]
    assert result.failure is not None
    assert result.failure.kind == "worker-lost"
    assert run(ray_pool, trial()).state == "complete"


def test_children_compute_with_as_many_threads_as_without_ray(ray_pool):
    run(ray_pool, trial())
    ours = psutil.Process().children(recursive=True)  # others may run such children too
    child = next(p for p in ours if _is_child(p))
    share = str(max(1, (os.cpu_count() or 1) // 2))
    assert child.environ()["OMP_NUM_THREADS"] == os.environ.get("OMP_NUM_THREADS", share)


def test_a_second_pool_shares_ray_and_leaves_it_running(ray_pool):
    with pytest.raises(WorkerError, match="sees no GPU: use --device cpu"):
        start_pool(device="cuda", workers=1, ray_address=None, log_folder="", limits=Limits())
    assert ray.is_initialized()
    assert run(ray_pool, trial()).state == "complete"


def test_more_slots_than_cores_are_refused(monkeypatch):
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    with pytest.raises(InputError, match=r"^workers 5: this machine has 4 cores: use at most 4$"):
        start_pool(device="cpu", workers=5, ray_address=None, log_folder="", limits=Limits())


def test_an_actor_that_finds_no_slot_is_an_error(ray_pool):
    with pytest.raises(WorkerError, match="Ray has no free device"):
        start_pool(
            device="cpu", workers=1, ray_address=None, log_folder="", limits=Limits(start_s=1.0)
        )


class TestOwnProcess:
    @pytest.fixture
    def driver(self, tmp_path, interruptible):
        environment = {
            **os.environ,
            "PYTHONPATH": str(Path(thunder_tune.__file__).parent.parent),
            "RAY_ADDRESS": "192.0.2.1:6379",  # a cluster that does not exist
        }
        process = subprocess.Popen(
            [sys.executable, "-m", "thunder_tune.testing.ray_driver", str(tmp_path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            env=environment,
            start_new_session=True,
        )
        yield process
        process.kill()
        process.communicate()

    def test_ctrl_c_spares_the_children_and_close_leaves_nothing(self, driver):
        assert driver.stdout.readline() == "ready\n"
        family = psutil.Process(driver.pid).children(recursive=True)
        os.killpg(driver.pid, signal.SIGINT)
        output, errors = driver.communicate(timeout=PATIENCE_S)
        assert (output, errors) == ("running complete\n", "")
        assert not _alive(family)

    def test_a_controller_killed_at_once_takes_its_children_along(self, driver):
        assert driver.stdout.readline() == "ready\n"
        actor = psutil.Process(_busy_actor(driver.pid))
        ours = [actor, *actor.children(recursive=True)]
        driver.kill()
        psutil.wait_procs(ours, timeout=PATIENCE_S)
        assert not _alive(ours)


def _busy_actor(controller: int | None = None, *, other_than: int = 0) -> int:
    """Wait for a child to run below a controller, this process by default; return its actor."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        for process in psutil.Process(controller).children(recursive=True):
            try:
                parent = process.parent() if _is_child(process) else None
                # A killed actor's child is Ray's own for a moment, before it dies too.
                if parent and parent.pid != other_than and "ray::" in parent.cmdline()[0]:
                    return parent.pid
            except (psutil.Error, IndexError):
                continue
    raise AssertionError("no actor is at work")


def _is_child(process: psutil.Process) -> bool:
    try:
        return "thunder_tune.workers.trial_process" in process.cmdline()
    except psutil.Error:
        return False


def _alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    return [p for p in processes if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
