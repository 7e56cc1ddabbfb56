"""What a recipe's program is and where its time goes, found out in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

import torch

from thunder_tune.compiler.backends import execution_traces, generated_code, whole_program
from thunder_tune.compiler.calls import CallGroup, dispatched_calls, group_calls
from thunder_tune.compiler.inspecting import (
    ClassUse,
    Inspection,
    inspect,
    is_device_here,
    rewrites_applied,
)
from thunder_tune.compiler.instrumenting import (
    Listing,
    check,
    in_nvtx_ranges,
    in_ranges,
    listings,
)
from thunder_tune.errors import InputError, MeasurementError, ThunderTuneError
from thunder_tune.machine import current_fingerprint
from thunder_tune.measure.kernels import KernelProfile, profile_step, short_name
from thunder_tune.measure.profile_events import RANGE
from thunder_tune.measure.steps import Step, forward_step, trainable, training_step
from thunder_tune.measure.timing import rotation
from thunder_tune.models.inputs import Inputs
from thunder_tune.values.anatomy import Anatomy, Costs, KernelTime, Statement, Text
from thunder_tune.values.recipe import Recipe
from thunder_tune.values.source import ModelSource
from thunder_tune.values.study import baselines_for

Alone = Callable[[], AbstractContextManager[None]]
"""Keeps other processes off the device inside a block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked about a recipe, besides its plan.

    Attributes:
        trace: The texts of the program.
        profile: The time of each kernel and statement.
        baselines: Whole-program back ends whose kernels are to be timed on the same model.
        nvtx: Run the program in NVTX ranges, for a profiler that watches from outside.
        check_traces: Let Thunder check the traces.
        calls: To profile, or to run in NVTX ranges.
    """

    trace: bool = False
    profile: bool = False
    baselines: tuple[str, ...] = ()
    nvtx: bool = False
    check_traces: bool = False
    calls: int = 10

    def __post_init__(self) -> None:
        """Refuse what cannot be answered."""
        if self.calls < 1:
            raise InputError(f"calls {self.calls}: must be at least 1")
        if self.nvtx and (self.profile or self.baselines):
            raise InputError("--nvtx is for a profiler outside (nsys): leave --profile out")

    @property
    def runs(self) -> bool:
        """Whether it cannot be answered without the recipe's device."""
        return self.profile or self.nvtx or bool(self.baselines)


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The answer.

    Attributes:
        recipe: The recipe.
        device: Name of this machine's device.
        is_here: Whether it is of the recipe's kind; if not, `classes` have no places, and `groups`
            are the recipe's plan.
        notes: What a reader should know.
        front_end: Who captured the program, or "" for a whole-program recipe.
        options: What holds for the whole program: CUDA graphs, float32 matmul.
        applied: Share of ops that are where the recipe says; None where nothing was dispatched.
        classes: What became of each class.
        groups: The program's statements, equal ones together.
        rewrites: (rewrite, executor) -> sites.
        listings: Texts of the program, if asked for.
        checks: Thunder's opinion of each trace, if asked for.
        profile: If asked for.
        baselines: Profiles by back end.
    """

    recipe: Recipe
    device: str
    is_here: bool
    notes: tuple[str, ...]
    front_end: str
    options: Mapping[str, str]
    applied: float | None = None
    classes: tuple[ClassUse, ...] = ()
    groups: tuple[CallGroup, ...] = ()
    rewrites: Mapping[tuple[str, str], int] = field(default_factory=dict)
    listings: tuple[Listing, ...] = ()
    checks: tuple[Listing, ...] = ()
    profile: KernelProfile | None = None
    baselines: Mapping[str, KernelProfile] = field(default_factory=dict)


def anatomy(found: Explanation) -> Anatomy:
    """Return of an explanation what is kept beside its recipe."""
    profile = found.profile
    ranges = profile.ranges if profile is not None else {}
    return Anatomy(
        device=found.device,
        date=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        statements=tuple(
            Statement(
                number=group.number,
                name=group.name,
                place=group.place,
                ops=group.ops,
                times=len(group.calls),
                is_region=group.is_region,
                backward=group.backward,
                ms=sum(ranges.get(call, 0.0) for call in group.calls) if ranges else None,
            )
            for group in found.groups
        ),
        texts=tuple(Text(title=t.title, text=t.text) for t in found.listings),
        costs=_costs(profile) if profile is not None else None,
        baselines={name: _costs(beside) for name, beside in found.baselines.items()},
    )


def _costs(profile: KernelProfile) -> Costs:
    return Costs(
        clock=profile.clock,
        latency_ms=profile.latency_ms,
        work_ms=profile.work_ms,
        kernels=tuple(
            KernelTime(name=short_name(k.name), times=k.times, ms=k.ms) for k in profile.kernels
        ),
    )


def explain(
    recipe: Recipe, source: ModelSource, question: Question, *, alone: Alone = nullcontext
) -> Explanation:
    """Explain a recipe: capture its model, build its program, and run it where asked to.

    Args:
        recipe: The recipe.
        source: Its model source as it can be reached here.
        question: What else is asked.
        alone: Held while programs are timed.

    Raises:
        InputError: The recipe's device is needed and not here, or a baseline is unknown.
        ModelError: The model cannot be made, or not be captured.
        MeasurementError: A program fails, or the profiler sees nothing of it.
    """
    _check(source, question)
    with _named_kernels(source.device, question):
        found = inspect(recipe, source, dispatch=question.trace or question.check_traces)
        run = _Run(found, source, question, alone)
        texts = run.first_call() if found.is_here else _texts(found)
        profile = run.profile() if question.profile else None
        if question.nvtx:
            run.in_nvtx_ranges()
        checks = _checks(found) if question.check_traces else ()
        run.close()
        baselines = {name: run.baseline(name) for name in question.baselines}
    here = current_fingerprint(source.device if found.is_here else "cpu")
    is_composed = found.asked.is_composed
    return Explanation(
        recipe=recipe,
        device=here.device,
        is_here=found.is_here,
        notes=tuple(found.notes),
        front_end=found.capture.program.front_end if found.capture else "",
        options=_options(found) if is_composed else {},
        applied=found.applied,
        classes=found.classes,
        groups=found.groups,
        rewrites=rewrites_applied(found.asked),
        listings=texts if question.trace else (),
        checks=checks,
        profile=profile,
        baselines=baselines,
    )


def _check(source: ModelSource, question: Question) -> None:
    if question.runs and not is_device_here(source.device):
        raise InputError(
            f"the recipe is for {source.device} and there is none here: its program cannot run; "
            "leave out --profile, --baseline and --nvtx"
        )
    known = baselines_for(source.device)
    for name in question.baselines:
        if name not in known:
            raise InputError(f"unknown baseline {name!r}: use one of {', '.join(known)}")


@contextmanager
def _named_kernels(device: str, question: Question) -> Iterator[None]:
    """Let Inductor's C++ kernels tell the profiler their names; on CUDA all kernels do."""
    if device == "cpu" and (question.profile or question.baselines):
        with torch._inductor.config.patch({"cpp.enable_kernel_profile": True}):
            yield
    else:
        yield


