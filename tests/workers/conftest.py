from __future__ import annotations

import pytest

from thunder_tune.testing.scripted_session import SCRIPTED_SESSION
from thunder_tune.values.job import Limits
from thunder_tune.workers import start_pool


@pytest.fixture(scope="session")
def ray_pool(tmp_path_factory):
    pool = start_pool(
        device="cpu",
        workers=2,
        ray_address=None,
        log_folder=str(tmp_path_factory.mktemp("logs")),
        limits=Limits(),
        session=SCRIPTED_SESSION,
    )
    yield pool
    pool.close()
