from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from thunder_tune.errors import ModelError
from thunder_tune.workers.failures import classify, group_of, is_sticky


def caught(error: BaseException) -> BaseException:
    try:
        raise error
    except type(error) as same:
        return same


@pytest.mark.parametrize(
    ("phase", "kind"),
    [
        ("load", "model"),
        ("capture", "capture"),
        ("compile", "compile"),
        ("check", "run"),
        ("time", "run"),
    ],
)
def test_an_ordinary_error_has_the_kind_of_its_phase(phase, kind):
    failure = classify(caught(ValueError("first line\nsecond line")), phase)
    assert (failure.kind, failure.phase) == (kind, phase)
    assert failure.message.startswith("ValueError: first line (test_failures.py:")


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 4 bytes"),
    ],
)
def test_memory_errors_are_recognised_in_every_phase(error):
    assert classify(caught(error), "time").kind == "out-of-memory"


def test_a_sticky_fault_of_the_device_is_a_crash():
    for text in ("an illegal memory access was encountered", "device-side assert triggered"):
        error = RuntimeError(f"CUDA error: {text}")
        assert is_sticky(error)
        assert classify(caught(error), "compile").kind == "crash"


def test_an_ordinary_cuda_error_leaves_the_process_usable():
    error = RuntimeError(
        "CUDA error: operation not permitted when stream is capturing\n"
        "CUDA kernel errors might be asynchronously reported at some other API call\n"
        "Device-side assertions were explicitly omitted for this error check"
    )
    assert not is_sticky(error)
    assert classify(caught(error), "compile").kind == "compile"


def test_inputs_on_another_device_are_the_models_fault_only_when_it_runs_as_it_is():
    error = caught(RuntimeError("Expected all tensors to be on the same device, but found cpu"))
    own = classify(error, "check", of_model=True)
    assert own.kind == "model"
    assert own.message.startswith("the inputs are not on the model's device: ")
    assert classify(error, "compile").kind == "compile"


def test_a_sentence_of_our_own_stays_as_it_is():
    assert classify(caught(ModelError("a whole sentence")), "load").message == "a whole sentence"


def test_a_line_that_ends_in_a_colon_is_followed_by_the_next():
    error = caught(
        RuntimeError("backend='inductor' raised:\nLoweringException:\n  no rule\n\nmore")
    )
    failure = classify(error, "compile")
    said = "RuntimeError: backend='inductor' raised: LoweringException: no rule"
    assert failure.message.startswith(said + " (")
    assert failure.group == said


def test_the_models_own_line_is_named_where_dynamo_tells_it():
    text = 'Unsupported: a construct\n\nfrom user code:\n  File "/a/b/net.py", line 12, in forward'
    assert classify(caught(RuntimeError(text)), "compile").message.endswith("(net.py:12)")


@given(st.integers(0, 10**9), st.integers(0, 10**9))
def test_numbers_do_not_divide_a_group(one, other):
    assert group_of(f"t{one} at 0x{one:x}") == group_of(f"t{other} at 0x{other:x}")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("no file /tmp/tmpk3j_9xq1/a.so", "no file /home/me/.cache/x1/a.so"),
        ("cannot write '/tmp/tmpk3j_9xq1'", "cannot write '/var/tmp/tmpabcdefgh'"),
        ("<object object at 0x7f00a1>", "<object object at 0x7fec>"),
        ("process 17 of job 3e1b9c7a-0d52-4c1f-9a55-1c5be2d0a9ff", "process 9 of job 3"),
        ("no cabq2kq7lmn4ztdx5e.py", "no cxyz7ffqlmn4ztdxaa.py"),
        ("Tried to allocate 2.00 GiB of 139.80 GiB", "Tried to allocate 20.5 MiB of 80 GiB"),
        ("took longer than 900 s", "took longer than 1e+03 s"),
        ("index -1 is out of range", "index 31 is out of range"),
    ],
)
def test_what_differs_by_chance_does_not_divide_a_group(one, other):
    assert group_of(one) == group_of(other)


def test_products_and_ranges_stay_what_they_are():
    assert group_of("aten::add and torch/nn/x.py, 3-4") == "aten::add and torch/nn/x.py, N-N"


def test_an_exception_without_a_text_is_classified():
    class Silent(Exception):
        def __str__(self):
            raise RuntimeError

    failure = classify(caught(Silent()), "compile")
    assert failure.message.startswith("Silent: (its text could not be had: RuntimeError)")
    assert not is_sticky(Silent())


def test_odd_characters_become_escapes():
    failure = classify(caught(ValueError("a\0b \udcff \x1b[31m é")), "compile")
    assert failure.message.startswith(r"ValueError: a\x00b \udcff \x1b[31m é")


def test_other_words_do_divide_a_group():
    assert group_of("shape mismatch") != group_of("dtype mismatch")
