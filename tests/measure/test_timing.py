from __future__ import annotations

import gc
import itertools
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from thunder_tune.errors import InputError
from thunder_tune.measure import timing
from thunder_tune.measure.device_watch import DeviceWatch, has_changed, is_shared
from thunder_tune.measure.statistics import median_interval
from thunder_tune.measure.steps import Arguments, Outputs, forward_step
from thunder_tune.measure.timing import rotation, time_block, time_step, warm_up
from thunder_tune.values.job import TimingRequest

INPUTS = [Arguments((torch.full((2,), float(i)),)) for i in range(3)]


class Clock:
    """Stands in for the `time` module; a step moves it."""

    def __init__(self):
        self.now_ns = 0

    def perf_counter_ns(self):
        return self.now_ns

    def perf_counter(self):
        return self.now_ns / 1e9


class Host:
    """Stands in for the host's pace; notes how many calls were made when it was taken."""

    def __init__(self):
        self.seen, self.calls, self.found = [], [], ()

    def observe(self):
        self.seen.append(len(self.calls))

    def marks(self):
        return self.found


@pytest.fixture
def clock(monkeypatch, host):
    fake = Clock()
    monkeypatch.setattr(timing, "time", fake)
    return fake


@pytest.fixture
def host(monkeypatch):
    fake = Host()
    monkeypatch.setattr(timing, "HostWatch", lambda: fake)
    return fake


def step_of(clock, seconds, seen=None):
    costs = iter(seconds)

    def step(inputs):
        if seen is not None:
            seen.append(inputs.args[0][0].item())
        clock.now_ns += round(next(costs) * 1e9)
        return Outputs((inputs.args[0],))

    return step


def steady(clock, seconds=0.001, seen=None):
    return step_of(clock, itertools.repeat(seconds), seen)


def request(**changes):
    return TimingRequest(**changes)


def test_samples_are_milliseconds_of_single_calls(clock):
    found = time_step(steady(clock, 0.004), INPUTS, device="cpu", request=request())
    assert set(found.samples_ms) == {4.0}
    assert found.latency_ms == 4.0
    assert found.ci95_ms == (4.0, 4.0)
    assert (found.clock, found.host_ms, found.marks) == ("host", None, ())


def test_stops_as_soon_as_the_interval_is_narrow(clock):
    found = time_step(steady(clock), INPUTS, device="cpu", request=request(min_repeats=10))
    assert 10 <= len(found.samples_ms) <= 120
    low, high = found.ci95_ms
    assert (high - low) / 2 <= 0.005 * found.latency_ms


def test_goes_on_while_the_interval_is_wide_and_stops_in_time(clock):
    noisy = step_of(clock, itertools.cycle([0.010, 0.016]))
    asked = request(precision=1e-6, max_s=2.0)
    found = time_step(noisy, INPUTS, device="cpu", request=asked)
    assert 2.0 <= sum(found.samples_ms) / 1e3 <= 2.2
    assert found.ci95_ms == median_interval(found.samples_ms)


def test_more_precision_takes_more_calls(clock):
    def calls(precision):
        costs = (0.010 + 0.001 * ((k * 7919) % 101) / 101 for k in itertools.count())
        asked = request(precision=precision, max_s=20.0)
        found = time_step(step_of(clock, costs), INPUTS, device="cpu", request=asked)
        return len(found.samples_ms)

    assert calls(0.02) <= calls(0.005) < calls(0.001)


def test_slow_calls_are_timed_three_times_at_least(clock):
    asked = request(min_repeats=10, max_s=5.0)
    found = time_step(steady(clock, 30.0), INPUTS, device="cpu", request=asked)
    assert len(found.samples_ms) == 3
    assert found.warmup_calls == 1


def test_inputs_rotate(clock):
    seen = []
    time_step(steady(clock, seen=seen), INPUTS, device="cpu", request=request())
    assert seen[:7] == [0.0, 1.0, 2.0, 0.0, 1.0, 2.0, 0.0]
    assert all(a != b for a, b in itertools.pairwise(seen))


