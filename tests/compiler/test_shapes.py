"""A recipe with a plan for each of several shapes: which plan runs, and how often it compiles."""

from __future__ import annotations

import warnings
from dataclasses import replace

import pytest
import thunder
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._dynamo.exc import BackendCompilerFailed

import thunder_tune.integration  # noqa: F401 - the torch.compile back end by name
from thunder_tune.compiler.shapes import nearest_first, size_of
from thunder_tune.compiler.tuned import TunedRecipe
from thunder_tune.errors import RecipeError
from thunder_tune.machine import current_fingerprint
from thunder_tune.program import capture, signature_of
from thunder_tune.testing.small_models import DictModel, GraphBreak, TinyTransformer
from thunder_tune.values.recipe import Recipe, TunedPlan, with_all_shapes
from thunder_tune.values.source import ModelSource

CLOSE = {"rtol": 2e-5, "atol": 2e-5}


def recipe_for(model, *args, choice="torch", whole=None, front_end="auto", **kwargs):
    found = capture(model, args, kwargs, front_end=front_end)
    prefix = {True: "executor:", False: "fuser:"}
    composed = {prefix[c.is_anchor] + c.id: choice for c in found.program.classes}
    plan = TunedPlan(
        signature=found.signature,
        program_hash=found.program.hash,
        program_loose_hash=found.program.loose_hash,
        assignment={"program": whole} if whole else {"program": "composed", **composed},
        classes=found.program.loose_ids,
    )
    return Recipe(
        model="small",
        source=ModelSource(name="small", batch_size=args[0].shape[0]),
        kind="whole-program" if whole else "composed",
        plans=(plan,),
        fingerprint=current_fingerprint("cpu"),
        front_end=found.program.front_end,
    )


@pytest.fixture
def model():
    torch.manual_seed(0)
    return TinyTransformer(depth=1).eval().requires_grad_(False)


def batch(size):
    return torch.randn(size, 6, 16)


def recipe_by_batch(model, *sizes, whole=None, **options):
    whole = whole or {}
    return with_all_shapes(
        [recipe_for(model, batch(n), whole=whole.get(n), **options) for n in sizes]
    )


