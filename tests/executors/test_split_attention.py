"""Attention of few queries over many keys against float64, by Triton's interpreter on the CPU."""

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

from thunder_tune.compiler import build, viability
from thunder_tune.executors.kernels import split_attention as kernels
from thunder_tune.executors.split_attention import split_attention
from thunder_tune.program import capture
from thunder_tune.values.plan import resolve


def random(*shape, dtype=torch.float16):
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator).to(dtype)


def case(batch, heads, groups, queries, keys, width, *, mask=None, scale=None):
    arguments = [
        random(batch, n, length, width) for n, length in ((heads, queries), (groups, keys))
    ]
    return (
        *arguments,
        random(batch, groups, keys, width + 1)[..., 1:],
        mask,
        scale or width**-0.5,
    )


def ahead(keys, seen):
    """A mask that hides all keys from some place on, as a static cache's is expanded."""
    row = torch.zeros(1, 1, 1, keys, dtype=torch.float16)
    row[..., seen:] = float("-inf")
    return row


CASES = {
    "one head each": case(2, 3, 3, 1, 130, 16),
    "shared by four": case(1, 8, 2, 1, 257, 32),
    "several queries": case(2, 4, 2, 3, 300, 16),
    "sixteen rows": case(1, 16, 1, 1, 128, 64),
    "a scale": case(1, 2, 1, 1, 200, 16, scale=0.7),
    "masked": case(2, 4, 2, 1, 300, 16, mask=ahead(300, 77)),
    "masked in whole parts": case(1, 2, 1, 1, 700, 16, mask=ahead(700, 5)),
    "another mask for each": case(2, 4, 2, 2, 150, 16, mask=random(2, 4, 2, 150) * 3),
    "large scores": case(1, 1, 1, 1, 256, 16, scale=30.0),
    "many parts": case(1, 2, 1, 1, 2000, 16),
}

IN_THE_INTERPRETER = """
import sys, torch
from thunder_tune.executors.split_attention import attend
cases = torch.load(sys.argv[1])
torch.save({name: attend(*case, processors=8) for name, case in cases.items()}, sys.argv[2])
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("attention")
    torch.save(CASES, folder / "cases")
    subprocess.run(
        [sys.executable, "-c", IN_THE_INTERPRETER, folder / "cases", folder / "results"],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        check=True,
    )
    return torch.load(folder / "results")


def expected_of(query, key, value, mask, scale):
    mask = None if mask is None else mask.double()
    return F.scaled_dot_product_attention(
        query.double(), key.double(), value.double(), mask, scale=scale, enable_gqa=True
    )


@pytest.mark.parametrize("name", CASES)
def test_agrees_with_float64(results, name):
    expected = expected_of(*CASES[name])
    assert results[name].shape == expected.shape
    assert results[name].transpose(1, 2).is_contiguous()
    assert (results[name].double() - expected).norm() / expected.norm() < 1e-3


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_agrees_with_float64_on_the_device(name, dtype):
    *tensors, scale = CASES[name]
    query, key, value, mask = (None if t is None else t.to("cuda", dtype) for t in tensors)
    found = split_attention(query, key, value, mask, scale=scale)
    expected = expected_of(query, key, value, mask, scale)
    limit = 1e-3 if dtype == torch.float16 else 8e-3
    assert (found.double() - expected).norm() / expected.norm() < limit


@pytest.mark.gpu
def test_a_query_that_sees_no_key_gets_zeros():
    query, key, value, _, _ = (t.cuda() if torch.is_tensor(t) else t for t in CASES["a scale"])
    hidden = ahead(200, 0).cuda()
    assert torch.equal(split_attention(query, key, value, hidden), torch.zeros_like(query))


def test_is_compiled_for_hopper():
    names = kernels.attend_part.arg_names
    constants = {
        "PART": 256,
        "N_QUERIES": 1,
        "N_KEYS": 2048,
        "WIDTH": 128,
        "SHARING": 4,
        "ROWS": 16,
        "HAS_BIAS": True,
        "COLUMNS": 64,
    }
    pointers = dict.fromkeys(("queries", "keys", "values", "bias"), "*bf16")
    pointers |= dict.fromkeys(("sums", "highest", "totals"), "*fp32")
    signature = {n: pointers.get(n, "fp32" if n == "scale" else "i32") for n in names}
    signature |= dict.fromkeys(constants, "constexpr")
    source = ASTSource(kernels.attend_part, signature=signature, constexprs=constants)
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32))
    assert compiled.metadata.shared < 200_000


class TestChoice:
    """Where it is offered: at attention alone, and at attention with shared keys."""

    def model(self, q, k, v, mask):
        times = q.shape[1] // k.shape[1]

        def repeated(x):
            b, g, n, w = x.shape
            return x[:, :, None].expand(b, g, times, n, w).reshape(b, g * times, n, w)

        return F.scaled_dot_product_attention(q, repeated(k), repeated(v), mask) * 2

    def refusals(self, inputs, monkeypatch, kind):
        module = __import__("thunder_tune.compiler.viability", fromlist=["_"])
        monkeypatch.setattr(module, "unavailable_reason", lambda *_: "")
        with torch.no_grad():
            found = capture(self.model, inputs, {})
        classes = (*found.program.classes, *found.program.site_classes)
        return {
            viability(found, "cuda")(c.id, "split_attention") for c in classes if c.kind == kind
        }

    @pytest.mark.parametrize("kind", ["sdpa", "grouped_attention"])
    @pytest.mark.parametrize(
        ("change", "accepted"),
        [
            ({}, True),
            ({"queries": 5}, False),
            ({"keys": 100}, False),
            ({"width": 24}, False),
            ({"dtype": torch.float32}, False),
        ],
    )
    def test_its_limits(self, monkeypatch, kind, change, accepted):
        asked = {"queries": 1, "keys": 160, "width": 16, "dtype": torch.bfloat16, **change}
        shapes = ((8, asked["queries"]), (2, asked["keys"]), (2, asked["keys"]))
        inputs = [random(1, n, m, asked["width"], dtype=asked["dtype"]) for n, m in shapes]
        mask = torch.zeros(1, 1, asked["queries"], asked["keys"], dtype=asked["dtype"])
        found = self.refusals((*inputs, mask), monkeypatch, kind)
        if accepted or (kind == "sdpa" and change == {"queries": 5}):  # each head has keys there
            assert found == {""}
        else:
            assert all("refuses" in reason for reason in found)

    def test_it_computes_the_site(self):
        inputs = (
            random(1, 8, 1, 16, dtype=torch.bfloat16),
            random(1, 2, 160, 16, dtype=torch.bfloat16),
            random(1, 2, 160, 16, dtype=torch.bfloat16).flip(2),
            torch.zeros(1, 1, 1, 160, dtype=torch.bfloat16),
        )
        with torch.no_grad():
            found = capture(self.model, inputs, {})
            (site,) = (s for s in found.program.sites if s.rewrite == "grouped_attention")
            choices = {f"rewrite:{site.class_id}": "split_attention"}
            built = build(self.model, resolve(found.program, choices), found)
            torch.testing.assert_close(built(*inputs), self.model(*inputs), rtol=2e-2, atol=2e-2)
        assert built.applied == 1.0
        names = [b.sym.name for b in built.graphs[0].forward.bound_symbols]
        assert names.count("split_attention") == 1
