"""Candidates worth measuring before a sampler knows anything: a few bets, then single moves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from thunder_tune.study.plans import PlanLedger
from thunder_tune.values.fusers import FUSERS
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
    Assignment,
    Dimension,
    SearchSpace,
)

PRECISIONS = (PRECISION, FLOAT32_MATMUL)
LOW = (("float8_static", "float8_mlp"), ("float8",))
"""Executors of linears in 8 bits that go together: with static scales, with one for each row."""
FEW_ROWS = ("int4_weights", "float8_weights", "few_rows")
"""Executors of products of few rows, which wait for their weights: the fewest bytes first."""
EPILOGUES = ("linear_gelu", "linear_add")
"""Rewrites that give a linear an epilogue, in 16 bits."""
WHOLE_MLPS = ("mlp", "gated")
"""Rewrites of several linears and what lies between them, by how their names begin."""
ALWAYS = ("matmul", "space_to_depth")
"""Executors that are taken wherever they are offered: those of patches, 1x1 kernels and stems."""
FUSED_ATTENTION = ("sdpa", "flash_attention")
"""Keep one kernel for the gradient of attention, which torch's own op leaves in pieces; of those
that are offered the last one is taken."""
PACKED_EACH_STEP = ("packed_linear",)
"""Rewrites that copy weights, in training at every step: `moves` shows where that pays."""
OTHER_ATTENTION = "cudnn_attention"
"""Another one, for another bet."""


def warm_starts(ledger: PlanLedger) -> Iterator[dict[str, str]]:
    """Yield whole-program back ends, then composed programs, best bets first.

    A bet puts the first fuser around matrix products that torch's libraries run, with the first
    kernel of every site that spans ops, with the last one, or with 8 bits; where products have few
    rows, first with weights as small as is allowed. Between them comes the default, which gives
    the first fuser everything, and which comes first on a CPU: the kernels are made for GPUs. At
    the end comes every other uniform precision.
    CUDA graphs go with all of them where the space has these, since they seldom lose; the first
    bet is tried without as well. What else there is, `moves` finds from the best of them.
    Some resolve to one plan; who measures them drops the repeats.
    """
    for name in ledger.whole_programs:
        yield {PROGRAM: name}
    if not ledger.can_compose:
        return
    space = ledger.space
    graphs = space.by_name.get(CUDA_GRAPHS)
    with_graphs = {CUDA_GRAPHS: graphs.choices[-1]} if graphs else {}
    first, *others = _bets(space, training=ledger.program.training)
    with_first, default = ({**bet, **with_graphs} for bet in (first, {}))
    is_gpu = graphs is not None and len(graphs.choices) > 1
    yield from map(ledger.composed, (with_first, default) if is_gpu else (default, with_first))
    yield ledger.composed(first)
    for bet in others:
        yield ledger.composed({**bet, **with_graphs})


def moves(space: SearchSpace, assignment: Assignment) -> Iterator[dict[str, str]]:
    """Yield a composed assignment with one idea changed in every place that it applies to.

    An idea is what the sites of one rewrite become, which executor the ops of one kind go to,
    which fuser (or options of it) does what a fuser does now, CUDA graphs, or a precision. The
    dimensions of one kind move together because their ops are alike: where they differ, as large
    and small products do, single changes find it out afterwards.

    Args:
        space: Of the assignment.
        assignment: A complete one; it comes back unchanged among the others.
    """
    held = Counter(assignment[d.name] for d in space.dimensions if assignment[d.name] in FUSERS)
    current = held.most_common(1)[0][0] if held else None
    for prefix in (REWRITE, EXECUTOR):
        for kind, group in _by_kind(space, prefix).items():
            if prefix == EXECUTOR and kind not in MATMUL_KINDS:
                continue  # norms, activations: the fusers' business
            for choice in _choices(group):
                if choice not in FUSERS or choice == current:
                    yield {**assignment, **_wherever(group, choice)}
    fused = [d for d in _of(space, (FUSER, EXECUTOR)) if assignment[d.name] in FUSERS]
    for choice in _choices(fused):
        if choice in FUSERS:
            yield {**assignment, **_wherever(fused, choice)}
    for prefix in (CUDA_GRAPHS, *PRECISIONS):
        for choice in _choices(_of(space, (prefix,))):
            yield {**assignment, **_uniform(space, (prefix,), choice)}


def _bets(space: SearchSpace, *, training: bool) -> Iterator[dict[str, str]]:
    """Yield choices that differ from the default; at least one bet."""
    fusers = [c for c in _choices(_of(space, (FUSER, EXECUTOR))) if c in FUSERS]
    around = _uniform(space, (FUSER, EXECUTOR), fusers[0]) if fusers else {}
    around.update(_matmuls(space, "torch"))
    if training:
        for name in FUSED_ATTENTION:
            around.update(_uniform(space, (EXECUTOR,), name))
    for executor in ALWAYS:
        around.update(_uniform(space, (EXECUTOR,), executor))
    sites = [d for d in space.dimensions if d.name.startswith(REWRITE) and len(d.choices) > 1]
    taken = [d for d in sites if not (training and _kind(d) in PACKED_EACH_STEP)]
    first, last = ({d.name: d.choices[pick] for d in taken} for pick in (1, -1))
    for name in FEW_ROWS:
        streamed = _uniform(space, (EXECUTOR,), name)
        if streamed:
            yield {**around, **streamed, **{d.name: _in_form(d, (name,)) for d in sites}}
    for names in LOW:
        low = {k: c for name in names for k, c in _uniform(space, (EXECUTOR,), name).items()}
        if low:
            # An epilogue in 16 bits may cost what 8 bits save; the other way comes as well.
            yield {**around, **low, **{d.name: _in_form(d, names) for d in sites}}
            yield {**around, **low, **{d.name: _with_epilogue(d, names) for d in sites}}
    yield {**around, **first}
    attention = _uniform(space, (EXECUTOR,), OTHER_ATTENTION) if training else {}
    yield {**around, **last, **attention}
    yield around
    for compute in _choices(_of(space, PRECISIONS)):
        yield {**around, **first, **_uniform(space, PRECISIONS, compute)}


def _in_form(site: Dimension, names: Sequence[str]) -> str:
    """Return a site's kernel by some executors; where it has none, no rewrite of its linears."""
    found = next((c for c in site.choices if c in names), None)
    if found is None and _kind(site).startswith(("linear", *WHOLE_MLPS)):
        return NO_REWRITE
    return found or site.choices[1]


