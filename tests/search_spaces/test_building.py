"""The search space: every choice offered or left out with a reason."""

from __future__ import annotations

import pytest
import torch

from thunder_tune.compiler import viability
from thunder_tune.compiler.backends import unavailable_reason
from thunder_tune.errors import InputError
from thunder_tune.program import capture
from thunder_tune.search_spaces import PRESETS, build_space
from thunder_tune.search_spaces.building import FAMILIES, families_of
from thunder_tune.testing.small_models import TinyTransformer
from thunder_tune.values.plan import resolve
from thunder_tune.values.source import ModelSource


@pytest.fixture(scope="module")
def found():
    return capture(TinyTransformer().eval(), (torch.randn(2, 6, 16),), {})


def space(found, *, policy="same", preset="inference", viable=None, **source):
    return build_space(
        found.program,
        source=ModelSource(name="small", **source),
        policy=policy,
        preset=preset,
        viable=viable or viability(found, "cpu"),
        back_end_reason=lambda name: unavailable_reason(name, source.get("device", "cpu")),
    )


def test_every_class_that_computes_has_one_placement(found):
    names = {
        d.name.split(":", 1)[1]
        for d in space(found).dimensions
        if d.family in ("executor", "fuser")
    }
    computing = {
        c.class_id for c in found.program.cells
        if not all(found.program.ops[i].is_view for i in c.ops)
    }  # fmt: skip
    assert names == computing


def test_excluded_choices_carry_reasons(found):
    for dimension in space(found).dimensions:
        assert dimension.choices
        for excluded in dimension.excluded:
            assert excluded.reason
            assert excluded.choice not in dimension.choices
    graphs = space(found).by_name["cuda_graphs"]
    assert graphs.choices == ("none",)
    assert [e.reason for e in graphs.excluded] == ["needs a CUDA device"]


def test_every_seam_may_be_cut_that_a_fuser_could_bridge(found):
    offered = [d for d in space(found, preset="full").dimensions if d.family == "boundary"]
    *seams, limit = offered
    assert {d.name for d in seams} == {f"boundary:{c.id}" for c in found.program.seam_classes}
    assert {d.choices for d in seams} == {("merge", "cut")}
    assert limit.name == "region_limit"
    assert limit.choices[0] == "none"
    apart = space(found, preset="full", viable=lambda c, t: "no" if t == "inductor" else "")
    assert apart.by_name.keys() == space(found, preset="full").by_name.keys()
    none = space(found, preset="full", viable=lambda c, t: "" if t == "torch" else "no")
    alone = [d for d in none.dimensions if d.name.startswith("boundary:")]
    assert {(d.choices, d.excluded[0].reason) for d in alone} == {
        (("merge",), "no fuser takes both of its sides")
    }


def test_policy_decides_about_precision(found):
    def choices(policy):
        dimensions = space(found, policy=policy).dimensions
        return {c for d in dimensions if d.name.startswith("precision:") for c in d.choices}

    assert choices("same") == {"float32"}
    assert choices("mixed") == {"float32", "bfloat16"}


def test_a_bfloat16_model_has_no_precision_dimension(found):
    families = {d.family for d in space(found, dtype="bfloat16").dimensions}
    assert "precision" not in families


def test_a_program_that_was_not_captured_keeps_its_back_ends():
    nothing = capture(torch.nn.Identity(), ("text",), {})
    built = space(nothing, viable=lambda *_: "")
    assert [d.name for d in built.dimensions if d.family != "cuda-graphs"] == ["program"]
    program = built.by_name["program"]
    assert "composed" not in program.choices
    assert "not captured" in program.excluded[0].reason
    assert "eager" in program.choices


def test_the_default_assignment_resolves(found):
    built = space(found)
    plan = resolve(found.program, built.default)
    assert plan.is_composed
    assert set(plan.targets) == {"inductor"}


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_name_known_families(preset):
    assert set(families_of(preset)) <= set(FAMILIES)


def test_unknown_preset_is_refused(found):
    with pytest.raises(InputError, match="unknown preset 'fast': use one of quick"):
        space(found, preset="fast")
