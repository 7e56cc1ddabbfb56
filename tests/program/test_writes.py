"""Changes in place give what eager mode gives: results, gradients, inputs and buffers."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from thunder_tune.compiler import build
from thunder_tune.program import capture
from thunder_tune.values.plan import resolve

WIDTH = 4


class Model(nn.Module):
    """Applies a function of itself and its input."""

    def __init__(self, function):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.function = function

    def forward(self, x):
        return self.function(self, x)


def views_before_and_after(model, x):
    y = model.linear(x)
    left = y[:, :2]
    left.mul_(2)
    y[:, 0] = 3.0
    y += 1
    z = F.leaky_relu(y, 0.1, True)
    return y.view(-1) + z.reshape(-1) * 2


def transposed_and_reshaped(model, x):
    y = model.linear(x)
    view = y.t().unsqueeze(0).permute(1, 0, 2)
    flat = y.view(-1)
    view.mul_(3)
    return flat * 2, view, y


def parts_of_a_tensor(model, x):
    y = torch.zeros_like(x)
    y[:, 1:3] = model.linear(x)[:, :2]
    y.select(1, 0).fill_(2.0)
    y.narrow(0, 0, 1).zero_()
    y[x > 1] = 0.0
    y[torch.tensor([0, 1])] += 1
    return y * x


def functions_in_place(model, x):
    y = model.linear(x)
    y.masked_fill_(x > 0, -1.0).mul_(2)
    return torch.relu_(y)


def an_input(model, x):
    x.add_(1)
    x[0].mul_(2)
    return model.linear(x)


def buffers(model, x):
    model.calls.add_(1)
    y = model.linear(x)
    model.mean.mul_(0.9).add_(y.detach().mean(0), alpha=0.1)
    return y * model.calls - model.mean


def buffer_copied_into(model, x):
    model.mean.copy_(x[0])
    return model.linear(x) + model.mean


def running_statistics(model, x):
    return F.batch_norm(model.linear(x), model.mean, model.mean + 1, training=True)


def python_operators(model, x):
    mask = (x > 0) & (x < 1)
    mask |= x < -1
    return model.linear(x) * mask


WRITERS = (
    views_before_and_after,
    transposed_and_reshaped,
    parts_of_a_tensor,
    functions_in_place,
    an_input,
    buffers,
    buffer_copied_into,
    running_statistics,
    python_operators,
)


def captured(model, x, *, training):
    """Capture a model and leave it and the input as they were."""
    state = copy.deepcopy(model.state_dict())
    found = capture(model, (x.clone(),), {}, front_end="dynamo", training=training)
    model.load_state_dict(state)
    return found


@pytest.mark.parametrize("function", WRITERS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
def test_writes_are_seen_by_whoever_shares_the_memory(function, training):
    model, x = Model(function), torch.randn(3, WIDTH, generator=torch.Generator().manual_seed(1))
    eager = copy.deepcopy(model)
    found = captured(model, x, training=training)
    assert found.program.front_end == "dynamo", found.program.reason
    built = build(model, resolve(found.program, {}), found)
    ours, theirs = x.clone(), x.clone()
    with torch.set_grad_enabled(training):
        got, wanted = built(ours), eager(theirs)
    torch.testing.assert_close(got, wanted)
    torch.testing.assert_close(ours, theirs)
    for buffer, expected in zip(model.buffers(), eager.buffers(), strict=True):
        torch.testing.assert_close(buffer, expected)
    assert built.applied == 1.0
    if training:
        gradients = [
            torch.autograd.grad(
                sum(t.square().sum() for t in torch.utils._pytree.tree_leaves(result)),
                list(m.parameters()),
            )
            for result, m in ((got, model), (wanted, eager))
        ]
        torch.testing.assert_close(*gradients)


def test_parts_of_chunks_are_written_to_in_inference():
    def function(model, x):
        y = x * 1
        first, second = y.chunk(2, -1)
        first.add_(1)
        second.zero_()
        return model.linear(y), first

    model, x = Model(function), torch.randn(3, WIDTH)
    found = captured(model, x, training=False)
    with torch.no_grad():
        torch.testing.assert_close(build(model, resolve(found.program, {}), found)(x), model(x))


def test_an_unknown_view_is_refused_by_name_file_and_line():
    def function(model, x):
        y = model.linear(x)
        y.diagonal().add_(1.0)
        return y

    program = captured(Model(function), torch.ones(WIDTH, WIDTH), training=False).program
    assert not program.is_captured
    assert "in-place change of a view (diagonal) by add_" in program.reason
    assert "test_writes.py" in program.reason


def test_a_write_that_autograd_does_not_see_is_refused():
    def function(model, x):
        y = model.linear(x)
        y.detach().mul_(2)
        return y

    model, x = Model(function), torch.ones(3, WIDTH)
    program = captured(model, x, training=True).program
    assert not program.is_captured
    assert "hidden from autograd" in program.reason
    found = captured(model, x, training=False)
    with torch.no_grad():
        torch.testing.assert_close(build(model, resolve(found.program, {}), found)(x), model(x))


def test_an_operator_of_the_dispatcher_writes_too():
    def model(x):
        y = x * 2
        torch.ops.aten.add_.Tensor(y, torch.ones_like(y))
        return y

    x = torch.randn(3, 4)
    with torch.no_grad():
        found = capture(model, (x,), {}, front_end="dynamo")
        torch.testing.assert_close(build(model, resolve(found.program, {}), found)(x), model(x))


def test_a_write_to_several_tensors_is_refused_by_name():
    def model(x):
        y = x * 2
        torch._foreach_add_([y], 1.0)
        return y

    with torch.no_grad():
        found = capture(model, (torch.randn(3, 4),), {}, front_end="dynamo")
    assert not found.program.is_captured
    assert "in-place change of several tensors by _foreach_add_" in found.program.reason
