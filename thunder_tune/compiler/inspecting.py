"""What a recipe makes of its model: which op goes where and why, class by class, call by call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from thunder_tune.compiler.building import Built, build
from thunder_tune.compiler.calls import (
    Call,
    CallGroup,
    dispatched_calls,
    group_calls,
    planned_calls,
)
from thunder_tune.compiler.dispatch import applied_share
from thunder_tune.compiler.elsewhere import capture_elsewhere
from thunder_tune.compiler.matching import Match, match
from thunder_tune.compiler.viability import Viability, viability
from thunder_tune.errors import ModelError
from thunder_tune.machine import current_fingerprint
from thunder_tune.models import LoadedModel, load
from thunder_tune.models.inputs import Inputs
from thunder_tune.program import Capture, capture
from thunder_tune.values.plan import Plan, resolve
from thunder_tune.values.program import CellClass, Program
from thunder_tune.values.recipe import Recipe
from thunder_tune.values.source import ModelSource
from thunder_tune.values.space import (
    COMPOSED,
    NO_REWRITE,
    PROGRAM,
    REWRITE,
    Assignment,
)

REMOVED = "removed"
"""Place of an op that dispatch left out because it has no effect."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassUse:
    """What became of one class of cells or rewrite sites.

    Attributes:
        id: Of the class.
        kind: Its anchor's kind, "glue", or the rewrite.
        count: Cells or sites.
        ops: Op names of one of them.
        summary: Shapes and dtypes of one of them.
        asked: Place -> ops that the recipe sends there (sites, for a class of sites). Empty where
            the class only moves data and so goes with its neighbours.
        ran: Place -> ops (or sites) that are there; None where nothing was dispatched.
        precision: Type it computes in, or "" for its own.
        reasons: Why something is in another place than asked.
    """

    id: str
    kind: str
    count: int
    ops: tuple[str, ...]
    summary: str
    asked: Mapping[str, int]
    ran: Mapping[str, int] | None
    precision: str = ""
    reasons: tuple[str, ...] = ()


@dataclass(eq=False, kw_only=True)
class Inspection:
    """A recipe, its model, and the program that the one makes of the other.

    Attributes:
        recipe: The recipe.
        is_here: Whether the recipe's device is here; otherwise nothing can run.
        notes: What a reader should know.
        loaded: The model; fake, and no longer callable, where the device is not here.
        inputs: One set, on the device; on the CPU where that is not here.
        capture: Of the model, or None for a whole-program recipe.
        asked: The plan that the recipe asks for; a whole-program one for such a recipe.
        plan: The plan that can be had on this machine.
        built: The program, not called yet; None where it was not dispatched.
        applied: Share of ops that are where the recipe says; None where nothing was dispatched.
        classes: What became of each class.
        calls: The program's statements in order: as dispatched, else as planned.
        groups: The same with equal calls together.
    """

    recipe: Recipe
    is_here: bool
    notes: list[str]
    loaded: LoadedModel
    inputs: Inputs
    asked: Plan
    plan: Plan
    capture: Capture | None = None
    built: Built | None = None
    applied: float | None = None
    classes: tuple[ClassUse, ...] = ()
    calls: tuple[Call, ...] = ()
    groups: tuple[CallGroup, ...] = ()


def inspect(recipe: Recipe, source: ModelSource, *, dispatch: bool = False) -> Inspection:
    """Load a recipe's model, capture it, and build the program without running it.

    Args:
        recipe: The recipe.
        source: Its model source as it can be reached here.
        dispatch: Build the program for this machine also where the recipe's device is not here.

    Raises:
        ModelError: The model cannot be made, or not be captured.
    """
    is_here = is_device_here(source.device)
    loaded = load(source if is_here else replace(source, device="cpu"))
    inputs = loaded.make_inputs(source.seed)
    notes = _elsewhere(recipe, is_here=is_here)
    if recipe.kind == "whole-program":
        plan = Plan(program=recipe.plans[0].assignment[PROGRAM])
        return Inspection(
            recipe=recipe,
            is_here=is_here,
            notes=[*notes, *loaded.notes],
            loaded=loaded,
            inputs=inputs,
            asked=plan,
            plan=plan,
        )
    found = _capture(recipe, source, loaded, inputs, is_here=is_here)
    program = found.program
    matched = max(
        (match(p, program, source.device) for p in recipe.plans),
        key=lambda m: (m.exact, m.carried),
    )
    notes += _differences(matched, names_missing=is_here or dispatch)
    asked, plan = (
        resolve(program, {**choices, PROGRAM: COMPOSED})
        for choices in (matched.asked, matched.assignment)
    )
    built = build(loaded.model, plan, found) if is_here or dispatch else None
    calls = planned_calls(program, asked)
    places = None
    if built is not None and is_here:
        places = {op: names for graph in built.graphs for op, names in graph.places.items()}
        calls = dispatched_calls(plan, built.graphs)
    return Inspection(
        recipe=recipe,
        is_here=is_here,
        notes=[*notes, *loaded.notes],
        loaded=loaded,
        inputs=inputs,
        capture=found,
        asked=asked,
        plan=plan,
        built=built,
        applied=applied_share(program, asked, places) if places is not None else None,
        classes=_classes(found, matched.asked, asked, places, source.device),
        calls=tuple(calls),
        groups=tuple(group_calls(program, calls)),
    )


