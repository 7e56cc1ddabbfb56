"""Packed weights: made once, made again when a weight changes, gone with their candidate."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from thunder_tune.executors.packing import PackStore, packs


@pytest.fixture
def weight():
    return torch.nn.Parameter(torch.ones(3))


class Counted:
    """Packs a weight by doubling it, and counts."""

    def __init__(self, weight):
        self.weight, self.calls = weight, 0

    def __call__(self):
        self.calls += 1
        return self.weight * 2


def test_it_is_made_once_and_without_gradients(weight):
    store, make = PackStore(), Counted(weight)
    first = packs(store.id).get("double", (weight, None), make)
    assert packs(store.id).get("double", (weight, None), make) is first
    assert make.calls == 1
    assert not first.requires_grad
    assert not store.is_stale


@pytest.mark.parametrize("change", ["in place", "other memory"])
def test_a_weight_that_changed_is_packed_anew(weight, change):
    store, make = PackStore(), Counted(weight)
    store.get("double", (weight,), make)
    if change == "in place":
        with torch.no_grad():
            weight.fill_(5.0)
    else:
        weight.data = torch.full((3,), 5.0)
    assert store.is_stale
    assert store.get("double", (weight,), make).tolist() == [10.0] * 3
    assert not store.is_stale


def test_of_two_packs_of_a_weight_that_changed_both_are_stale(weight):
    store, make = PackStore(), Counted(weight)
    for kernel in ("one", "other"):
        store.get(kernel, (weight,), make)
    with torch.no_grad():
        weight.fill_(5.0)
    store.get("one", (weight,), make)
    assert store.is_stale
    store.get("other", (weight,), make)
    assert not store.is_stale


def test_kernels_and_weights_have_packs_of_their_own(weight):
    store, other = PackStore(), torch.nn.Parameter(torch.zeros(3))
    assert store.get("double", (weight,), Counted(weight)).tolist() == [2.0] * 3
    assert store.get("double", (other,), Counted(other)).tolist() == [0.0] * 3
    assert store.get("half", (weight,), lambda: weight.detach() / 2).tolist() == [0.5] * 3


def test_weights_made_in_inference_mode_are_constants():
    with torch.inference_mode():
        weight = torch.ones(3)
    make = Counted(weight)
    store = PackStore()
    store.get("double", (weight,), make)
    store.get("double", (weight,), make)
    assert make.calls == 1


def test_a_closed_candidates_packs_are_gone(weight):
    store = PackStore()
    number, packed = store.id, weakref.ref(store.get("double", (weight,), Counted(weight)))
    del store
    gc.collect()
    assert packed() is None
    with pytest.raises(KeyError, match=str(number)):
        packs(number)
