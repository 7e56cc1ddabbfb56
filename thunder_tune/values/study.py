"""A study: what was asked, and what came out."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal

from thunder_tune.errors import InputError
from thunder_tune.values.comparison import Comparison, Standing, Verdict
from thunder_tune.values.job import Description, Setting
from thunder_tune.values.source import ModelSource

StudyState = Literal["running", "interrupted", "done", "failed"]

BASELINES = (
    "eager",
    "torch.compile",
    "torch.compile:reduce-overhead",
    "torch.compile:max-autotune",
    "thunder",
)
"""What a user would otherwise run, by the names of family 1's choices."""
CHANNELS_LAST = ":channels-last"
"""Ends the name of a back end that runs the model, and its images, in that memory format."""


def baselines_for(device: str) -> tuple[str, ...]:
    """Return the baselines of a device kind: five on CUDA, four on a CPU (no CUDA graphs)."""
    if device == "cuda":
        return BASELINES
    return tuple(b for b in BASELINES if b != "torch.compile:reduce-overhead")


def peers_for(source: ModelSource, kinds: Collection[str]) -> tuple[str, ...]:
    """Return the baselines, and those in channels last where PyTorch recommends that.

    It does for convolutional networks; one convolution before attention makes none. In training
    the format belongs to the parameters themselves, which all that is compared shares, so that
    none is offered there.

    Args:
        source: The model.
        kinds: Of the classes of its ops, see `thunder_tune.program`.
    """
    own = baselines_for(source.device)
    if "conv" not in kinds or "sdpa" in kinds or source.mode == "train":
        return own
    return (*own, f"eager{CHANNELS_LAST}", f"torch.compile{CHANNELS_LAST}")


@dataclass(frozen=True, slots=True, kw_only=True)
class StudySpec:
    """What a study was asked to do.

    Attributes:
        name: Unique in its database.
        setting: What its jobs share.
        trials: Search trials to finish, failed and pruned ones included; baselines are not trials.
        time_budget_s: Seconds for everything, confirmation included; None: no limit.
        seed: Of sampler, block order and fresh inputs.
        sampler: Optuna sampler by name.
        workers: Devices to use at once, or None: all there are.
        screening: Whether classes are measured alone before the search; None: on a GPU, where
            that takes a tenth of the time and saves more.
    """

    name: str
    setting: Setting
    trials: int = 100
    time_budget_s: float | None = None
    seed: int = 0
    sampler: str = "tpe"
    workers: int | None = None
    screening: bool | None = None

    @property
    def screens(self) -> bool:
        """Whether classes are measured alone."""
        is_gpu = self.setting.source.device == "cuda"
        return is_gpu if self.screening is None else self.screening

    def __post_init__(self) -> None:
        """Refuse budgets that allow nothing."""
        if self.trials < 0:
            raise InputError(f"trials {self.trials}: must be at least 0")
        if self.time_budget_s is not None and self.time_budget_s <= 0:
            raise InputError(f"time budget {self.time_budget_s} s: must be above 0")
        if not self.name or len(self.name) > 200 or any(c in self.name for c in "/\\\0\n"):
            raise InputError(f"study name {self.name!r}: 1 to 200 characters, no slash")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialCounts:
    """Search trials by outcome."""

    requested: int = 0
    complete: int = 0
    failed: int = 0
    pruned: int = 0
    exhausted: bool = False
    failed_by_kind: Mapping[str, int] = field(default_factory=dict)

    @property
    def finished(self) -> int:
        """Trials that count towards the request."""
        return self.complete + self.failed + self.pruned


@dataclass(frozen=True, slots=True, kw_only=True)
class Winner:
    """A confirmed candidate and what may be said of it."""

    assignment: Mapping[str, str]
    kind: Literal["composed", "whole-program"]
    standing: Standing
    verdict: Verdict
    speedup: float
    speedup_ci95: tuple[float, float]
    recipe_path: str = ""
    digest: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a study ended.

    Attributes:
        study: Its name.
        state: "done", "interrupted" or "failed".
        description: Program, space and machine, or None where no worker could tell.
        captures: Captures made in search children; front_end and seconds are in `description`.
        counts: Trials by outcome.
        comparison: The confirmation, or None.
        top: Up to five confirmed or measured candidates, best first.
        best: The fastest confirmed program, whole-program back ends included; None if none.
        best_composed: The fastest confirmed composed program.
        error: Why `best` is None, or what else went wrong, one line.
        stopped: Why the search ended: "trials", "time", "exhausted", "interrupted" or "failed".
    """

    study: str
    state: StudyState
    description: Description | None = None
    captures: int = 0
    counts: TrialCounts = field(default_factory=TrialCounts)
    comparison: Comparison | None = None
    top: tuple[Winner, ...] = ()
    best: Winner | None = None
    best_composed: Winner | None = None
    error: str = ""
    stopped: str = ""
