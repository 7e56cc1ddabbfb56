"""Scales of e4m3 values that are found once and then stay: of weights, and of activations.

A scale that depends on the values needs a pass over them before they can be rounded. A static one
is a number that is known already, so that whatever makes the values can round them: a region, or
the epilogue of a product.

Scales are powers of two. e4m3 is a floating format, in which these cost no precision while values
stay above 2^-6 of a scale, and two first batches of about one magnitude give the same scale. That
of an activation is chosen by the first values seen, with room for values `HEADROOM` times larger;
beyond it they saturate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import thunder.torch as ltorch
import torch
from thunder.core import dtypes
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import Symbol

from thunder_tune.executors.float8 import LARGEST
from thunder_tune.executors.packing import packs

E4M3 = torch.float8_e4m3fn
HEADROOM = 4.0
"""Later activations may be at least so many times larger than the first ones."""
WEIGHT_HEADROOM = 1.0
_EXPONENTS = (-100, 100)
"""Powers of two that are float32 numbers, as their reciprocals are."""


def scale_for(largest: float, headroom: float = HEADROOM) -> float:
    """Return the least power of two by which values of a magnitude fit into e4m3.

    Args:
        largest: Their largest magnitude; 0 and what is not finite say nothing, and give 1.
        headroom: Times that later values may be larger.
    """
    if not 0.0 < largest < math.inf:
        return 1.0
    mantissa, exponent = math.frexp(largest * headroom / LARGEST)
    exponent -= mantissa == 0.5  # a power of two itself
    lowest, highest = _EXPONENTS
    return math.ldexp(1.0, min(max(exponent, lowest), highest))


def scales_of(values: torch.Tensor, headroom: float = HEADROOM) -> tuple[torch.Tensor, ...]:
    """Return 1 / scale and the scale of values, each () in float32 on their device; waits for it.

    Raises:
        RuntimeError: Under the capture of a CUDA graph, which can wait for nothing.
    """
    if values.is_cuda and torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            "static FP8 scales are unknown under the capture of a CUDA graph: call the model once "
            "before, for them to be found"
        )
    largest = values.detach().abs().amax().item() if values.numel() else 0.0
    scale = scale_for(largest, headroom)
    return tuple(
        torch.full((), number, dtype=torch.float32, device=values.device)
        for number in (1.0 / scale, scale)
    )


def round_to_e4m3(values: torch.Tensor, multiplier: torch.Tensor) -> torch.Tensor:
    """Return e4m3(values * multiplier), saturated at the largest finite value."""
    return (values.float() * multiplier).clamp(-LARGEST, LARGEST).to(E4M3)


def packed_weight(
    weights: Sequence[torch.Tensor], store: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return weights behind one another in e4m3, and their one scale; packed once.

    Args:
        weights: (out features, in features) each.
        store: Number of the candidate's packed weights.
    """

    def pack() -> tuple[torch.Tensor, torch.Tensor]:
        together = torch.cat(tuple(weights)) if len(weights) > 1 else weights[0]
        multiplier, scale = scales_of(together, WEIGHT_HEADROOM)
        return round_to_e4m3(together, multiplier).contiguous(), scale

    found: tuple[torch.Tensor, torch.Tensor] = packs(store).get(
        "static float8", tuple(weights), pack
    )
    return found


def _quantize(x: TensorProxy, multiplier: TensorProxy) -> TensorProxy:
    wide = ltorch.to(x, torch.float32) * multiplier
    values: TensorProxy = ltorch.to(ltorch.clamp(wide, -LARGEST, LARGEST), E4M3)
    return values


quantize_static = Symbol("quantize_static", meta=_quantize, id="thunder_tune.quantize_static")
"""Values, and 1 / scale, (): the values' e4m3. It belongs to no executor, as `quantize_rows`."""


def activation_scales(
    seen: tuple[torch.Tensor, ...], weights: tuple[torch.Tensor, ...], place: str, store: int
) -> tuple[torch.Tensor, ...]:
    """Return 1 / scale and the scale of an activation, each () in float32; found at one call.

    Args:
        seen: What the store's observer of the place takes, which returns the activation.
        weights: That the activation is multiplied with; a change of them makes the scale anew.
        place: Name of the activation in its program.
        store: Number of the candidate's packed weights.

    Raises:
        RuntimeError: The first call is under the capture of a CUDA graph.
    """
    kept = packs(store)
    return kept.get(f"scale of {place}", weights, lambda: scales_of(kept.observers[place](*seen)))


def activation_scales_meta(
    seen: tuple[TensorProxy, ...], weights: tuple[TensorProxy, ...], place: str, store: int
) -> tuple[TensorProxy, ...]:
    """Return the proxies of `activation_scales`."""
    made: dict[str, Any] = {"shape": (), "dtype": dtypes.float32, "requires_grad": False}
    return tuple(TensorProxy(like=weights[0], **made) for _ in range(2))
