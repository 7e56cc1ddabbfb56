"""Formats of packed weights: what they hold, how near it is, and how much memory it takes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from thunder_tune.executors.weight_formats import FORMATS, joined, pack, table_of, unpacked

NAMES = sorted(FORMATS)

# Of normal values: the error of uniform 4 bits is about 0.1, and each bit more halves it.
NEAR = {
    "int4": 0.1,
    "nf4": 0.09,
    "fp4_e2m1": 0.1,
    "fp6_e3m2": 0.052,
    "fp6_e2m3": 0.028,
    "float8": 0.028,
    "int8": 0.011,
}


def normal(rows, width, dtype=torch.float32):
    generator = torch.Generator().manual_seed(rows * width)
    return torch.randn(rows, width, generator=generator).to(dtype)


def error(found, wanted):
    return ((found.double() - wanted.double()).norm() / wanted.double().norm()).item()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_what_is_unpacked_is_near(name, dtype):
    weight = normal(24, 1024, dtype)
    packed = pack(weight, FORMATS[name])
    assert NEAR[name] / 3 < error(unpacked(packed), weight) < NEAR[name]
    assert packed.nbytes == FORMATS[name].bytes_of(24, 1024)


@pytest.mark.parametrize("name", NAMES)
def test_every_code_comes_back(name):
    form = FORMATS[name]
    if form.codes:
        values = torch.tensor(form.codes).repeat(form.span * 4 // len(form.codes))
        values = values.view(4, form.span)[:, torch.randperm(form.span)] * 0.5
        values[:, :: min(form.group, 32)] = max(form.codes, key=abs) * 0.5  # whose scale is 0.5
    elif name == "int8":
        values = torch.arange(-127.0, 129.0).clamp(max=127.0).view(2, 128)
    else:
        finite = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
        values = finite.nan_to_num(448.0).view(2, 128)
    packed = pack(values, form)
    assert torch.equal(unpacked(packed), values)


def test_values_of_float_formats():
    def positive(name):
        return sorted(v for v in FORMATS[name].codes if v > 0)

    assert positive("fp4_e2m1") == [0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    assert positive("fp6_e2m3")[:3] == [0.125, 0.25, 0.375]
    assert positive("fp6_e2m3")[-1] == 7.5
    assert positive("fp6_e3m2")[:2] == [0.0625, 0.125]
    assert positive("fp6_e3m2")[-1] == 28.0
    assert table_of(FORMATS["nf4"], torch.device("cpu"))[[0, 7, 15]].tolist() == [-1.0, 0.0, 1.0]


@pytest.mark.parametrize("name", NAMES)
def test_rows_and_matrices_behind_one_another(name):
    form = FORMATS[name]
    one, other = (pack(normal(n, form.span * 2), form) for n in (3, 5))
    both = joined([one, other])
    assert both.shape == (8, form.span * 2)
    assert torch.equal(unpacked(both), torch.cat([unpacked(one), unpacked(other)]))
    indices = torch.tensor([7, 0, 7])
    assert torch.equal(unpacked(both, indices), unpacked(both)[indices])


@pytest.mark.parametrize("name", NAMES)
def test_zeros_stay_and_strides_do_not_matter(name):
    form = FORMATS[name]
    zeros = torch.zeros(2, form.span)
    assert torch.equal(unpacked(pack(zeros, form)), zeros)
    weight = normal(form.span, 4)
    assert torch.equal(unpacked(pack(weight.t(), form)), unpacked(pack(weight.t().clone(), form)))


@settings(deadline=None, max_examples=40)
@given(st.sampled_from(NAMES), st.floats(-6, 6), st.integers(0, 2**16))
def test_the_error_of_a_value_is_bounded_by_its_group(name, magnitude, seed):
    form = FORMATS[name]
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(2, form.span, generator=generator) ** 3 * 10.0**magnitude
    found = unpacked(pack(weight, form))
    groups = weight.view(2, -1, form.group or form.span)
    largest = groups.abs().amax(-1, keepdim=True)
    apart = ((found.view(groups.shape) - groups).abs() / largest).max().item()
    assert apart < 0.35  # clipped to 0.7 of the largest at most, or half a step of 4 bits