def is_device_here(device: str) -> bool:
    """Whether programs for a kind of device can run on this machine."""
    return device == "cpu" or torch.cuda.is_available()


def _elsewhere(recipe: Recipe, *, is_here: bool) -> list[str]:
    if not is_here:
        return [
            f"there is no {recipe.source.device} device here: places and times are not shown, "
            "choices are the recipe's"
        ]
    here = current_fingerprint(recipe.source.device)
    differences = here.differences(recipe.fingerprint)
    return [f"tuned elsewhere: {'; '.join(differences[:4])}"] if differences else []


def _capture(
    recipe: Recipe, source: ModelSource, loaded: LoadedModel, inputs: Inputs, *, is_here: bool
) -> Capture:
    front_end = "thunder.jit" if recipe.front_end == "thunder.jit" else "dynamo"
    training = source.mode == "train"
    if is_here:
        found = capture(
            loaded.model, inputs.args, inputs.kwargs, front_end=front_end, training=training
        )
    else:
        found = capture_elsewhere(
            loaded.model,
            inputs.args,
            inputs.kwargs,
            device=source.device,
            front_end=front_end,
            training=training,
        )
    if not found.program.is_captured:
        raise ModelError(f"{recipe.model} cannot be captured: {found.program.reason}")
    return found


def _differences(matched: Match, *, names_missing: bool) -> list[str]:
    notes = []
    if names_missing:
        notes = [f"missing here, so its ops go to torch: {what}" for what in matched.missing]
    if matched.exact < 1.0:
        notes.append(
            f"tuned for {matched.exact:.0%} of the ops, carried from another shape to "
            f"{matched.carried:.0%}"
        )
    return notes


def _classes(
    found: Capture,
    choices: Assignment,
    asked: Plan,
    dispatched: Mapping[int, frozenset[str]] | None,
    device: str,
) -> tuple[ClassUse, ...]:
    places = None
    if dispatched is not None:
        places = dict(dispatched)
        for site in asked.rewritings:  # the kernel of a site bears the mark of one op
            found_at = places.get(site.ops[-1], places.get(site.ops[0], frozenset()))
            for op in site.ops if found_at == {site.executor} else ():
                places.setdefault(op, found_at)
    why = viability(found, device)
    uses = [_cells_use(found.program, c, asked, places) for c in found.program.classes] + [
        _sites_use(found.program, c, choices, asked, places) for c in found.program.site_classes
    ]
    return tuple(
        replace(use, reasons=_reasons(use, why)) if use.ran is not None else use for use in uses
    )


def _cells_use(
    program: Program,
    cell_class: CellClass,
    asked: Plan,
    places: Mapping[int, frozenset[str]] | None,
) -> ClassUse:
    ops = [op for op in program.ops if op.class_id == cell_class.id and not op.is_view]
    ran = None
    if places is not None:
        ran = Counter(_where(places.get(op.index, frozenset())) for op in ops)
    return ClassUse(
        id=cell_class.id,
        kind=cell_class.kind,
        count=cell_class.count,
        ops=cell_class.ops,
        summary=cell_class.summary,
        asked=Counter(asked.targets[op.index] for op in ops),
        ran=ran,
        precision=", ".join(sorted({asked.precision[op.index] for op in ops} - {""})),
    )


def _sites_use(
    program: Program,
    site_class: CellClass,
    choices: Assignment,
    asked: Plan,
    places: Mapping[int, frozenset[str]] | None,
) -> ClassUse:
    executor_of = {site.ops: site.executor for site in asked.rewritings}
    sites = [site.ops for site in program.sites if site.class_id == site_class.id]
    ran = None
    if places is not None:
        ran = Counter(
            _where(frozenset().union(*(places.get(op, frozenset()) for op in ops)))
            if ops in executor_of
            else NO_REWRITE
            for ops in sites
        )
    given = Counter(executor_of.get(ops, NO_REWRITE) for ops in sites)
    wanted = choices.get(REWRITE + site_class.id, NO_REWRITE)
    overlapping = given[NO_REWRITE] if wanted != NO_REWRITE else 0
    return ClassUse(
        id=site_class.id,
        kind=site_class.kind,
        count=site_class.count,
        ops=site_class.ops,
        summary=site_class.summary,
        asked=given,
        ran=ran,
        reasons=(f"{overlapping} overlap another rewritten site",) if overlapping else (),
    )


def _where(places: frozenset[str]) -> str:
    return " + ".join(sorted(places)) or REMOVED


def _reasons(use: ClassUse, why: Viability) -> tuple[str, ...]:
    """Say why ops of a class are not where they were asked for."""
    reasons = list(use.reasons)
    for target, count in use.asked.items():
        missed = count - (use.ran or {}).get(target, 0)
        if target == NO_REWRITE or missed <= 0:
            continue
        if set(use.ran or {}) <= {target, REMOVED}:
            reasons.append("dispatch leaves out what has no effect")
            continue
        reason = why(use.id, target)
        reasons.append(f"{target} {reason}" if reason else f"parts of it are not {target}'s")
    return tuple(reasons)


def rewrites_applied(plan: Plan) -> Mapping[tuple[str, str], int]:
    """Return (rewrite, executor) -> sites that a plan rewrites."""
    return Counter((site.rewrite, site.executor) for site in plan.rewritings)
