"""What a result depends on: machine and versions, as two keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from thunder_tune.values.codec import digest, to_data


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """A machine and its software.

    Attributes:
        device: "NVIDIA H200" or the CPU's model name.
        capability: "sm_90" on CUDA, the widest vector extension on a CPU.
        threads: Threads PyTorch computes with (CPU), or 0 on a device.
        driver: Driver version, or "".
        cuda: CUDA version PyTorch was built with, or "".
        python: Interpreter version.
        packages: Versions of the packages a program is built by, by distribution name.
    """

    device: str
    capability: str
    threads: int = 0
    driver: str = ""
    cuda: str = ""
    python: str = ""
    packages: Mapping[str, str] = field(default_factory=dict)

    @property
    def strict_key(self) -> str:
        """Digest of everything: a measurement may be reused under the same key."""
        return digest(to_data(self))

    @property
    def loose_key(self) -> str:
        """Digest of chip family and major versions: a recipe may be applied under it."""
        majors = {
            n: ".".join(v.split(".")[:2])
            for n, v in self.packages.items()
            if n in ("torch", "lightning-thunder")
        }
        return digest([self.capability, majors])

    def differences(self, other: Fingerprint) -> list[str]:
        """Say in words what differs: "torch 2.11.0 here, 2.10.0 there"."""
        found = []
        for name in ("device", "capability", "threads", "driver", "cuda", "python"):
            here, there = getattr(self, name), getattr(other, name)
            if here != there:
                found.append(f"{name} {here or 'none'} here, {there or 'none'} there")
        for name in sorted({*self.packages, *other.packages}):
            here, there = self.packages.get(name, "none"), other.packages.get(name, "none")
            if here != there:
                found.append(f"{name} {here} here, {there} there")
        return found
