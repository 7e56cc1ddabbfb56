from __future__ import annotations

import pytest
import torch
from torch import nn

from thunder_tune.measure.probing import (
    FINITE,
    NAN,
    Buffers,
    Probe,
    copied,
    fixed_randomness,
    share_unwritten,
)
from thunder_tune.measure.steps import Arguments, Outputs

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e4m3fn]
INTEGERS = [torch.uint8, torch.int16, torch.int32, torch.int64]
INPUTS = Arguments((torch.ones(2),))


class Recording:
    """A step that hands out one static buffer and writes to half of it."""

    def __init__(self, dtype):
        self.buffer = torch.zeros(8, dtype=dtype)
        self.before = []

    def __call__(self, inputs):
        self.before.append(self.buffer.clone())
        self.buffer[:4] = 1
        return Outputs((self.buffer,))


def probe_of(step, model=None):
    model = model or nn.Identity()
    return Probe(step, model, Buffers(model), device=torch.device("cpu"))


@pytest.mark.parametrize("dtype", FLOATS)
def test_poison_is_nan_and_finite_numbers(dtype):
    step = Recording(dtype)
    probe = probe_of(step)
    like = Outputs((step.buffer,))
    for poison in (NAN, NAN, FINITE):
        probe.run(INPUTS, like, poison)
    assert step.before[1].double().isnan().all()
    assert step.before[2].double().isfinite().all()


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS])
def test_share_never_written_is_measured(dtype):
    step = Recording(dtype)
    probe = probe_of(step)
    like = Outputs((step.buffer,))
    probe.run(INPUTS, like, NAN)
    first = probe.run(INPUTS, like, NAN)
    second = probe.run(INPUTS, like, FINITE)
    assert share_unwritten(first.tensors[0], second.tensors[0]) == 0.5


def test_booleans_are_left_alone():
    step = Recording(torch.bool)
    probe = probe_of(step)
    like = Outputs((step.buffer,))
    first, second = (probe.run(INPUTS, like, p) for p in (NAN, FINITE))
    assert first.tensors[0].tolist() == [True] * 4 + [False] * 4
    assert share_unwritten(first.tensors[0], second.tensors[0]) == 0.0


def test_inputs_parameters_and_buffers_are_never_filled():
    model = nn.BatchNorm1d(2)
    inputs = Arguments((torch.ones(2),), {"also": [torch.ones(3)]})

    def step(given):
        shared = (given.args[0], given.kwargs["also"][0], model.weight, model.running_mean[:1])
        return Outputs(tuple(t.detach() for t in shared))

    probe = probe_of(step, model)
    for _ in range(3):
        probe.run(inputs, Outputs(()), NAN)
    assert inputs.args[0].tolist() == [1.0, 1.0]
    assert inputs.kwargs["also"][0].tolist() == [1.0] * 3
    assert model.weight.tolist() == [1.0, 1.0]
    assert model.running_mean.tolist() == [0.0, 0.0]


def test_results_are_copies():
    step = Recording(torch.float32)
    probe = probe_of(step)
    first = probe.run(INPUTS, Outputs((step.buffer,)), FINITE)
    step.buffer.fill_(9)
    assert first.tensors[0][0] == 1


def test_results_of_inference_mode_can_be_filled():
    def step(inputs):
        with torch.inference_mode():
            return Outputs((inputs.args[0] * 2,))

    probe = probe_of(step)
    for _ in range(2):
        found = probe.run(INPUTS, Outputs((torch.ones(2),)), NAN)
    assert found.tensors[0].tolist() == [2.0, 2.0]


def test_expanded_results_are_left_alone():
    def step(inputs):
        return Outputs(((inputs.args[0] * 2).expand(3, 2),))

    probe = probe_of(step)
    for _ in range(2):
        found = probe.run(INPUTS, Outputs((torch.ones(3, 2),)), NAN)
    assert found.tensors[0].tolist() == [[2.0, 2.0]] * 3


def test_complex_results_become_pairs():
    found = copied(Outputs((torch.tensor([1 + 2j]).conj(),), (None,)))
    assert found.tensors[0].tolist() == [[1.0, -2.0]]
    assert found.gradients == (None,)


def test_random_state_is_fixed_inside_and_restored_after():
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    draws = []
    for seed in (0, 0, 1):
        with fixed_randomness(seed):
            draws.append(torch.rand(2))
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])
    assert torch.equal(torch.rand(2), expected)


def test_buffers_that_calls_change_are_put_back_in_place():
    model = nn.BatchNorm1d(2).train()
    model.register_buffer("fixed", torch.ones(1))
    buffers = Buffers(model)
    memory = model.running_mean.data_ptr()
    model(torch.randn(4, 2))
    buffers.forget_unchanged()
    model.fixed.fill_(7)  # not changed by calls, so not ours to restore
    buffers.restore()
    assert model.running_mean.tolist() == [0.0, 0.0]
    assert model.num_batches_tracked.item() == 0
    assert model.running_mean.data_ptr() == memory
    assert model.fixed.item() == 7
