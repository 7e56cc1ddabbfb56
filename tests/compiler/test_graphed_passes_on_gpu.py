"""Training under CUDA graphs on a device, beside eager mode."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from thunder_tune.compiler import build
from thunder_tune.program import capture
from thunder_tune.testing.small_models import TinyTransformer
from thunder_tune.values.plan import resolve

pytestmark = pytest.mark.gpu


class _Twins:
    """A model under CUDA graphs and its twin in eager mode."""

    def __init__(self, model, example, target="inductor"):
        torch.manual_seed(0)
        self.eager = copy.deepcopy(model)
        self.model = model
        state = copy.deepcopy(model.state_dict())
        found = capture(model, (example,), {}, training=True)
        model.load_state_dict(state)
        assignment = {
            ("executor:" if c.is_anchor else "fuser:") + c.id: target
            for c in found.program.classes
        }
        plan = resolve(found.program, {**assignment, "cuda_graphs": "whole"})
        self.call = build(model, plan, found)

    @property
    def both(self):
        return (self.model, self.call), (self.eager, self.eager)

    def assert_same_gradients(self):
        pairs = zip(self.model.named_parameters(), self.eager.parameters(), strict=True)
        for (name, p), q in pairs:
            torch.testing.assert_close(
                p.grad, q.grad, rtol=2e-3, atol=2e-4, msg=lambda m, n=name: f"{n}: {m}"
            )


def inputs(count):
    generator = torch.Generator("cuda").manual_seed(1)
    return [torch.randn(4, 16, 64, device="cuda", generator=generator) for _ in range(count)]


@pytest.fixture(params=["torch", "inductor"])
def twins(request):
    torch.manual_seed(0)
    model = TinyTransformer(width=64, heads=2, depth=1).cuda()
    return _Twins(model, inputs(1)[0], request.param)


def loss(y):
    return y.square().mean()


@pytest.mark.parametrize("set_to_none", [True, False])
def test_steps_of_an_optimizer(twins, set_to_none):
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model, _ in twins.both]
    for x in inputs(5):
        for (_, call), optimizer in zip(twins.both, optimizers, strict=True):
            optimizer.zero_grad(set_to_none=set_to_none)
            loss(call(x)).backward()
            optimizer.step()
        twins.assert_same_gradients()


def test_gradients_accumulate(twins):
    for step in range(3):
        for model, call in twins.both:
            model.zero_grad()
            for x in inputs(2 + step):
                loss(call(x)).backward()
        twins.assert_same_gradients()


def test_two_forwards_then_two_backwards(twins):
    one, other = inputs(2)
    for _ in range(2):
        for model, call in twins.both:
            model.zero_grad()
            values = [loss(call(one)), loss(call(other))]
            for value in reversed(values):
                value.backward()
        twins.assert_same_gradients()


def test_an_earlier_result_and_gradient_stay_as_they_were(twins):
    one, other = inputs(2)
    parameters = list(twins.model.parameters())
    result = twins.call(one)
    gradients = torch.autograd.grad(loss(result), parameters)
    kept = [t.clone() for t in (result, *gradients)]
    again = torch.autograd.grad(loss(twins.call(other)), parameters)
    for tensor, value in zip((result, *gradients), kept, strict=True):
        assert torch.equal(tensor, value)
    assert not torch.equal(again[0], gradients[0])


def test_a_retained_graph(twins):
    (x,) = inputs(1)
    for _, call in twins.both:
        value = loss(call(x))
        value.backward(retain_graph=True)
        value.backward()
    twins.assert_same_gradients()


def test_a_parameter_with_other_memory(twins):
    one, other = inputs(2)
    for model, call in twins.both:
        loss(call(one)).backward()
        model.zero_grad()
        for parameter in model.parameters():
            parameter.data = parameter.data * 1.5
        loss(call(other)).backward()
    twins.assert_same_gradients()


def test_memory_outlives_the_program(twins):
    (x,) = inputs(1)
    loss(twins.call(x)).backward()
    loss(twins.eager(x)).backward()
    twins.call.close()
    torch.cuda.empty_cache()
    torch.randn(2**20, device="cuda")
    twins.assert_same_gradients()


def test_dropout_draws_anew_and_the_gradient_knows_what():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.5)).cuda()
    twins = _Twins(model, inputs(1)[0])
    (x,) = inputs(1)
    masks = []
    for _ in range(3):
        x.requires_grad_(False)
        model.zero_grad()
        y = twins.call(x)
        y.sum().backward()
        mask = (y != 0).float() * 2
        torch.testing.assert_close(model[0].bias.grad, mask.sum((0, 1)), rtol=1e-3, atol=1e-3)
        masks.append(mask)
    assert not torch.equal(masks[0], masks[1])
    assert not torch.equal(masks[1], masks[2])


def test_running_statistics_count_calls_not_warm_ups():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()).cuda().train()
    twins = _Twins(model, torch.randn(4, 3, 8, 8, device="cuda"))
    for _ in range(3):
        x = torch.randn(4, 3, 8, 8, device="cuda")
        for _, call in twins.both:
            call(x).sum().backward()
    assert model[1].num_batches_tracked == 3
    torch.testing.assert_close(model[1].running_var, twins.eager[1].running_var)
    torch.testing.assert_close(model[1].running_mean, twins.eager[1].running_mean)
