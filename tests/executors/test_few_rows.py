"""Products of few rows against float64, by Triton's interpreter on the CPU."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from thunder_tune.executors.few_rows import (
    FEWEST_COLUMNS,
    MOST_AT_ONCE,
    multiply,
    product,
    rows_of,
)
from thunder_tune.executors.kernels import weight_only as kernels
from thunder_tune.executors.weight_formats import FORMATS, LANES, pack, unpacked

NAMES = ("plain", *sorted(FORMATS))


def random(*shape, dtype=torch.float16):
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator).to(dtype)


def case(name, rows, width, out, *, bias=False, residual=False, dtype=torch.float16):
    weight = random(out, width, dtype=dtype) / width**0.5
    return (
        random(rows, width, dtype=dtype),
        weight if name == "plain" else pack(weight, FORMATS[name]),
        random(out, dtype=dtype) if bias else None,
        random(rows, out, dtype=dtype) if residual else None,
    )


def expected_of(x, weight, bias, residual):
    wide = weight if torch.is_tensor(weight) else unpacked(weight)
    found = x.double() @ wide.double().t()
    for added in (bias, residual):
        found = found if added is None else found + added.double()
    return found


def error(found, wanted):
    return ((found.double() - wanted).norm() / wanted.norm()).item()


CASES = {
    **{f"one row, {name}": case(name, 1, 512, 24) for name in NAMES},
    "several rows": case("int4", 5, 256, 32),
    "nine rows": case("int8", 9, 256, 16),
    "all at once": case("int4", 3, 512, 33, bias=True, residual=True),
    "a single column": case("plain", 2, 64, 1, bias=True),
}

IN_THE_INTERPRETER = """
import sys, torch
from thunder_tune.executors.few_rows import multiply, unpack
cases = torch.load(sys.argv[1], weights_only=False)
found = {}
for name, (x, weight, *others) in cases.items():
    found[name] = [multiply(x, weight, *others)]
    if not torch.is_tensor(weight):
        indices = torch.tensor([weight.shape[0] - 1, 0, 3])
        found[name] += [unpack(weight, indices, x.dtype)]
        if weight.shape[0] == 16:
            found[name] += [unpack(weight, None, x.dtype)]
torch.save(found, sys.argv[2])
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("few_rows")
    torch.save(CASES, folder / "cases")
    subprocess.run(
        [sys.executable, "-c", IN_THE_INTERPRETER, folder / "cases", folder / "results"],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        check=True,
    )
    return torch.load(folder / "results")