@pytest.fixture
def compilations():
    """Count what Dynamo compiles."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    return lambda: torch._dynamo.utils.counters["stats"]["unique_graphs"]


def told_by(call):
    with warnings.catch_warnings(record=True) as seen, torch.no_grad():
        warnings.simplefilter("always")
        result = call()
    return result, [str(w.message) for w in seen if "recipe" in str(w.message)]


def test_alternating_tuned_shapes_compile_once_each(model, compilations):
    recipe = recipe_by_batch(model, 1, 3, 8)
    before = compilations()
    tuned = thunder.compile(model, recipe=TunedRecipe(recipe, strict=True))
    with torch.no_grad():
        for n in (1, 3, 8, 1, 8, 3, 1, 3, 8):
            x = batch(n)
            torch.testing.assert_close(tuned(x), model(x), **CLOSE)
    assert compilations() - before == 3
    assert len(tuned.tuning.graphs) == 3
    assert [graph.calls for graph in tuned.tuning.graphs] == [3, 3, 3]
    assert tuned.tuning.notes == []
    assert tuned.tuning.applied == 1.0
    shares = {f"float32[{n},6,16]": 1.0 for n in (1, 3, 8)}
    assert tuned.tuning.applied_by_shape == shares


@pytest.mark.parametrize(("called_with", "runs_as"), [(2, 3), (5, 8), (9, 8)])
def test_another_shape_runs_by_the_next_larger_plan_with_one_warning(
    model, compilations, called_with, runs_as
):
    recipe = recipe_by_batch(model, 3, 1, 8, choice="inductor")
    before = compilations()
    tuned = TunedRecipe(recipe).apply(model)
    x, known = batch(called_with), batch(3)

    def call():
        results = [tuned(x) for _ in range(3)]
        tuned(known)
        return [*results, tuned(x)]

    results, (told,) = told_by(call)
    assert f"called with float32[{called_with},6,16], runs as for float32[{runs_as},6,16]" in told
    assert "100% carried from another shape" in told
    for result in results:
        torch.testing.assert_close(result, model(x), **CLOSE)
    assert compilations() - before == 2
    assert tuned.tuning.applied_by_shape[f"float32[{called_with},6,16]"] == pytest.approx(1.0)
    assert tuned.tuning.eager_calls == 0


def test_more_shapes_than_dynamo_would_compile(model, compilations):
    tuned = TunedRecipe(recipe_by_batch(model, 1, 8)).apply(model)
    before = compilations()

    def call():
        for n in [*range(1, 13), *range(1, 13)]:
            x = batch(n)
            torch.testing.assert_close(tuned(x), model(x), **CLOSE)

    _, told = told_by(call)
    assert len(told) == 10  # one for each shape that was not tuned
    assert compilations() - before == 12
    assert tuned.tuning.eager_calls == 0
    assert tuned.tuning.applied == pytest.approx(1.0)


def test_strict_names_the_shapes_that_are_allowed(model):
    recipe = recipe_by_batch(model, 1, 8)
    tuned = TunedRecipe(recipe, strict=True).apply(model)
    named = r"was tuned for float32\[1,6,16\] and float32\[8,6,16\], called with float32\[2,"
    with torch.no_grad():
        for _ in range(2):
            with pytest.raises(RecipeError, match=named + r".*\(strict\)"):
                tuned(batch(2))
        x = batch(8)
        torch.testing.assert_close(tuned(x), model(x), **CLOSE)


def test_a_back_end_for_the_whole_of_one_shape_and_ops_for_another(model, compilations):
    recipe = recipe_by_batch(model, 1, 8, whole={8: "torch.compile"})
    before = compilations()
    tuned = TunedRecipe(recipe).apply(model)

    def call():
        for n in (1, 8, 5, 8, 1, 5):
            x = batch(n)
            torch.testing.assert_close(tuned(x), model(x), **CLOSE)

    _, told = told_by(call)
    assert ["called with float32[5,6,16], runs as for float32[8" in t for t in told] == [True]
    assert compilations() - before == 3
    assert tuned.tuning.applied_by_shape == dict.fromkeys(
        ("float32[1,6,16]", "float32[5,6,16]", "float32[8,6,16]"), 1.0
    )
    strict = TunedRecipe(recipe, strict=True).apply(model)
    with torch.no_grad(), pytest.raises(RecipeError, match=r"called with float32\[5,6,16\].*\(st"):
        strict(batch(5))


def test_graph_breaks_and_training(compilations):
    torch.manual_seed(0)
    model = GraphBreak()
    recipe = with_all_shapes([recipe_for(model, torch.randn(n, 8)) for n in (2, 4)])
    tuned = TunedRecipe(recipe).apply(model)
    for n in (2, 4):
        x = torch.randn(n, 8)
        result = tuned(x)
        torch.testing.assert_close(result, model(x))
        gradient, *_ = torch.autograd.grad(result.sum(), list(model.parameters()))
        expected, *_ = torch.autograd.grad(model(x).sum(), list(model.parameters()))
        torch.testing.assert_close(gradient, expected)
    assert tuned.tuning.eager_calls == 0
    assert set(tuned.tuning.applied_by_shape) == {"float32[2,8]", "float32[4,8]"}


def test_compiling_on_every_call_is_said_once():
    model = GraphBreak().requires_grad_(False)  # the value it reads is another each time
    tuned = TunedRecipe(recipe_for(model, torch.randn(4, 8))).apply(model)
    _, told = told_by(lambda: [tuned(torch.randn(4, 8)) for _ in range(10)])
    assert len(told) == 1
    assert "8 calls with float32[4,8] were compiled each" in told[0]
    assert tuned.tuning.eager_calls == 0


def test_keyword_inputs_and_the_second_front_end():
    torch.manual_seed(0)
    model = DictModel().requires_grad_(False)
    scale = torch.randn(8)
    recipe = with_all_shapes(
        [
            recipe_for(model, torch.randn(n, 8), scale=scale, front_end=front_end)
            for n, front_end in ((2, "thunder.jit"), (4, "dynamo"))
        ]
    )
    tuned = TunedRecipe(recipe, strict=True).apply(model)
    with torch.no_grad():
        for n in (2, 4, 2, 4):
            x = torch.randn(n, 8)
            torch.testing.assert_close(tuned(x, scale=scale)["y"], model(x, scale=scale)["y"])
    assert len(tuned.tuning.graphs) == 2


def test_the_back_end_of_torch_compile_finds_the_plan_by_the_graph(model):
    recipe = recipe_by_batch(model, 1, 8)
    options = {"recipe": recipe, "strict": True}
    compiled = torch.compile(model, backend="thunder_tune", dynamic=False, options=options)
    with torch.no_grad():
        for n in (1, 8):
            x = batch(n)
            torch.testing.assert_close(compiled(x), model(x), **CLOSE)


def test_the_back_end_of_torch_compile_takes_composed_plans_only(model):
    whole = {"whole": {8: "torch.compile", 1: "eager"}}
    recipe = recipe_by_batch(model, 1, 8, **whole)
    compiled = torch.compile(model, backend="thunder_tune", options={"recipe": recipe})
    refused = pytest.raises(BackendCompilerFailed, match="is eager for the whole program")
    with torch.no_grad(), refused:
        compiled(batch(1))
    torch._dynamo.reset()
    recipe = recipe_by_batch(model, 1, 8, whole={8: "torch.compile"}, choice="inductor")
    options = {"recipe": recipe}
    compiled = torch.compile(model, backend="thunder_tune", dynamic=False, options=options)
    x = batch(8)
    result, (told,) = told_by(lambda: compiled(x))
    assert "0% of the ops are as tuned, 100% carried from another shape" in told
    torch.testing.assert_close(result, model(x), **CLOSE)


def plans_for(*signatures):
    plan = TunedPlan(signature="", program_hash="", program_loose_hash="", assignment={})
    return [replace(plan, signature=s) for s in signatures]


def test_the_size_of_a_call_is_its_tensors_elements():
    inputs = (torch.zeros(2, 3), [torch.zeros(4, dtype=torch.bool), 7], "a[5]")
    signature = signature_of(inputs, {"n": torch.tensor(1, dtype=torch.bfloat16)})
    assert size_of(signature) == 2 * 3 + 4 + 1


@given(sizes=st.sets(st.integers(1, 99), min_size=1), called_with=st.integers(1, 120))
def test_the_next_larger_plan_else_the_largest(sizes, called_with):
    first = nearest_first(
        plans_for(*(f"float32[{n},4]" for n in sizes)), f"int64[{called_with},4]"
    )
    larger = [n for n in sizes if n >= called_with]
    assert first[0].signature == f"float32[{min(larger) if larger else max(sizes)},4]"


def test_equal_inputs_come_before_equal_sizes():
    plans = plans_for("float32[2,4], n=1", "float32[2,4], n=2")
    assert nearest_first(plans, "float32[2,4], n=2")[0].signature == "float32[2,4], n=2"