def _options(found: Inspection) -> dict[str, str]:
    return {
        "cuda_graphs": found.plan.cuda_graphs,
        "float32_matmul": found.plan.float32_matmul,
    }


def _texts(found: Inspection) -> tuple[Listing, ...]:
    if found.built is not None:
        graphs, groups = found.built.graphs, found.groups
        if not found.is_here and found.capture is not None:  # groups are those of the plan
            groups = tuple(
                group_calls(found.capture.program, dispatched_calls(found.plan, graphs))
            )
        return tuple(listings(graphs, groups, numbered=found.is_here))
    return ()


def _whole_texts(program: Callable[..., Any], generated: Sequence[str]) -> tuple[Listing, ...]:
    """Return what a whole-program back end lets one see of its program."""
    traces = zip(("forward", "backward"), execution_traces(program), strict=False)
    codes = enumerate(generated)
    return (
        *(Listing(title=title, text=trace.python()) for title, trace in traces),
        *(Listing(title=f"generated by Inductor, graph {n}", text=code) for n, code in codes),
    )


def _checks(found: Inspection) -> tuple[Listing, ...]:
    if found.capture is None or found.built is None:
        return ()
    return tuple(check(found.capture, found.built.graphs))


class _Run:
    """Runs the programs of one model."""

    def __init__(
        self, found: Inspection, source: ModelSource, question: Question, alone: Alone
    ) -> None:
        self._found = found
        self._source = source
        self._question = question
        self._alone = alone
        self._program: Callable[..., Any] | None = found.built
        if not found.plan.is_composed:
            self._program = whole_program(found.loaded.model, found.plan.program)

    @property
    def _own(self) -> Callable[..., Any]:
        assert self._program is not None, "a composed program is built wherever it can run"
        return self._program

    def first_call(self) -> tuple[Listing, ...]:
        """Compile by a first call, if anything asked for needs it, and return the texts."""
        question, found = self._question, self._found
        if not (question.trace or question.profile or question.nvtx):
            return ()
        if found.built is None:
            torch._dynamo.reset()  # what the process has compiled before is not generated again
        with generated_code() as code:
            self._call(self._own)
        return _texts(found) if found.built else _whole_texts(self._own, code)

    def profile(self) -> KernelProfile:
        """Profile the recipe's program."""
        found = self._found
        marked = None
        if found.built is not None and found.capture is not None:
            marked = in_ranges(found.capture, found.plan, found.built, RANGE)
            self._call(marked)
        replays = found.plan.cuda_graphs != "none"
        return self._profile(self._own, marked=marked, replays=replays)

    def baseline(self, name: str) -> KernelProfile:
        """Profile a whole-program back end on the same model."""
        torch._dynamo.reset()
        program = whole_program(self._found.loaded.model, name)
        self._call(program)
        return self._profile(program)

    def in_nvtx_ranges(self) -> None:
        """Call the program in NVTX ranges, between cudaProfilerStart and cudaProfilerStop."""
        found = self._found
        program = self._own
        if found.built is not None and found.capture is not None:
            program = in_nvtx_ranges(found.capture, found.plan, found.built)
        step, inputs = self._step(program), self._inputs()
        step(inputs[0])
        is_cuda = self._source.device == "cuda"
        with self._alone(), torch.cuda.profiler.profile() if is_cuda else nullcontext():
            for number in range(self._question.calls):
                step(inputs[number % len(inputs)])

    def close(self) -> None:
        """Drop the recipe's program."""
        if self._found.built is not None:
            self._found.built.close()

    def _profile(
        self,
        program: Callable[..., Any],
        *,
        marked: Callable[..., Any] | None = None,
        replays: bool = False,
    ) -> KernelProfile:
        with self._alone():
            return profile_step(
                self._step(program),
                self._inputs(),
                device=self._source.device,
                marked=self._step(marked) if marked is not None else None,
                replays=replays,
                calls=self._question.calls,
            )

    def _inputs(self) -> tuple[Inputs, ...]:
        seed = self._source.seed
        sets = [self._found.inputs, self._found.loaded.make_inputs(seed + 1)]
        return rotation(sets, device=self._source.device)  # type: ignore[return-value]

    def _step(self, call: Callable[..., Any]) -> Step:
        if self._source.mode != "train":
            return forward_step(call)
        return training_step(call, tuple(trainable(self._found.loaded.model).values()))

    def _call(self, program: Callable[..., Any]) -> None:
        """Call a program once.

        Raises:
            MeasurementError: It fails.
        """
        try:
            self._step(program)(self._found.inputs)
        except ThunderTuneError:
            raise
        except Exception as error:  # whatever a compiler or a kernel raises
            text = " ".join(str(error).split())[:300]
            raise MeasurementError(f"the program fails: {type(error).__name__}: {text}") from error
