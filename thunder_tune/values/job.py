"""What a worker is asked, and its limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from thunder_tune.values.comparison import Contender
from thunder_tune.values.fingerprint import Fingerprint
from thunder_tune.values.program import Program
from thunder_tune.values.source import ModelSource
from thunder_tune.values.space import SearchSpace
from thunder_tune.values.trial import Candidate, Failure, Role

LANES_VARIABLE = "THUNDER_TUNE_LANES"
"""Environment variable of a trial process: how many of them share its device."""
LEAD_IN_S = 0.3
"""Seconds that a GPU's power control may take to settle at the clock a program gets by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Seconds that each phase of a trial may take, and host memory.

    The limits are long: they end what hangs, they do not prune what is slow.
    """

    start_s: float = 180.0
    load_s: float = 300.0
    capture_s: float = 300.0
    compile_s: float = 900.0
    wait_s: float = 7200.0
    check_s: float = 300.0
    time_s: float = 120.0
    host_memory_bytes: int | None = None

    def of(self, phase: str) -> float:
        """Return the limit of one phase in seconds."""
        value: float = getattr(self, f"{phase}_s")
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class TimingRequest:
    """How precisely to time.

    Attributes:
        precision: Asked half width of the median's 95 % interval, relative: 0.005 is half a
            percent.
        min_repeats: At least this many timed calls.
        max_s: At most this many seconds of timed calls.
    """

    precision: float = 0.005
    min_repeats: int = 10
    max_s: float = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What every job of a study shares.

    Attributes:
        source: The model.
        policies: Policies to judge under; the first decides about state.
        preset: Name of the families of dimensions to offer.
        front_end: "auto", "dynamo" or "thunder.jit".
        metric: The user's own metric ("package.module:function") and its smallest value.
        limits: Per phase.
        timing: How precisely to time.
        log_folder: Folder for the worker's log files, or "" for none.
    """

    source: ModelSource
    policies: tuple[str, ...] = ("same",)
    preset: str = "inference"
    front_end: str = "auto"
    metric: tuple[str, float] | None = None
    limits: Limits = field(default_factory=Limits)
    timing: TimingRequest = field(default_factory=TimingRequest)
    log_folder: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeJob:
    """Load and capture the model, probe the device, build the search space."""

    setting: Setting


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureJob:
    """Build, judge and time one candidate."""

    setting: Setting
    candidate: Candidate
    role: Role = "search"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareJob:
    """Build all contenders in one fresh process and time them in interleaved blocks.

    Attributes:
        setting: As of the study.
        contenders: Distinct names.
        blocks: Blocks for each contender.
        calls: Timed calls in a block.
        lead_in_s: Seconds of untimed calls before those of a block, on a GPU.
        seed: Of the block order and of the fresh inputs.
        build_s: Seconds that contenders took to their first result before, by name, as far as
            known.
    """

    setting: Setting
    contenders: tuple[Contender, ...]
    blocks: int = 8
    calls: int = 10
    lead_in_s: float = LEAD_IN_S
    seed: int = 0
    build_s: Mapping[str, float] = field(default_factory=dict)


Job = DescribeJob | MeasureJob | CompareJob


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """What a worker found out about a model on its device.

    Attributes:
        program: The captured program; without ops where no front end could capture it.
        space: The dimensions on this machine.
        fingerprint: Machine and versions.
        capture_s: Seconds of the capture.
        signature: Of the inputs, see `Recipe`.
        model_key: Cheap key of model and inputs (`thunder_tune.program.model_key`).
        failure: Why the model cannot be tuned at all (it raises, it is not judgeable).
        notes: What the user should know ("weights are random", "the device is shared", ...).
    """

    program: Program
    space: SearchSpace
    fingerprint: Fingerprint
    capture_s: float
    signature: str
    model_key: str = ""
    failure: Failure | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What a child process tells while it works: the phase that begins, and a name in it."""

    phase: str
    subject: str = ""
    details: Mapping[str, str] = field(default_factory=dict)
