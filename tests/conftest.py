from __future__ import annotations

import shutil
import signal
from collections.abc import Callable, Iterator
from importlib.util import find_spec

import pytest
import torch

from thunder_tune.testing import postgresql


def _no_gpu() -> str:
    return "" if torch.cuda.is_available() else "there is no CUDA device"


def _no_browser() -> str:
    if not all(find_spec(name) for name in ("playwright", "axe_playwright_python")):
        return "the packages playwright and axe-playwright-python are not installed"
    return "" if shutil.which("chromium") else "there is no chromium in the PATH"


NEEDS: dict[str, Callable[[], str]] = {
    "gpu": _no_gpu,
    "browser": _no_browser,
    "postgres": postgresql.missing_reason,
}
"""For each marker, what says why its tests cannot run here, or "" where they can."""

_LEFT_OUT = pytest.StashKey[list[str]]()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests that need what is not here; the summary says which and why."""
    said = config.stash.setdefault(_LEFT_OUT, [])
    for marker, missing in NEEDS.items():
        marked = [item for item in items if item.get_closest_marker(marker)]
        if marked and (reason := missing()):
            config.hook.pytest_deselected(items=marked)
            items[:] = [item for item in items if item not in marked]
            said.append(f"left out, marked {marker}: {len(marked)}: {reason}")


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Say which tests were left out and why."""
    for line in config.stash.get(_LEFT_OUT, []):
        terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[postgresql.PostgresServer]:
    """A server for the tests marked "postgres"; each makes a database of its own in it."""
    server = postgresql.PostgresServer()
    yield server
    server.close()


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def any_url(request: pytest.FixtureRequest, tmp_path) -> str:
    """The URL of an empty database, of each kind in turn."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'tt.db'}"
    return request.getfixturevalue("postgres_server").new_database()


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Let processes started here be interrupted: what a shell starts with "&" ignores Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
