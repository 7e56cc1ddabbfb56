"""The attention kernel against float64, run by Triton's interpreter on the CPU."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from thunder_tune.executors import operator_executor, unavailable_reason
from thunder_tune.executors.kernels import attention
from thunder_tune.executors.short_attention import short_attention
from thunder_tune.program import capture


def packed(batch, heads, length, width, dtype=torch.float16):
    """Queries, keys and values as views of one projection."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(batch, length, 3, heads, width, generator=generator).to(dtype)
    return [part.transpose(1, 2) for part in x.unbind(2)]


def few_queries():
    query, key, value = packed(2, 2, 40, 32)
    return query[:, :, 3:4], key, value.transpose(2, 3).contiguous().transpose(2, 3), 0.7


CASES = {
    **{
        f"{length}x{width}": (*packed(2, 3, length, width), width**-0.5)
        for length in (1, 16, 63, 64, 65, 197)
        for width in (16, 64)
    },
    "few queries, other strides": few_queries(),
    "large scores": (*(x * 60 for x in packed(1, 1, 70, 16)), 1.0),
}

IN_THE_INTERPRETER = """
import sys, torch
from thunder_tune.executors.short_attention import attend
cases = torch.load(sys.argv[1])
torch.save({name: attend(*case) for name, case in cases.items()}, sys.argv[2])
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Results of all cases, from a process in which Triton interprets its kernels."""
    folder = tmp_path_factory.mktemp("attention")
    torch.save(CASES, folder / "cases")
    subprocess.run(
        [sys.executable, "-c", IN_THE_INTERPRETER, folder / "cases", folder / "results"],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        check=True,
    )
    return torch.load(folder / "results")


@pytest.mark.parametrize("name", CASES)
def test_agrees_with_float64(results, name):
    query, key, value, scale = CASES[name]
    expected = F.scaled_dot_product_attention(
        query.double(), key.double(), value.double(), scale=scale
    )
    assert results[name].shape == expected.shape
    assert results[name].transpose(1, 2).is_contiguous()
    assert (results[name].double() - expected).norm() / expected.norm() < 1e-3


@pytest.mark.parametrize(
    ("change", "accepted"),
    [
        ({}, True),
        ({"is_causal": True}, False),
        ({"attn_mask": torch.zeros(20, 20)}, False),
        ({"dtype": torch.float32}, False),
        ({"width": 24}, False),
        ({"length": 1025}, False),
    ],
)
def test_what_it_declines(change, accepted):
    settings = {"width": 16, "length": 20, "dtype": torch.bfloat16, **change}
    inputs = packed(1, 1, settings["length"], settings["width"], settings["dtype"])
    mask = change.get("attn_mask")
    mask = None if mask is None else mask.to(settings["dtype"])

    def attend(q, k, v, m):
        is_causal = settings.get("is_causal", False)
        return F.scaled_dot_product_attention(q, k, v, m, is_causal=is_causal)

    with torch.no_grad():
        found = capture(attend, (*inputs, mask), {})
    (bsym,) = (b for b in found.graphs[0].trace.bound_symbols if "attention" in b.sym.name)
    assert operator_executor("short_attention").can_execute(bsym) is accepted


def test_it_needs_a_cuda_device():
    assert unavailable_reason("short_attention", "cpu") == "needs a CUDA device"


@pytest.mark.parametrize("tile", attention.TILES[::3], ids=str)
def test_compiles_for_hopper_without_a_device(tile):
    rows, columns, warps = tile
    constants = {"N_QUERIES": 197, "N_KEYS": 197, "WIDTH": 64, "ROWS": rows, "COLUMNS": columns}
    constants["LAST"] = attention._last(constants)
    kernel = attention.attention.fn
    pointers = dict.fromkeys(("queries", "keys", "values", "results"), "*bf16")
    types = {**dict.fromkeys(constants, "constexpr"), **pointers, "scale": "fp32"}
    source = ASTSource(
        fn=kernel,
        signature={name: types.get(name, "i32") for name in kernel.arg_names},
        constexprs={(kernel.arg_names.index(n),): value for n, value in constants.items()},
    )
    made = triton.compile(
        source, target=GPUTarget("cuda", 90, 32), options={"num_warps": warps, "num_stages": 2}
    )
    assert "wgmma" in made.asm["ptx"]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("lengths", [(197, 197), (1, 197), (128, 128), (300, 77)], ids=str)
def test_agrees_with_float64_on_a_device(lengths, dtype):
    n_queries, n_keys = lengths
    query, key, value = (x.cuda() for x in packed(4, 12, max(lengths), 64, dtype))
    query, key, value = query[:, :, :n_queries], key[:, :, :n_keys], value[:, :, :n_keys]
    result = short_attention(query, key, value)
    expected = F.scaled_dot_product_attention(query.double(), key.double(), value.double())
    limit = {torch.float16: 1e-3, torch.bfloat16: 6e-3}[dtype]
    assert (result.double() - expected).norm() / expected.norm() < limit
