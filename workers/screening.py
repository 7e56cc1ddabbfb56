"""Measure the choices of a class alone, in the trial process, through the usual timing code."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from thunder_tune.compiler.isolating import (
    NotIsolable,
    Place,
    compile_place,
    differentiable_inputs,
    inputs_of,
    place_of_class,
)
from thunder_tune.measure.steps import Arguments, Inputs, Outputs, Step
from thunder_tune.measure.timing import time_step
from thunder_tune.program import Capture
from thunder_tune.values.job import TimingRequest
from thunder_tune.values.screening import ClassMeasurement, Screening, ScreenJob
from thunder_tune.values.trial import Timing
from thunder_tune.workers.failures import FAULTS, is_sticky, printable
from thunder_tune.workers.workbench import PhaseClock, Workbench

logger = logging.getLogger(__name__)

REQUEST = TimingRequest(precision=0.02, min_repeats=10, max_s=0.1)
"""A screening wants to know which choices are far apart, hundreds of times over."""
CALLS = 8
"""Calls in one CUDA graph: what the host takes to launch it must not be what is measured."""
_WARM_UP_CALLS = 3


def screen(job: ScreenJob, bench: Workbench, clock: PhaseClock) -> Screening:
    """Measure what a job asks for; a choice that fails has its reason in place of a latency."""
    capture = bench.capture(clock)
    found: list[ClassMeasurement] = []
    places: dict[str, Place] = {}
    for class_id, choices in job.choices.items():
        try:
            places[class_id] = place_of_class(capture, class_id)
        except NotIsolable as error:
            found += _none(class_id, choices, str(error))
    with clock.during("compile"):
        inputs = _inputs(capture, places.values(), bench)
    for class_id, place in places.items():
        values = inputs.pop(class_id, None)
        choices = job.choices[class_id]
        if values is None:
            found += _none(class_id, choices, "its inputs are no tensors")
        else:
            found += _screen_class(place, values, choices, job.fuser, bench, clock)
    return Screening(measurements=tuple(found))


def _inputs(
    capture: Capture, places: Iterable[Place], bench: Workbench
) -> dict[str, tuple[torch.Tensor, ...]]:
    def call() -> None:
        with torch.set_grad_enabled(bench.is_training):
            capture.entry(*bench.inputs.args, **bench.inputs.kwargs)

    return inputs_of(capture, places, model=bench.model, call=call)


def _screen_class(
    place: Place,
    values: Sequence[torch.Tensor],
    choices: Sequence[str],
    fuser: str,
    bench: Workbench,
    clock: PhaseClock,
) -> list[ClassMeasurement]:
    """Compile every choice of a class, then time them one after the other under one lease."""
    inputs = differentiable_inputs(place, values, training=bench.is_training)
    steps: dict[str, Step] = {}
    failures: dict[str, str] = {}
    timings: dict[str, Timing] = {}
    with clock.during("compile", place.class_id):
        for choice in choices:
            try:
                steps[choice] = _step(place, inputs, choice, fuser, bench)
            except FAULTS as error:
                failures[choice] = _reason(error)
    with clock.during("time", place.class_id):
        for choice, step in steps.items():
            try:
                sets = (Arguments(inputs),)
                device = bench.setting.source.device
                timings[choice] = time_step(step, sets, device=device, request=REQUEST)
            except FAULTS as error:
                failures[choice] = _reason(error)
    calls = _calls(bench)
    return [
        ClassMeasurement(
            class_id=place.class_id,
            choice=choice,
            latency_ms=timings[choice].latency_ms / calls if choice in timings else None,
            ci95_ms=_scaled(timings[choice].ci95_ms, calls) if choice in timings else None,
            failure=failures.get(choice, ""),
        )
        for choice in choices
    ]


def _calls(bench: Workbench) -> int:
    return CALLS if bench.is_cuda and not bench.is_training else 1


def _step(
    place: Place, inputs: Sequence[torch.Tensor], choice: str, fuser: str, bench: Workbench
) -> Step:
    """Return a compiled choice as a step; it has run once."""
    plan = place.plan(choice, fuser)
    compiled = compile_place(place, inputs, plan, training=bench.is_training)
    wrong = [i for i, where in compiled.places.items() if where != {plan.targets[i]}]
    if wrong:
        raise NotIsolable(f"an executor refused {len(wrong)} of its ops")
    packs = compiled.packs

    def forward(given: Inputs, packs: object = packs) -> Outputs:
        with torch.no_grad():
            compiled.run(*given.args)
        return Outputs(())

    step: Step = _training(compiled.run) if bench.is_training else forward
    step(Arguments(tuple(inputs)))
    bench.synchronize()
    return _replayed(step, inputs) if _calls(bench) > 1 else step


def _training(run: Callable[..., Any]) -> Step:
    """Return forward and backward, from cotangents of one."""

    def step(given: Inputs) -> Outputs:
        with torch.enable_grad():
            leaves = torch.utils._pytree.tree_leaves(run(*given.args))
            roots = [x for x in leaves if isinstance(x, torch.Tensor) and x.requires_grad]
            wanted = [x for x in given.args if x.requires_grad]
            if roots and wanted:
                ones = [torch.ones_like(x) for x in roots]
                torch.autograd.grad(roots, wanted, ones, allow_unused=True)
        return Outputs(())

    return step


def _replayed(step: Step, inputs: Sequence[torch.Tensor]) -> Step:
    """Return `CALLS` calls as one CUDA graph."""
    given = Arguments(tuple(inputs))
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(_WARM_UP_CALLS):
            step(given)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            step(given)

    def replay(_: Inputs) -> Outputs:
        graph.replay()
        return Outputs(())

    return replay


def _scaled(interval: tuple[float, float], calls: int) -> tuple[float, float]:
    low, high = interval
    return low / calls, high / calls


def _none(class_id: str, choices: Sequence[str], reason: str) -> list[ClassMeasurement]:
    return [ClassMeasurement(class_id=class_id, choice=c, failure=reason) for c in choices]


def _reason(error: BaseException) -> str:
    """Return one line for a choice that failed; what spoils the process is raised on."""
    if is_sticky(error):
        raise error
    logger.info("screening", exc_info=error)
    return printable(f"{type(error).__name__}: {error}")[:300]
