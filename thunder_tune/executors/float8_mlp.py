"""Both linears of an MLP in FP8 with static scales: what lies between them is never 16 bits wide.

The first product's epilogue adds the bias, applies the activation, scales and rounds to e4m3, and
the second product takes that as it is. With scales that depend on the values, those between would
have to be written in 16 bits, read, reduced and written again.
"""

from __future__ import annotations

from typing import Any

import thunder.torch as ltorch
import torch
import torch.nn.functional as F
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import Symbol
from thunder.extend import OperatorExecutor, register_executor

from thunder_tune.executors.float8_static import ACTIVATION_SCALES, product, takes
from thunder_tune.executors.packing import packs
from thunder_tune.executors.static_scales import (
    E4M3,
    packed_weight,
    quantize_static,
    scales_of,
)

float8_mlp_executor = OperatorExecutor("thunder_tune_float8_mlp", version="1")
register_executor(float8_mlp_executor)


def _composite(
    x: TensorProxy,
    weights: tuple[TensorProxy, TensorProxy],
    biases: tuple[TensorProxy | None, TensorProxy | None],
    residual: TensorProxy | None,
    activation: str,
    approximate: str,
    store: int,
) -> TensorProxy:
    hidden = ltorch.linear(x, weights[0], biases[0])
    if activation == "relu":
        hidden = ltorch.relu(hidden)
    else:
        hidden = ltorch.gelu(hidden, approximate=approximate)
    result: TensorProxy = ltorch.linear(hidden, weights[1], biases[1])
    return result if residual is None else ltorch.add(residual, result)


mlp = Symbol("mlp", meta=_composite, id="thunder_tune.mlp")
"""The composite that a rewrite puts in place of a linear, an activation, and a linear.

A residual added to the result may belong to it. `activation` is "gelu" or "relu", `approximate`
the form of GELU that the model asks for.
"""


def float8_mlp(
    x: torch.Tensor,
    scale: torch.Tensor,
    weights: tuple[torch.Tensor, torch.Tensor],
    biases: tuple[torch.Tensor | None, torch.Tensor | None],
    residual: torch.Tensor | None,
    activation: str,
    place: str,
    store: int,
) -> torch.Tensor:
    """Return residual + activation(x @ weights[0].T + biases[0]) @ weights[1].T + biases[1].

    Args:
        x: (..., in features), e4m3.
        scale: Of x, (), float32.
        weights: (hidden, in features) and (out features, hidden), in the type of the result.
        biases: (hidden,) and (out features,), each or None.
        residual: (..., out features) or None.
        activation: "relu" or "gelu", the latter in its tanh form.
        place: Name of the input in its program, unlike any other's.
        store: Number of the candidate's packed weights.

    Returns:
        (..., out features).
    """
    dtype = weights[1].dtype
    first, second = (packed_weight((weight,), store) for weight in weights)

    def hidden_scales() -> tuple[torch.Tensor, ...]:
        wide = F.linear(x.to(dtype) * scale.to(dtype), weights[0], biases[0])
        return scales_of(F.relu(wide) if activation == "relu" else F.gelu(wide))

    multiplier, hidden_scale = packs(store).get(
        f"scale of what {place} becomes", (*weights, biases[0]), hidden_scales
    )
    hidden = product(
        x,
        first[0],
        biases[0],
        (scale, first[1]),
        activation=activation,
        out_dtype=E4M3,
        out_multiplier=multiplier,
    )
    return product(
        hidden,
        second[0],
        biases[1],
        (hidden_scale, second[1]),
        residual=residual,
        out_dtype=dtype,
    )


def _meta(
    x: TensorProxy,
    scale: TensorProxy,
    weights: tuple[TensorProxy, TensorProxy],
    biases: tuple[TensorProxy | None, TensorProxy | None],
    residual: TensorProxy | None,
    activation: str,
    place: str,
    store: int,
) -> TensorProxy:
    shape = (*x.shape[:-1], weights[1].shape[0])
    return TensorProxy(like=weights[1], shape=shape, requires_grad=False)


def _fits(
    x: TensorProxy,
    weights: tuple[TensorProxy, TensorProxy],
    biases: tuple[TensorProxy | None, TensorProxy | None],
    residual: TensorProxy | None,
    activation: str,
    approximate: str,
    store: int,
) -> bool:
    given = [t for t in (*weights, *biases, residual) if t is not None]
    widths = (x.shape[-1], *(weight.shape[0] for weight in weights))
    return (
        all(weight.ndim == 2 for weight in weights)
        and all(t.dtype == x.dtype for t in given)
        and takes(x, widths)
    )


def _register() -> None:
    symbol: Any = float8_mlp_executor.register_operator("float8_mlp", meta=_meta, fn=float8_mlp)

    def transform(
        x: TensorProxy,
        weights: tuple[TensorProxy, TensorProxy],
        biases: tuple[TensorProxy | None, TensorProxy | None],
        residual: TensorProxy | None,
        activation: str,
        approximate: str,
        store: int,
    ) -> Any:  # noqa: ANN401
        scales: Any = ACTIVATION_SCALES
        multiplier, scale = scales((), weights[:1], x.name, store)
        values = quantize_static(x, multiplier)
        return symbol(values, scale, weights, biases, residual, activation, x.name, store)

    float8_mlp_executor.register_implementation(mlp, checker=_fits, execution_transform=transform)


_register()
