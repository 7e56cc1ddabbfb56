"""Capture a model once with the front end asked for, or with the one that fits."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from thunder_tune.errors import InputError
from thunder_tune.program.dynamo import DynamoFrontEnd
from thunder_tune.program.frontend import Capture, CaptureError, FrontEnd, signature_of
from thunder_tune.program.jit import JitFrontEnd
from thunder_tune.program.state import unchanged
from thunder_tune.values.codec import digest
from thunder_tune.values.program import Program

FRONT_ENDS: dict[str, Callable[[], FrontEnd]] = {
    "dynamo": DynamoFrontEnd,
    "thunder.jit": JitFrontEnd,
}


def capture(
    model: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    front_end: str = "auto",
    training: bool = False,
) -> Capture:
    """Capture a model's computation on one input signature; the model is called, and put back.

    "auto" takes `dynamo`, whose graph breaks keep a program faithful, and `thunder.jit` for what
    Dynamo cannot capture at all. The choice and its reason are in `Program.reason`.

    Args:
        model: Module or function.
        args: Positional inputs, on the device.
        kwargs: Keyword inputs.
        front_end: "auto", "dynamo" or "thunder.jit".
        training: Whether gradients are asked for.

    Returns:
        The capture. When no front end can, its program has front end "none", no ops, and the
        reasons: construct, file and line.

    Raises:
        InputError: An unknown front end.
    """
    if front_end != "auto" and front_end not in FRONT_ENDS:
        raise InputError(
            f"unknown front end {front_end!r}: use one of auto, {', '.join(FRONT_ENDS)}"
        )
    names = tuple(FRONT_ENDS) if front_end == "auto" else (front_end,)
    started = time.perf_counter()
    reasons: list[str] = []
    for name in names:
        try:
            with unchanged(model):
                found = FRONT_ENDS[name]().capture(model, args, kwargs, training=training)
        except CaptureError as error:
            reasons.append(f"{name}: {error}")
            continue
        return _with_reason(found, reasons)
    nothing = digest(["nothing captured"])
    return Capture(
        program=Program(
            front_end="none",
            hash=nothing,
            loose_hash=nothing,
            ops=(),
            cells=(),
            classes=(),
            training=training,
            reason="; ".join(reasons),
        ),
        graphs=(),
        entry=model,
        seconds=time.perf_counter() - started,
        signature=signature_of(args, kwargs),
    )


def _with_reason(found: Capture, reasons: Sequence[str]) -> Capture:
    if reasons:
        reason = f"{found.program.reason}; not {'; not '.join(reasons)}"
        found.program = replace(found.program, reason=reason)
    return found
