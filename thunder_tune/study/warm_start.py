"""Candidates worth measuring before a sampler knows anything."""

from __future__ import annotations

from collections.abc import Iterator

from thunder_tune.study.plans import PlanLedger
from thunder_tune.values.fusers import FUSERS, VARIANTS
from thunder_tune.values.program import MATMUL_KINDS, kind_of_class
from thunder_tune.values.space import (
    CUDA_GRAPHS,
    EXECUTOR,
    FLOAT32_MATMUL,
    FUSER,
    NO_REWRITE,
    PRECISION,
    PROGRAM,
    REWRITE,
    SearchSpace,
)

LOW = "float8"
"""The executor of linears in 8 bits."""


def warm_starts(ledger: PlanLedger) -> Iterator[dict[str, str]]:
    """Yield whole-program back ends, then composed programs of one idea each, best bets first.

    The composed ones: the default; each fuser around matrix products that torch's libraries run,
    with and without the kernels that span ops, the first one with its other options too, and
    around each operator executor wherever it is offered; each fuser wherever glue offers it, then
    wherever anything does; each lower precision wherever it is offered. All of them with and
    without CUDA graphs where the space has these.
    Some resolve to one plan; who measures them drops the repeats.
    """
    for name in ledger.whole_programs:
        yield {PROGRAM: name}
    if not ledger.can_compose:
        return
    space = ledger.space
    graphs = space.by_name.get(CUDA_GRAPHS)
    # "whole" comes first: where graphs work at all they rarely lose.
    for idea in _ideas(space):
        for choice in reversed(graphs.choices) if graphs else ("none",):
            yield ledger.composed({**idea, **({CUDA_GRAPHS: choice} if graphs else {})})


def _ideas(space: SearchSpace) -> Iterator[dict[str, str]]:
    yield {}
    offered = _offered(space, (FUSER,))
    glue = [target for target in offered if target not in VARIANTS]
    fusers = [fuser for fuser in glue if fuser in FUSERS]
    for fuser in fusers:
        around = _around_matmuls(space, fuser)
        for kernels in _kernels(space):
            yield {**around, **kernels}
        if fuser == fusers[0]:
            for variant in (target for target in offered if target in VARIANTS):
                first, *_, last = _kernels(space)
                yield {**_around_matmuls(space, variant), **first}
                yield {**_around_matmuls(space, variant), **last}
        yield around
        if fuser == fusers[0]:
            for executor in _offered(space, (EXECUTOR, REWRITE)):
                if executor not in (*FUSERS, "torch", NO_REWRITE):
                    yield {**around, **_uniform(space, (EXECUTOR, REWRITE), executor)}
    for fuser in glue:
        yield _uniform(space, (FUSER,), fuser)
    for target in _offered(space, (FUSER, EXECUTOR)):
        if target in glue:
            yield _uniform(space, (FUSER, EXECUTOR), target)
    for compute in _offered(space, (PRECISION, FLOAT32_MATMUL)):
        yield _uniform(space, (PRECISION, FLOAT32_MATMUL), compute)


def _offered(space: SearchSpace, prefixes: tuple[str, ...]) -> tuple[str, ...]:
    """Return every choice of the dimensions with these prefixes, in order of appearance."""
    found = (c for d in space.dimensions if d.name.startswith(prefixes) for c in d.choices)
    return tuple(dict.fromkeys(found))


def _kernels(space: SearchSpace) -> Iterator[dict[str, str]]:
    """Choose a kernel at every site of every rewrite, and matrix products for convolutions.

    Where a site has several kernels: the last of each, then the first; with the last ones 8 bits
    for the other linears, where the policy admits them. Each with the attention kernel for short
    sequences, then without. In the end 8 bits alone: an epilogue in 16 bits may cost what they
    save.
    """
    rewrites = [d for d in space.dimensions if d.name.startswith(REWRITE) and len(d.choices) > 1]
    low = _uniform(space, (EXECUTOR,), LOW)
    products = _uniform(space, (EXECUTOR,), "matmul")
    attention = _uniform(space, (EXECUTOR,), "short_attention")
    for pick, others in ((-1, low), (1, {})):
        chosen = {**products, **others, **{d.name: d.choices[pick] for d in rewrites}}
        if attention:
            yield {**chosen, **attention}
        yield chosen
    if low:
        alone = {d.name: LOW if LOW in d.choices else NO_REWRITE for d in rewrites}
        yield {**products, **low, **attention, **alone}


def _around_matmuls(space: SearchSpace, fuser: str) -> dict[str, str]:
    """Choose a fuser wherever it is offered, and torch's libraries for matrix products."""
    return {**_uniform(space, (FUSER, EXECUTOR), fuser), **_matmuls(space, "torch")}


def _matmuls(space: SearchSpace, choice: str) -> dict[str, str]:
    return {
        name: c
        for name, c in _uniform(space, (EXECUTOR,), choice).items()
        if kind_of_class(name.removeprefix(EXECUTOR)) in MATMUL_KINDS
    }


def _uniform(space: SearchSpace, prefixes: tuple[str, ...], choice: str) -> dict[str, str]:
    return {
        d.name: choice
        for d in space.dimensions
        if d.name.startswith(prefixes) and choice in d.choices
    }
