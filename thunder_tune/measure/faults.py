"""Ways in which a candidate is broken, whatever the policy allows."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from thunder_tune.measure.distances import Distance, difference, ratio_of
from thunder_tune.measure.judgeable import Case, Slot
from thunder_tune.measure.probing import share_unwritten
from thunder_tune.measure.steps import Outputs
from thunder_tune.values.trial import Accuracy, FailureKind

UNSTABLE = 4.0
"""Two runs on one input may differ by this many times eager's error: rounding in another order."""
UNSTABLE_SHARE = 0.5
"""Or by this share of the candidate's own error, where that is larger."""
STALE = 0.5
"""An answer this much nearer to another input's reference than to its own is that other answer."""

Results = Sequence[Tensor | None]
"""Outputs, then gradients, in the order of slots."""


class Rejected(Exception):
    """A candidate is not accepted.

    Attributes:
        kind: "wrong", "not-finite", "wrong-shape", "unwritten" or "unstable".
        message: One line.
        accuracy: How far it is off, where it was judged to the end ("wrong").
    """

    def __init__(self, kind: FailureKind, message: str, accuracy: Accuracy | None = None) -> None:
        super().__init__(kind, message, accuracy)
        self.kind = kind
        self.message = message
        self.accuracy = accuracy

    def __str__(self) -> str:
        return self.message


def flat(results: Outputs) -> tuple[Tensor | None, ...]:
    """Return outputs and gradients in the order of slots."""
    return (*results.tensors, *results.gradients)


def check_form(results: Outputs, form: Outputs, slots: Sequence[Slot], case: Case) -> None:
    """Refuse another number, shape or type of results than the model's.

    Raises:
        Rejected: Of kind "wrong-shape".
    """
    for word, one, own in (
        ("outputs", results.tensors, form.tensors),
        ("gradients", results.gradients, form.gradients),
    ):
        if len(one) != len(own):
            raise Rejected("wrong-shape", f"{len(one)} {word} instead of {len(own)}")
    rows = zip(slots, flat(results), flat(form), case.targets, strict=True)
    for slot, tensor, model_tensor, target in rows:
        if tensor is None:
            if target and target.norm:
                raise Rejected("wrong-shape", f"{slot.name} is missing")
            continue
        if model_tensor is None:
            if bool(tensor.any()):
                raise Rejected("wrong-shape", f"{slot.name} exists though the model has none")
            continue
        shape = target.tensor.shape if target else model_tensor.shape
        if tensor.shape != shape or tensor.dtype != model_tensor.dtype:
            found, due = _form(tensor.shape, tensor.dtype), _form(shape, model_tensor.dtype)
            raise Rejected("wrong-shape", f"{slot.name} is {found} instead of {due}")


def not_finite(results: Results, case: Case) -> int | None:
    """Return the first slot with NaN or infinity where the reference has none."""
    for i, (tensor, target) in enumerate(zip(results, case.targets, strict=True)):
        if tensor is not None and target and not target.is_finite_where_due(tensor):
            return i
    return None


def refuse_not_finite(
    slot: Slot, one: Tensor | None, other: Tensor | None, is_finite_then: bool
) -> None:
    """Say where NaN came from.

    Args:
        slot: Where it was found.
        one: Result with memory full of NaN before the call.
        other: Result on the same input with memory full of finite numbers.
        is_finite_then: Whether the latter had no NaN.

    Raises:
        Rejected: Of kind "unwritten" where it was in memory before, else "not-finite".
    """
    if one is not None and other is not None:
        _check_written(slot, one, other)
        if is_finite_then:
            raise Rejected("unwritten", f"{slot.name} depends on memory that was never written")
    raise Rejected("not-finite", f"{slot.name} has NaN or infinity where the reference has none")


