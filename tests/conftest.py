from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
import torch


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests that need a GPU where there is none."""
    on_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if on_gpu and not torch.cuda.is_available():
        config.hook.pytest_deselected(items=on_gpu)
        items[:] = [item for item in items if item not in on_gpu]


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Let processes started here be interrupted: what a shell starts with "&" ignores Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
