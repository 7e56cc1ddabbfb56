"""Linears and embeddings by weights of 8 bits and less, and products of few rows in 16 bits.

Only the weights are packed (`executors/weight_formats.py`): inputs, sums and results stay in the
model's own type. One packed copy serves every use of a weight in a program, as that of an
embedding and a head that share theirs. `few_rows` is the same kernel for a weight as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import thunder.torch as ltorch
import torch
from thunder.core import dtypes
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import Symbol
from thunder.extend import OperatorExecutor, register_executor

from thunder_tune.executors.few_rows import MOST_ROWS, counters_for, product, rows_of
from thunder_tune.executors.linear_add import linear_add
from thunder_tune.executors.packed_linear import can_pack, concatenated, packed_linear
from thunder_tune.executors.packing import active_store, packs
from thunder_tune.executors.weight_formats import (
    FORMATS,
    LANES,
    Format,
    PackedWeight,
    joined,
    pack,
)

KINDS = ("linear", "linear_add", "packed_linear")

_ON_CUDA = (dtypes.bfloat16, dtypes.float16)


class WeightOnly:
    """The executor of one format, and the functions that its symbols run.

    Args:
        name: Of the executor.
        form: How it packs weights; None: it leaves them as they are.

    Attributes:
        executor: Registered with Thunder.
        kinds: Anchor kinds and rewrites that it implements.
        reads_packed: Ids of its symbols that read nothing of their second argument, a weight or
            several, but what is packed of it.
    """

    def __init__(self, name: str, form: Format | None) -> None:
        self._form = form
        self.executor = OperatorExecutor(f"thunder_tune_{name}", version="1")
        register_executor(self.executor)
        self.kinds = KINDS if form is None else (*KINDS, "embedding")
        self.reads_packed: frozenset[str] = frozenset()
        self._register()

    def linear(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, store: int
    ) -> torch.Tensor:
        """Return x @ weight.T + bias.

        Args:
            x: (..., in features).
            weight: (out features, in features).
            bias: (out features,) or None.
            store: Number of the candidate's packed weights.
        """
        ready, counters = self._ready((weight,), store)
        return product(x, ready, bias, counters=counters)

    def linear_add(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        residual: torch.Tensor,
        bias: torch.Tensor | None,
        store: int,
    ) -> torch.Tensor:
        """Return residual + x @ weight.T + bias, by one product."""
        ready, counters = self._ready((weight,), store)
        return product(x, ready, bias, residual, counters=counters)

    def linears(
        self,
        x: torch.Tensor,
        weights: tuple[torch.Tensor, ...],
        biases: tuple[torch.Tensor | None, ...],
        store: int,
    ) -> tuple[torch.Tensor, ...]:
        """Return x @ weight.T + bias for each weight, as views of one product."""
        ready, counters = self._ready(weights, store)
        bias = biases[0]
        if bias is not None:
            given = [b for b in biases if b is not None]
            bias = packs(store).get("weight-only bias", biases, lambda: torch.cat(given))
        found = product(x, ready, bias, counters=counters)
        return torch.split_with_sizes(found, [len(w) for w in weights], -1)

    def embedding(self, indices: torch.Tensor, weight: torch.Tensor, store: int) -> torch.Tensor:
        """Return rows of a weight: (*shape of the indices, width)."""
        ready, _ = self._ready((weight,), store)
        assert isinstance(ready, PackedWeight)
        return rows_of(ready, indices, dtype=weight.dtype)

    def _ready(
        self, weights: tuple[torch.Tensor, ...], store: int
    ) -> tuple[PackedWeight | torch.Tensor, torch.Tensor]:
        """Return weights behind one another, as the kernel takes them, and its counters."""
        form = self._form

        def make() -> tuple[PackedWeight | None, torch.Tensor]:
            if form is None:
                whole = weights[0].new_empty(()).expand(sum(map(len, weights)), 1)
                return None, counters_for(whole)
            packed = joined([pack(w, form) for w in weights])
            return packed, counters_for(packed)

        kernel = f"weight-only {'few_rows' if form is None else form.name}"
        packed, counters = packs(store).get(kernel, weights, make)
        if packed is not None:
            return packed, counters
        if len(weights) == 1:
            return weights[0], counters
        return concatenated(weights, (None,) * len(weights), store)[0], counters

    def _takes(self, x: TensorProxy, *others: TensorProxy | None) -> bool:
        """Whether the kernel takes an input with weights, and what else there is, of its type."""
        given = [t for t in others if t is not None]
        on_cuda = str(x.device).startswith("cuda")
        width = int(x.shape[-1]) if x.ndim else 0
        return bool(
            width
            and width % (LANES if self._form is None else self._form.span) == 0
            and 0 < x.numel // width <= MOST_ROWS
            and all(t.dtype == x.dtype and t.device == x.device for t in given)
            and (_on_cuda(x) if on_cuda else dtypes.is_float_dtype(x.dtype))
        )

    def _register(self) -> None:
        one = self._symbol("linear", _linear_meta, self.linear)
        add = self._symbol("linear_add", _linear_add_meta, self.linear_add)
        many = self._symbol("linears", _linears_meta, self.linears)
        implement = self.executor.register_implementation
        reading = (many,) if self._form is None else (one, add, many)
        self.reads_packed |= {str(symbol.id) for symbol in reading}

        def linear(x: TensorProxy, weight: TensorProxy, bias: TensorProxy | None = None) -> Any:  # noqa: ANN401
            return one(x, weight, bias, active_store())

        def linear_fits(
            x: TensorProxy, weight: TensorProxy, bias: TensorProxy | None = None
        ) -> bool:
            return weight.ndim == 2 and self._takes(x, weight, bias)

        def with_residual(
            x: TensorProxy,
            weight: TensorProxy,
            residual: TensorProxy,
            may_overwrite: bool = False,
            *,
            bias: TensorProxy | None = None,
        ) -> Any:  # noqa: ANN401
            return add(x, weight, residual, bias, active_store())

        def with_residual_fits(
            x: TensorProxy,
            weight: TensorProxy,
            residual: TensorProxy,
            may_overwrite: bool = False,
            *,
            bias: TensorProxy | None = None,
        ) -> bool:
            return self._takes(x, weight, residual, bias)

        def packed(
            x: TensorProxy,
            weights: tuple[TensorProxy, ...],
            biases: tuple[TensorProxy | None, ...],
            store: int,
        ) -> Any:  # noqa: ANN401
            return many(x, weights, biases, store)

        def packed_fits(
            x: TensorProxy,
            weights: tuple[TensorProxy, ...],
            biases: tuple[TensorProxy | None, ...],
            store: int,
        ) -> bool:
            return can_pack(x, weights, biases, store) and self._takes(x, *weights, *biases)

        implement(ltorch.linear, checker=linear_fits, execution_transform=linear)
        implement(linear_add, checker=with_residual_fits, execution_transform=with_residual)
        implement(packed_linear, checker=packed_fits, execution_transform=packed)
        if self._form is not None:
            self._register_embedding(self._form.span)

    def _symbol(self, name: str, meta: Callable[..., Any], fn: Callable[..., Any]) -> Symbol:
        full = f"{self.executor.name.removeprefix('thunder_tune_')}_{name}"
        made: Any = self.executor.register_operator(full, meta=meta, fn=fn)
        found: Symbol = made
        return found

    def _register_embedding(self, span: int) -> None:
        rows = self._symbol("embedding", _embedding_meta, self.embedding)
        self.reads_packed |= {str(rows.id)}

        def embedding(
            indices: TensorProxy,
            weight: TensorProxy,
            padding_idx: int | None = None,
            max_norm: float | None = None,
            norm_type: float = 2.0,
            scale_grad_by_freq: bool = False,
            sparse: bool = False,
        ) -> Any:  # noqa: ANN401
            return rows(indices, weight, active_store())

        def fits(
            indices: TensorProxy,
            weight: TensorProxy,
            padding_idx: int | None = None,
            max_norm: float | None = None,
            norm_type: float = 2.0,
            scale_grad_by_freq: bool = False,
            sparse: bool = False,
        ) -> bool:
            # A norm that is to be kept would be written to the weight.
            return bool(
                max_norm is None
                and weight.ndim == 2
                and indices.device == weight.device
                and int(weight.shape[1]) % span == 0
                and dtypes.is_float_dtype(weight.dtype)
            )

        self.executor.register_implementation(
            ltorch.embedding, checker=fits, execution_transform=embedding
        )


def _on_cuda(x: TensorProxy) -> bool:
    """Whether tensor cores multiply an input of this type."""
    return x.dtype in _ON_CUDA and torch.cuda.get_device_capability() >= (8, 0)


def _linear_meta(
    x: TensorProxy, weight: TensorProxy, bias: TensorProxy | None, store: int
) -> TensorProxy:
    return TensorProxy(like=x, shape=(*x.shape[:-1], weight.shape[0]), requires_grad=False)


def _linear_add_meta(
    x: TensorProxy,
    weight: TensorProxy,
    residual: TensorProxy,
    bias: TensorProxy | None,
    store: int,
) -> TensorProxy:
    return _linear_meta(x, weight, bias, store)


def _linears_meta(
    x: TensorProxy,
    weights: tuple[TensorProxy, ...],
    biases: tuple[TensorProxy | None, ...],
    store: int,
) -> tuple[TensorProxy, ...]:
    return tuple(_linear_meta(x, w, None, store) for w in weights)


def _embedding_meta(indices: TensorProxy, weight: TensorProxy, store: int) -> TensorProxy:
    shape = (*indices.shape, weight.shape[1])
    return TensorProxy(like=weight, shape=shape, requires_grad=False)


FEW_ROWS = WeightOnly("few_rows", None)
BY_FORMAT = {name: WeightOnly(f"{name}_weights", form) for name, form in FORMATS.items()}
"""Executors by the format that they pack weights in."""

READS_PACKED = FEW_ROWS.reads_packed.union(*(p.reads_packed for p in BY_FORMAT.values()))
"""Ids of symbols that read packed copies of their second argument alone, as `WeightOnly` says."""
