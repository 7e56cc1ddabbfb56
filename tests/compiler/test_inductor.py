"""Regions: equal ones share their code, and each gives what its graph computes."""

from __future__ import annotations

import pytest
import torch
import torch.fx as fx

from thunder_tune.compiler import inductor
from thunder_tune.compiler.inductor import InductorRegion


@pytest.fixture
def compiled(monkeypatch):
    """What was compiled so far in this test."""
    found = {}
    monkeypatch.setattr(inductor, "_compiled", found)
    return found


def region(function, options=None):
    return InductorRegion(fx.symbolic_trace(function), options or {})


def scaled(x, y):
    return (torch.relu(x + y) * 2,)


def scaled_too(first, second):
    return (torch.relu(first + second) * 2,)


def scaled_more(x, y):
    return (torch.relu(x + y) * 3,)


def viewed(x, y):
    return x.view(-1), x + y


def swapped(x, y):
    return (torch.relu(y + x) * 2,)


@pytest.fixture
def pair():
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(4, 6, generator=generator) for _ in range(2))


def test_equal_regions_are_compiled_once_whatever_their_values_are_called(compiled, pair):
    first, second = region(scaled), region(scaled_too)
    kept = first(*pair)[0]
    again = second(pair[0] + 1, pair[1])[0]
    assert len(compiled) == 1
    torch.testing.assert_close(kept, scaled(*pair)[0])
    torch.testing.assert_close(again, scaled(pair[0] + 1, pair[1])[0])


@pytest.mark.parametrize("other", [scaled_more, swapped])
def test_another_constant_or_wiring_is_another_region(compiled, pair, other):
    region(scaled)(*pair)
    torch.testing.assert_close(region(other)(*pair)[0], other(*pair)[0])
    assert len(compiled) == 2


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.double(),
        lambda x: x[:2],
        lambda x: x.t().contiguous().t(),
        lambda x: torch.cat([x.flatten(), x.new_zeros(1)])[1:].view(4, 6),
    ],
    ids=["dtype", "shape", "strides", "alignment"],
)
def test_other_inputs_are_compiled_apart(compiled, pair, change):
    region(scaled)(*pair)
    changed = tuple(map(change, pair))
    torch.testing.assert_close(region(scaled_too)(*changed)[0], scaled(*changed)[0])
    assert len(compiled) == 2


def test_numbers_are_part_of_the_code(compiled, pair):
    def times(x, factor):
        return (x * factor,)

    for factor in (2.0, 3.0):
        torch.testing.assert_close(region(times)(pair[0], factor)[0], pair[0] * factor)


def test_other_options_and_settings_are_compiled_apart(compiled, pair):
    region(scaled)(*pair)
    region(scaled, {"epilogue_fusion": False})(*pair)
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("high" if before != "high" else "highest")
        region(scaled)(*pair)
    finally:
        torch.set_float32_matmul_precision(before)
    assert len(compiled) == 3


def test_a_view_of_an_input_stays_a_view(compiled, pair):
    def flat(x):
        return x.view(-1), x + 1

    x = pair[0].clone()
    view, more = region(flat)(x)
    torch.testing.assert_close(more, x + 1)
    x.zero_()
    assert view.tolist() == [0.0] * 24


def test_an_input_that_is_a_result_too_is_itself(compiled, pair):
    def through(x, y):
        return x, x + y

    same, total = region(through)(*pair)
    torch.testing.assert_close(same, pair[0])
    torch.testing.assert_close(total, pair[0] + pair[1])


def test_code_without_wrappers_is_taken_where_it_can_be(compiled, pair):
    region(scaled)(*pair)
    (found,) = compiled.values()
    assert isinstance(found.run, torch._inductor.output_code.OutputCode)


@pytest.mark.parametrize("function", [scaled, viewed], ids=["bare", "wrapped"])
def test_a_region_that_was_compiled_before_shows_its_code(compiled, pair, function):
    first, second = region(function), region(function)
    assert first.source == ""
    for one in (first, second):
        one(*pair)
    assert len(compiled) == 1
    assert "def call(" in second.source
    assert second.source == first.source


def test_a_region_from_the_cache_on_disk_shows_its_code(compiled, pair):
    def with_caches():
        found = region(scaled)
        found(*pair)
        return found

    hits = torch._dynamo.utils.counters["inductor"]
    with torch._inductor.utils.fresh_cache():
        first = with_caches()
        before = hits["fxgraph_cache_hit"]
        compiled.clear()
        second = with_caches()
        assert hits["fxgraph_cache_hit"] == before + 1
        assert second.source == first.source != ""
        (found,) = compiled.values()
        assert isinstance(found.run, torch._inductor.output_code.OutputCode)


def test_a_region_that_computes_nothing_has_no_code(compiled, pair):
    found = region(lambda x: (x,))
    torch.testing.assert_close(found(pair[0])[0], pair[0])
    assert found.source == ""
