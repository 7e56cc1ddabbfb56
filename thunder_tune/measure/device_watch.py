"""What disturbs a measurement on a GPU: its clock, its limits, and others on it."""

from __future__ import annotations

import os
from functools import cache
from types import ModuleType
from typing import Any

import torch

from thunder_tune.values.job import LANES_VARIABLE

CLOCK_TOLERANCE = 0.05
"""Relative change of the SM clock within one measurement that earns a mark."""


class DeviceWatch:
    """Reads a device's state through NVML while it works.

    `observe` is called while the device is busy, between batches of timed calls: an idle device
    has another clock. On a CPU, or where NVML cannot be read, it notes nothing.

    Args:
        device: The device being measured.
    """

    def __init__(self, device: torch.device) -> None:
        self._nvml = _nvml() if device.type == "cuda" else None
        self._handle = _handle(self._nvml, device) if self._nvml else None
        self._clocks_mhz: list[int] = []
        self._reasons = 0
        self._is_shared = False
        self.temperature_c: int | None = None

    def observe(self) -> None:
        """Read clock, temperature, limits and processes once; takes well under a millisecond."""
        nvml, handle = self._nvml, self._handle
        if nvml is None or handle is None:
            return
        try:
            self._clocks_mhz.append(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM))
            self._reasons |= nvml.nvmlDeviceGetCurrentClocksEventReasons(handle)
            self.temperature_c = nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)
            self._is_shared |= is_shared(
                [p.pid for p in nvml.nvmlDeviceGetComputeRunningProcesses(handle)],
                os.getpid(),
                lanes=int(os.environ.get(LANES_VARIABLE, "1")),
            )
        except nvml.NVMLError:
            self._handle = None

    def marks(self) -> tuple[str, ...]:
        """Name what was seen: "clock-changed", "throttled", "power-capped", "device-shared"."""
        nvml, found = self._nvml, []
        if nvml is None:
            return ()
        if has_changed(self._clocks_mhz):
            found.append("clock-changed")
        if self._reasons & (
            nvml.nvmlClocksEventReasonHwSlowdown
            | nvml.nvmlClocksEventReasonHwThermalSlowdown
            | nvml.nvmlClocksEventReasonSwThermalSlowdown
            | nvml.nvmlClocksEventReasonHwPowerBrakeSlowdown
        ):
            found.append("throttled")
        if self._reasons & nvml.nvmlClocksEventReasonSwPowerCap:
            found.append("power-capped")
        if self._is_shared:
            found.append("device-shared")
        return tuple(found)


def has_changed(clocks_mhz: list[int]) -> bool:
    """Whether readings of a clock differ by more than the tolerance."""
    return bool(clocks_mhz) and max(clocks_mhz) > (1 + CLOCK_TOLERANCE) * min(clocks_mhz)


def is_shared(process_ids: list[int], own: int, *, lanes: int = 1) -> bool:
    """Whether others compute on a device, by the processes that NVML lists there.

    In a container NVML may give ids of the host, so that our own is not among them: one process is
    taken to be ours, and so are those of the other lanes, which keep off the device meanwhile.
    """
    return len(set(process_ids) - {own}) > (lanes - 1 if own in process_ids else lanes)


@cache
def _nvml() -> ModuleType | None:
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    module: ModuleType = pynvml
    return module


def _handle(nvml: ModuleType, device: torch.device) -> Any:  # noqa: ANN401 - an NVML pointer
    uuid = str(torch.cuda.get_device_properties(device).uuid)
    try:
        return nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid.removeprefix('GPU-')}")
    except nvml.NVMLError:  # a slice of a card (MIG) has no clock of its own
        return None
