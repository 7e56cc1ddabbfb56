"""Recorded forward and backward passes: what is replayed when, and who may keep what."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from thunder_tune.compiler.autograd import DirectPasses, differentiable
from thunder_tune.compiler.building import Built
from thunder_tune.compiler.dispatch import compile_graph
from thunder_tune.compiler.graphed_passes import GraphedPasses
from thunder_tune.executors import PackStore
from thunder_tune.program import capture
from thunder_tune.testing.fake_recorder import FakeRecorder
from thunder_tune.values.plan import resolve


class _Net(nn.Module):
    """Two linears, a buffer that counts calls, a result without a gradient."""

    def __init__(self):
        super().__init__()
        self.up = nn.Linear(4, 8, bias=False)
        self.norm = nn.BatchNorm1d(8)
        self.down = nn.Linear(8, 3)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls.add_(1)
        y = self.down(torch.relu(self.norm(self.up(x))))
        return y, self.calls * 2, x


class _Captured:
    """A model captured and dispatched once; every test records it anew."""

    def __init__(self, model, example):
        self.model = model
        self.state = copy.deepcopy(model.state_dict())
        self.found = capture(model, (example,), {}, training=True)
        program = self.found.program
        everywhere = {
            ("executor:" if c.is_anchor else "fuser:") + c.id: "torch" for c in program.classes
        }
        self.plan = resolve(program, everywhere)
        ops = range(len(program.ops))
        self.graph = compile_graph(self.found.graphs[0], self.plan, ops, training=True)


class _Recorded:
    """A model under a fake recorder beside its twin in eager mode."""

    def __init__(self, captured, large=2**20):
        found, graph, self.model = captured.found, captured.graph, captured.model
        self.model.load_state_dict(captured.state)
        self.model.zero_grad()
        self.eager = copy.deepcopy(self.model)
        self.recorder = FakeRecorder()
        static = found.graphs[0].static_inputs
        passes = GraphedPasses(
            graph.passes, static, graph.packs, graph.writes, self.recorder, large
        )
        run = differentiable(passes)
        self.call = Built(captured.plan, found.entry, found, [graph], [run])

    @property
    def counts(self):
        return self.recorder.records, self.recorder.replays

    def assert_same_gradients(self):
        for (name, p), q in zip(
            self.model.named_parameters(), self.eager.parameters(), strict=True
        ):
            torch.testing.assert_close(p.grad, q.grad, msg=lambda m, n=name: f"{n}: {m}")


def inputs(count, rows=5):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(rows, 4, generator=generator) for _ in range(count)]


@pytest.fixture(scope="module")
def captured():
    torch.manual_seed(0)
    return _Captured(_Net(), inputs(1)[0])


@pytest.fixture
def net(captured):
    return _Recorded(captured)


def loss(result, x):
    return (result[0] * x.sum(-1, keepdim=True)).square().mean()


@pytest.mark.parametrize("set_to_none", [True, False])
def test_steps_of_an_optimizer(net, set_to_none):
    optimizers = [torch.optim.AdamW(m.parameters(), lr=0.01) for m in (net.model, net.eager)]
    for x in inputs(5):
        for call, optimizer in zip((net.call, net.eager), optimizers, strict=True):
            optimizer.zero_grad(set_to_none=set_to_none)
            loss(call(x), x).backward()
            optimizer.step()
        net.assert_same_gradients()
    for name, value in net.model.state_dict().items():
        torch.testing.assert_close(value, net.eager.state_dict()[name])
    # Where gradients stay, the backward pass is recorded once more, to hand out copies.
    assert net.counts == (2 if set_to_none else 3, 10)


def test_results_are_the_callers_own(net):
    one, other = inputs(2)
    first = net.call(one)
    loss(first, one).backward()
    kept = [t.detach().clone() for t in first]
    second = net.call(other)
    assert net.counts == (2, 3)
    for result, value in zip(first, kept, strict=True):
        assert torch.equal(result, value)
    assert second[2].data_ptr() == other.data_ptr(), "an input that is returned is the call's own"
    assert first[0].requires_grad
    assert not first[1].requires_grad


def test_large_results_are_lent_until_somebody_keeps_one(captured):
    net = _Recorded(captured, large=1)
    one, other = inputs(2)
    addresses = []
    for x in (one, other):
        result = net.call(x)[0]
        addresses.append(result.data_ptr())
        loss([result], x).backward()
        del result
    assert addresses[0] == addresses[1]
    kept = net.call(one)[0]
    loss([kept], one).backward()
    value = kept.detach().clone()
    loss(net.call(other), other).backward()
    assert torch.equal(kept, value)
    net.model.zero_grad()
    for call in (net.call, net.eager):
        loss(call(one), one).backward()
    net.assert_same_gradients()


def test_large_cotangents_are_borrowed_while_they_come_at_one_address(captured):
    net = _Recorded(captured, large=1)
    (x,) = inputs(1)
    cotangents = [torch.randn(5, 3) for _ in range(3)]
    counts = []
    for cotangent in (*cotangents[:2], *[cotangents[1]] * 3, cotangents[2]):
        for model, call in ((net.model, net.call), (net.eager, net.eager)):
            model.zero_grad()
            cotangent.add_(1)
            call(x)[0].backward(cotangent)
            cotangent.sub_(1)
        net.assert_same_gradients()
        counts.append(net.counts[0])
    # Borrowed; copied; copied; at one address for the third time, borrowed; so; elsewhere, copied.
    assert counts == [2, 3, 3, 4, 4, 5]


def test_gradients_accumulate(net):
    for call in (net.call, net.eager):
        for x in inputs(3):
            loss(call(x), x).backward()
    net.assert_same_gradients()
    assert net.counts == (3, 6)


def test_a_gradient_that_is_kept_is_not_overwritten(net):
    one, other = inputs(2)
    parameters = list(net.model.parameters())
    kept = torch.autograd.grad(loss(net.call(one), one), parameters)
    view = kept[0][:1]
    values = [g.clone() for g in kept]
    del kept
    again = torch.autograd.grad(loss(net.call(other), other), parameters)
    assert torch.equal(view, values[0][:1])
    assert not torch.equal(again[0], values[0])


def test_a_gradient_that_was_dropped_costs_no_copy(net):
    parameters = list(net.model.parameters())
    seen = set()
    for x in inputs(3):
        gradients = torch.autograd.grad(loss(net.call(x), x), parameters)
        seen.add(gradients[0].data_ptr())
        del gradients
    assert len(seen) == 1
    assert net.counts == (2, 6)


def test_gradients_are_lent_again_once_they_are_dropped_in_time(net):
    parameters = list(net.model.parameters())
    kept = None
    addresses = []
    for i, x in enumerate(inputs(8)):
        gradients = torch.autograd.grad(loss(net.call(x), x), parameters)
        addresses.append(gradients[0].data_ptr())
        kept = gradients if i == 1 else kept
        value = kept and [g.clone() for g in kept]
        if i == 2:
            for gradient, before in zip(kept, value, strict=True):
                assert torch.equal(gradient, before)
            kept = None
        del gradients
    assert net.counts[0] == 3
    assert addresses[0] == addresses[1]
    assert len(set(addresses[-3:])) == 1
    assert addresses[-1] != addresses[0]


def test_two_forwards_then_two_backwards(net):
    one, other = inputs(2)
    for call in (net.call, net.eager):
        first = loss(call(one), one)
        second = loss(call(other), other)
        second.backward()
        first.backward()
    net.assert_same_gradients()
    assert net.counts == (2, 2), "the second forward and its backward run directly"
    loss(net.call(one), one).backward()
    assert net.counts[1] == 4


def test_a_forward_whose_result_is_dropped_waits_for_nothing(net):
    for x in inputs(3):
        net.call(x)
    assert net.counts == (1, 3)


def test_retained_graphs_can_go_back_again(net):
    (x,) = inputs(1)
    for call in (net.call, net.eager):
        value = loss(call(x), x)
        value.backward(retain_graph=True)
        other = call(x)  # what the first one saved is still needed
        value.backward()
        del other
    net.assert_same_gradients()
    value = loss(net.call(x), x)
    value.backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        value.backward()


def test_second_derivatives_are_refused(net):
    (x,) = inputs(1)
    first = net.model.up.weight
    (gradient,) = torch.autograd.grad(loss(net.call(x), x), first, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


def test_a_parameter_with_other_memory_is_noticed(net):
    one, other = inputs(2)
    for call in (net.call, net.eager):
        loss(call(one), one).backward()
    for model in (net.model, net.eager):
        model.up.weight.data = model.up.weight.data * 2
        model.zero_grad()
    for call in (net.call, net.eager):
        loss(call(other), other).backward()
    net.assert_same_gradients()
    assert net.counts == (4, 4)


def test_memory_that_moves_between_the_passes(net):
    one, _ = inputs(2)
    for model, call in ((net.model, net.call), (net.eager, net.eager)):
        value = loss(call(one), one)
        model.down.weight.data = model.down.weight.data.clone()
        value.backward()
    net.assert_same_gradients()
    assert net.counts == (1, 1), "the backward pass ran directly"


def test_a_parameter_written_to_before_the_backward_pass_is_an_error(net):
    (x,) = inputs(1)
    value = loss(net.call(x), x)
    with torch.no_grad():
        net.model.down.weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        value.backward()


def test_a_cotangent_in_another_layout(net):
    one, other = inputs(2)
    for call in (net.call, net.eager):
        call(one)[0].sum().backward()
        call(other)[0].backward(torch.ones(3, 5).t() * 2)
    net.assert_same_gradients()


def test_while_someone_else_captures_nothing_is_recorded(net):
    net.recorder.is_free = False
    (x,) = inputs(1)
    for call in (net.call, net.eager):
        loss(call(x), x).backward()
    net.assert_same_gradients()
    assert net.counts == (0, 0)


def test_a_buffer_counts_calls_not_warm_ups(net):
    for x in inputs(3):
        before = net.model.norm.running_mean._version
        loss(net.call(x), x).backward()
        loss(net.eager(x), x).backward()
        assert net.model.norm.running_mean._version > before
    assert net.model.calls == net.eager.calls == 3
    torch.testing.assert_close(net.model.norm.running_var, net.eager.norm.running_var)


def test_saved_tensors_that_were_elsewhere_in_between(net):
    (x,) = inputs(1)
    with torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda t: t):
        value = loss(net.call(x), x)
    value.backward()
    loss(net.eager(x), x).backward()
    net.assert_same_gradients()
    assert net.counts == (1, 1)


def test_what_a_kernel_saves_may_be_left_out():
    direct = DirectPasses(
        lambda x: ({"flat_output": (x * 2,)}, ((None, x.sin()), ())),
        lambda saved, cotangents: (cotangents[0] * 2,),
        (True,),
    )
    recorder = FakeRecorder()
    run = differentiable(GraphedPasses(direct, (False,), PackStore(), (False,), recorder))
    for _ in range(2):
        x = torch.randn(3, requires_grad=True)
        run(x)[0].sum().backward()
        torch.testing.assert_close(x.grad, torch.full((3,), 2.0))
        del x
    assert (recorder.records, recorder.replays) == (2, 4)


def test_dropout_draws_as_without_recording():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5))
    net = _Recorded(_Captured(model, inputs(1)[0]))
    torch.manual_seed(7)
    for x in inputs(3):
        state = torch.get_rng_state()
        net.call(x).sum().backward()
        torch.set_rng_state(state)
        net.eager(x).sum().backward()
        net.assert_same_gradients()
