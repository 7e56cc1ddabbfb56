"""Time products of few rows, by torch and with weights in every format, beside their bytes.

Run: python -m benchmarks.decode_products [--rows 1] [--only int4,plain] [--bandwidth 4.8]
For each product of a step of Llama 3.1 8B (query, key and value packed; output; gate and up
packed; down; the head): microseconds of torch in bfloat16 and of `executors/few_rows.py` with the
weight as it is ("plain") and packed, the share of the time that its bytes take at the device's
bandwidth, and how far the result is from torch's. Then a table of a step: the sum over 32 layers
and the head, and the weights' bytes with the embedding. Each is a CUDA graph of 20 calls that take
turns at sets of operands larger than the device's cache; the graphs of a row are replayed in turn.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from benchmarks.products import distance, times_us
from thunder_tune.executors.few_rows import counters_for, product
from thunder_tune.executors.weight_formats import FORMATS, PackedWeight, pack

LAYERS = 32
VOCABULARY, WIDTH = 128256, 4096
PRODUCTS = (
    ("query, key, value", 6144, 4096, LAYERS),
    ("output", 4096, 4096, LAYERS),
    ("gate, up", 28672, 4096, LAYERS),
    ("down", 4096, 14336, LAYERS),
    ("head", VOCABULARY, WIDTH, 1),
)
"""Name, out features, in features, times in a step."""
CACHE_BYTES = 100 << 20
"""Sets of operands are at least so large together: twice an H200's second cache."""
MOST_SETS = 20


@dataclass(frozen=True, slots=True)
class Operands:
    """An input and a weight, ready for the kernel.

    Attributes:
        x: (rows, in features).
        weight: (out features, in features), plain or packed.
        counters: Of the weight.
    """

    x: torch.Tensor
    weight: torch.Tensor | PackedWeight
    counters: torch.Tensor


def way_of(name: str) -> Callable[[Operands], torch.Tensor]:
    """Return what computes a product, by name of the way."""
    if name == "torch":
        return _by_torch
    return lambda given: product(given.x, given.weight, counters=given.counters)


def _by_torch(given: Operands) -> torch.Tensor:
    assert isinstance(given.weight, torch.Tensor)
    return F.linear(given.x, given.weight)


def sets_of(name: str, rows: int, out: int, width: int) -> list[Operands]:
    """Return sets of operands that no cache holds together."""
    weight = torch.randn(out, width, device="cuda", dtype=torch.bfloat16) / width**0.5
    there = weight if name in ("torch", "plain") else pack(weight, FORMATS[name])
    count = min(MOST_SETS, 1 + CACHE_BYTES // bytes_of(there))
    found = []
    for _ in range(count):
        x = torch.randn(rows, width, device="cuda", dtype=torch.bfloat16)
        found.append(Operands(x, copy_of(there), counters_for(there)))
    return found


def bytes_of(weight: torch.Tensor | PackedWeight) -> int:
    """Return the bytes of a weight."""
    return weight.nbytes


def copy_of(weight: torch.Tensor | PackedWeight) -> torch.Tensor | PackedWeight:
    """Return a weight in other memory."""
    if isinstance(weight, torch.Tensor):
        return weight.clone()
    return PackedWeight(
        format=weight.format,
        shape=weight.shape,
        values=weight.values.clone(),
        pairs=None if weight.pairs is None else weight.pairs.clone(),
        scales=weight.scales.clone(),
    )


def error_of(given: Operands) -> float:
    """Return how far the kernel is from torch's product with the same weight, unpacked."""
    from thunder_tune.executors.few_rows import rows_of

    weight = given.weight
    plain = weight if isinstance(weight, torch.Tensor) else rows_of(weight, dtype=given.x.dtype)
    found = product(given.x, weight, counters=given.counters)
    return distance(found, F.linear(given.x, plain))


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--only", default=",".join(("torch", "plain", *FORMATS)))
    parser.add_argument("--bandwidth", type=float, default=4.8, help="of the device, TB/s")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("there is no CUDA device")
    torch.manual_seed(0)
    totals: dict[str, tuple[float, float, int]] = {}
    print(f"{'product':20}{'way':12}{'us':>9}{'floor us':>10}{'share':>7}{'differs':>10}")
    for label, out, width, times in PRODUCTS:
        for name in arguments.only.split(","):
            sets = sets_of(name, arguments.rows, out, width)
            size = bytes_of(sets[0].weight)
            floor = size / arguments.bandwidth / 1e6
            differs = 0.0 if name == "torch" else error_of(sets[0])
            (us,) = times_us([way_of(name)], sets)
            print(
                f"{label:20}{name:12}{us:9.2f}{floor:10.2f}{floor / us:7.0%}{differs:10.1e}",
                flush=True,
            )
            before = totals.get(name, (0.0, 0.0, 0))
            found = (us * times, floor * times, size * times)
            totals[name] = tuple(map(sum, zip(before, found, strict=True)))  # type: ignore[assignment]
            del sets
            torch.cuda.empty_cache()
    print(f"\n{'a step':12}{'ms':>9}{'floor ms':>10}{'share':>7}{'GB with embedding':>20}")
    for name, (us, floor, size) in totals.items():
        head = FORMATS[name].bytes_of(VOCABULARY, WIDTH) if name in FORMATS else VOCABULARY * 8192
        shown = f"{us / 1e3:9.3f}{floor / 1e3:10.3f}{floor / us:7.0%}{(size + head) / 1e9:20.2f}"
        print(f"{name:12}{shown}")


if __name__ == "__main__":
    main()
