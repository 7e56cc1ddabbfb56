from __future__ import annotations

import copy

import pytest
import torch

from thunder_tune.compiler.isolating import (
    NotIsolable,
    compile_place,
    differentiable_inputs,
    inputs_of,
    place_of_class,
)
from thunder_tune.program import capture
from thunder_tune.testing.small_models import TinyConvNet, TinyTransformer

MODELS = {
    "transformer": (TinyTransformer, (2, 3, 16)),
    "conv": (TinyConvNet, (2, 3, 6, 6)),
}


@pytest.fixture(params=MODELS)
def captured(request):
    """A capture in training mode, and every place with its inputs."""
    factory, shape = MODELS[request.param]
    torch.manual_seed(0)
    model, x = factory(), torch.randn(shape)
    found = capture(model, (x,), {}, training=True)
    program = found.program
    places = [place_of_class(found, c.id) for c in (*program.classes, *program.site_classes)]
    before = copy.deepcopy(model.state_dict())
    inputs = inputs_of(found, places, model=model, call=lambda: found.entry(x))
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])  # statistics of a batch norm among them
    return found, places, inputs


def test_every_class_runs_alone_on_inputs_of_its_place(captured):
    _, places, inputs = captured
    for place in places:
        values = differentiable_inputs(place, inputs[place.class_id], training=True)
        for proxy, value in zip(place.reads, values, strict=True):
            assert tuple(proxy.shape) == tuple(value.shape)
        plan = place.plan("none" if place.rewrite else "torch", "torch")
        outputs = compile_place(place, values, plan, training=True).run(*values)
        assert len(outputs) == len(place.results)
        floating = [x for x in outputs if x.is_floating_point()]
        assert all(torch.isfinite(x).all() for x in floating)
        if any(x.requires_grad for x in values):
            assert any(x.requires_grad for x in floating)


def test_the_inputs_are_those_of_the_program():
    torch.manual_seed(0)
    model, x = TinyTransformer().eval(), torch.randn(2, 3, 16)
    with torch.no_grad():
        found = capture(model, (x,), {})
        first = next(c for c in found.program.classes if c.kind == "layer_norm")
        place = place_of_class(found, first.id)
        inputs = inputs_of(found, [place], model=model, call=lambda: found.entry(x))
        values = inputs[first.id]
        plan = place.plan("torch", "torch")
        (output,) = compile_place(place, values, plan, training=False).run(*values)
        torch.testing.assert_close(output, model.blocks[0].norm1(x))
    assert torch.equal(values[0], x)
    assert values[1] is model.blocks[0].norm1.weight


def test_a_class_of_another_program_is_refused(captured):
    found, _, _ = captured
    with pytest.raises(NotIsolable, match="linear-none is not in this program"):
        place_of_class(found, "linear-none")
