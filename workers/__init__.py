"""Workers: child processes that build and measure candidates, and the pools that run them."""

from __future__ import annotations

from thunder_tune.workers.inline_pool import InlinePool
from thunder_tune.workers.start import start_pool

__all__ = ["InlinePool", "start_pool"]
