"""The pattern language of rewrites: chains of ops, siblings, gates, repeated heads, writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol

from thunder.core.prims import PrimIDs
from thunder.core.proxies import Proxy, TensorProxy
from thunder.core.symbol import BoundSymbol

from thunder_tune.program.kinds import STRUCTURAL, op_name


class Pattern(Protocol):
    """What a rewrite looks for.

    Attributes:
        name: Of the rewrite.
    """

    @property
    def name(self) -> str:
        """Name of the rewrite."""

    def find(self, graph: Uses) -> Iterator[list[int]]:
        """Yield the positions of the ops of each match, in order."""


class Uses:
    """A graph's ops, and who uses what they compute.

    Args:
        bsyms: The graph's ops, as `structure.ops_of` returns them.
        result: The graph's return statement, which uses values too.
    """

    def __init__(self, bsyms: Sequence[BoundSymbol], result: BoundSymbol) -> None:
        self.bsyms = bsyms
        self._makers = {p.name: i for i, b in enumerate(bsyms) for p in b.flat_proxy_outs}
        self._users: dict[str, list[int]] = {}
        for position, bsym in enumerate([*bsyms, result]):
            for name in {p.name for p in bsym.flat_proxy_args}:
                self._users.setdefault(name, []).append(position)

    def only_user(self, bsym: BoundSymbol) -> BoundSymbol | None:
        """Return the one op that uses a result, or None: there are others, or the graph does."""
        position = self.position_of_only_user(bsym)
        return None if position is None else self.bsyms[position]

    def position_of_only_user(self, bsym: BoundSymbol) -> int | None:
        """Return where that op stands."""
        if bsym.sym.id in STRUCTURAL or not isinstance(bsym.output, Proxy):
            return None
        positions = self._users.get(bsym.output.name, [])
        alone = len(positions) == 1 and positions[0] < len(self.bsyms)
        return positions[0] if alone else None

    def position_of_maker(self, value: object) -> int | None:
        """Return where a value that nothing else uses is computed."""
        if not isinstance(value, Proxy) or len(self._users.get(value.name, [])) != 1:
            return None
        return self._makers.get(value.name)

    def users(self, value: Proxy) -> tuple[int, ...]:
        """Return where a value is used; behind the last op stands the graph's return."""
        return tuple(self._users.get(value.name, ()))

    def is_input(self, value: object) -> bool:
        """Whether a value is None or comes into the graph from outside: a weight, say."""
        return value is None or (isinstance(value, Proxy) and value.name not in self._makers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """An op of a chain.

    Attributes:
        ops: Names of Thunder's symbols it may have.
        commutes: Whether it may take the value before it as its second argument too.
        is_fixed: Whether whatever else it takes must come into the graph from outside.
        where: What else must hold of it.
    """

    ops: tuple[str, ...]
    commutes: bool = False
    is_fixed: bool = False
    where: Callable[[BoundSymbol], bool] | None = None

    def takes(self, bsym: BoundSymbol, before: BoundSymbol) -> bool:
        """Whether an op is this link and takes the value before it, once."""
        return self.matches(bsym) and any(
            isinstance(x, Proxy) and x.name == before.output.name
            for x in bsym.args[: 2 if self.commutes else 1]
        )

    def matches(self, bsym: BoundSymbol) -> bool:
        """Whether an op may be this link."""
        return op_name(bsym) in self.ops and (self.where is None or self.where(bsym))


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """Ops in a row, each the only user of the one before; only the last result is used outside.

    Attributes:
        name: Of the rewrite it is for.
        links: In order.
    """

    name: str
    links: tuple[Link, ...]

    def find(self, graph: Uses) -> Iterator[list[int]]:
        """Yield the positions of each match, in order."""
        for start, first in enumerate(graph.bsyms):
            if not self.links[0].matches(first) or not self._is_fixed(graph, start, 0):
                continue
            positions = [start]
            for link in self.links[1:]:
                before = graph.bsyms[positions[-1]]
                following = graph.position_of_only_user(before)
                if following is None or not _takes_once(graph.bsyms[following], before):
                    break
                if not link.takes(graph.bsyms[following], before):
                    break
                if not self._is_fixed(graph, following, len(positions)):
                    break
                positions.append(following)
            if len(positions) == len(self.links):
                yield positions

    def _is_fixed(self, graph: Uses, position: int, link: int) -> bool:
        """Whether an op takes from outside what its link wants to be from there."""
        bsym = graph.bsyms[position]
        others = (*bsym.args[1:], *bsym.kwargs.values())
        return not self.links[link].is_fixed or all(map(graph.is_input, others))


@dataclass(frozen=True, slots=True, kw_only=True)
class Siblings:
    """Ops of one name in a row that share their first argument; the others come from outside.

    "In a row" means that no op of that name with another first argument lies between: what is
    far apart would be kept in memory for long.

    Attributes:
        name: Of the rewrite it is for.
        op: Name of Thunder's symbol.
        most: Ops of one match.
    """

    name: str
    op: str
    most: int = 4

    def find(self, graph: Uses) -> Iterator[list[int]]:
        """Yield the positions of each match, in order."""
        rows = [
            i
            for i, bsym in enumerate(graph.bsyms)
            if op_name(bsym) == self.op and bsym.args and isinstance(bsym.args[0], Proxy)
        ]
        for _, run in groupby(rows, lambda i: graph.bsyms[i].args[0].name):
            positions = list(run)
            siblings = [graph.bsyms[i] for i in positions]
            others = [x for b in siblings for x in (*b.args[1:], *b.kwargs.values())]
            if 2 <= len(positions) <= self.most and all(map(graph.is_input, others)):
                yield positions


@dataclass(frozen=True, slots=True, kw_only=True)
class Gated:
    """An op multiplied with the activation of its sibling, each the only use of the one before.

    Both ops share their first argument; the others come from outside.

    Attributes:
        name: Of the rewrite it is for.
        op: Name of Thunder's symbol that both are.
        activations: Names of those that the gate may go through.
    """

    name: str
    op: str
    activations: tuple[str, ...]

    def find(self, graph: Uses) -> Iterator[list[int]]:
        """Yield the positions of the pair, the activation and the product, in order."""
        for position, bsym in enumerate(graph.bsyms):
            if op_name(bsym) != "torch.mul" or len(bsym.args) != 2:
                continue
            for activated, other in (bsym.args, bsym.args[::-1]):
                found = self._gate(graph, activated, other)
                if found is not None:
                    yield sorted([*found, position])
                    break

    def _gate(self, graph: Uses, activated: object, other: object) -> list[int] | None:
        activation = graph.position_of_maker(activated)
        if activation is None or op_name(graph.bsyms[activation]) not in self.activations:
            return None
        gate = graph.position_of_maker(graph.bsyms[activation].args[0])
        beside = graph.position_of_maker(other)
        if gate is None or beside is None or gate == beside:
            return None
        pair = [graph.bsyms[gate], graph.bsyms[beside]]
        others = [x for b in pair for x in (*b.args[1:], *b.kwargs.values())]
        fits = all(op_name(b) == self.op for b in pair) and all(map(graph.is_input, others))
        inputs = {getattr(b.args[0], "name", "") for b in pair}
        return [gate, activation, beside] if fits and len(inputs) == 1 else None


def _only_adds_a_dimension(bsym: BoundSymbol) -> bool:
    """Whether an indexing op, if it is one, takes all there is in the order that it has."""
    if op_name(bsym) != "torch.Tensor.__getitem__":
        return True
    key = bsym.args[1] if isinstance(bsym.args[1], tuple) else (bsym.args[1],)
    return all(k is None or (type(k) is slice and k == slice(None)) for k in key)


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatedHeads:
    """Attention over keys and values whose heads are repeated for groups of queries.

    Repeated means expanded along a new dimension and reshaped into more heads, for this attention
    alone.

    Attributes:
        name: Of the rewrite it is for.
    """

    name: str

    def find(self, graph: Uses) -> Iterator[list[int]]:
        """Yield the positions of each match, in order."""
        for position, bsym in enumerate(graph.bsyms):
            if op_name(bsym) != _ATTENTION or len(bsym.args) < 3:
                continue
            key, value = (_repetition(graph, x) for x in bsym.args[1:3])
            if key and value and not {*key} & {*value}:
                yield sorted([*key, *value, position])


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenBack:
    """A tensor from outside copied with a part of it replaced, and the copy written back to it.

    That is what becomes of a write into a buffer, the keys and values of a model that generates,
    in a captured program: nothing else uses what the buffer held before.

    Attributes:
        name: Of the rewrite it is for.
        op: Name of Thunder's symbol that copies and replaces.
    """

    name: str
    op: str

    def find(self, graph: Uses) -> Iterator[list[int]]:
        """Yield the positions of the copy, its alias and the write, in order."""
        for position, bsym in enumerate(graph.bsyms):
            if op_name(bsym) != self.op or not isinstance(bsym.args[0], TensorProxy):
                continue
            before, made = bsym.args[0], bsym.output
            if not graph.is_input(before) or tuple(made.shape) != tuple(before.shape):
                continue
            for alias in graph.users(made):
                write = self._write(graph, alias)
                if write is not None and graph.users(before) == (position, write):
                    yield [position, alias, write]

    @staticmethod
    def _write(graph: Uses, alias: int) -> int | None:
        """Return where an alias is written to a tensor, if it is one, and that is its only use."""
        if alias >= len(graph.bsyms) or graph.bsyms[alias].sym.id is not PrimIDs.SHALLOW_COPY:
            return None
        (*others, write) = graph.users(graph.bsyms[alias].output) or (len(graph.bsyms),)
        is_write = write < len(graph.bsyms) and graph.bsyms[write].sym.id is PrimIDs.COPY_
        return write if is_write and not others else None


def _repetition(graph: Uses, heads: object) -> list[int] | None:
    """Return the positions of the ops that repeat heads, the first one first, or None."""
    positions: list[int] = []
    for names in (_RESHAPES, ("torch.Tensor.expand",), _NEW_DIMENSIONS):
        position = graph.position_of_maker(heads)
        if position is None or op_name(graph.bsyms[position]) not in names:
            return None
        if not _only_adds_a_dimension(graph.bsyms[position]):
            return None
        positions.insert(0, position)
        heads = graph.bsyms[position].args[0]
    made = [graph.bsyms[i].output for i in positions]
    if not isinstance(heads, TensorProxy) or heads.ndim != 4:
        return None
    batch, groups, length, width = heads.shape
    apart, expanded, together = (tuple(m.shape) for m in made)
    times = together[1] // groups
    is_so = (
        apart == (batch, groups, 1, length, width)
        and expanded == (batch, groups, times, length, width)
        and together == (batch, groups * times, length, width)
    )
    return positions if is_so else None


def _takes_once(bsym: BoundSymbol, before: BoundSymbol) -> bool:
    values = (*bsym.args, *bsym.kwargs.values())
    count: int = sum(isinstance(x, Proxy) and x.name == before.output.name for x in values)
    return count == 1


def _adds_plainly(bsym: BoundSymbol) -> bool:
    """Whether an addition is of two tensors of one shape, without a factor."""
    shapes = [tuple(x.shape) for x in bsym.args if isinstance(x, TensorProxy)]
    has_factor = bsym.kwargs.get("alpha", 1) != 1
    return len(bsym.args) == len(shapes) == 2 and shapes[0] == shapes[1] and not has_factor


_ATTENTION = "torch.nn.functional.scaled_dot_product_attention"
_RESHAPES = ("torch.reshape", "torch.Tensor.view", "torch.flatten")
_NEW_DIMENSIONS = ("torch.Tensor.__getitem__", "torch.unsqueeze")


_LINEAR = Link(ops=("torch.nn.functional.linear",))
_WEIGHTED = Link(ops=_LINEAR.ops, is_fixed=True)
_ACTIVATION = Link(ops=("torch.nn.functional.gelu", "torch.relu", "torch.nn.functional.relu"))
_SILU = "torch.nn.functional.silu"
_GELU = Link(ops=("torch.nn.functional.gelu",))
_CONV = Link(ops=("torch.nn.functional.conv2d",))
_NORM = Link(ops=("torch.batch_norm", "torch.nn.functional.batch_norm"))
_RELU = Link(ops=("torch.relu", "torch.nn.functional.relu"))
_ADD = Link(ops=("torch.add",), commutes=True, where=_adds_plainly)

PATTERNS: Sequence[Pattern] = (
    Chain(name="mlp_add", links=(_WEIGHTED, _ACTIVATION, _WEIGHTED, _ADD)),
    Chain(name="mlp", links=(_WEIGHTED, _ACTIVATION, _WEIGHTED)),
    Chain(name="linear_gelu", links=(_LINEAR, _GELU)),
    Chain(name="linear_add", links=(_LINEAR, _ADD)),
    Gated(name="gated_linear", op=_LINEAR.ops[0], activations=(*_ACTIVATION.ops, _SILU)),
    Siblings(name="packed_linear", op=_LINEAR.ops[0]),
    Chain(name="conv_bn_add_relu", links=(_CONV, _NORM, _ADD, _RELU)),
    Chain(name="conv_bn_relu", links=(_CONV, _NORM, _RELU)),
    Chain(name="conv_bn", links=(_CONV, _NORM)),
    RepeatedHeads(name="grouped_attention"),
    WrittenBack(name="written_back", op="torch.index_copy"),
)
"""Every pattern that a rewrite exists for; of two matches that overlap the first one counts."""

PATTERN_OF: Mapping[str, Pattern] = {pattern.name: pattern for pattern in PATTERNS}
