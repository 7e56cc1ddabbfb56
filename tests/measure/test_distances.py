from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from thunder_tune.measure import distances
from thunder_tune.measure.distances import PART_ELEMENTS, Target, difference, ratio_of

CPU = torch.device("cpu")


def target(tensor, dtype=torch.float64, **how):
    return Target.of(tensor, dtype=dtype, device=CPU, **how)


def test_error_is_the_relative_norm():
    reference = torch.tensor([3.0, 4.0])
    found = target(reference).distance(torch.tensor([3.0, 4.5]))
    assert found.absolute == pytest.approx(0.5)
    assert found.error == pytest.approx(0.1)
    assert found.cosine == pytest.approx(27 / (5 * math.hypot(3, 4.5)))


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_scale_does_not_matter(scale):
    reference = torch.randn(1000, dtype=torch.float64) * scale
    found = target(reference).distance(reference * 1.01)
    assert found.error == pytest.approx(0.01)
    assert found.cosine == pytest.approx(1.0)
    assert found.part == pytest.approx(0.01, rel=0.5)


def test_opposite_answer_has_cosine_minus_one():
    reference = torch.randn(10)
    assert target(reference).distance(-reference).cosine == pytest.approx(-1.0)


@pytest.mark.parametrize("start", [0, 64, 960, 1000])
def test_wrong_part_shows_wherever_it_is(start):
    reference = torch.ones(1024 + 17)
    out = reference.clone()
    out[start : start + PART_ELEMENTS] = 0.0
    found = target(reference).distance(out)
    assert found.error < 0.26
    assert found.part > 0.5


def test_small_elements_do_not_make_a_part_look_wrong():
    reference = torch.cat([torch.full((PART_ELEMENTS,), 1e-9), torch.ones(PART_ELEMENTS)])
    found = target(reference).distance(reference + 1e-3)
    assert found.part < 2e-3


@given(st.integers(1, 300), st.integers(0, 2**31))
def test_chunks_do_not_change_the_result(count, seed):
    generator = torch.Generator().manual_seed(seed)
    reference = torch.randn(count, generator=generator, dtype=torch.float64)
    out = reference + 0.1 * torch.randn(count, generator=generator)
    whole = target(reference).distance(out)
    before, distances.CHUNK_ELEMENTS = distances.CHUNK_ELEMENTS, PART_ELEMENTS
    try:
        pieces = target(reference).distance(out)
    finally:
        distances.CHUNK_ELEMENTS = before
    assert pieces.error == pytest.approx(whole.error)
    assert pieces.part == pytest.approx(whole.part)
    assert pieces.cosine == pytest.approx(whole.cosine)


def test_views_are_compared_by_position():
    reference = torch.randn(6, 5)
    assert target(reference).distance(reference.T.contiguous().T).error == 0.0


def test_agreement_of_the_largest():
    reference = torch.eye(4)
    out = reference.clone()
    out[0] = torch.tensor([0.0, 2.0, 0.0, 0.0])
    assert target(reference, has_classes=True).distance(out).top1 == 0.75
    assert target(reference).distance(out).top1 is None
    assert target(torch.randn(4, 1), has_classes=True).distance(torch.randn(4, 1)).top1 is None


def test_integers_count_wrong_elements():
    reference = torch.arange(8)
    out = reference.clone()
    out[3] = 0
    found = target(reference).distance(out)
    assert (found.absolute, found.error, found.part, found.cosine) == (1.0, 0.125, 0.125, 1.0)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_elements_that_are_not_finite_in_the_reference_are_left_out(bad):
    reference = torch.tensor([1.0, bad, 2.0])
    kept = target(reference)
    out = torch.tensor([1.0, 5.0, 2.0])
    assert kept.is_finite_where_due(out)
    assert kept.distance(out).error == 0.0
    assert kept.is_finite_where_due(reference)
    assert not kept.is_finite_where_due(torch.tensor([1.0, 5.0, bad]))


def test_targets_do_not_follow_the_tensor_they_were_made_of():
    tensor = torch.ones(4, dtype=torch.float64)
    kept = target(tensor)
    tensor.zero_()
    assert kept.tensor.sum() == 4


def test_empty_tensors_are_equal():
    assert target(torch.empty(0, 3)).distance(torch.empty(0, 3)).error == 0.0


@pytest.mark.parametrize(
    ("tensor", "is_constant"),
    [(torch.ones(4), True), (torch.zeros(4), True), (torch.ones(1), False), (torch.eye(2), False)],
)
def test_constants_are_recognised(tensor, is_constant):
    assert target(tensor).is_constant == is_constant


def test_difference_is_a_norm():
    assert difference(torch.tensor([3.0, 0.0]), torch.tensor([0.0, 4.0])) == pytest.approx(5.0)
    assert difference(torch.tensor([1, 2, 3]), torch.tensor([1, 0, 0])) == 2.0


def test_error_of_nothing():
    assert ratio_of(0.0, 0.0) == 0.0
    assert ratio_of(1e-9, 0.0) == math.inf