def _with_epilogue(site: Dimension, names: Sequence[str]) -> str:
    """Return the same, but the last kernel for a linear's epilogue, and no whole MLP before it."""
    if _kind(site).startswith(WHOLE_MLPS):
        return NO_REWRITE
    return site.choices[-1] if _kind(site) in EPILOGUES else _in_form(site, names)


def _kind(site: Dimension) -> str:
    return kind_of_class(site.name.removeprefix(REWRITE))


def _of(space: SearchSpace, prefixes: tuple[str, ...]) -> list[Dimension]:
    return [d for d in space.dimensions if d.name.startswith(prefixes)]


def _by_kind(space: SearchSpace, prefix: str) -> dict[str, list[Dimension]]:
    """Group the dimensions of a prefix by the kind of their classes, in order of appearance."""
    found: dict[str, list[Dimension]] = {}
    for d in _of(space, (prefix,)):
        found.setdefault(kind_of_class(d.name.removeprefix(prefix)), []).append(d)
    return found


def _choices(dimensions: Iterable[Dimension]) -> tuple[str, ...]:
    """Return every choice of these dimensions, in order of appearance."""
    return tuple(dict.fromkeys(c for d in dimensions for c in d.choices))


def _wherever(dimensions: Iterable[Dimension], choice: str) -> dict[str, str]:
    return {d.name: choice for d in dimensions if choice in d.choices}


def _uniform(space: SearchSpace, prefixes: tuple[str, ...], choice: str) -> dict[str, str]:
    return _wherever(_of(space, prefixes), choice)


def _matmuls(space: SearchSpace, choice: str) -> dict[str, str]:
    kinds = _by_kind(space, EXECUTOR)
    return _wherever([d for kind in kinds if kind in MATMUL_KINDS for d in kinds[kind]], choice)
