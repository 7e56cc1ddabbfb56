"""What the limits of the accuracy policies lie between: sound arithmetic, and faults.

Run: python -m benchmarks.limits [MODEL ...]
Judges each model under arithmetic that a candidate may use (products in another type, sums in
parts, results kept wider) and under faults, both emulated on a CPU, and prints for each the
numbers that policies look at and the policies that accept it. A policy's limits are right where
it accepts the arithmetic that it admits on every model, and no fault.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from thunder_tune.measure.accuracy import Judge, Rejected
from thunder_tune.measure.policies import POLICIES
from thunder_tune.measure.steps import forward_step
from thunder_tune.models import load
from thunder_tune.values.source import ModelSource
from thunder_tune.values.trial import Accuracy

MODELS = (
    ModelSource(name="mlp", batch_size=64),
    ModelSource(name="mlp", batch_size=64, dtype="bfloat16"),
    ModelSource(name="nanogpt", batch_size=4, seq_len=64),
    ModelSource(name="nanogpt", batch_size=4, seq_len=64, dtype="bfloat16"),
    ModelSource(name="resnet18", batch_size=2),
    ModelSource(name="mobilenet_v3_small", batch_size=2),
)
PRODUCTS = (F.linear, F.conv2d)

Product = Callable[..., Tensor]
Arithmetic = Callable[[int, Product, Tensor, Tensor, Tensor | None, Mapping[str, Any]], Tensor]
"""Number of the product in the program, the product, input, weight, bias and further arguments."""


def rounded(to: Callable[[Tensor], Tensor]) -> Arithmetic:
    """Products of rounded numbers, summed in float32."""

    def run(n: int, product: Product, x: Tensor, w: Tensor, b: Tensor | None, more: Any) -> Tensor:
        wide = None if b is None else b.float()
        return product(to(x.float()), to(w.float()), wide, **more).to(x.dtype)

    return run


def through(dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    """Round to a type of 16 bits and back."""
    return lambda x: x.to(dtype).float()


def tf32(x: Tensor) -> Tensor:
    """Round to the ten stored bits of a tf32 significand, ties away from zero."""
    return ((x.contiguous().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


def float8(dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    """Round to a type of 8 bits with one scale for the whole tensor."""

    def to(x: Tensor) -> Tensor:
        scale = torch.finfo(dtype).max / x.abs().amax().clamp_min(1e-30)
        return (x * scale).to(dtype).float() / scale

    return to


def integer(bits: int) -> Callable[[Tensor], Tensor]:
    """Round to integers with one scale for each row."""

    def to(x: Tensor) -> Tensor:
        largest = 2.0 ** (bits - 1) - 1
        scale = largest / x.flatten(1).abs().amax(1).clamp_min(1e-30)
        scale = scale.view(-1, *[1] * (x.dim() - 1))
        return (x * scale).round() / scale

    return to


def halves(n: int, product: Product, x: Tensor, w: Tensor, b: Tensor | None, more: Any) -> Tensor:
    """Each sum in two halves, the results of both rounded to the model's type."""
    k = x.shape[-1 if product is F.linear else 1]
    if k < 2 or more.get("groups", 1) > 1:
        return product(x, w, b, **more)
    axis = (-1, -1) if product is F.linear else (1, 1)
    parts = [t.split([k // 2, k - k // 2], d) for t, d in zip((x, w), axis, strict=True)]
    one, other = (product(p, q, None, **more) for p, q in zip(*parts, strict=True))
    total = one + other
    if b is None:
        return total
    return total + (b if product is F.linear else b.view(-1, 1, 1))


def wide(n: int, product: Product, x: Tensor, w: Tensor, b: Tensor | None, more: Any) -> Tensor:
    """Products of float32, rounded once: what a fused kernel does."""
    return rounded(lambda t: t)(n, product, x, w, b, more)


def on_third(change: Arithmetic) -> Arithmetic:
    """Do it in the third product alone."""

    def run(n: int, product: Product, x: Tensor, w: Tensor, b: Tensor | None, more: Any) -> Tensor:
        return (change if n == 2 else _plain)(n, product, x, w, b, more)

    return run


def _plain(n: int, product: Product, x: Tensor, w: Tensor, b: Tensor | None, more: Any) -> Tensor:
    return product(x, w, b, **more)


def without_bias(n: int, product: Product, x: Tensor, w: Tensor, b: Any, more: Any) -> Tensor:
    """Leave the bias out; where there is none, a row of the result."""
    out = product(x, w, None, **more)
    return out if b is not None else out.index_fill(-1, torch.tensor([0]), 0.0)


def without_tile(n: int, product: Product, x: Tensor, w: Tensor, b: Any, more: Any) -> Tensor:
    """Leave out the last eighth of what is summed over."""
    axis = -1 if product is F.linear else 1
    keep = torch.ones(w.shape[axis if product is F.linear else 1], dtype=w.dtype)
    keep[-max(1, len(keep) // 8) :] = 0
    return product(x, w * (keep if product is F.linear else keep.view(-1, 1, 1)), b, **more)


def scaled(n: int, product: Product, x: Tensor, w: Tensor, b: Any, more: Any) -> Tensor:
    """Multiply by a scale that is a quarter too large."""
    return 1.25 * product(x, w, b, **more)


SOUND: Mapping[str, Arithmetic] = {
    "products wider": wide,
    "sums in halves": halves,
    "tf32": rounded(tf32),
    "float16": rounded(through(torch.float16)),
    "bfloat16": rounded(through(torch.bfloat16)),
    "int8, scale of a row": rounded(integer(8)),
    "e4m3, scale of a tensor": rounded(float8(torch.float8_e4m3fn)),
}
FAULTS: Mapping[str, Arithmetic] = {
    "int4, scale of a row": rounded(integer(4)),
    "third product without bias": on_third(without_bias),
    "third product without a tile": on_third(without_tile),
    "third product a quarter large": on_third(scaled),
}


class Changed(TorchFunctionMode):
    """Runs linear layers and convolutions in another arithmetic."""

    def __init__(self, arithmetic: Arithmetic) -> None:
        super().__init__()
        self._arithmetic, self._count = arithmetic, 0

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Replace products, pass everything else on."""
        kwargs = dict(kwargs or {})
        if function not in PRODUCTS:
            return function(*args, **kwargs)
        names = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        x, w, b = (given.pop(name, None) for name in names[:3])
        number, self._count = self._count, self._count + 1
        return self._arithmetic(number, function, x, w, b, given)


def judged(source: ModelSource) -> Iterator[tuple[str, Accuracy | Rejected]]:
    """Judge one model under every arithmetic."""
    loaded = load(source)
    others = [name for name in POLICIES if name != "any"]
    judge = Judge(loaded.model, loaded.make_inputs, device="cpu", policies=["any", *others])
    for name, arithmetic in {**SOUND, **FAULTS}.items():

        def run(*args: Any, arithmetic: Arithmetic = arithmetic, **kwargs: Any) -> Any:
            with Changed(arithmetic):
                return loaded.model(*args, **kwargs)

        try:
            yield name, judge.judge(forward_step(run))
        except Rejected as rejected:
            yield name, rejected


def main() -> None:
    """Print the table."""
    chosen = sys.argv[1:]
    print("| model | arithmetic | error ratio | relative error | cosine | top 1 | accepted by |")
    print("|---|---|---|---|---|---|---|")
    for source in MODELS:
        if chosen and source.name not in chosen:
            continue
        for name, found in judged(source):
            title = f"| {source.name}, {source.dtype} | {name} "
            if isinstance(found, Rejected):
                print(f"{title}| | | | | {found.kind}: {found.message} |", flush=True)
                continue
            passes = [p for p, ok in found.policies.items() if ok and p != "any"]
            top1 = "" if found.top1_agreement is None else f"{found.top1_agreement:.3f}"
            print(
                f"{title}| {found.error_ratio:.3g} | {found.relative_error:.2g} "
                f"| {found.cosine:.5f} | {top1} | {', '.join(passes) or 'none'} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
