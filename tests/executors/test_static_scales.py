"""Static scales: powers of two with room above, found once, found anew when weights change."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from thunder_tune.executors import PackStore
from thunder_tune.executors.float8 import LARGEST
from thunder_tune.executors.static_scales import (
    HEADROOM,
    activation_scales,
    packed_weight,
    round_to_e4m3,
    scale_for,
    scales_of,
)


class TestScale:
    @given(st.floats(1e-20, 1e20), st.sampled_from([1.0, HEADROOM]))
    def test_it_is_the_least_power_of_two_with_room(self, largest, headroom):
        scale = scale_for(largest, headroom)
        assert math.frexp(scale)[0] == 0.5
        assert largest * headroom <= LARGEST * scale
        assert largest * headroom > LARGEST * scale / 2

    @pytest.mark.parametrize("largest", [0.0, math.inf, math.nan])
    def test_what_says_nothing_gives_one(self, largest):
        assert scale_for(largest) == 1.0

    @pytest.mark.parametrize("largest", [5e-324, 1.7e308])
    def test_it_and_its_reciprocal_are_float32_numbers(self, largest):
        both = torch.tensor([scale_for(largest), 1 / scale_for(largest)])
        assert both.isfinite().all()
        assert (both > 0).all()

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
    def test_of_values(self, dtype):
        multiplier, scale = scales_of(torch.tensor([[0.5, -100.0], [3.0, 0.0]], dtype=dtype))
        assert (multiplier.item(), scale.item()) == (1.0, 1.0)  # 400 fits, 800 would not
        assert multiplier.dtype == scale.dtype == torch.float32
        assert scales_of(torch.empty(0, 4))[1].item() == 1.0


class TestRounding:
    @pytest.mark.parametrize("factor", [1e-2, 1.0, HEADROOM])
    def test_values_with_room_keep_four_bits(self, factor):
        values = torch.rand(1000, generator=torch.Generator().manual_seed(0)) + 0.5
        multiplier, scale = scales_of(values)
        found = round_to_e4m3(values * factor, multiplier).double() * scale.double()
        torch.testing.assert_close(found, values.double() * factor, rtol=2**-4, atol=0.0)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_beyond_it_they_saturate(self, dtype):
        values = torch.tensor([100.0, -100.0, math.inf, 1.0]).to(dtype)
        multiplier, scale = scales_of(torch.ones(1))
        found = round_to_e4m3(values, multiplier).float() * scale
        largest = LARGEST * scale.item()
        assert found.tolist() == [largest, -largest, largest, 1.0]

    def test_what_is_no_number_stays_none(self):
        assert round_to_e4m3(torch.tensor([math.nan]), torch.ones(())).float().isnan().all()


class TestWeights:
    def test_they_are_packed_behind_one_another_with_one_scale(self):
        store = PackStore()
        weights = (torch.full((2, 4), 0.5), torch.full((1, 4), -8.0))
        values, scale = packed_weight(weights, store.id)
        assert values.dtype == torch.float8_e4m3fn
        assert torch.equal(values.float() * scale, torch.cat(weights))
        assert packed_weight(weights, store.id)[0] is values

    @pytest.mark.parametrize("shape", [(64, 32), (16, 128)])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
    @pytest.mark.parametrize("is_transposed", [False, True])
    def test_they_are_within_its_precision(self, shape, dtype, is_transposed):
        weight = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)
        weight = weight.t() if is_transposed else weight
        store = PackStore()
        values, scale = packed_weight((weight,), store.id)
        assert values.is_contiguous()
        error = (values.double() * scale.double() - weight.double()).norm()
        assert 1e-2 < error / weight.double().norm() < 4e-2


class TestActivations:
    @pytest.fixture
    def weight(self):
        return torch.nn.Parameter(torch.ones(2, 2))

    @pytest.fixture
    def store(self):
        store = PackStore()
        store.observers.update(x=lambda seen: seen, doubled=lambda seen: 2 * seen)
        return store

    @staticmethod
    def scale(store, weight, value, place="x"):
        seen = (torch.full((3, 2), value),)
        return activation_scales(seen, (weight,), place, store.id)[1].item()

    def test_the_first_values_decide(self, store, weight):
        first = self.scale(store, weight, 112.0)
        assert first == 1.0
        assert self.scale(store, weight, 1e6) == first

    def test_places_have_scales_of_their_own_also_with_one_weight(self, store, weight):
        assert self.scale(store, weight, 112.0) == 1.0
        assert self.scale(store, weight, 112.0, "doubled") == 2.0

    def test_zeros_give_one_for_good(self, store, weight):
        assert self.scale(store, weight, 0.0) == 1.0
        assert self.scale(store, weight, 1e6) == 1.0

    def test_a_weight_that_changes_makes_it_anew(self, store, weight):
        assert self.scale(store, weight, 112.0) == 1.0
        with torch.no_grad():
            weight.mul_(2.0)
        assert store.is_stale
        assert self.scale(store, weight, 448.0) == 4.0
        assert not store.is_stale

    def test_under_a_capture_it_cannot_be_found(self, store, weight, monkeypatch):
        class OnDevice(torch.Tensor):
            is_cuda = True

        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        seen = (torch.ones(2, 2).as_subclass(OnDevice),)
        with pytest.raises(RuntimeError, match="call the model once before"):
            activation_scales(seen, (weight,), "x", store.id)