@pytest.mark.parametrize("name", CASES)
def test_agrees_with_float64(results, name):
    x, weight, *others = CASES[name]
    found, *rows = results[name]
    assert found.shape == (len(x), weight.shape[0])
    assert error(found, expected_of(x, weight, *others)) < 1e-3
    for some, indices in zip(rows, ([-1, 0, 3], slice(None)), strict=False):
        wide = unpacked(weight)
        torch.testing.assert_close(some.float(), wide[indices], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_on_a_cpu_torch_multiplies(name, dtype):
    x, weight, bias, residual = case(name, 6, 512, 24, bias=True, residual=True, dtype=dtype)
    expected = expected_of(x, weight, bias, residual).view(2, 3, 24)
    strided = x.repeat_interleave(2, -1)[:, ::2].view(2, 3, 512)
    found = product(strided, weight, bias, residual.view(2, 3, 24))
    assert found.dtype == dtype
    assert found.is_contiguous()
    assert error(found, expected) < (1e-5 if dtype == torch.float32 else 4e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("rows", [1, 7, 16, 33, MOST_AT_ONCE + 1])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_agrees_with_float64_on_the_device(name, rows, dtype):
    for width, out in ((1024, 96), (768, 200), (4096, 1024)):
        x, _, bias, residual = case("plain", rows, width, out, bias=True, residual=True)
        plain = random(out, width).to("cuda", dtype) / width**0.5
        given = [t.to("cuda", dtype) for t in (x, bias, residual)]
        there = plain if name == "plain" else pack(plain, FORMATS[name])
        limit = 2e-3 if dtype == torch.float16 else 1e-2
        for _ in range(3):  # what counts parts starts anew
            found = product(given[0], there, *given[1:])
            assert error(found, expected_of(given[0], there, *given[1:])) < limit


@pytest.mark.gpu
@pytest.mark.parametrize("name", sorted(FORMATS))
def test_rows_on_the_device(name):
    weight = pack(random(50, 1024).cuda(), FORMATS[name])
    indices = torch.tensor([[3, 0], [49, 3]], device="cuda")
    found = rows_of(weight, indices, dtype=torch.bfloat16)
    expected = unpacked(weight)[indices]
    torch.testing.assert_close(found.float(), expected, rtol=8e-3, atol=1e-3)


class TestPtx:
    """What a few instructions make of two words, computed here as they are defined."""

    @staticmethod
    def run(code, words):
        registers = {"$1": words.to(torch.int64) & 0xFFFFFFFF}

        def value(name):
            return registers[name] if name in registers else torch.tensor(int(name, 0))

        def halves(wide):
            both = torch.stack([wide & 0xFFFF, wide >> 16], -1)
            return both.to(torch.int16).view(torch.bfloat16).double()

        for line in re.findall(r"[a-z].*?;", code.replace(".reg .b32 n, m, a, b;", "")):
            name, rest = line.rstrip(";").split(" ", 1)
            target, *names = (part.strip() for part in rest.split(","))
            given = [value(n) for n in names]
            if name == "mov.b32":
                found = given[0]
            elif name == "shr.u32":
                found = given[0] >> given[1]
            elif name == "shl.b32":
                found = (given[0] << given[1]) & 0xFFFFFFFF
            elif name == "and.b32":
                found = given[0] & given[1]
            elif name == "lop3.b32":
                assert names[3] == "0xEA"
                found = (given[0] & given[1]) | given[2]
            else:
                assert (name, target) == ("fma.rn.bf16x2", "$0")
                one, factor, added = map(halves, given)
                return (one * factor + added).to(torch.bfloat16).double()
            registers[target] = found
        raise AssertionError("it returned nothing")

    @pytest.mark.parametrize(
        ("name", "codes"),
        [
            ("int4", kernels.INT4),
            ("int8", kernels.INT8),
            ("float8", kernels.E4M3),
            ("fp4_e2m1", kernels.E2M1),
        ],
    )
    def test_every_word_becomes_its_values(self, name, codes):
        words = torch.arange(1 << 16)
        other = words.flip(0)
        parts = codes.value
        bits = 16 // len(parts)
        for place, code in enumerate(parts):
            found = self.run(code, words | other << 16)
            for column, word in ((0, words), (1, other)):
                code_of = (word >> bits * place) & ((1 << bits) - 1)
                if bits == 4:
                    expected = torch.tensor(FORMATS[name].codes).double()[code_of]
                elif name == "int8":
                    expected = code_of.to(torch.uint8).view(torch.int8).double()
                else:
                    expected = code_of.to(torch.uint8).view(torch.float8_e4m3fn).double()
                is_number = ~expected.isnan()
                assert torch.equal(found[:, column][is_number], expected[is_number])


@pytest.mark.parametrize("name", ["plain", "int4", "int8", "nf4", "fp6_e2m3"])
def test_is_compiled_for_hopper(name):
    form = FORMATS.get(name)
    group = form.group if form else 0
    constants = {
        "WIDTH": 2048,
        "OUT": 512,
        "FORM": name,
        "EACH": form.each if form else 1,
        "GROUP": group,
        "LANES": form.lanes if form else LANES,
        "HAS_PAIRS": bool(form and form.bits == 6),
        "HAS_BIAS": True,
        "HAS_RESIDUAL": True,
        "FAST": True,
        "ROWS": 8,
        "COLUMNS": 64,
        "PARTS": 2,
    }
    pointers = dict.fromkeys(("x", "bias", "residual", "results"), "*bf16")
    pointers |= {"values": "*i16" if form else "*bf16", "pairs": "*u8", "partial": "*fp32"}
    pointers |= {"scales": "*bf16" if group else "*fp32", "table": "*bf16", "counters": "*i32"}
    signature = {n: pointers.get(n, "i32") for n in kernels.product.arg_names}
    signature |= dict.fromkeys(constants, "constexpr")
    source = ASTSource(kernels.product, signature=signature, constexprs=constants)
    options = {"num_warps": 4, "num_stages": 4}
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    assert compiled.metadata.shared < 200_000


def test_tiles_and_parts_occupy_the_device():
    asked = {
        (out, columns, parts)
        for out in (1024, 4096, 28672, 128256)
        for columns, _ in kernels.TILES
        for parts in kernels.PARTS
        if kernels.suits(out, 16, (columns, parts), 132)
    }
    assert min(columns for columns, _ in kernels.TILES) == FEWEST_COLUMNS
    assert all(-(-out // columns) * parts >= 132 for out, columns, parts in asked)
    assert {parts for out, _, parts in asked if out == 128256} == {1}
    assert {columns for out, columns, _ in asked if out == 1024} == {32, 64}
    assert not kernels.suits(4096, 3, (64, 2), 132)  # parts share the width evenly


def test_no_rows_give_none():
    x, weight, *_ = case("int4", 1, 256, 8)
    assert multiply(x[:0], weight, None, None).shape == (0, 8)
