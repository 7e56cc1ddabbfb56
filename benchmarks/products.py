"""Time matrix products of models in torch's way and by cuBLASLt called directly.

Run: python -m benchmarks.products [--dtype bfloat16|float16|float8] [--only ViT|BERT|Llama]
For each product of ViT-B/16 (128 images), BERT-large (8 x 512 tokens) and Llama 3.2 1B (2048
tokens): microseconds and TFLOP/s of torch, of the first algorithm that cuBLASLt's heuristic names,
and of the one that was timed the fastest; which one that is; and how far the results differ. Then
the same products of e4m3 operands: torch's with a scale for each row, without what follows it;
cuBLASLt's with one scale, and what follows it, for a bfloat16 and for an e4m3 result. Each is a
CUDA graph of 20 calls that take turns at 4 sets of operands; the graphs of a row are replayed in
turn.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.nn.functional as F

from thunder_tune.executors.kernels import cublaslt
from thunder_tune.executors.kernels.cublaslt_float8 import E4M3, float8_linear
from thunder_tune.executors.kernels.cublaslt_plans import Problem

T = TypeVar("T")

CALLS = 20
SETS = 4
REPLAYS = 10
WARM_UPS = 2


@dataclass(frozen=True, slots=True)
class Product:
    """A linear of a model, and what follows it.

    Attributes:
        model: Whose it is.
        rows: Of the input.
        width: In features.
        out: Out features.
        then: "", "gelu" or "residual".
        has_bias: Whether it adds one.
    """

    model: str
    rows: int
    width: int
    out: int
    then: str = ""
    has_bias: bool = True

    @property
    def tflop(self) -> float:
        """Floating-point operations of the product alone, in 10^12."""
        return 2 * self.rows * self.width * self.out / 1e12


PRODUCTS = (
    Product("ViT", 25216, 768, 2304),
    Product("ViT", 25216, 768, 768),
    Product("ViT", 25216, 768, 768, "residual"),
    Product("ViT", 25216, 768, 3072, "gelu"),
    Product("ViT", 25216, 3072, 768, "residual"),
    Product("BERT", 4096, 1024, 3072),
    Product("BERT", 4096, 1024, 1024, "residual"),
    Product("BERT", 4096, 1024, 4096, "gelu"),
    Product("BERT", 4096, 4096, 1024, "residual"),
    Product("Llama", 2048, 2048, 3072, has_bias=False),
    Product("Llama", 2048, 2048, 2048, "residual", has_bias=False),
    Product("Llama", 2048, 2048, 16384, has_bias=False),
    Product("Llama", 2048, 8192, 2048, "residual", has_bias=False),
)

Operands = tuple[torch.Tensor, torch.Tensor, "torch.Tensor | None", "torch.Tensor | None"]


def operands(product: Product, dtype: torch.dtype) -> Operands:
    """Return input, weight, bias and residual, the last two where the product has them."""

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device="cuda", dtype=dtype)

    rows, width, out = product.rows, product.width, product.out
    bias = random(out) if product.has_bias else None
    residual = random(rows, out) if product.then == "residual" else None
    return random(rows, width), random(out, width) / width**0.5, bias, residual


def torchs_way(product: Product, given: Operands) -> torch.Tensor:
    """Compute it as PyTorch would."""
    x, weight, bias, residual = given
    if product.then == "gelu":
        assert bias is not None
        return torch._addmm_activation(bias, x, weight.t(), use_gelu=True)
    y = F.linear(x, weight, bias)
    return y if residual is None else y + residual


def by_cublaslt(product: Product, given: Operands, *, is_timed: bool) -> torch.Tensor:
    """Compute it by one product."""
    x, weight, bias, residual = given
    activation = "gelu" if product.then == "gelu" else None
    return cublaslt.linear(
        x, weight, bias, residual=residual, activation=activation, is_timed=is_timed
    )


def times_us(ways: Sequence[Callable[[T], torch.Tensor]], sets: list[T]) -> list[float]:
    """Return the median microseconds of a call of each way, replayed in turn.

    At the device's power limit who comes first has the higher clock, so the first changes.
    """
    graphs = [_graphed(way, sets) for way in ways]
    times: list[list[float]] = [[] for _ in ways]
    for replay in range(WARM_UPS + REPLAYS):
        for place in range(len(ways)):
            index = (place + replay) % len(ways)
            start, end = (
                torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
                for _ in range(2)
            )
            start.record()
            graphs[index].replay()
            end.record()
            end.synchronize()
            if replay >= WARM_UPS:
                times[index].append(start.elapsed_time(end) * 1e3 / CALLS)
    return [statistics.median(t) for t in times]


def _graphed(call: Callable[[T], torch.Tensor], sets: list[T]) -> torch.cuda.CUDAGraph:
    """Capture calls on one set of operands after the other."""
    call(sets[0])
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for given in itertools.islice(itertools.cycle(sets), CALLS):
            call(given)
    return graph


def planned(before: set[tuple[Problem, bool]]) -> str:
    """Return which of its algorithms the plan took that was timed since, "1/16"."""
    plans = [p for key, p in cublaslt.PLANS.items() if key not in before and key[1]]
    return f"{plans[-1].algorithms.index(plans[-1].chosen) + 1}/{len(plans[-1].algorithms)}"


def distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the relative distance of two results."""
    return float((found.double() - expected.double()).norm() / expected.double().norm())


def columns(product: Product, times: list[float | None]) -> str:
    """Return microseconds and TFLOP/s of each way; None: it is none."""
    return "".join(
        f"{'-':>9} {'-':>5}" if us is None else f"{us:9.1f} {product.tflop * 1e6 / us:5.0f}"
        for us in times
    )


