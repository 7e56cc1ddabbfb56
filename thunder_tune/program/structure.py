"""From initial traces to a `Program`: ops, cells, classes and structural hashes.

Hashes are over symbols, tensor metadata, constants and the wiring between ops, never over names or
printed text, so they are equal in every process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import groupby
from typing import Any, Literal

import torch
from thunder.core import devices, dtypes
from thunder.core.proxies import NumberProxy, Proxy, TensorProxy
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx

from thunder_tune.program.kinds import STRUCTURAL, is_anchor_kind, is_view, kind_of, op_name
from thunder_tune.program.patterns import PATTERNS, Uses
from thunder_tune.values.codec import digest
from thunder_tune.values.program import Cell, CellClass, Op, Program, Site, TensorSpec


def ops_of(trace: TraceCtx) -> list[BoundSymbol]:
    """Return the bound symbols of an initial trace that compute, in order."""
    return [b for b in trace.bound_symbols if b.sym.id not in STRUCTURAL]


def spec_of(proxy: TensorProxy) -> TensorSpec:
    """Describe a tensor proxy."""
    return TensorSpec(
        shape=tuple(int(s) for s in proxy.shape),
        dtype=_dtype_name(proxy.dtype),
        requires_grad=bool(proxy.requires_grad),
    )


def _dtype_name(dtype: Any) -> str:  # noqa: ANN401 - thunder's or torch's
    return str(dtypes.to_torch_dtype(dtype)).removeprefix("torch.")


@dataclass(frozen=True)
class _Wiring:
    """Numbers proxies by first use, so that equal structures get equal descriptions."""

    numbers: dict[str, int]
    loose: bool
    training: bool

    def number(self, name: str) -> int:
        return self.numbers.setdefault(name, len(self.numbers))

    def describe(self, value: Any) -> Any:  # noqa: ANN401 - a JSON tree
        """Describe an argument as a JSON tree; without shapes and integers where loose."""
        if isinstance(value, TensorProxy):
            spec = spec_of(value)
            shape = len(spec.shape) if self.loose else list(spec.shape)
            # Without gradients it makes no difference which parameters could have one.
            gradient = spec.requires_grad and self.training and not self.loose
            return ["t", self.number(value.name), shape, spec.dtype, gradient]
        if isinstance(value, NumberProxy):
            value = value.value
        if isinstance(value, Proxy):
            return ["p", self.number(value.name)]
        if isinstance(value, bool) or value is None or isinstance(value, str):
            return value
        if isinstance(value, int):
            return "int" if self.loose else value
        if isinstance(value, float):
            return repr(value)
        if isinstance(value, (list, tuple)):
            items = [self.describe(v) for v in value]
            ints = self.loose and items and all(i == "int" for i in items)
            return ["ints"] if ints else ["l", *items]
        if isinstance(value, dict):
            return {str(k): self.describe(v) for k, v in value.items()}
        if isinstance(value, (dtypes.dtype, torch.dtype)):
            return _dtype_name(value)
        if isinstance(value, (devices.Device, torch.device)):
            return str(value).split(":")[0]
        if isinstance(value, slice):
            return ["s", *(self.describe(v) for v in (value.start, value.stop, value.step))]
        return type(value).__name__


def _describe_ops(bsyms: Sequence[BoundSymbol], wiring: _Wiring) -> list[Any]:
    return [
        [
            op_name(b),
            wiring.describe(list(b.args)),
            wiring.describe(dict(sorted(b.kwargs.items()))),
            wiring.describe(list(b.flat_proxy_outs)),
        ]
        for b in bsyms
    ]


def _hash(bsyms: Sequence[BoundSymbol], *, loose: bool, training: bool) -> str:
    return digest(_describe_ops(bsyms, _Wiring({}, loose, training)))


def describe(trace: TraceCtx) -> list[Any]:
    """Describe a graph's inputs, ops and results: equal for the same computation."""
    wiring = _Wiring({}, loose=False, training=True)
    inputs = wiring.describe(list(trace.args or ()))
    return [inputs, *_describe_ops([*ops_of(trace), trace.bound_symbols[-1]], wiring)]


def _cells(bsyms: Sequence[BoundSymbol]) -> list[tuple[str, list[int]]]:
    """Cut a graph wherever an op's executor could differ: (kind, positions) of each cell."""
    cells: list[tuple[str, list[int]]] = []
    kinds = [kind_of(b) for b in bsyms]
    for anchor, run in groupby(range(len(bsyms)), lambda i: is_anchor_kind(kinds[i])):
        positions = list(run)
        if anchor:
            cells += [(kinds[i], [i]) for i in positions]
        else:
            cells.append(("glue", positions))
    return cells


