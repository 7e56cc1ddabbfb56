"""Time matrix products of models in torch's way and by cuBLASLt called directly.

Run: python -m benchmarks.products [--dtype bfloat16|float16] [--only ViT|BERT|Llama]
For each product of ViT-B/16 (128 images), BERT-large (8 x 512 tokens) and Llama 3.2 1B (2048
tokens): microseconds and TFLOP/s of torch, of the first algorithm that cuBLASLt's heuristic names,
and of the one that was timed the fastest; which one that is; and how far the results differ. Each
is a CUDA graph of 20 calls that take turns at 4 sets of operands, replayed.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from thunder_tune.executors.kernels import cublaslt

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


def time_us(call: Callable[[Operands], torch.Tensor], sets: list[Operands]) -> float:
    """Return the median microseconds of a call."""
    call(sets[0])
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for given in itertools.islice(itertools.cycle(sets), CALLS):
            call(given)
    times: list[float] = []
    for replay in range(WARM_UPS + REPLAYS):
        start, end = (
            torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            for _ in range(2)
        )
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        if replay >= WARM_UPS:
            times.append(start.elapsed_time(end) * 1e3 / CALLS)
    return statistics.median(times)


def row(product: Product, dtype: torch.dtype) -> str:
    """Time one product and return its line of the table."""
    sets = [operands(product, dtype) for _ in range(SETS)]
    before = set(cublaslt.PLANS)
    ways: tuple[Callable[[Operands], torch.Tensor], ...] = (
        lambda given: torchs_way(product, given),
        lambda given: by_cublaslt(product, given, is_timed=False),
        lambda given: by_cublaslt(product, given, is_timed=True),
    )
    expected, _, found = (way(sets[-1]).float() for way in ways)
    difference = ((found - expected).norm() / expected.norm()).item()
    (plan,) = (
        p for (key, timed), p in cublaslt.PLANS.items() if timed and (key, timed) not in before
    )
    which = f"{plan.algorithms.index(plan.chosen) + 1}/{len(plan.algorithms)}"
    times = [time_us(way, sets) for way in ways]
    columns = "".join(f"{us:9.1f} {product.tflop * 1e6 / us:5.0f}" for us in times)
    return f"{columns} {times[0] / times[2]:7.3f} {which:>6} {difference:9.1e}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float16"))
    parser.add_argument("--only", default="", choices=("", "ViT", "BERT", "Llama"))
    arguments = parser.parse_args()
    reason = cublaslt.available()
    if reason:
        sys.exit(f"cuBLASLt cannot be called here: {reason}")
    torch.manual_seed(0)
    named = f"{'product':42}"
    heads = "".join(f"{name:>9} {'TF/s':>5}" for name in ("torch us", "first us", "timed us"))
    print(f"{named}{heads} {'speedup':>7} {'which':>6} {'differ':>9}")
    for product in PRODUCTS:
        if arguments.only not in ("", product.model):
            continue
        what = ["bias"] * product.has_bias + [product.then] * bool(product.then)
        shape = f"{product.rows} x {product.width} -> {product.out} {'+'.join(what)}"
        try:
            line = row(product, getattr(torch, arguments.dtype))
        except RuntimeError as error:
            line = f" {error}"
        print(f"{product.model:6}{shape:36}{line}", flush=True)


if __name__ == "__main__":
    main()
