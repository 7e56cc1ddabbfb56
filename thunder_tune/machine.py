"""This machine and its software, as a fingerprint."""

from __future__ import annotations

import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, distributions, version
from pathlib import Path

from thunder_tune.errors import InputError
from thunder_tune.values.fingerprint import Fingerprint

PACKAGES = (
    "torch",
    "torchvision",
    "lightning-thunder",
    "triton",
    "nvidia-cudnn-frontend",
    "nvidia-cudnn-cu12",
    "nvidia-cudnn-cu13",
    "transformer_engine",
    "torchao",
    "transformers",
)
"""Distributions that programs are built by; nvFuser's come in addition, see `nvfuser_name`."""


def installed(distribution: str) -> str | None:
    """Return the version of an installed distribution, or None; imports nothing."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


@cache
def nvfuser_name() -> str | None:
    """Return the name of the nvFuser distribution ("nvfuser-cu128-torch210"), or None.

    Its name says what it was built for, so there is none to ask for directly.
    """
    names = {d.name for d in distributions() if d.name}
    return next((n for n in sorted(names) if n == "nvfuser" or n.startswith("nvfuser-cu")), None)


def current_fingerprint(device: str) -> Fingerprint:
    """Return what results on a device of this machine depend on.

    Args:
        device: "cpu", "cuda" or "cuda:1"; of "cuda" the current one is meant.

    Raises:
        InputError: There is no such device here.
    """
    import torch

    packages = _packages()
    kind = device.partition(":")[0]
    if kind == "cpu":
        return Fingerprint(
            device=_cpu_name(),
            capability=torch.backends.cpu.get_cpu_capability(),
            threads=torch.get_num_threads(),
            python=platform.python_version(),
            packages=packages,
        )
    if kind != "cuda" or not torch.cuda.is_available():
        raise InputError(f"device {device!r}: there is none here; use --device cpu")
    major, minor = torch.cuda.get_device_capability(device)
    return Fingerprint(
        device=torch.cuda.get_device_name(device),
        capability=f"sm_{major}{minor}",
        driver=_driver(),
        cuda=torch.version.cuda or "",
        python=platform.python_version(),
        packages=packages,
    )


def _packages() -> dict[str, str]:
    nvfuser = nvfuser_name()
    names = (*PACKAGES, nvfuser) if nvfuser else PACKAGES
    found = ((name, installed(name)) for name in names)
    return {name: number for name, number in found if number is not None}


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()


def _driver() -> str:
    import pynvml

    try:
        pynvml.nvmlInit()
        try:
            return str(pynvml.nvmlSystemGetDriverVersion())
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return ""
