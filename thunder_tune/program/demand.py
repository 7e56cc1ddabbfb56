"""Compute only what is asked for: indexing moves up through ops that work row by row.

A vision transformer classifies by its first token alone, yet its last block computes all of them.
Where every user of a tensor takes the same part of it, along a dimension that the op behind it
treats row by row, the op computes that part. The results are the same; the work is less.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import thunder.torch as ltorch
from thunder.core.langctxs import Languages, langctx
from thunder.core.proxies import Proxy, TensorProxy, variableify
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx, TraceProvenance, from_trace, tracectx

from thunder_tune.program.kinds import STRUCTURAL, op_name


@dataclass(frozen=True, slots=True)
class Part:
    """Neighbouring entries of a tensor along one dimension, which stays.

    Attributes:
        dim: The dimension, from 0.
        start: First entry.
        length: Number of entries.
    """

    dim: int
    start: int
    length: int

    def along(self, dim: int) -> Part:
        """Return the same entries of another dimension."""
        return Part(dim, self.start, self.length)

    def shape(self, whole: Sequence[int]) -> tuple[int, ...]:
        """Return the shape that a tensor's part has."""
        return tuple(self.length if d == self.dim else size for d, size in enumerate(whole))


Needs = dict[str, Part]
"""Name of an argument -> the part of it that an op needs; of the others it needs everything."""

Rule = Callable[[BoundSymbol, Part], Needs | None]
"""What an op needs to compute a part of its result; None: this part cannot be computed alone."""


def narrowed(trace: TraceCtx) -> TraceCtx:
    """Return a trace in which ops compute only the parts of tensors that are used.

    Args:
        trace: An initial trace, one top-level bound symbol for each op; it is not changed.
    """
    wanted = _wanted(trace.bound_symbols)
    if not wanted:
        return trace
    try:
        return _Narrowing(trace, wanted).run()
    except _OtherResult:
        return trace


class _OtherResult(Exception):
    """An op called on a part gave another shape or type than the part of its result has."""


def _wanted(bsyms: Sequence[BoundSymbol]) -> dict[str, Part]:
    """Return the tensors to compute in part."""
    asked: dict[str, Part | None] = {}

    def ask(proxies: Iterable[Proxy], needs: Needs) -> None:
        for name in {p.name for p in proxies}:
            part = needs.get(name)
            asked[name] = part if name not in asked or asked[name] == part else None

    for bsym in reversed(bsyms):
        part = asked.get(bsym.output.name) if isinstance(bsym.output, TensorProxy) else None
        needs = _needs(bsym, part) if part is not None else None
        if part is not None and needs is None:
            asked[bsym.output.name] = None
        ask(bsym.flat_proxy_args, _taken(bsym) if needs is None else needs)
    made = {b.output.name for b in bsyms if _is_op(b) and isinstance(b.output, TensorProxy)}
    return {name: part for name, part in asked.items() if part is not None and name in made}


class _Narrowing:
    """Builds the trace that computes parts.

    Args:
        trace: The initial trace.
        wanted: The tensors to compute in part.
    """

    def __init__(self, trace: TraceCtx, wanted: dict[str, Part]) -> None:
        self._old = trace
        self._wanted = wanted
        self._new = from_trace(trace)
        self._parts: dict[tuple[str, Part], TensorProxy] = {}
        self._swaps: dict[Any, Proxy] = {}

    def run(self) -> TraceCtx:
        """Replay every bound symbol, in part where that is wanted."""
        with tracectx(self._new), langctx(Languages.TORCH):
            for bsym in self._old.bound_symbols:
                output = bsym.output
                part = self._wanted.get(output.name) if isinstance(output, TensorProxy) else None
                taken = _taken(bsym)
                if part is not None and _is_op(bsym):
                    self._parts[output.name, part] = self._computed(bsym, part)
                elif any((name, p) in self._parts for name, p in taken.items()):
                    self._take(bsym, taken)
                else:
                    self._new.bound_symbols.append(bsym.from_bsym_swap_proxies(self._swaps))
        self._new.set_provenance(TraceProvenance("Parts that are used"))
        return self._new

    def _computed(self, bsym: BoundSymbol, part: Part) -> TensorProxy:
        needs = _needs(bsym, part)
        assert needs is not None, "only ops with a rule are wanted in part"

        def of(value: Any) -> Any:  # noqa: ANN401 - an argument
            if not isinstance(value, Proxy):
                return value
            if value.name in needs:
                return self._part(value, needs[value.name])
            return self._swaps.get(variableify(value), value)

        args, kwargs = [of(a) for a in bsym.args], {k: of(v) for k, v in bsym.kwargs.items()}
        shape = part.shape(bsym.output.shape)
        if op_name(bsym) in _RESHAPES:
            result = ltorch.reshape(args[0], shape)
        else:
            result = bsym.sym(*args, **kwargs)
        return self._checked(result, bsym.output, shape)

    def _part(self, proxy: Proxy, part: Part) -> TensorProxy:
        """Return a part of an argument: as computed, or as a view of the whole."""
        found = self._parts.get((proxy.name, part))
        if found is None:
            assert isinstance(proxy, TensorProxy)
            key = tuple(
                slice(part.start, part.start + part.length) if d == part.dim else slice(None)
                for d in range(proxy.ndim)
            )
            found = ltorch.getitem(self._swaps.get(variableify(proxy), proxy), key)
            self._parts[proxy.name, part] = found
        return found

    def _take(self, bsym: BoundSymbol, taken: Needs) -> None:
        """Index what was computed in part."""
        source = bsym.args[0]
        part = taken[source.name]
        result = self._parts[source.name, part]
        if bsym.output.ndim < source.ndim:
            result = ltorch.squeeze(result, part.dim)
        self._checked(result, bsym.output, tuple(bsym.output.shape))
        self._swaps[variableify(bsym.output)] = result

    def _checked(self, new: Any, old: TensorProxy, shape: tuple[int, ...]) -> TensorProxy:  # noqa: ANN401
        if not isinstance(new, TensorProxy) or tuple(new.shape) != shape or new.dtype != old.dtype:
            raise _OtherResult
        new.tags.update(old.tags)
        return new


