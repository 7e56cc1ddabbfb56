"""The device lease: one holder at a time, given back by whoever dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from ast import literal_eval

import pytest

from thunder_tune.errors import WorkerError
from thunder_tune.workers import device_lease, standstill
from thunder_tune.workers.device_lease import DeviceLease


@pytest.fixture
def path(tmp_path, monkeypatch):
    lease = tmp_path / f"{standstill._prefix()}device.lease"
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


def test_a_folder_that_cannot_be_written_is_one_sentence(path, monkeypatch):
    monkeypatch.setattr(os, "getsid", lambda process: os.getpid())
    path.with_suffix(".roster").write_text("in the way")
    with pytest.raises(WorkerError, match=r"^cannot keep the lease .*\.roster: set TMPDIR to a"):
        DeviceLease("cuda")


def test_a_cpu_has_none(monkeypatch):
    monkeypatch.setattr(device_lease, "_path", lambda: pytest.fail("no device to lease"))
    with DeviceLease("cpu").held(lambda: pytest.fail("nothing to wait for")):
        pass


class TestStandingStill:
    """While one measures, the others of its device are stopped."""

    @pytest.fixture
    def worker(self, path, tmp_path, monkeypatch):
        """A process in a session of its own that counts to a file for as long as it runs."""
        monkeypatch.setattr(standstill, "_folder", lambda: tmp_path)
        code = (
            "import pathlib, time; from thunder_tune.workers import device_lease as d; "
            f"p = pathlib.Path({str(path)!r}); d._path = lambda: p; "
            "d.lease_of = lambda device, lease=d.DeviceLease('cuda'): lease\n"
            "from thunder_tune.workers import workbench as w; w.lease_of = d.lease_of\n"
            "clock = w.PhaseClock(lambda progress: None, 'cuda')\n"
            f"file = open({str(tmp_path / 'ticks')!r}, 'w', buffering=1)\n"
            "while True:\n"
            "    with clock.during('compile'): file.write('.'); file.flush(); time.sleep(0.01)\n"
            f"    new = pathlib.Path({str(tmp_path / 'new')!r})\n"
            "    new.write_text(repr((clock.now(), clock.seconds)))\n"
            f"    new.replace({str(tmp_path / 'clock')!r})"
        )
        with subprocess.Popen([sys.executable, "-c", code], start_new_session=True) as process:
            self.ticks = tmp_path / "ticks"
            self.clock = tmp_path / "clock"
            assert self.grows(within_s=60)
            yield process
            process.kill()

    def grows(self, within_s):
        before = self.ticks.stat().st_size if self.ticks.exists() else 0
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            if self.ticks.exists() and self.ticks.stat().st_size > before:
                return True
            time.sleep(0.02)
        return False

    def test_others_stop_and_go_on(self, worker):
        lease = DeviceLease("cuda")
        with lease.held(int), lease.held(int, quietly=True):
            assert self.grows(within_s=10), "who only judges disturbs nobody"
        with lease.held(int, quietly=True):
            time.sleep(0.1)
            assert not self.grows(within_s=0.5)
            standstill.resume_abandoned()
            assert not self.grows(within_s=0.5), "the holder lives"
        assert self.grows(within_s=10)

    def test_others_go_on_when_the_holder_is_killed(self, worker, path):
        code = (
            "import time, pathlib; from thunder_tune.workers import device_lease as d; "
            f"p = pathlib.Path({str(path)!r}); d._path = lambda: p; "
            "h = d.DeviceLease('cuda').held(int, quietly=True); h.__enter__(); "
            "print('held', flush=True); time.sleep(600)"
        )
        with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as holder:
            try:
                assert holder.stdout.readline() == b"held\n"
                time.sleep(0.1)
                assert not self.grows(within_s=0.3)
            finally:
                holder.kill()
        assert not self.grows(within_s=0.3)
        standstill.resume_abandoned()
        assert self.grows(within_s=10)

    def test_who_stands_still_counts_it_as_a_wait(self, worker):
        begins = time.perf_counter()
        with DeviceLease("cuda").held(int, quietly=True):
            time.sleep(1.0)
        ends = time.perf_counter()
        assert self.grows(within_s=10)
        assert self.grows(within_s=10)
        now, seconds = literal_eval(self.clock.read_text())
        assert 1.0 <= seconds["wait"] <= ends - begins
        assert now <= time.perf_counter() - seconds["wait"]

    def test_a_number_that_is_another_processs_here_is_left_alone(self, worker, path):
        (signed,) = path.with_suffix(".roster").iterdir()
        signed.rename(signed.with_name(f"{worker.pid}-1"))  # as if it began at another moment
        with DeviceLease("cuda").held(int, quietly=True):
            assert self.grows(within_s=10)

    def test_the_dead_leave_the_roster(self, worker, path):
        roster = standstill.roster_of(path)
        assert list(roster._living()) == [worker.pid]
        worker.kill()
        worker.wait()
        assert roster._living() == {}

    def test_who_is_not_the_first_of_its_session_does_not_sign(self, path, monkeypatch):
        monkeypatch.setattr(os, "getsid", lambda process: os.getppid())
        DeviceLease("cuda")
        assert standstill.roster_of(path)._living() == {}
