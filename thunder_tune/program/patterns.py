"""The pattern language of rewrites: chains of anchors in which only the last result is used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from thunder.core.proxies import Proxy
from thunder.core.symbol import BoundSymbol

from thunder_tune.program.kinds import STRUCTURAL, op_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """A chain of ops, each the only user of the one before and taking it as first argument.

    Attributes:
        name: Of the rewrite it is for.
        ops: Names of Thunder's symbols that each link may have, in order; all of them anchors.
    """

    name: str
    ops: tuple[tuple[str, ...], ...]


PATTERNS = (
    Chain(
        name="linear_gelu",
        ops=(("torch.nn.functional.linear",), ("torch.nn.functional.gelu",)),
    ),
)
"""Every pattern that a rewrite exists for."""


def find(chain: Chain, bsyms: Sequence[BoundSymbol], result: BoundSymbol) -> Iterator[list[int]]:
    """Yield the positions of each match in a graph, in order.

    Args:
        chain: The pattern.
        bsyms: The graph's ops, as `structure.ops_of` returns them.
        result: The graph's return statement, which uses values too.
    """
    users = _users([*bsyms, result])
    for start in range(len(bsyms)):
        positions = [start]
        if op_name(bsyms[start]) not in chain.ops[0]:
            continue
        for names in chain.ops[1:]:
            following = _only_user(bsyms[positions[-1]], users)
            if following is None or following >= len(bsyms):
                break
            link = bsyms[following]
            if op_name(link) not in names or not _takes_first(link, bsyms[positions[-1]]):
                break
            positions.append(following)
        if len(positions) == len(chain.ops):
            yield positions


def _users(bsyms: Sequence[BoundSymbol]) -> Mapping[str, list[int]]:
    found: dict[str, list[int]] = {}
    for position, bsym in enumerate(bsyms):
        for name in {p.name for p in bsym.flat_proxy_args}:
            found.setdefault(name, []).append(position)
    return found


def _only_user(bsym: BoundSymbol, users: Mapping[str, list[int]]) -> int | None:
    if bsym.sym.id in STRUCTURAL or not isinstance(bsym.output, Proxy):
        return None
    positions = users.get(bsym.output.name, [])
    return positions[0] if len(positions) == 1 else None


def _takes_first(bsym: BoundSymbol, before: BoundSymbol) -> bool:
    others = (*bsym.args[1:], *bsym.kwargs.values())
    first = bsym.args[0] if bsym.args else None
    return (
        isinstance(first, Proxy)
        and first.name == before.output.name
        and not any(isinstance(x, Proxy) and x.name == first.name for x in others)
    )