def test_warm_up_goes_on_while_calls_become_faster(clock):
    falling = [0.1 * 0.9**k for k in range(40)]
    calls = warm_up(step_of(clock, [*falling, *[0.001] * 100]), INPUTS, device="cpu", max_s=100.0)
    assert 45 <= calls <= 60


def test_warm_up_of_a_steady_program_is_short(clock):
    assert warm_up(steady(clock, 0.01), INPUTS, device="cpu") == 10


def test_warm_up_goes_on_for_the_clock_where_asked(clock):
    assert warm_up(steady(clock, 0.001), INPUTS, device="cpu") == 20
    assert warm_up(steady(clock, 0.001), INPUTS, device="cpu", raises_clock=False) == 10


@pytest.mark.parametrize(
    ("limits", "calls"), [({"max_calls": 4}, 4), ({"max_s": 0.35}, 4), ({"max_s": 0.0}, 1)]
)
def test_warm_up_is_bounded(clock, limits, calls):
    falling = step_of(clock, (0.1 * 0.99**k for k in itertools.count()))
    assert warm_up(falling, INPUTS, device="cpu", **limits) == calls


def test_warm_up_is_counted_and_not_sampled(clock):
    costs = itertools.chain([5.0] * 1, itertools.repeat(0.001))
    asked = request(max_s=20.0)
    found = time_step(step_of(clock, costs), INPUTS, device="cpu", request=asked)
    assert found.warmup_calls >= 10
    assert max(found.samples_ms) == 1.0


def test_pace_of_the_host_is_taken_around_batches_and_a_call_after_it_is_not_timed(clock, host):
    host.found = ("host-busy",)
    noisy = step_of(clock, itertools.cycle([0.010, 0.016]), host.calls)
    asked = request(precision=1e-6, max_s=2.0)
    found = time_step(noisy, INPUTS, device="cpu", request=asked)
    assert found.marks == ("host-busy",)
    assert host.seen[0] == found.warmup_calls
    assert host.seen[-1] == len(host.calls)
    between = host.seen[1:-1]
    assert 3 <= len(between) <= 4
    untimed = 1 + len(between)
    assert len(found.samples_ms) == len(host.calls) - found.warmup_calls - untimed


def test_block_has_one_untimed_call_before(clock):
    costs = itertools.chain([9.0], itertools.repeat(0.002))
    seen = []
    samples = time_block(step_of(clock, costs, seen), INPUTS, device="cpu", calls=70)
    assert samples == (2.0,) * 70
    assert len(seen) == 71


def test_block_leads_in_for_the_seconds_asked(clock):
    seen = []
    costs = itertools.chain([0.1] * 3, itertools.repeat(0.05))
    samples = time_block(step_of(clock, costs, seen), INPUTS, device="cpu", calls=4, lead_in_s=0.3)
    assert samples == (50.0,) * 4  # the clock that the program settles at
    assert len(seen) == 3 + 4


def test_collector_is_off_while_timing_and_back_on_after(clock):
    states = []
    inner = steady(clock)

    def step(inputs):
        states.append(gc.isenabled())
        return inner(inputs)

    time_step(step, INPUTS, device="cpu", request=request())
    time_block(step, INPUTS, device="cpu", calls=3)
    assert not any(states)
    assert gc.isenabled()


def test_collector_stays_off_where_it_was_off(clock):
    gc.disable()
    try:
        time_block(steady(clock), INPUTS, device="cpu", calls=3)
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_collector_is_back_on_after_a_step_that_raises():
    def broken(inputs):
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        time_block(broken, INPUTS, device="cpu", calls=3)
    assert gc.isenabled()


def test_result_is_held_until_its_call_is_recorded(clock):
    alive = []

    class Watched:
        def __del__(self):
            alive.append(clock.now_ns)

    def step(inputs):
        clock.now_ns += 1_000_000
        return SimpleNamespace(tensors=(Watched(),))

    samples = time_block(step, INPUTS, device="cpu", calls=3)
    assert samples == (1.0, 1.0, 1.0)
    assert alive == [1_000_000, 2_000_000, 3_000_000, 4_000_000]


