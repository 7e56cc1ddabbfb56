"""Inductor's options by name: what code they lead to, and that nothing mixes them up."""

from __future__ import annotations

import re

import pytest
import torch
import torch.fx as fx
from torch import nn
from torch._inductor import config
from torch._inductor.codecache import compiled_fx_graph_hash
from torch._inductor.graph import GraphLowering
from torch._inductor.virtualized import V

from thunder_tune.compiler import build, inductor, viability
from thunder_tune.compiler.inductor import InductorRegion
from thunder_tune.compiler.inductor_options import OPTIONS
from thunder_tune.compiler.matching import match
from thunder_tune.compiler.places import place_of
from thunder_tune.program import capture
from thunder_tune.values.fusers import FUSERS, INDUCTOR, PERSISTENT, TUNED, VARIANTS
from thunder_tune.values.plan import resolve
from thunder_tune.values.recipe import TunedPlan


def quantized(x):
    """GELU, and its rows scaled by their largest magnitude."""
    y = torch.nn.functional.gelu(x).float()
    scale = torch.clamp(torch.amax(torch.abs(y), -1, keepdim=True), min=1e-12) / 448.0
    return (y / scale).to(torch.float8_e4m3fn), scale


class Mean(nn.Module):
    def forward(self, x):
        return torch.nn.functional.gelu(x) - x.mean(-1, keepdim=True)


@pytest.fixture
def triton_code(monkeypatch):
    """Return the Triton code of a region, which a CPU can generate but not run."""
    codes = []

    class NotLoaded:
        def call(self, inputs):
            return ()

    def generate_only(graph):
        code, _ = graph.codegen()
        codes.append(code.value)
        return NotLoaded()

    monkeypatch.setattr(inductor, "_compiled", {})
    monkeypatch.setattr(GraphLowering, "compile_to_module", generate_only)
    monkeypatch.setattr(torch.utils._triton, "triton_hash_with_backend", lambda: "none")

    def generate(name, x):
        codes.clear()
        with config.patch(cpu_backend="triton", fx_graph_cache=False):
            InductorRegion(fx.symbolic_trace(quantized), OPTIONS[name])(x)
        return "\n".join(codes)

    return generate


def block_of(code):
    """Return the width of the row that is held in registers, or None for a loop."""
    found = re.search(r"R0_BLOCK: tl.constexpr = (\d+)$", code, re.MULTILINE)
    assert ("triton_per" in code) == (found is not None)
    return int(found.group(1)) if found else None


@pytest.mark.parametrize(
    ("width", "own", "persistent"),
    [
        (100, 128, 128),
        (3072, None, 4096),
        (8192, None, 8192),
        (16384, None, 16384),
        (16400, None, None),
    ],
)
def test_rows_are_held_in_registers_up_to_a_width(triton_code, width, own, persistent):
    x = torch.ones(1024, width, dtype=torch.bfloat16)
    for name, block in ((INDUCTOR, own), (PERSISTENT, persistent), (TUNED, persistent)):
        assert block_of(triton_code(name, x)) == block


def test_only_the_tuned_ones_are_tuned(triton_code):
    x = torch.ones(1024, 64, dtype=torch.bfloat16)
    for name in OPTIONS:
        code = triton_code(name, x)
        assert ("'coordinate_descent_tuning': True" in code) == (name == TUNED)
        assert ("'max_autotune_pointwise': True" in code) == (name == TUNED)
        assert "'max_autotune': False" in code  # templates of matrix products


def test_options_are_compiled_apart_and_equal_ones_once(triton_code):
    x = torch.ones(1024, 3072, dtype=torch.bfloat16)
    assert all(triton_code(name, x) for name in OPTIONS)
    assert [triton_code(name, x) for name in OPTIONS] == [""] * len(OPTIONS)
    assert len(inductor._compiled) == len(OPTIONS)


def test_heuristics_go_back_to_what_they_were(triton_code):
    before = type(V.choices)
    triton_code(PERSISTENT, torch.ones(1024, 3072, dtype=torch.bfloat16))
    assert type(V.choices) is before
    assert config.inductor_choices_class is None


def test_inductors_cache_tells_the_options_apart():
    graph = fx.symbolic_trace(lambda x: (x + 1,))

    def key(name):
        with config.patch(dict(OPTIONS[name])):
            return compiled_fx_graph_hash(graph, [], {}, [])[0]

    assert len({key(name) for name in OPTIONS}) == len(OPTIONS)
    assert [key(name) for name in OPTIONS] == [key(name) for name in OPTIONS]


def test_every_fuser_but_nvfuser_has_options():
    assert set(OPTIONS) == set(FUSERS) - {"nvfuser"}


@pytest.fixture(scope="module")
def mean():
    model, x = Mean(), torch.randn(4, 16, generator=torch.Generator().manual_seed(0))
    return model, x, capture(model, (x,), {})


def everywhere(program, target):
    return {("executor:" if c.is_anchor else "fuser:") + c.id: target for c in program.classes}


@pytest.mark.parametrize("name", sorted(OPTIONS))
def test_what_runs_says_which_options_it_has(mean, name):
    model, x, found = mean
    plan = resolve(found.program, everywhere(found.program, name))
    assert [region.fuser for region in plan.regions] == [name]
    built = build(model, plan, found)
    with torch.no_grad():
        torch.testing.assert_close(built(x), model(x))
    assert built.applied == 1.0
    (fusion,) = [b for b in built.graphs[0].forward.bound_symbols if b.sym.is_fusion]
    assert place_of(fusion) == name


@pytest.mark.parametrize("name", sorted(VARIANTS))
def test_a_cpu_is_not_offered_what_changes_nothing_there(mean, name):
    _, _, found = mean
    offered = viability(found, "cpu")
    on_cuda = viability(found, "cuda")
    for c in found.program.classes:
        assert offered(c.id, name) == "differs from inductor on CUDA only"
        assert on_cuda(c.id, name) == ""


@pytest.mark.parametrize(
    ("name", "reason"),
    [(TUNED, "differs from inductor on CUDA only"), ("inductor:other", "no executor of the name")],
)
def test_a_recipe_with_options_that_are_not_here_says_so(mean, name, reason):
    program = mean[2].program
    plan = TunedPlan(
        signature="",
        program_hash=program.hash,
        program_loose_hash=program.loose_hash,
        assignment=everywhere(program, name),
        classes=program.loose_ids,
    )
    found = match(plan, program, "cpu")
    assert len(found.missing) == 1
    assert found.missing[0].startswith(f"{name} {reason}")
    assert set(found.assignment.values()) == {"torch"}
