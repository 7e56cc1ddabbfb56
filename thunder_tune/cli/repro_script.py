"""The stand-alone script of one trial: its text, from what is stored of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from string import Template

from thunder_tune.__about__ import __version__
from thunder_tune.values.fingerprint import Fingerprint
from thunder_tune.values.job import Setting
from thunder_tune.values.source import ModelSource
from thunder_tune.values.trial import TrialResult

_SCRIPT = Template('''\
"""Trial $number of study $study: built, checked and timed by itself.

Stored: $stored.
Where: $place.
Needs: $needs.
"""

import torch

from thunder_tune.compiler import build
from thunder_tune.measure.accuracy import Judge, Rejected
from thunder_tune.measure.steps import forward_step, trainable, training_step
from thunder_tune.measure.timing import rotation, time_step
from thunder_tune.models import load
from thunder_tune.program import capture
from thunder_tune.values.job import TimingRequest
from thunder_tune.values.plan import resolve
from thunder_tune.values.source import ModelSource

SOURCE = $source
ASSIGNMENT = $assignment
PROGRAM = "$program"  # hash of the captured program that the assignment belongs to
POLICIES = $policies
METRIC = $metric
TRAINING = SOURCE.mode == "train"


def step_of(call, model):
    if TRAINING:
        return training_step(call, tuple(trainable(model).values()))
    return forward_step(call)


def built_from(model, inputs):
    captured = capture(
        model, inputs.args, inputs.kwargs, front_end="$front_end", training=TRAINING
    )
    found = captured.program.hash
    print(f"captured by {captured.program.front_end}: {len(captured.program.ops)} ops")
    if found != PROGRAM:
        print(f"note: another program than the trial's: {found[:12]}, not {PROGRAM[:12]}")
    plan = resolve(captured.program, ASSIGNMENT)
    return build(model, plan, captured if plan.is_composed else None)


def difference(ours, theirs):
    """Largest difference of any output, or gradient, from eager's, relative to its largest."""
    pairs = zip((*ours.tensors, *ours.gradients), (*theirs.tensors, *theirs.gradients))
    return max(
        float((a.double() - b.double()).abs().max() / b.double().abs().max().clamp_min(1e-30))
        for a, b in pairs
        if a is not None and b is not None and b.numel()
    )


def main():
    loaded = load(SOURCE)
    model, inputs = loaded.model, loaded.make_inputs(SOURCE.seed)
    judge = Judge(
        model, loaded.make_inputs, device=SOURCE.device, training=TRAINING, policies=POLICIES,
        metric=METRIC, seed=SOURCE.seed,
    )
    built = built_from(model, inputs)
    candidate, eager = step_of(built, model), step_of(model, model)
    first = candidate(inputs)  # compiles
    print(f"applied: {built.applied:.3f} of the ops run where the assignment says")
    print(f"largest difference from eager: {difference(first, eager(inputs)):.3g}, relative")
    try:
        accuracy = judge.judge(candidate)
        print(f"error: {accuracy.error_ratio:.3g} times eager's own, against {accuracy.reference}")
    except Rejected as rejected:
        raise SystemExit(f"rejected: {rejected.kind}: {rejected}") from None
    rotated = rotation(judge.inputs, device=SOURCE.device)
    for name, step in (("eager", eager), ("trial", candidate)):
        timing = time_step(step, rotated, device=SOURCE.device, request=TimingRequest())
        low, high = timing.ci95_ms
        marks = f", disturbed: {' '.join(timing.marks)}" if timing.marks else ""
        print(f"{name}: {timing.latency_ms:.4g} ms ({low:.4g}-{high:.4g}){marks}")


if __name__ == "__main__":
    torch.manual_seed(SOURCE.seed)
    main()
''')


def script_of(
    study: str,
    number: int,
    result: TrialResult,
    *,
    setting: Setting,
    program_hash: str,
    front_end: str,
    fingerprint: Fingerprint,
) -> str:
    """Return the script of a trial.

    Args:
        study: Its study.
        number: Its number there.
        result: As stored.
        setting: Of the study.
        program_hash: Of the captured program.
        front_end: That captured it; "none" where none could.
        fingerprint: Machine and versions of the study.
    """
    asked = setting.front_end if front_end == "none" else front_end
    return _SCRIPT.substitute(
        study=_in_docstring(repr(study)),
        number=number,
        stored=_stored(result),
        place=_place(fingerprint),
        needs=_needs(fingerprint.packages),
        source=_source(setting.source),
        assignment=_mapping(result.candidate.assignment),
        program=program_hash,
        policies=repr(setting.policies),
        metric=repr(setting.metric),
        front_end=asked,
    )


def _stored(result: TrialResult) -> str:
    if result.timing is None:
        failure = result.failure
        said = f"{failure.kind} in phase {failure.phase}: {failure.message}" if failure else ""
        return _in_docstring(said or result.state)
    low, high = result.timing.ci95_ms
    error = f", error {result.accuracy.error_ratio:.3g} times eager's" if result.accuracy else ""
    return f"{result.timing.latency_ms:.4g} ms ({low:.4g}-{high:.4g}){error}"


def _place(fingerprint: Fingerprint) -> str:
    parts = [fingerprint.device, f"Python {fingerprint.python}"]
    if fingerprint.driver:
        parts.append(f"driver {fingerprint.driver}")
    return _in_docstring(", ".join(parts))


def _needs(packages: Mapping[str, str]) -> str:
    pins = [f"{name}=={number}" for name, number in sorted(packages.items())]
    return _in_docstring(" ".join([f"thunder-tune=={__version__}", *pins]))


def _in_docstring(text: str) -> str:
    """Return text as one line that no quote or backslash in it can end."""
    return " ".join(text.split()).replace("\\", "/").replace('"""', "'''").rstrip('"')


def _source(source: ModelSource) -> str:
    lines = [f"    {f.name}={getattr(source, f.name)!r},\n" for f in fields(source)]
    return f"ModelSource(\n{''.join(lines)})"


def _mapping(values: Mapping[str, str]) -> str:
    lines = [f"    {name!r}: {choice!r},\n" for name, choice in values.items()]
    return f"{{\n{''.join(lines)}}}"
