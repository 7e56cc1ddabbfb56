"""How fast the dashboard answers for a study of very many trials, and what that costs.

    python benchmarks/dashboard.py --trials 50000

Prints the first view of the study (nothing in memory yet) and the 95th percentile of every API
page and HTML page over repeated requests, in milliseconds, each by the clock and by the
processor's time (which counts where other work shares the machine), and the largest memory.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from starlette.testclient import TestClient

from thunder_tune.dashboards.app import create_app
from thunder_tune.dashboards.source import Source
from thunder_tune.dashboards.templating import warm
from thunder_tune.storage import Database
from thunder_tune.testing.dashboard_data import fill_many

PATHS = (
    "/api/studies",
    "/api/studies/many",
    "/api/studies/many/trials",
    "/api/studies/many/trials?sort=latency&page=100",
    "/api/studies/many/trials?sort=error&descending=true&state=complete",
    "/api/studies/many/trials?text=no+kernel",
    "/api/studies/many/trials/1234",
    "/api/studies/many/failures",
    "/api/studies/many/importance",
    "/api/studies/many/comparison",
    "/api/recipes",
    "/api/machines",
    "/",
    "/studies/many",
    "/studies/many/trials?sort=latency",
    "/studies/many/trials/1234",
)


def milliseconds(call: Callable[[], object]) -> tuple[float, float]:
    """Return how long a call takes, by the clock and in the processor's time."""
    begun, worked = time.perf_counter(), time.process_time()
    call()
    return 1000 * (time.perf_counter() - begun), 1000 * (time.process_time() - worked)


def p95(times: Sequence[float]) -> float:
    """Return the 95th percentile."""
    return round(sorted(times)[math.ceil(0.95 * len(times)) - 1], 1)


def get(client: TestClient, path: str) -> None:
    """Ask for a page that must be there."""
    answer = client.get(path)
    assert answer.status_code == 200, (path, answer.status_code)


def main() -> None:
    """Run the benchmark and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=50_000)
    parser.add_argument("--dimensions", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=20)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        database = Database.open(str(Path(folder) / "many.db"))
        fill_many(database, "many", asked.trials, dimensions=asked.dimensions)
        client = TestClient(create_app(Source.of(database)), base_url="http://127.0.0.1")
        warm()  # as the server does
        get(client, "/recipes")
        first = milliseconds(lambda: get(client, "/studies/many"))
        last = {}
        for path in PATHS:
            times = [
                milliseconds(lambda path=path: get(client, path)) for _ in range(asked.repeats)
            ]
            clock, processor = zip(*times, strict=True)
            last[path] = {"clock": p95(clock), "processor": p95(processor)}
        database.close()
    print(
        json.dumps(
            {
                "trials": asked.trials,
                "dimensions": asked.dimensions,
                "first_view_ms": {"clock": round(first[0]), "processor": round(first[1])},
                "p95_ms": last,
                "peak_memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    main()