def _summary(bsyms: Sequence[BoundSymbol]) -> str:
    """Shapes and dtype of a cell for people: "1x197x768, 2304x768 -> 1x197x2304 float32"."""

    def shape(proxy: TensorProxy) -> str:
        return "x".join(str(s) for s in proxy.shape) or "scalar"

    made = {p.name for b in bsyms for p in b.flat_proxy_outs}
    inputs: dict[str, TensorProxy] = {}
    for b in bsyms:
        for p in b.flat_proxy_args:
            if isinstance(p, TensorProxy) and p.name not in made:
                inputs.setdefault(p.name, p)
    outputs = [p for p in bsyms[-1].flat_proxy_outs if isinstance(p, TensorProxy)]
    dtype = _dtype_name(outputs[0].dtype) if outputs else ""
    left = ", ".join(shape(p) for p in list(inputs.values())[:4])
    right = ", ".join(shape(p) for p in outputs[:2])
    return f"{left} -> {right} {dtype}"


class _Classes:
    """Collects classes by their structural hash, in order of first occurrence."""

    def __init__(self, *, training: bool) -> None:
        self._training = training
        self._found: dict[str, CellClass] = {}

    def add(self, kind: str, members: Sequence[BoundSymbol], first: int) -> str:
        """Count one cell or site and return its class id; `first` is its first op's index."""
        class_id = f"{kind}-{_hash(members, loose=False, training=self._training)[:8]}"
        seen = self._found.get(class_id)
        self._found[class_id] = CellClass(
            id=class_id,
            loose_id=f"{kind}-{_hash(members, loose=True, training=self._training)[:8]}",
            kind=kind,
            count=(seen.count if seen else 0) + 1,
            ops=tuple(op_name(b) for b in members),
            examples=(*(seen.examples if seen else ()), first),
            summary=seen.summary if seen else _summary(members),
        )
        return class_id

    def all(self) -> tuple[CellClass, ...]:
        """Return the classes."""
        return tuple(self._found.values())


def analyse(
    traces: Sequence[TraceCtx],
    *,
    front_end: Literal["dynamo", "thunder.jit"],
    training: bool,
    reason: str = "",
) -> Program:
    """Describe the initial traces of a model as a program.

    Args:
        traces: One for each graph, in the order the graphs run.
        front_end: Who captured them.
        training: Whether gradients are asked for.
        reason: Why this front end was taken.
    """
    ops: list[Op] = []
    cells: list[Cell] = []
    sites: list[Site] = []
    classes, site_classes = _Classes(training=training), _Classes(training=training)
    exact: list[Any] = [version("lightning-thunder"), training]
    loose: list[Any] = [version("lightning-thunder"), training]
    for graph, trace in enumerate(traces):
        bsyms, result = ops_of(trace), trace.bound_symbols[-1]
        exact.append(_describe_ops([*bsyms, result], _Wiring({}, loose=False, training=training)))
        loose.append(_describe_ops([*bsyms, result], _Wiring({}, loose=True, training=training)))
        first = len(ops)
        for kind, positions in _cells(bsyms):
            members = [bsyms[i] for i in positions]
            indices = tuple(first + i for i in positions)
            class_id = classes.add(kind, members, indices[0])
            cells.append(Cell(graph=graph, ops=indices, class_id=class_id))
            ops += [_op(b, i, graph, class_id) for i, b in zip(indices, members, strict=True)]
        uses = Uses(bsyms, result)
        for pattern in PATTERNS:
            for positions in pattern.find(uses):
                indices = tuple(first + i for i in positions)
                members = [bsyms[i] for i in positions]
                class_id = site_classes.add(pattern.name, members, indices[0])
                sites.append(
                    Site(rewrite=pattern.name, graph=graph, ops=indices, class_id=class_id)
                )
    return Program(
        front_end=front_end,
        hash=digest(exact),
        loose_hash=digest(loose),
        ops=tuple(ops),
        cells=tuple(cells),
        classes=classes.all(),
        sites=tuple(sites),
        site_classes=site_classes.all(),
        training=training,
        reason=reason,
    )


def _op(bsym: BoundSymbol, index: int, graph: int, class_id: str) -> Op:
    return Op(
        index=index,
        graph=graph,
        name=op_name(bsym),
        kind=kind_of(bsym),
        inputs=tuple(spec_of(p) for p in bsym.flat_proxy_args if isinstance(p, TensorProxy)),
        outputs=tuple(spec_of(p) for p in bsym.flat_proxy_outs if isinstance(p, TensorProxy)),
        is_view=is_view(bsym),
        class_id=class_id,
    )
