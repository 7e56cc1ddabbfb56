"""Linears of one input as one product: query, key and value; gate and up.

Their weights are concatenated once. One product of three times the width keeps a GPU busier than
three, and the input is read once; the results are views of one tensor.
"""

from __future__ import annotations

from typing import Any

import thunder.torch as ltorch
import torch
import torch.nn.functional as F
from thunder.core import dtypes
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import Symbol
from thunder.extend import OperatorExecutor, register_executor

from thunder_tune.executors.packing import packs

packed_linear_executor = OperatorExecutor("thunder_tune_packed_linear", version="1")
register_executor(packed_linear_executor)


def _composite(
    x: TensorProxy,
    weights: tuple[TensorProxy, ...],
    biases: tuple[TensorProxy | None, ...],
    store: int,
) -> tuple[TensorProxy, ...]:
    return tuple(ltorch.linear(x, w, b) for w, b in zip(weights, biases, strict=True))


packed_linear = Symbol("packed_linear", meta=_composite, id="thunder_tune.packed_linear")
"""The composite that a rewrite puts in place of linears of one input."""


def one_product(
    x: torch.Tensor,
    weights: tuple[torch.Tensor, ...],
    biases: tuple[torch.Tensor | None, ...],
    store: int,
) -> tuple[torch.Tensor, ...]:
    """Return x @ weight.T + bias for each weight, as views of one product.

    Args:
        x: (..., in features).
        weights: (out features, in features) each.
        biases: (out features,) each, all or none.
        store: Number of the candidate's packed weights.
    """
    product = F.linear(x, *concatenated(weights, biases, store))
    return torch.split_with_sizes(product, [len(w) for w in weights], -1)


def concatenated(
    weights: tuple[torch.Tensor, ...], biases: tuple[torch.Tensor | None, ...], store: int
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the weights and biases of `one_product` behind one another, packed once."""

    def pack() -> tuple[torch.Tensor, torch.Tensor | None]:
        given = [b for b in biases if b is not None]
        return torch.cat(weights), torch.cat(given) if given else None

    found: tuple[torch.Tensor, torch.Tensor | None] = packs(store).get(
        "packed_linear", (*weights, *biases), pack
    )
    return found


def can_pack(
    x: TensorProxy,
    weights: tuple[TensorProxy, ...],
    biases: tuple[TensorProxy | None, ...],
    store: int,
) -> bool:
    """Whether weights and biases are of one type, and can lie behind one another."""
    given = [b for b in biases if b is not None]
    return (
        len(given) in (0, len(weights))
        and dtypes.is_float_dtype(x.dtype)
        and all(t.dtype == x.dtype for t in (*weights, *given))
    )


def _register() -> None:
    symbol: Any = packed_linear_executor.register_operator(
        "one_product", like=_composite, fn=one_product
    )
    packed_linear_executor.register_implementation(packed_linear, symbol, checker=can_pack)


_register()
