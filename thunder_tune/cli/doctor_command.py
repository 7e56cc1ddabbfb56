"""`thunder-tune doctor`: what is installed, what is missing, and whether the GPU is free."""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal

from thunder_tune.cli import exits, options
from thunder_tune.machine import installed, nvfuser_name

State = Literal["ok", "missing", "broken"]

REQUIRED = (
    "torch",
    "torchvision",
    "lightning-thunder",
    "optuna",
    "ray",
    "sqlalchemy",
    "alembic",
    "pydantic",
)
OPTIONAL = {
    "transformers": "bert_large, llama_3_2_1b and others: pip install 'thunder-tune[hf]'",
    "nvfuser": "fuser nvfuser: torch 2.10 and pip install 'thunder-tune[nvfuser]'",
    "nvidia-cudnn-frontend": "executor cudnn: pip install 'thunder-tune[cudnn]'",
    "transformer-engine": "FP8: a CUDA toolkit and pip install 'thunder-tune[te]'",
    "triton": "fused kernels on CUDA: comes with torch on Linux",
    "psycopg": "PostgreSQL: pip install 'thunder-tune[postgres]'",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that was looked at.

    Attributes:
        name: What.
        state: How it is.
        detail: Version, place, or what to do.
        is_required: Whether thunder-tune works without it.
    """

    name: str
    state: State
    detail: str
    is_required: bool = False


def doctor(as_json: options.Json = False) -> int:
    """Say what is installed, what each missing executor would need, and if the GPU is shared."""
    from thunder_tune.cli import tables

    checks = [*packages(), compiler(), *devices(), *executors()]
    status = exits.FAILED if any(c.is_required and c.state != "ok" for c in checks) else exits.DONE
    if as_json:
        print(json.dumps({"checks": [asdict(c) for c in checks]}))
        return status
    made = tables.table("thunder-tune doctor", "what", "state", "detail")
    for check in checks:
        made.add_row(check.name, check.state, check.detail)
    tables.console().print(made)
    return status


def packages() -> list[Check]:
    """Return versions of what is needed and of what would add something."""
    checks = []
    for name in REQUIRED:
        version = installed(name)
        detail = version or "pip install thunder-tune"
        state: State = "ok" if version else "missing"
        checks.append(Check(name=name, state=state, detail=detail, is_required=True))
    for name, use in OPTIONAL.items():
        version = installed(nvfuser_name() or name if name == "nvfuser" else name)
        checks.append(
            Check(name=name, state="ok" if version else "missing", detail=version or use)
        )
    return checks


def compiler() -> Check:
    """Look for the C++ compiler that Inductor calls."""
    command = os.environ.get("CXX", "g++")
    path = shutil.which(command)
    detail = path or f"{command} not found: torch.compile on a CPU needs one (apt install g++)"
    return Check(
        name="C++ compiler", state="ok" if path else "missing", detail=detail, is_required=True
    )


def devices() -> list[Check]:
    """Return every GPU with its memory and with the processes that others run on it."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return [Check(name="GPU", state="missing", detail=f"none: {error}; models run on the CPU")]
    try:
        handles = [
            pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())
        ]
        return [_gpu(pynvml, i, handle) for i, handle in enumerate(handles)]
    finally:
        pynvml.nvmlShutdown()


def _gpu(nvml: Any, index: int, handle: object) -> Check:  # noqa: ANN401 - a module without types
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    try:
        others = [p.pid for p in nvml.nvmlDeviceGetComputeRunningProcesses(handle)]
    except nvml.NVMLError:
        others = []
    shared = f"shared with processes {', '.join(map(str, others))}" if others else "not shared"
    used, total = memory.used / 2**30, memory.total / 2**30
    detail = f"{nvml.nvmlDeviceGetName(handle)}, {used:.1f} of {total:.0f} GiB used, {shared}"
    return Check(name=f"GPU {index}", state="ok", detail=detail)


def executors() -> list[Check]:
    """Return every executor that can be chosen and what a missing one needs."""

    def found() -> list[Check]:
        import torch

        from thunder_tune.executors.catalogue import OPERATOR_EXECUTORS, unavailable_reason

        device = "cuda" if torch.cuda.is_available() else "cpu"
        checks = []
        for info in OPERATOR_EXECUTORS:
            reason = unavailable_reason(info.name, device)
            detail = reason or ", ".join(info.kinds) or "every op"
            state: State = "missing" if reason else "ok"
            checks.append(Check(name=f"executor {info.name}", state=state, detail=detail))
        return checks

    return guarded("executors", found)


def guarded(name: str, found: Callable[[], list[Check]]) -> list[Check]:
    """Turn whatever a broken installation raises into a line of the report."""
    try:
        with warnings.catch_warnings():  # thunder warns of each package it could use
            warnings.simplefilter("ignore")
            return found()
    except Exception as error:  # this command is for broken installations
        detail = f"{type(error).__name__}: {' '.join(str(error).split())}"
        return [Check(name=name, state="broken", detail=detail, is_required=True)]
