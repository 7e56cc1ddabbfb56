from __future__ import annotations

import pytest

from thunder_tune.measure.profile_events import (
    CALL,
    PYTHON,
    RANGE,
    Kernel,
    attributed,
    by_kernel,
    by_range,
    call_spans_ms,
    device_work,
    host_work,
)

MAIN, AUTOGRAD = 10, 11


def event(kind, name, begin, duration, thread=MAIN, **args):
    return {
        "ph": "X", "cat": kind, "name": name, "ts": begin, "dur": duration, "tid": thread,
        "args": args,
    }  # fmt: skip


def launched(kernel, at, begin, duration, correlation, *, thread=MAIN, kind="cuda_runtime"):
    """Return a launch on the host and what it starts on the device."""
    return [
        event(kind, "cudaLaunchKernel", at, 5, thread, correlation=correlation),
        event("kernel", kernel, begin, duration, thread="stream 7", correlation=correlation),
    ]


def call_on_device(start, correlation, slow=0):
    """Return one call: kernels of three statements, and a copy outside them."""
    return [
        event("user_annotation", CALL, start, 1000),
        event("gpu_user_annotation", RANGE + "0", start, 600, thread="stream 7"),
        event("user_annotation", f"{RANGE}0", start + 10, 100),
        *launched("gemm", start + 20, start + 200, 300 + slow, correlation),
        *launched("gelu", start + 60, start + 550, 50, correlation + 1),
        event("user_annotation", f"{RANGE}1", start + 120, 100),
        *launched("gemm", start + 130, start + 600, 100, correlation + 2, kind="cuda_driver"),
        # a backward pass on a thread of its own, and a copy outside every statement
        event("user_annotation", f"{RANGE}2", start + 300, 100, AUTOGRAD),
        *launched("triton_poi_0", start + 310, start + 710, 40, correlation + 3, thread=AUTOGRAD),
        event("cuda_runtime", "cudaMemcpyAsync", start + 450, 5, correlation=correlation + 4),
        event("gpu_memcpy", "Memcpy DtoH", start + 760, 10, correlation=correlation + 4),
    ]


EVENTS = [
    *launched("gemm", 5, 20, 70, 1),  # before the first call: the profiler's start
    *call_on_device(1000, 10),
    *call_on_device(3000, 20),
    *call_on_device(5000, 30, slow=90),
    {"ph": "M", "name": "process_name", "args": {"name": "python"}},
    event("ac2g", "ac2g", 1200, 0),
]


def test_kernels_are_gathered_by_name_and_known_by_the_statement_that_launched_them():
    kernels = by_kernel(device_work(EVENTS), 3)
    assert [(k.name, k.times, k.ranges) for k in kernels] == [
        ("gemm", 2, (0, 1)),
        ("gelu", 1, (0,)),
        ("triton_poi_0", 1, (2,)),
        ("Memcpy DtoH", 1, ()),
    ]
    assert [k.ms for k in kernels] == pytest.approx([0.4, 0.05, 0.04, 0.01])  # medians
    assert sum(k.share for k in kernels) == pytest.approx(1.0)


def test_statements_take_what_they_launched():
    assert by_range(device_work(EVENTS), 3) == pytest.approx({0: 0.35, 1: 0.1, 2: 0.04})


def test_the_median_over_an_even_number_of_calls():
    kernels = by_kernel(device_work(EVENTS[: -len(call_on_device(0, 0)) - 2]), 2)
    assert kernels[0].ms == pytest.approx(0.4)


def test_what_a_graph_replays_belongs_to_no_statement_until_it_is_told_by_name():
    replay = [
        event("user_annotation", CALL, 0, 500),
        event("cuda_runtime", "cudaGraphLaunch", 10, 20, correlation=7),
        event("kernel", "gemm", 50, 100, thread="stream 7", correlation=7),
        event("kernel", "copy", 150, 10, thread="stream 7", correlation=7),
    ]
    kernels = by_kernel(device_work(replay), 1)
    assert [(k.name, k.ranges) for k in kernels] == [("gemm", ()), ("copy", ())]
    like = [Kernel(name="gemm", times=2, ms=1.0, share=1.0, ranges=(0, 3))]
    assert [k.ranges for k in attributed(kernels, like=like)] == [(0, 3), ()]


def test_a_kernel_without_a_launch_counts_by_its_own_time():
    orphan = [
        event("user_annotation", CALL, 0, 500),
        event("user_annotation", f"{RANGE}0", 0, 500),
        event("kernel", "gemm", 50, 100, thread="stream 7", correlation=7),
    ]
    (work,) = device_work(orphan)
    assert (work.call, work.range, work.ms) == (0, None, pytest.approx(0.1))


def call_on_host(start):
    return [
        event("user_annotation", CALL, start, 1000),
        event("user_annotation", f"{RANGE}0", start + 100, 500),
        event("cpu_op", "aten::linear", start + 150, 400),
        event("cpu_op", "aten::addmm", start + 200, 300),
        event("user_annotation", f"{RANGE}1", start + 650, 100),
        event("cpu_op", "aten::relu", start + 660, 80),
        event("cpu_op", "aten::empty", start + 800, 50),
    ]


HOST = [event("cpu_op", "aten::relu", 0, 90), *call_on_host(1000), *call_on_host(4000)]


def test_operators_on_a_cpu_have_their_own_time_alone():
    kernels = {k.name: k for k in by_kernel(host_work(HOST), 2)}
    assert kernels["aten::addmm"].ms == pytest.approx(0.3)
    assert kernels["aten::linear"].ms == pytest.approx(0.1)
    assert kernels["aten::relu"].ranges == (1,)
    assert kernels["aten::empty"].ranges == ()
    # 350 outside the operators, 100 and 20 within the statements
    assert kernels[PYTHON].ms == pytest.approx(0.47)
    assert kernels[PYTHON].times == 3
    assert sum(k.ms for k in kernels.values()) == pytest.approx(1.0)


def test_statements_on_a_cpu_take_their_whole_length():
    assert by_range(host_work(HOST), 2) == pytest.approx({0: 0.5, 1: 0.1})


def test_calls_under_the_profiler():
    assert call_spans_ms(HOST) == pytest.approx([1.0, 1.0])