def check_repeats(
    first: Results,
    again: Results,
    slots: Sequence[Slot],
    case: Case,
    distances: Sequence[Distance | None],
) -> None:
    """Refuse a candidate that gave one input two answers, or left a result unwritten.

    Args:
        first: Results with memory full of NaN before the call.
        again: Results of the same input, after others, with memory full of finite numbers.
        slots: Of the results.
        case: The input.
        distances: Of `first`.

    Raises:
        Rejected: Of kind "unwritten", "not-finite" or "unstable".
    """
    for i, slot in enumerate(slots):
        one, other, own, eager = first[i], again[i], distances[i], case.eager[i]
        if one is None or other is None or own is None or eager is None:
            continue
        _check_written(slot, one, other)
    faulty = not_finite(again, case)
    if faulty is not None:
        name = slots[faulty].name
        raise Rejected("not-finite", f"{name} has NaN or infinity when an input is run again")
    for i, slot in enumerate(slots):
        one, other, own, eager = first[i], again[i], distances[i], case.eager[i]
        if one is None or other is None or own is None or eager is None:
            continue
        gap = ratio_of(difference(one, other), case.scales[i])
        rounding = max(ratio_of(eager.absolute, case.scales[i]), slot.floor)
        error = ratio_of(own.absolute, case.scales[i])
        allowed = max(UNSTABLE * rounding, UNSTABLE_SHARE * error)
        if not gap <= allowed:
            raise Rejected(
                "unstable",
                f"{slot.name} changes by {gap:.3g} between two runs on one input; rounding "
                f"allows {allowed:.3g}",
            )


def check_written(first: Results, again: Results, slots: Sequence[Slot]) -> None:
    """Refuse a candidate that left part of a result unwritten.

    Args:
        first: Results with memory full of NaN.
        again: Results of the same input with memory full of finite numbers.
        slots: Of the results.

    Raises:
        Rejected: Of kind "unwritten".
    """
    for slot, one, other in zip(slots, first, again, strict=True):
        if one is not None and other is not None:
            _check_written(slot, one, other)


def distances_to_others(
    results: Results, slots: Sequence[Slot], index: int, cases: Sequence[Case]
) -> tuple[float, ...]:
    """Return how near each output lies to the reference of another input, absolute; else inf.

    Args:
        results: Of one input.
        slots: Of the results.
        index: Which of the cases.
        cases: All of them.
    """
    found = []
    for i, slot in enumerate(slots):
        tensor, nearest = results[i], math.inf
        if tensor is not None and slot.is_floating and not slot.is_gradient:
            targets = [c.targets[i] for k, c in enumerate(cases) if k != index]
            gaps = [
                difference(tensor, t.tensor)
                for t in targets
                if t is not None and t.tensor.shape == tensor.shape
            ]
            nearest = min(gaps, default=math.inf)
        found.append(nearest)
    return tuple(found)


def check_not_stale(
    slots: Sequence[Slot],
    rows: Sequence[Sequence[Distance | None]],
    others: Sequence[Sequence[float]],
    accuracy: Accuracy,
) -> None:
    """Refuse a candidate that answers one input with the result of another.

    Args:
        slots: Of the results.
        rows: Distances from the own reference, one row for each case.
        others: From `distances_to_others`, likewise.
        accuracy: To give with the refusal.

    Raises:
        Rejected: Of kind "wrong".
    """
    for distances, nearest in zip(rows, others, strict=True):
        for slot, own, other in zip(slots, distances, nearest, strict=True):
            if own is not None and other < STALE * own.absolute:
                raise Rejected(
                    "wrong",
                    f"{slot.name} of one input is the answer to another: stale data",
                    accuracy,
                )


def _check_written(slot: Slot, one: Tensor, other: Tensor) -> None:
    share = share_unwritten(one, other)
    if share:
        raise Rejected(
            "unwritten", f"{slot.name} shows what was in memory: {share:.3%} is never written"
        )


def _form(shape: torch.Size, dtype: torch.dtype) -> str:
    return f"{str(dtype).removeprefix('torch.')}{list(shape)}"
