"""Plans: equal effects give equal keys, different effects do not."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from thunder_tune.values.codec import from_json, to_json
from thunder_tune.values.plan import Plan, resolve
from thunder_tune.values.program import Cell, CellClass, Op, Program, TensorSpec

FLOAT = TensorSpec(shape=(2, 3), dtype="float32")


def program(kinds):
    """A straight line of one-op cells: "v" moves data, "g" is glue, other letters are anchors."""
    ops, cells, classes = [], [], {}
    for i, letter in enumerate(kinds):
        kind = "glue" if letter in "vg" else letter
        class_id = f"{letter}-class"
        ops.append(
            Op(
                index=i, graph=0, name=letter, kind=kind, inputs=(FLOAT,), outputs=(FLOAT,),
                is_view=letter == "v", class_id=class_id,
            )
        )  # fmt: skip
        cells.append(Cell(graph=0, ops=(i,), class_id=class_id))
        classes[class_id] = CellClass(
            id=class_id, loose_id=class_id, kind=kind, count=kinds.count(letter), ops=(letter,),
            examples=(i,),
        )  # fmt: skip
    return Program(
        front_end="dynamo", hash="h", loose_hash="l", ops=tuple(ops), cells=tuple(cells),
        classes=tuple(classes.values()),
    )  # fmt: skip


def regions(kinds, **choices):
    named = {
        ("fuser:" if k in "vg" else "executor:") + f"{k}-class": v for k, v in choices.items()
    }
    return [(r.fuser, r.ops) for r in resolve(program(kinds), named).regions]


def test_neighbours_with_one_fuser_merge():
    assert regions("agb", a="inductor", g="inductor", b="torch") == [("inductor", (0, 1))]
    assert regions("agb", a="inductor", g="torch", b="inductor") == [
        ("inductor", (0,)),
        ("inductor", (2,)),
    ]
    assert regions("ab", a="inductor", b="nvfuser") == [("inductor", (0,)), ("nvfuser", (1,))]


def test_a_view_joins_what_follows_else_what_precedes():
    assert regions("avb", a="inductor", b="inductor") == [("inductor", (0, 1, 2))]
    assert regions("avb", a="inductor", b="nvfuser") == [("inductor", (0,)), ("nvfuser", (1, 2))]
    assert regions("avb", a="inductor", b="torch") == [("inductor", (0, 1))]
    assert regions("avb", a="torch", b="torch") == []
    assert regions("v") == []


def seam(line, before, after):
    sides = (f"{before}-class", f"{after}-class")
    return next(c.id for c in line.seam_classes if c.summary == " | ".join(sides))


ALL_FUSED = {f"{p}{k}-class": "inductor" for p in ("executor:", "fuser:") for k in "abgv"}


def test_a_seam_that_is_cut_ends_a_region_wherever_its_classes_meet():
    line = program("agbvagb")
    assert [(c.count, c.summary) for c in line.seam_classes] == [
        (2, "a-class | g-class"),
        (2, "g-class | b-class"),
        (1, "b-class | a-class"),
    ]
    cut = {**ALL_FUSED, "boundary:" + seam(line, "a", "g"): "cut"}
    assert [r.ops for r in resolve(line, cut).regions] == [(0,), (1, 2, 3, 4), (5, 6)]
    before_a_view = {**ALL_FUSED, "boundary:" + seam(line, "b", "a"): "cut"}
    assert [r.ops for r in resolve(line, before_a_view).regions] == [(0, 1, 2), (3, 4, 5, 6)]


def test_a_seam_between_different_fusers_has_no_choice():
    line = program("agb")
    named = {**ALL_FUSED, "fuser:g-class": "nvfuser"}
    cut = {f"boundary:{c.id}": "cut" for c in line.seam_classes}
    assert resolve(line, {**named, **cut}).key == resolve(line, named).key
    assert resolve(line, {**ALL_FUSED, **cut}).key != resolve(line, ALL_FUSED).key


def test_seams_do_not_reach_over_graphs():
    line = program("ab")
    apart = replace(line, cells=(line.cells[0], replace(line.cells[1], graph=1)))
    assert len(line.seams) == 1
    assert apart.seams == ()


def test_a_full_region_ends_at_the_next_seam():
    line = program("agvbag")
    limited = {**ALL_FUSED, "region_limit": "2"}
    assert [r.ops for r in resolve(line, limited).regions] == [(0, 1), (2, 3), (4, 5)]
    assert resolve(line, {**ALL_FUSED, "region_limit": "6"}).key == resolve(line, ALL_FUSED).key


@given(st.text("avgb", max_size=12), st.data())
def test_cuts_only_divide_regions(kinds, data):
    line = program(kinds)
    named = {
        d: data.draw(st.sampled_from(["inductor", "nvfuser", "torch"])) for d in sorted(ALL_FUSED)
    }
    cuts = {
        f"boundary:{c.id}": data.draw(st.sampled_from(["merge", "cut"])) for c in line.seam_classes
    }
    whole, divided = resolve(line, named), resolve(line, {**named, **cuts})
    assert divided.targets == whole.targets
    assert [op for r in divided.regions for op in r.ops] == [
        op for r in whole.regions for op in r.ops
    ]
    positions = {s.position for s in line.seams if cuts["boundary:" + s.class_id] == "cut"}
    begun = {r.ops[0] for r in divided.regions} - {r.ops[0] for r in whole.regions}
    assert begun == positions & {op for r in whole.regions for op in r.ops[1:]}


def test_a_view_has_no_choice():
    line = program("avb")
    assert resolve(line, {"fuser:v-class": "inductor"}).key == resolve(line, {}).key


def test_whole_program_drops_every_other_choice():
    line = program("ab")
    one = resolve(line, {"program": "eager", "executor:a-class": "inductor"})
    assert one.key == resolve(line, {"program": "eager", "cuda_graphs": "whole"}).key
    assert one.key != resolve(line, {"program": "torch.compile"}).key
    assert not one.is_composed


def test_own_precision_is_no_precision():
    line = program("a")
    assert resolve(line, {"precision:a-class": "float32"}).key == resolve(line, {}).key
    assert resolve(line, {"precision:a-class": "bfloat16"}).precision == ("bfloat16",)


targets = st.sampled_from(["torch", "inductor", "nvfuser"])


@given(kinds=st.text(alphabet="abcvg", min_size=1, max_size=12), data=st.data())
def test_a_plan_covers_each_op_once_and_survives_json(kinds, data):
    line = program(kinds)
    prefix = {True: "executor:", False: "fuser:"}
    assignment = {prefix[c.is_anchor] + c.id: data.draw(targets) for c in line.classes}
    plan = resolve(line, assignment)
    in_regions = [i for r in plan.regions for i in r.ops]
    assert len(in_regions) == len(set(in_regions))
    assert {i for i, t in enumerate(plan.targets) if t != "torch"} == set(in_regions)
    for region in plan.regions:
        assert region.ops == tuple(range(region.ops[0], region.ops[-1] + 1))
        assert not all(line.ops[i].is_view for i in region.ops)
    assert from_json(Plan, to_json(plan)).key == plan.key
