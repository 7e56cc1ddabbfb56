"""`thunder-tune worker`: make this machine a node of a Ray cluster, once it is fit for it."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from thunder_tune.cli import doctor_command, exits
from thunder_tune.errors import InputError, MissingDependency, WorkerError

if TYPE_CHECKING:
    from thunder_tune.values.fingerprint import Fingerprint

PORT = 6379


def worker(
    address: Annotated[
        str | None,
        typer.Argument(metavar="[HOST:PORT]", help="Head node of the cluster to join."),
    ] = None,
    head: Annotated[bool, typer.Option("--head", help="Start a cluster instead.")] = False,
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Of a head; 0: any that is free.")
    ] = PORT,
    cpus: Annotated[
        int | None,
        typer.Option("--cpus", min=0, help="CPU slots to offer. Default: one for each core."),
    ] = None,
    gpus: Annotated[
        int | None, typer.Option("--gpus", min=0, help="GPUs to offer. Default: all there are.")
    ] = None,
) -> int:
    """Offer this machine to studies on a Ray cluster, until Ctrl-C.

    Checks what is installed, prints the fingerprint by which machines are kept apart, and becomes
    `ray start`.
    """
    if head == (address is not None):
        raise InputError("worker: give either the HOST:PORT of a cluster to join, or --head")
    if address is not None and not address.rpartition(":")[2].isdecimal():
        raise InputError(f"worker {address!r}: must be HOST:PORT, such as head:{PORT}")
    check_environment()
    for line in fingerprint_lines(fingerprint_here(gpus)):
        print(line, file=sys.stderr)
    words = ray_words(address, port=port, cpus=cpus, gpus=gpus)
    become(words, ray_environment())
    return exits.DONE


def check_environment() -> None:
    """Refuse a machine on which no trial could run.

    Raises:
        WorkerError: A package that every trial needs is missing.
    """
    checks = [*doctor_command.packages(), doctor_command.compiler()]
    bad = [c for c in checks if c.is_required and c.state != "ok"]
    if bad:
        said = "; ".join(f"{c.name} is {c.state}: {c.detail}" for c in bad)
        raise WorkerError(f"this machine cannot run trials: {said}")


def fingerprint_here(gpus: int | None) -> Fingerprint:
    """Return what results of this machine depend on: of its GPU, if one is offered."""
    import torch

    from thunder_tune.machine import current_fingerprint

    has_gpu = gpus != 0 and torch.cuda.is_available()
    return current_fingerprint("cuda" if has_gpu else "cpu")


def fingerprint_lines(found: Fingerprint) -> list[str]:
    """Say it for people, to compare machines with."""
    packages = ", ".join(f"{name} {version}" for name, version in found.packages.items())
    parts = [found.device, found.capability, found.driver and f"driver {found.driver}"]
    return [
        f"device: {', '.join(part for part in parts if part)}",
        f"software: Python {found.python}, {packages}",
        f"fingerprint: {found.strict_key[:12]}",
    ]


def ray_words(
    address: str | None, *, port: int = PORT, cpus: int | None = None, gpus: int | None = None
) -> list[str]:
    """Return the command that this one becomes; `address` None: of a head node."""
    from thunder_tune.workers.ray_environment import OBJECT_STORE_BYTES

    program = Path(sys.executable).with_name("ray")
    found = str(program) if program.exists() else shutil.which("ray")
    if found is None:
        raise MissingDependency("the command ray is not in the PATH: pip install thunder-tune")
    where = [f"--address={address}"] if address else ["--head", f"--port={port}"]
    offered = {"--num-cpus": cpus, "--num-gpus": gpus}
    counts = [f"{option}={count}" for option, count in offered.items() if count is not None]
    store = f"--object-store-memory={OBJECT_STORE_BYTES}"
    return [found, "start", *where, *counts, store, "--block", "--disable-usage-stats"]


def ray_environment() -> Mapping[str, str]:
    """Return the environment of a node: what the user set holds, and this package is found."""
    from thunder_tune.workers.child_process import with_package_path
    from thunder_tune.workers.ray_environment import RAY_VARIABLES

    path = with_package_path(os.environ.get("PYTHONPATH", ""))
    return {**RAY_VARIABLES, **os.environ, "PYTHONPATH": path}


def become(words: list[str], environment: Mapping[str, str]) -> None:
    """Replace this process: signals reach Ray, which ends with all its processes."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(words[0], words, dict(environment))
