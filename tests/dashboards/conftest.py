from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from thunder_tune.dashboards.app import create_app
from thunder_tune.dashboards.source import Source
from thunder_tune.storage import Database
from thunder_tune.testing.dashboard_data import fill

ADDRESS = "http://127.0.0.1"


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
