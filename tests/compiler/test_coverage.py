"""A fast part of the coverage list: random assignments are right, forward and backward.

The whole list: `python -m benchmarks.coverage`; its results are docs/coverage.md.
"""

from __future__ import annotations

import pytest

from thunder_tune.testing.covered import covered
from thunder_tune.testing.covering import Subject

FAST = ("nanogpt_mlp", "changes_in_place", "changes_buffers", "graph_break", "gru_cell")


@pytest.mark.parametrize("name", FAST)
@pytest.mark.parametrize("training", [False, True], ids=["forward", "backward"])
def test_random_assignments_are_right(name, training):
    subject = Subject(covered()[name], training=training, device="cpu")
    assert subject.program.is_captured, subject.program.reason
    verdicts = [subject.judge(assignment) for assignment in subject.assignments(1)]
    assert [v.reason for v in verdicts] == [""]


@pytest.mark.parametrize("name", ["bert", "mixtral", "convnext", "torch_encoder"])
def test_plain_torch_calls_are_right_forward_and_backward(name):
    verdict = Subject(covered()[name], training=True, device="cpu").judge({})
    assert verdict.reason == ""


def test_the_list_is_long_and_names_are_distinct():
    families = [model.family for model in covered().values()]
    assert len(families) >= 40
    assert all(families.count(f) >= 12 for f in ("thunder", "torchvision", "transformers"))


def test_assignments_of_a_model_differ_and_are_the_same_each_time():
    subject = Subject(covered()["nanogpt_mlp"], training=False, device="cpu")
    first, second = (list(subject.assignments(5)) for _ in range(2))
    assert first == second
    assert len({tuple(sorted(a.items())) for a in first}) == len(first) >= 4


def test_what_thunder_only_wraps_is_not_offered_to_a_fuser_in_training():
    subject = Subject(covered()["gru_cell"], training=True, device="cpu")
    assert [subject.judge(a).reason for a in subject.assignments(2)] == [""]
