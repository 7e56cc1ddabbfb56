"""Classes measured alone: what is asked, what came out, and which choices of a space these are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from thunder_tune.values.job import Setting
from thunder_tune.values.space import EXECUTOR, FUSER, REWRITE, SearchSpace
from thunder_tune.values.trial import Failure

CLASS_PREFIXES = (EXECUTOR, FUSER, REWRITE)
"""Of the dimensions whose choices can be measured at one place of the program."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassMeasurement:
    """One choice of one class of cells or sites, measured alone on inputs of that place.

    Attributes:
        class_id: The class; its hash covers structure, shapes, types and gradients, so it says
            the same in every model.
        choice: Executor, fuser, or kernel of a rewrite; "none" is a site that is not rewritten.
        latency_ms: Median milliseconds of a call, in training forward and backward; None where
            the choice failed.
        ci95_ms: 95 % interval of that median.
        failure: Why there is no latency, or "".
    """

    class_id: str
    choice: str
    latency_ms: float | None = None
    ci95_ms: tuple[float, float] | None = None
    failure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScreenJob:
    """Measure choices of a few classes alone, all of a class in one process.

    Attributes:
        setting: As of the study.
        choices: Choices to measure, by class id.
        fuser: What does the light ops of a site that is not rewritten.
    """

    setting: Setting
    choices: Mapping[str, tuple[str, ...]]
    fuser: str = "torch"


@dataclass(frozen=True, slots=True, kw_only=True)
class Screening:
    """What came of a `ScreenJob`: measurements, or why there are none at all."""

    measurements: tuple[ClassMeasurement, ...] = ()
    failure: Failure | None = None


def class_choices(space: SearchSpace) -> dict[str, tuple[str, ...]]:
    """Return the choices that can be measured alone, by class, where there is more than one."""
    return {
        d.name.partition(":")[2]: d.choices
        for d in space.dimensions
        if d.name.startswith(CLASS_PREFIXES) and len(d.choices) > 1
    }


def missing_choices(
    space: SearchSpace, known: Sequence[ClassMeasurement]
) -> dict[str, tuple[str, ...]]:
    """Return the choices of a space that were never measured alone, by class."""
    measured = {(m.class_id, m.choice) for m in known}
    left = {
        class_id: tuple(c for c in choices if (class_id, c) not in measured)
        for class_id, choices in class_choices(space).items()
    }
    return {class_id: choices for class_id, choices in left.items() if choices}
