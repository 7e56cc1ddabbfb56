"""Machines that join, are of another kind, and are lost while a pool works on them."""

from __future__ import annotations

import time

import pytest
import ray

from thunder_tune.errors import WorkerError
from thunder_tune.testing.pool_contract import PATIENCE_S, SETTING, collect, trial
from thunder_tune.testing.scripted_session import DEVICE, HANGS, SCRIPTED_SESSION
from thunder_tune.values.job import Limits, Setting
from thunder_tune.workers import cluster_pool, start_pool


@pytest.fixture
def machine(cluster, ray_pool):
    """Add machines of one CPU slot to the cluster, whose own are taken by the pool."""
    added = []

    def add(**environment):
        added.append(cluster.add_node(num_cpus=1, env_vars=environment))
        return added[-1]

    yield add
    for node in added:
        if node in cluster.worker_nodes:
            cluster.remove_node(node, allow_graceful=False)


def until(holds):
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.02)


@pytest.mark.ray
def test_machines_may_join_differ_and_be_lost(cluster, machine, monkeypatch, caplog):
    monkeypatch.setattr(cluster_pool, "LOOK_S", 0.1)
    first = machine(**{HANGS: "1"})
    pool = start_pool(
        device="cpu",
        workers=2,
        ray_address=cluster.address,
        log_folder="",
        limits=Limits(),
        session=SCRIPTED_SESSION,
    )
    try:
        assert pool.capacity == 1
        pool.submit(trial())
        assert {r.worker for r in collect(pool, 1).values()} == {"worker-0"}

        machine(**{DEVICE: "of another kind"})
        until(lambda: pool.capacity == 2)
        pool.submit(trial())
        until(lambda: pool.capacity == 1 or not pool.submit(trial()))
        assert "device of another kind here, scripted there" in caplog.text
        pool.cancel()
        pool.wait(0.0)

        machine()
        until(lambda: pool.capacity == 2)
        patient = Setting(source=SETTING.source, limits=Limits(compile_s=10 * PATIENCE_S))
        results = {}
        asked = [pool.submit(trial("hang_there", setting=patient)) for _ in range(2)]
        while len(results) < len(asked) - 1:  # the last one waits on the first machine
            found = collect(pool, 1)
            results |= found
            if len(results) == len(asked):
                asked.append(pool.submit(trial("hang_there", setting=patient)))
        cluster.remove_node(first, allow_graceful=False)
        results |= collect(pool, 1)
        assert set(results) == set(asked)
        assert {(r.state, r.worker) for r in results.values()} == {("complete", "worker-2")}
    finally:
        pool.close()


def nodes(*resources):
    return [
        {"NodeID": f"{i}", "Alive": True, "Resources": dict(r)} for i, r in enumerate(resources)
    ]


HEAD = {"memory": 1.0}
H200 = {"GPU": 8, "CPU": 96, "accelerator_type:H200": 1.0}
A100 = {"GPU": 2, "CPU": 24, "accelerator_type:A100": 1.0}


@pytest.mark.parametrize(
    ("found", "device", "workers", "expected"),
    [
        ((HEAD, H200, H200), "cuda", None, (64, 32, 4)),  # count, of one machine, of one GPU
        ((HEAD, H200), "cuda", 2, (10, 10, 5)),
        ((A100,), "cuda", 4, (16, 8, 4)),  # two more are to come
        (({"CPU": 4}, {"CPU": 2}), "cpu", 3, (3, 3, 1)),
        (({"CPU": 4},), "cpu", None, (1, 1, 1)),
        ((), "cpu", 2, (2, 1, 1)),
    ],
)
def test_workers_are_laid_out_on_the_machines_that_have_devices(found, device, workers, expected):
    layout = cluster_pool.cluster_layout(nodes(*found), device, workers)
    assert (layout.count, layout.slots, layout.lanes) == expected


def test_gpus_of_the_type_of_which_there_are_most_are_used(monkeypatch, caplog):
    monkeypatch.setattr(ray, "nodes", lambda: nodes(HEAD, A100, H200, A100))
    assert cluster_pool._accelerator() == "H200"
    assert "the GPUs are of several types: H200 are used, not 4 A100" in caplog.text
    monkeypatch.setattr(ray, "nodes", lambda: nodes(HEAD, A100))
    assert cluster_pool._accelerator() == ""


def test_a_cluster_without_gpus_is_told(monkeypatch):
    monkeypatch.setattr(ray, "nodes", lambda: nodes(HEAD))
    with pytest.raises(WorkerError, match="no machine of the Ray cluster has a GPU: use --device"):
        cluster_pool.start_cluster_pool(
            device="cuda", workers=None, log_folder="", start_s=1.0, session="", owns_ray=False
        )
