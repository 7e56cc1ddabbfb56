"""What Ray is told through the environment, on every machine."""

from __future__ import annotations

from collections.abc import Mapping

RAY_VARIABLES: Mapping[str, str] = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_memory_monitor_refresh_ms": "0",  # ours ends the child, Ray's would end the actor
}

OBJECT_STORE_BYTES = 100 * 2**20
"""Jobs and results are small; Ray's own default takes a third of the memory."""
