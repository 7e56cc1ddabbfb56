"""Options that make no difference are no choice."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thunder_tune.values.fusers import FUSERS, INDUCTOR, PERSISTENT, TUNED, without_idle_options
from thunder_tune.values.plan import resolve
from thunder_tune.values.program import Cell, CellClass, Op, Program, TensorSpec


def program(*kinds, width=768, training=False):
    """A straight line of one-op cells of these kinds, each a class; "view" moves data."""
    ops, cells, classes = [], [], []
    row = TensorSpec(shape=(4, 8, width), dtype="float32")
    weight = TensorSpec(shape=(width,), dtype="float32")
    for i, kind in enumerate(kinds):
        class_id = f"{kind}-{i}"
        inputs = (row, weight) if kind in ("layer_norm", "rms_norm") else (row,)
        ops.append(
            Op(
                index=i, graph=0, name=kind, kind=kind, inputs=inputs, outputs=(row,),
                is_view=kind == "view", class_id=class_id,
            )
        )  # fmt: skip
        cells.append(Cell(graph=0, ops=(i,), class_id=class_id))
        classes.append(
            CellClass(id=class_id, loose_id=kind, kind=kind, count=1, ops=(kind,), examples=(i,))
        )
    return Program(
        front_end="dynamo", hash="h", loose_hash="l", ops=tuple(ops), cells=tuple(cells),
        classes=tuple(classes), training=training,
    )  # fmt: skip


def result(line, *targets):
    return list(without_idle_options(line, targets or [PERSISTENT] * len(line.ops)))


@pytest.mark.parametrize(
    ("kind", "width", "has_effect"),
    [
        ("activation", 3072, False),
        ("add", 3072, False),
        ("view", 3072, False),
        ("layer_norm", 768, False),
        ("layer_norm", 1024, False),
        ("layer_norm", 1025, True),
        ("rms_norm", 4096, True),
        ("rms_norm", 16384, True),
        ("rms_norm", 16385, False),
        ("softmax", 1024, False),
        ("softmax", 2048, True),
        ("mean", 64, True),
        ("linear", 64, True),
        ("unheard_of", 64, True),
    ],
)
def test_rows_in_registers_need_a_wide_reduction(kind, width, has_effect):
    line = program("add", kind, "mul", width=width)
    assert result(line) == [PERSISTENT if has_effect else INDUCTOR] * 3


def test_in_training_a_gradient_may_reduce():
    assert result(program("add", training=True)) == [PERSISTENT]


def test_only_rows_in_registers_can_be_idle():
    line = program("add", "mul")
    for fuser in (INDUCTOR, "nvfuser", TUNED, "torch"):
        assert result(line, fuser, fuser) == [fuser, fuser]


def test_each_region_is_looked_at_on_its_own():
    line = program("add", "linear", "rms_norm", "linear", "mul", width=4096)
    targets = [PERSISTENT, "torch", PERSISTENT, "torch", PERSISTENT]
    assert result(line, *targets) == [INDUCTOR, "torch", PERSISTENT, "torch", INDUCTOR]


def test_an_executor_may_bring_a_reduction_into_the_region_before_it():
    line = program("add", "linear", "mul")
    assert result(line, PERSISTENT, "float8", INDUCTOR) == [PERSISTENT, "float8", INDUCTOR]
    assert result(line, PERSISTENT, "torch", "float8") == [PERSISTENT, "torch", "float8"]
    assert result(line, PERSISTENT, INDUCTOR, "float8") == [INDUCTOR, INDUCTOR, "float8"]


def test_idle_options_are_one_plan_with_none():
    line = program("add", "layer_norm", "mul")
    choices = {f"executor:{c.id}": INDUCTOR for c in line.classes}
    middle = f"executor:{line.classes[1].id}"
    assert resolve(line, choices).key == resolve(line, {**choices, middle: PERSISTENT}).key
    assert resolve(line, choices).key != resolve(line, {**choices, middle: TUNED}).key


@given(
    kinds=st.lists(st.sampled_from(["add", "rms_norm", "linear", "view"]), min_size=1, max_size=8),
    width=st.sampled_from([768, 4096]),
    data=st.data(),
)
def test_nothing_but_idle_options_changes_and_once_is_enough(kinds, width, data):
    line = program(*kinds, width=width)
    targets = [data.draw(st.sampled_from([*FUSERS, "torch", "float8"])) for _ in kinds]
    found = result(line, *targets)
    changed = {(a, b) for a, b in zip(targets, found, strict=True) if a != b}
    assert changed <= {(PERSISTENT, INDUCTOR)}
    assert result(line, *found) == found
