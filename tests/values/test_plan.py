"""Plans: equal effects give equal keys, different effects do not."""

from __future__ import annotations

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
