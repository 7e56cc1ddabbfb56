"""Whether a model's results can tell a right candidate from a wrong one at all."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

import torch
from torch import Tensor

from thunder_tune.errors import ModelError
from thunder_tune.measure.distances import Distance, Target, difference, ratio_of
from thunder_tune.measure.steps import Inputs, named_tensors
from thunder_tune.values.trial import FailureKind

UNRESOLVED = 0.25
"""Above this relative error of its own, a model's arithmetic says nothing about a tensor."""
DISTINCT = 1.5
"""Answers to two inputs must differ by this many times the model's own error.

A candidate twice as far off as eager is then still nearer to its own reference than to another.
"""
ROUNDING = 4.0
"""Two runs of a model that is not random differ by at most this many times its own error."""
SAME = 1e-12
"""References of two inputs nearer than this (relative, float64) are one and the same."""


class NotJudgeable(ModelError):
    """A model's results cannot tell a right candidate from a wrong one; says what to do."""

    kind: FailureKind = "not-judgeable"


@dataclass(frozen=True, slots=True)
class Slot:
    """A place in the results: an output or a parameter's gradient.

    Attributes:
        name: "output", "output['logits']" or "gradient of head.weight".
        is_gradient: Which of the two.
        is_floating: Whether it holds floating-point numbers.
        floor: Relative error that counts as none: that of rounding to its type.
        is_resolved: Whether the model's own arithmetic gets it right to within a quarter. A
            gradient that is zero but for rounding (a bias before a norm, the bias of keys in
            attention) is not; its error is taken relative to what gradients are typically.
        variation: Distance between the references of two inputs, relative; inf of gradients.
    """

    name: str
    is_gradient: bool
    is_floating: bool
    floor: float
    is_resolved: bool = True
    variation: float = math.inf


@dataclass(frozen=True, slots=True)
class Case:
    """One set of inputs, its reference and the eager model's distance from it, by slot.

    Attributes:
        inputs: Arguments of the call.
        targets: References; None where a parameter has no gradient.
        scales: Norms that errors are relative to.
        eager: Distances of the eager model.
    """

    inputs: Inputs
    targets: tuple[Target | None, ...]
    scales: tuple[float, ...]
    eager: tuple[Distance | None, ...]


def variation(targets: Sequence[Target | None]) -> float:
    """Return the median distance between references of neighbouring inputs, relative."""
    found = [t for t in targets if t is not None]
    gaps = [
        ratio_of(difference(a.tensor, b.tensor), a.norm)
        if a.tensor.shape == b.tensor.shape
        else math.inf
        for a, b in pairwise(found)
    ]
    return median(gaps) if gaps else math.inf


def check_references(slots: Sequence[Slot], cases: Sequence[Case]) -> None:
    """Refuse references that say nothing, or that the model's own rounding hides.

    Integer outputs may be fixed (positions, masks) beside floating ones.

    Raises:
        NotJudgeable: An output is zero, constant, the same for any input, or unresolved.
    """
    outputs = [i for i, slot in enumerate(slots) if not slot.is_gradient]
    for i in [i for i in outputs if slots[i].is_floating] or outputs:
        targets = [t for case in cases if (t := case.targets[i]) is not None]
        _check_informative(slots[i], targets, [case.inputs for case in cases])
        if slots[i].is_floating:
            _check_resolved(slots[i], [d for case in cases if (d := case.eager[i]) is not None])
    gradients = [i for i, slot in enumerate(slots) if slot.is_gradient]
    norms = [t.norm for case in cases for i in gradients if (t := case.targets[i]) is not None]
    if gradients and not any(norms):
        raise NotJudgeable("every gradient is zero: initialise the layers that make them so")


def check_not_random(
    case: Case,
    slots: Sequence[Slot],
    one: Sequence[Tensor | None],
    other: Sequence[Tensor | None],
) -> None:
    """Refuse a model whose outputs differ between two states of the random generators.

    Args:
        case: Whose inputs both runs had.
        slots: Of the results.
        one: Results under one state.
        other: Results under the other.

    Raises:
        NotJudgeable: An output differs by more than rounding.
    """
    for i, slot in enumerate(slots):
        a, b, eager = one[i], other[i], case.eager[i]
        if a is None or b is None or eager is None or slot.is_gradient:
            continue
        if ratio_of(difference(a, b), case.scales[i]) > ROUNDING * max(eager.error, slot.floor):
            raise NotJudgeable(
                f"{slot.name} is random: it changes with the state of the random generator, so "
                "that no two programs agree on it; set dropout probabilities to 0"
            )


def _check_informative(slot: Slot, targets: Sequence[Target], inputs: Sequence[Inputs]) -> None:
    if slot.is_floating and not any(t.norm for t in targets):
        raise NotJudgeable(
            f"{slot.name} is zero for every input: initialise the layer that makes it "
            "(torchvision's vision transformers start with a zero head)"
        )
    if all(t.is_constant for t in targets):
        raise NotJudgeable(
            f"{slot.name} has one value in all its elements: return something that depends on "
            "the computation"
        )
    if slot.variation <= SAME:
        advice = (
            "the input factory gives the same values for every seed; make it use its seed"
            if _are_same(inputs)
            else "return only what depends on the input, or initialise the weights"
        )
        raise NotJudgeable(f"{slot.name} does not vary with the input: {advice}")


def _check_resolved(slot: Slot, eager: Sequence[Distance]) -> None:
    own = median(d.error for d in eager)
    if not slot.is_resolved:
        raise NotJudgeable(
            f"{slot.name} of the eager model is off by {own:.0%}: its own arithmetic cannot be "
            "told from a wrong result; use a wider --dtype"
        )
    if slot.variation <= DISTINCT * own:
        raise NotJudgeable(
            f"{slot.name} hardly varies with the input: answers to two inputs differ by "
            f"{slot.variation:.2g}, the model's own rounding is {own:.2g}; give inputs that "
            "differ more, or weights that are trained or better initialised"
        )


def _are_same(inputs: Sequence[Inputs]) -> bool:
    found = [[t for _, t in named_tensors((i.args, dict(i.kwargs)))] for i in inputs]
    return all(
        len(other) == len(found[0])
        and all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))
        for other in found[1:]
    )