def test_a_real_model_is_timed():
    model = torch.nn.Linear(2, 2)
    asked = request(max_s=0.2)
    found = time_step(forward_step(model), INPUTS, device="cpu", request=asked)
    assert min(found.samples_ms) > 0
    assert found.ci95_ms[0] <= found.latency_ms <= found.ci95_ms[1]


@pytest.mark.parametrize(
    "call",
    [
        lambda: time_step(None, [], device="cpu", request=request()),
        lambda: time_block(None, [], device="cpu", calls=1),
        lambda: warm_up(None, [], device="cpu"),
        lambda: rotation([], device="cpu"),
    ],
)
def test_no_inputs_are_refused(call):
    with pytest.raises(InputError, match="no inputs to time with"):
        call()


def test_block_of_no_calls_is_refused():
    with pytest.raises(InputError, match="calls 0: a block needs at least 1"):
        time_block(None, INPUTS, device="cpu", calls=0)


def test_rotation_on_a_cpu_is_what_was_given():
    assert rotation(INPUTS, device="cpu") == tuple(INPUTS)


# What disturbs a GPU


@pytest.mark.parametrize(
    ("clocks", "changed"),
    [([], False), ([1980], False), ([1980, 1900], False), ([1980, 1700, 1980], True)],
)
def test_clock_that_moved_is_noticed(clocks, changed):
    assert has_changed(clocks) == changed


@pytest.mark.parametrize(
    ("processes", "shared"),
    [([], False), ([7], False), ([7, 8], True), ([4711], False), ([4711, 4712], True)],
)
def test_other_processes_are_noticed_also_from_a_container(processes, shared):
    assert is_shared(processes, own=7) == shared


def test_watch_on_a_cpu_notes_nothing():
    watch = DeviceWatch(torch.device("cpu"))
    watch.observe()
    assert watch.marks() == ()


# On a device


def cuda_inputs():
    return [Arguments((torch.full((64, 256), float(i), device="cuda"),)) for i in range(3)]


@pytest.mark.gpu
def test_device_time_of_known_work():
    """Writing a known number of bytes takes their share of the memory's bandwidth, no less."""
    big = torch.empty(2**28, dtype=torch.uint8, device="cuda")

    def step(inputs):
        big.zero_()
        return Outputs((big,))

    found = time_step(step, cuda_inputs(), device="cuda", request=request(max_s=2.0))
    assert found.clock == "device"
    assert found.host_ms is not None
    assert found.host_ms < found.latency_ms
    assert 2**28 / found.latency_ms * 1e3 < 2e13


@pytest.mark.gpu
def test_rotation_on_a_device_exceeds_its_cache():
    large = [Arguments((torch.zeros(2**23, device="cuda"),)) for _ in range(2)]
    sets = rotation(large, device="cuda")
    size = torch.cuda.get_device_properties(0).L2_cache_size
    assert sum(i.args[0].nbytes for i in sets) >= 2 * size
    assert len({i.args[0].data_ptr() for i in sets}) == len(sets)


@pytest.mark.gpu
def test_block_on_a_device():
    model = torch.nn.Linear(256, 256, device="cuda")
    samples = time_block(forward_step(model), cuda_inputs(), device="cuda", calls=40)
    assert len(samples) == 40
    assert min(samples) > 0


@pytest.mark.gpu
def test_watch_reads_the_device():
    watch = DeviceWatch(torch.device("cuda"))
    watch.observe()
    assert set(watch.marks()) <= {"clock-changed", "throttled", "power-capped", "device-shared"}
    assert watch.temperature_c is not None


@pytest.mark.gpu
def test_another_process_on_the_device_is_marked():
    code = (
        "import torch; x = torch.ones(2**20, device='cuda'); torch.cuda.synchronize(); "
        "print('there', flush=True); input()"
    )
    model = torch.nn.Linear(256, 256, device="cuda")
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout.readline() == "there\n"
        found = time_step(forward_step(model), cuda_inputs(), device="cuda", request=request())
        other.stdin.write("\n")
        other.stdin.flush()
    assert "device-shared" in found.marks
