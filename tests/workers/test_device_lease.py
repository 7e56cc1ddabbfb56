"""The device lease: one holder at a time, given back by whoever dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

from thunder_tune.workers import device_lease
from thunder_tune.workers.device_lease import DeviceLease


@pytest.fixture
def path(tmp_path, monkeypatch):
    lease = tmp_path / "device.lease"
    monkeypatch.setattr(device_lease, "_path", lambda: lease)
    before = os.sched_getaffinity(0)
    yield lease
    os.sched_setaffinity(0, before)


def test_a_second_process_waits_and_says_so(path):
    first, second = DeviceLease("cuda"), DeviceLease("cuda")
    waits, released = threading.Event(), threading.Event()
    order = []

    def other():
        with second.held(waits.set):
            order.append(("second", released.is_set()))

    with first.held(lambda: pytest.fail("nobody else holds it")):
        thread = threading.Thread(target=other)
        thread.start()
        assert waits.wait(10)
        order.append(("first", released.is_set()))
        released.set()
    thread.join(10)
    assert order == [("first", False), ("second", True)]


def test_it_is_reentrant_and_released_after_a_fault(path):
    lease = DeviceLease("cuda")
    with pytest.raises(ValueError, match="inside"), lease.held(int), lease.held(int):
        raise ValueError("inside")
    with DeviceLease("cuda").held(lambda: pytest.fail("it was not given back")):
        pass


def test_a_holder_that_is_killed_gives_it_back(path):
    code = (
        "import sys, time, pathlib; from thunder_tune.workers import device_lease as d; "
        f"d._path = lambda: pathlib.Path({str(path)!r}); "
        "lease = d.DeviceLease('cuda'); h = lease.held(int); h.__enter__(); "
        "print('held', flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"held\n"
        waited = []
        threading.Timer(0.2, holder.send_signal, (signal.SIGKILL,)).start()
        with DeviceLease("cuda").held(lambda: waited.append(True)):
            assert waited == [True]


def test_the_holder_gets_cores_of_its_own_on_a_large_machine(path, monkeypatch):
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        cores = [cores[0], cores[0]]
    monkeypatch.setattr(device_lease, "_CORES_TO_SHARE", 2)
    monkeypatch.setattr(device_lease, "_RESERVED_CORES", 1)
    lease = DeviceLease("cuda")
    assert os.sched_getaffinity(0) == set(cores[1:])
    with lease.held(int):
        assert os.sched_getaffinity(0) == {cores[0]}
    assert os.sched_getaffinity(0) == set(cores[1:])


def test_a_cpu_has_none(monkeypatch):
    monkeypatch.setattr(device_lease, "_path", lambda: pytest.fail("no device to lease"))
    with DeviceLease("cpu").held(lambda: pytest.fail("nothing to wait for")):
        pass
