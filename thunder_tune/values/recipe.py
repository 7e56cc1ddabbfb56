"""The winner as data: a recipe that `thunder.compile(model, recipe=...)` applies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from thunder_tune.values.codec import digest, to_data
from thunder_tune.values.comparison import Verdict
from thunder_tune.values.fingerprint import Fingerprint
from thunder_tune.values.source import ModelSource
from thunder_tune.values.trial import Accuracy

SCHEMA_VERSION = 1
TUNED = "tuned"
"""What a recipe is called beside baselines that it is measured with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineEvidence:
    """A baseline as confirmed beside the recipe; latency None where it failed."""

    name: str
    latency_ms: float | None
    ci95_ms: tuple[float, float] | None = None
    failure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Why to believe the recipe.

    Attributes:
        study: Study that found it.
        date: ISO date of the confirmation.
        latency_ms: Confirmed latency.
        ci95_ms: Its 95 % interval.
        verdict: Against the best baseline.
        speedup: Best baseline's latency divided by the recipe's.
        speedup_ci95: Its 95 % interval.
        accuracy: As judged in the confirmation.
        peak_memory_bytes: Largest device memory, or None.
        trials: Trials measured by the study.
        processes: Fresh processes of the confirmation.
        baselines: Beside it, in the same blocks.
    """

    study: str
    date: str
    latency_ms: float
    ci95_ms: tuple[float, float]
    verdict: Verdict
    speedup: float
    speedup_ci95: tuple[float, float]
    accuracy: Accuracy | None = None
    peak_memory_bytes: int | None = None
    trials: int = 0
    processes: int = 0
    baselines: tuple[BaselineEvidence, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedPlan:
    """The choices for one input signature.

    Attributes:
        signature: Shapes and dtypes of the inputs it was tuned for, as text.
        program_hash: Exact structural hash of the program.
        program_loose_hash: The same without shapes.
        assignment: Choices by dimension name.
        classes: Class id -> class id without shapes, to carry choices to another shape.
    """

    signature: str
    program_hash: str
    program_loose_hash: str
    assignment: Mapping[str, str]
    classes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A tuned program, data only: reading one imports and executes nothing.

    Attributes:
        model: Name of the model.
        source: How the model was made for tuning.
        kind: "composed", or "whole-program" where one back end won.
        plans: One per tuned input signature, at least one.
        fingerprint: Machine and versions it was tuned on.
        policy: Accuracy policy it was accepted under.
        front_end: Front end that captured the program.
        evidence: Confirmation, or None for a recipe written by hand.
        schema_version: Of this document.
    """

    model: str
    source: ModelSource
    kind: Literal["composed", "whole-program"]
    plans: tuple[TunedPlan, ...]
    fingerprint: Fingerprint
    policy: str = "same"
    front_end: str = "dynamo"
    evidence: Evidence | None = None
    schema_version: int = SCHEMA_VERSION

    @property
    def digest(self) -> str:
        """Twelve hex digits that identify the content."""
        return digest(to_data(self))[:12]