def row(product: Product, dtype: torch.dtype) -> str:
    """Time one product and return its line of the table."""
    sets = [operands(product, dtype) for _ in range(SETS)]
    before = set(cublaslt.PLANS)
    ways: tuple[Callable[[Operands], torch.Tensor], ...] = (
        lambda given: torchs_way(product, given),
        lambda given: by_cublaslt(product, given, is_timed=False),
        lambda given: by_cublaslt(product, given, is_timed=True),
    )
    expected, _, found = (way(sets[-1]) for way in ways)
    which, difference = planned(before), distance(found, expected)
    times = times_us(ways, sets)
    return f"{columns(product, [*times])} {times[0] / times[2]:7.3f} {which:>6} {difference:9.1e}"


@dataclass(frozen=True, slots=True)
class Float8Operands:
    """Operands of a product in e4m3.

    Attributes:
        x: 16 times what `operands` has, (rows, in features).
        weight: The same, (out features, in features).
        bias: bfloat16, or None.
        residual: bfloat16, or None.
        multiplier: Of an e4m3 result, ().
        scale: Of x, and of the weight too, ().
        rows: The scale of x once for each row.
        columns: The weight's for each of its rows, as torch wants it.
    """

    x: torch.Tensor
    weight: torch.Tensor
    bias: torch.Tensor | None
    residual: torch.Tensor | None
    multiplier: torch.Tensor
    scale: torch.Tensor
    rows: torch.Tensor
    columns: torch.Tensor


def float8_operands(product: Product) -> Float8Operands:
    """Return the operands of a product in e4m3, bias and residual where it has them."""
    x, weight, bias, residual = operands(product, torch.bfloat16)
    scale = torch.tensor(1 / 16, device="cuda")
    return Float8Operands(
        x=(x * 16).to(E4M3),
        weight=(weight * 16).to(E4M3),
        bias=bias,
        residual=residual,
        multiplier=torch.tensor(16.0, device="cuda"),
        scale=scale,
        rows=scale.expand(product.rows, 1).contiguous(),
        columns=scale.expand(1, product.out).contiguous(),
    )


def by_rows(given: Float8Operands) -> torch.Tensor:
    """Compute the product and its bias by torch, with a scale for each row."""
    return torch._scaled_mm(
        given.x,
        given.weight.t(),
        scale_a=given.rows,
        scale_b=given.columns,
        bias=given.bias,
        out_dtype=torch.bfloat16,
        use_fast_accum=True,
    )


def by_one_scale(
    product: Product, given: Float8Operands, out_dtype: torch.dtype, *, is_plain: bool = False
) -> torch.Tensor:
    """Compute the product, and what follows it unless it is to be plain, by cuBLASLt."""
    return float8_linear(
        given.x,
        given.weight,
        given.bias,
        x_scale=given.scale,
        weight_scale=given.scale,
        residual=None if is_plain else given.residual,
        activation="gelu" if product.then == "gelu" and not is_plain else None,
        out_dtype=out_dtype,
        out_multiplier=given.multiplier if out_dtype == E4M3 else None,
        is_timed=True,
    )


def float8_row(product: Product) -> str:
    """Time one product in e4m3 and return its line of the table."""
    sets = [float8_operands(product) for _ in range(SETS)]
    before = set(cublaslt.PLANS)

    def way(out_dtype: torch.dtype) -> Callable[[Float8Operands], torch.Tensor]:
        return lambda given: by_one_scale(product, given, out_dtype)

    plain = by_one_scale(product, sets[-1], torch.bfloat16, is_plain=True)
    difference = distance(plain, by_rows(sets[-1]))
    ways = [by_rows, way(torch.bfloat16)]
    if product.then != "residual":
        ways.append(way(E4M3))
    times = times_us(ways, sets)
    shown = [*times, *[None] * (3 - len(times))]
    which = planned(before)
    return f"{columns(product, shown)} {times[0] / times[-1]:7.3f} {which:>6} {difference:9.1e}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dtype", default="", choices=("", "bfloat16", "float16", "float8"))
    parser.add_argument("--only", default="", choices=("", "ViT", "BERT", "Llama"))
    arguments = parser.parse_args()
    reason = cublaslt.available()
    if reason:
        sys.exit(f"cuBLASLt cannot be called here: {reason}")
    torch.manual_seed(0)
    products = [p for p in PRODUCTS if arguments.only in ("", p.model)]
    if arguments.dtype != "float8":
        dtype = getattr(torch, arguments.dtype or "bfloat16")
        show(products, ("torch us", "first us", "timed us"), lambda product: row(product, dtype))
    if arguments.dtype in ("", "float8"):
        show(products, ("rows us", "static us", "e4m3 us"), float8_row)


def show(
    products: list[Product], ways: tuple[str, ...], line_of: Callable[[Product], str]
) -> None:
    """Print the table of some ways to compute products."""
    heads = "".join(f"{name:>9} {'TF/s':>5}" for name in ways)
    print(f"{'product':42}{heads} {'speedup':>7} {'which':>6} {'differ':>9}")
    for product in products:
        what = ["bias"] * product.has_bias + [product.then] * bool(product.then)
        shape = f"{product.rows} x {product.width} -> {product.out} {'+'.join(what)}"
        try:
            line = line_of(product)
        except (RuntimeError, ValueError) as error:
            line = f" {error}"
        print(f"{product.model:6}{shape:36}{line}", flush=True)


if __name__ == "__main__":
    main()
