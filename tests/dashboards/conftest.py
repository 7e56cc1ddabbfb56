from __future__ import annotations

import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from thunder_tune.dashboards.app import create_app
from thunder_tune.dashboards.source import Source
from thunder_tune.storage import Database
from thunder_tune.testing.dashboard_data import fill

ADDRESS = "http://127.0.0.1"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests that need a browser where there is none."""
    needed = [item for item in items if item.get_closest_marker("browser")]
    packages = all(find_spec(name) for name in ("playwright", "axe_playwright_python"))
    if needed and not (packages and shutil.which("chromium")):
        config.hook.pytest_deselected(items=needed)
        items[:] = [item for item in items if item not in needed]


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    opened = Database.open(str(tmp_path / "tt.db"))
    yield opened
    opened.close()


@pytest.fixture
def client(database: Database) -> TestClient:
    return TestClient(create_app(Source.of(database)), base_url=ADDRESS)


@pytest.fixture
def filled(database: Database) -> Database:
    """One finished study "vit" with a recipe, one running study "bert" without a result."""
    fill(database)
    return database
