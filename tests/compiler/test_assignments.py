"""Any assignment computes what the model computes, forward and backward."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from thunder_tune.compiler import build, viability
from thunder_tune.compiler.backends import unavailable_reason
from thunder_tune.program import capture
from thunder_tune.search_spaces import build_space
from thunder_tune.testing.small_models import TinyConvNet, TinyTransformer
from thunder_tune.values.fusers import FUSERS
from thunder_tune.values.plan import resolve
from thunder_tune.values.source import ModelSource
from thunder_tune.values.space import PROGRAM

CASES = {
    "transformer": (lambda: TinyTransformer(depth=1), (2, 6, 16)),
    "convnet": (TinyConvNet, (2, 3, 8, 8)),
}


def space_of(found, mode="inference", policy="same"):
    return build_space(
        found.program,
        source=ModelSource(name="small", mode=mode),
        policy=policy,
        preset="full",
        viable=viability(found, "cpu"),
        back_end_reason=lambda name: unavailable_reason(name, "cpu"),
    )


@pytest.fixture(scope="module", params=[(c, t) for c in CASES for t in (False, True)], ids=str)
def captured(request):
    name, training = request.param
    make, shape = CASES[name]
    torch.manual_seed(0)
    model = make().requires_grad_(training).train(False)
    x = torch.randn(shape)
    return model, x, capture(model, (x,), {}, training=training), training


def check(model, x, found, training, assignment):
    plan = resolve(found.program, assignment)
    built = build(model, plan, found)
    with torch.set_grad_enabled(training):
        result, expected = built(x), model(x)
        torch.testing.assert_close(result, expected, rtol=2e-5, atol=2e-5)
        assert built.applied == 1.0
        if training:
            weights = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1))
            parameters = list(model.parameters())
            got = torch.autograd.grad((result * weights).sum(), parameters)
            wanted = torch.autograd.grad((expected * weights).sum(), parameters)
            for g, w in zip(got, wanted, strict=True):
                torch.testing.assert_close(g, w, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("target", ["torch", "inductor"])
def test_uniform_assignments(captured, target):
    model, x, found, training = captured
    space = space_of(found)
    choices = {d.name: target for d in space.dimensions if target in d.choices}
    check(model, x, found, training, choices)


@settings(
    max_examples=3,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_random_assignments(captured, data):
    model, x, found, training = captured
    assignment = {
        d.name: data.draw(st.sampled_from(d.choices), label=d.name)
        for d in space_of(found).dimensions
        if d.name != PROGRAM
    }
    check(model, x, found, training, assignment)


def test_candidates_of_one_capture_live_side_by_side(captured):
    model, x, found, training = captured
    anchors = [c.id for c in found.program.classes if c.is_anchor]
    first = build(model, resolve(found.program, {}), found)
    second = build(
        model, resolve(found.program, {f"executor:{a}": "inductor" for a in anchors}), found
    )
    with torch.set_grad_enabled(training):
        expected = model(x)
        for built in (first, second, first):
            torch.testing.assert_close(built(x), expected, rtol=2e-5, atol=2e-5)
    assert first.graphs != second.graphs
    assert found.times == 1


def test_dispatch_leaves_the_capture_as_it_is(captured):
    model, _, found, _ = captured
    trace = found.graphs[0].trace
    before = (
        len(trace.bound_symbols),
        set(trace.names),
        [set(b.tags) for b in trace.bound_symbols],
    )
    build(model, resolve(found.program, {}), found)
    after = (
        len(trace.bound_symbols),
        set(trace.names),
        [set(b.tags) for b in trace.bound_symbols],
    )
    assert before == after


def test_lower_precision_is_really_computed():
    torch.manual_seed(0)
    model = TinyTransformer(depth=1).eval().requires_grad_(False)
    x = torch.randn(2, 6, 16)
    found = capture(model, (x,), {})
    linears = [c.id for c in found.program.classes if c.kind == "linear"]
    lower = {f"precision:{c}": "bfloat16" for c in linears}
    with torch.no_grad():
        result = build(model, resolve(found.program, lower), found)(x)
    error = ((result - model(x)).norm() / model(x).norm()).item()
    assert 1e-4 < error < 3e-2
    assert result.dtype == torch.float32


def test_regions_have_unique_names_and_the_ops_of_the_plan():
    model = TinyTransformer(depth=2).eval().requires_grad_(False)
    x = torch.randn(2, 6, 16)
    found = capture(model, (x,), {})
    glue = {f"fuser:{c.id}": "inductor" for c in found.program.classes if not c.is_anchor}
    norms = {f"executor:{c.id}": "inductor" for c in found.program.classes if "norm" in c.kind}
    plan = resolve(found.program, {**glue, **norms})
    built = build(model, plan, found)
    with torch.no_grad():
        built(x)
    names = [b.sym.name for b in built.graphs[0].forward.bound_symbols if b.sym.is_fusion]
    assert len(names) == len(set(names)) == len(plan.regions)
    assert all(region.fuser in FUSERS for region in plan.regions)


def test_weights_that_change_are_seen():
    model = TinyTransformer(depth=1).eval().requires_grad_(False)
    x = torch.randn(2, 6, 16)
    found = capture(model, (x,), {})
    anchors = {f"executor:{c.id}": "inductor" for c in found.program.classes if c.is_anchor}
    built = build(model, resolve(found.program, anchors), found)
    with torch.no_grad():
        built(x)
        for parameter in model.parameters():
            parameter.mul_(1.5)
        torch.testing.assert_close(built(x), model(x), rtol=2e-5, atol=2e-5)


def test_a_call_in_another_grad_mode_is_no_silent_eager_run():
    model = TinyTransformer(depth=1).eval()
    x = torch.randn(2, 6, 16)
    found = capture(model, (x,), {})
    built = build(model, resolve(found.program, {}), found)
    assert built.applied == 0.0
    with pytest.raises(Exception, match="called in another way than it was captured"):
        built(x)
    with torch.no_grad():
        built(x)
    assert built.applied == 1.0


def test_a_closed_candidate_holds_nothing():
    model = TinyTransformer(depth=1).eval()
    x = torch.randn(2, 6, 16)
    found = capture(model, (x,), {})
    first = build(model, resolve(found.program, {}), found)
    second = build(model, resolve(found.program, {"cuda_graphs": "none"}), found)
    with torch.no_grad():
        first(x)
        second(x)
    first.close()
    assert found.graphs[0].bound is not None, "it is the second one's"
    second.close()
    assert found.graphs[0].bound is None
    with pytest.raises(RuntimeError, match="this candidate was closed"):
        second(x)