def _is_op(bsym: BoundSymbol) -> bool:
    return bsym.sym.id not in STRUCTURAL


def _needs(bsym: BoundSymbol, part: Part) -> Needs | None:
    rule = RULES.get(op_name(bsym))
    return rule(bsym, part) if rule is not None else None


def _taken(bsym: BoundSymbol) -> Needs:
    """Return the part that an indexing op takes of its argument; nothing for other ops."""
    if op_name(bsym) != "torch.Tensor.__getitem__" or not isinstance(bsym.args[0], TensorProxy):
        return {}
    source, key = bsym.args[0], bsym.args[1]
    keys = key if isinstance(key, tuple) else (key,)
    if len(keys) > source.ndim or not all(type(k) in (int, slice) for k in keys):
        return {}
    parts = []
    for dim, (one, size) in enumerate(zip(keys, source.shape, strict=False)):
        steps = range(size)[one] if isinstance(one, slice) else range(one % size, one % size + 1)
        if len(steps) != size or not isinstance(one, slice):
            parts.append((dim, steps))
    if len(parts) != 1:
        return {}
    dim, steps = parts[0]
    is_part = steps.step == 1 and 0 < len(steps) < source.shape[dim]
    return {source.name: Part(dim, steps.start, len(steps))} if is_part else {}


def _elementwise(bsym: BoundSymbol, part: Part) -> Needs | None:
    needs = {}
    for x in bsym.flat_proxy_args:
        if not isinstance(x, TensorProxy):
            return None
        dim = part.dim - (bsym.output.ndim - x.ndim)
        if dim >= 0 and x.shape[dim] != 1:
            needs[x.name] = part.along(dim)
    return needs


def _dropout(bsym: BoundSymbol, part: Part) -> Needs | None:
    rate, training = (*bsym.args[1:3], *(None,) * 2)[:2]
    rate, training = bsym.kwargs.get("p", rate), bsym.kwargs.get("training", training)
    return _elementwise(bsym, part) if training is False or rate == 0.0 else None


def _rows(bsym: BoundSymbol, part: Part) -> Needs | None:
    """Serve ops that treat the last dimension of their first argument together."""
    return {bsym.args[0].name: part} if part.dim < bsym.output.ndim - 1 else None


def _norm(bsym: BoundSymbol, part: Part) -> Needs | None:
    normalized = bsym.args[1] if len(bsym.args) > 1 else bsym.kwargs["normalized_shape"]
    is_outside = part.dim < bsym.output.ndim - len(normalized)
    return {bsym.args[0].name: part} if is_outside else None


def _transposed(bsym: BoundSymbol, part: Part) -> Needs | None:
    if len(bsym.args) != 3:
        return None
    source, *dims = bsym.args
    one, other = (d % source.ndim for d in dims)
    return {source.name: part.along({one: other, other: one}.get(part.dim, part.dim))}


def _permuted(bsym: BoundSymbol, part: Part) -> Needs | None:
    source, *dims = bsym.args
    if not dims:
        return None
    order = dims[0] if len(dims) == 1 and not isinstance(dims[0], int) else dims
    return {source.name: part.along(order[part.dim] % source.ndim)}


def _reshaped(bsym: BoundSymbol, part: Part) -> Needs | None:
    source, output = bsym.args[0], bsym.output
    before = math.prod(output.shape[: part.dim])
    for dim, size in enumerate(source.shape):
        if math.prod(source.shape[:dim]) == before and size == output.shape[part.dim]:
            return {source.name: part.along(dim)}
    return None


def _attention(bsym: BoundSymbol, part: Part) -> Needs | None:
    """Serve queries, which do not see each other; a mask or `is_causal` would have to move too."""
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    given = {**dict(zip(names, bsym.args, strict=False)), **bsym.kwargs}
    has_more = given.get("attn_mask") is not None or given.get("is_causal")
    query = given["query"]
    is_alone = query.name not in (given["key"].name, given["value"].name)
    if has_more or given.get("dropout_p") or not is_alone or part.dim != bsym.output.ndim - 2:
        return None
    return {query.name: part}


_RESHAPES = frozenset({"torch.reshape", "torch.Tensor.view", "torch.flatten", "torch.unflatten"})

RULES: dict[str, Rule] = {
    **dict.fromkeys(
        (
            "torch.add",
            "torch.sub",
            "torch.mul",
            "torch.true_divide",
            "torch.div",
            "torch.tanh",
            "torch.sigmoid",
            "torch.relu",
            "torch.relu6",
            "torch.hardswish",
            "torch.nn.functional.gelu",
            "torch.nn.functional.silu",
        ),
        _elementwise,
    ),
    **dict.fromkeys(_RESHAPES, _reshaped),
    **dict.fromkeys(("torch.layer_norm", "torch.rms_norm"), _norm),
    "torch.nn.functional.dropout": _dropout,
    "torch.nn.functional.linear": _rows,
    "torch.transpose": _transposed,
    "torch.permute": _permuted,
    "torch.nn.functional.scaled_dot_product_attention": _attention,
}
"""Op -> its rule."""
