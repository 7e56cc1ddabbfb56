from __future__ import annotations

import pytest
from ray.cluster_utils import Cluster

from thunder_tune.testing.scripted_session import SCRIPTED_SESSION
from thunder_tune.values.job import Limits
from thunder_tune.workers import start_pool


@pytest.fixture(scope="session")
def cluster():
    """A Ray cluster of one machine with two CPU slots; tests may add others."""
    started = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False}
    )
    yield started
    started.shutdown()


@pytest.fixture(scope="session")
def ray_pool(cluster, tmp_path_factory):
    pool = start_pool(
        device="cpu",
        workers=2,
        ray_address=cluster.address,
        log_folder=str(tmp_path_factory.mktemp("logs")),
        limits=Limits(),
        session=SCRIPTED_SESSION,
    )
    yield pool
    pool.close()
