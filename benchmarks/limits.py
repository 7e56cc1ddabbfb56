"""What the limits of the accuracy policies lie between: sound arithmetic, and faults.

Run: python -m benchmarks.limits [MODEL ...]
Judges each model under arithmetic that a candidate may use (products in another type, sums in
parts, results kept wider) and under faults, both emulated on a CPU, and prints for each the
numbers that policies look at and the policies that accept it. A policy's limits are right where
it accepts the arithmetic that it admits on every model, and no fault.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
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


@dataclass(frozen=True)
class Product:
    """A linear layer or a convolution in the course of a program.

    Attributes:
        number: Its place among the products, from 0.
        function: Which of `PRODUCTS`.
        x: What it is applied to.
        weight: Its weight.
        bias: Its bias, or None.
        more: Further arguments.
    """

    number: int
    function: Callable[..., Tensor]
    x: Tensor
    weight: Tensor
    bias: Tensor | None
    more: Mapping[str, Any]

    @property
    def axis(self) -> int:
        """Dimension of input and weight that is summed over."""
        return -1 if self.function is F.linear else 1

    def of(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Apply it to other tensors."""
        return self.function(x, weight, bias, **self.more)

    def plain(self) -> Tensor:
        """Apply it as it is."""
        return self.of(self.x, self.weight, self.bias)


Arithmetic = Callable[[Product], Tensor]


def rounded(to: Callable[[Tensor], Tensor]) -> Arithmetic:
    """Products of rounded numbers, summed in float32."""

    def run(p: Product) -> Tensor:
        wide = None if p.bias is None else p.bias.float()
        return p.of(to(p.x.float()), to(p.weight.float()), wide).to(p.x.dtype)

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


def halves(p: Product) -> Tensor:
    """Each sum in two halves, the results of both rounded to the model's type."""
    k = p.x.shape[p.axis]
    if k < 2 or p.more.get("groups", 1) > 1:
        return p.plain()
    parts = [t.split([k // 2, k - k // 2], p.axis) for t in (p.x, p.weight)]
    one, other = (p.of(x, w, None) for x, w in zip(*parts, strict=True))
    total = one + other
    if p.bias is None:
        return total
    return total + (p.bias if p.function is F.linear else p.bias.view(-1, 1, 1))


def on_third(change: Arithmetic) -> Arithmetic:
    """Do it in the third product alone."""
    return lambda p: change(p) if p.number == 2 else p.plain()


def without_bias(p: Product) -> Tensor:
    """Leave the bias out; where there is none, a column of the result."""
    out = p.of(p.x, p.weight, None)
    return out if p.bias is not None else out.index_fill(-1, torch.tensor([0]), 0.0)


def without_tile(p: Product) -> Tensor:
    """Leave out the last eighth of what is summed over."""
    keep = torch.ones(p.weight.shape[p.axis], dtype=p.weight.dtype)
    keep[-max(1, len(keep) // 8) :] = 0
    kept = p.weight * (keep if p.function is F.linear else keep.view(-1, 1, 1))
    return p.of(p.x, kept, p.bias)


def scaled(p: Product) -> Tensor:
    """Multiply by a scale that is a quarter too large."""
    return 1.25 * p.plain()


SOUND: Mapping[str, Arithmetic] = {
    "products wider": rounded(lambda x: x),
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
        self,
        function: Callable[..., Any],
        types: object,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 - whatever the function returns
        """Replace products, pass everything else on."""
        kwargs = dict(kwargs or {})
        if function not in PRODUCTS:
            return function(*args, **kwargs)
        names = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        x, weight = given.pop("input"), given.pop("weight")
        product = Product(self._count, function, x, weight, given.pop("bias", None), given)
        self._count += 1
        return self._arithmetic(product)


def run_changed(
    model: nn.Module, arithmetic: Arithmetic, *args: object, **kwargs: object
) -> object:
    """Call a model in another arithmetic."""
    with Changed(arithmetic):
        result: object = model(*args, **kwargs)
    return result


def judged(source: ModelSource) -> Iterator[tuple[str, Accuracy | Rejected]]:
    """Judge one model under every arithmetic."""
    loaded = load(source)
    others = [name for name in POLICIES if name != "any"]
    judge = Judge(loaded.model, loaded.make_inputs, device="cpu", policies=["any", *others])
    for name, arithmetic in {**SOUND, **FAULTS}.items():
        try:
            yield name, judge.judge(forward_step(partial(run_changed, loaded.model, arithmetic)))
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
