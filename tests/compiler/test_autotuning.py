from __future__ import annotations

import json
import os
import subprocess
import sys

CODE = """
import json
from contextlib import contextmanager
from thunder_tune.compiler.autotuning import time_alone
from thunder_tune.executors.kernels.alone import hold_with

from torch._inductor.runtime.benchmarking import InductorBenchmarker, TritonBenchmarker
from torch._inductor.runtime.triton_heuristics import CachingAutotuner
from torch._inductor.select_algorithm import AlgorithmSelectorCache
from triton.runtime.autotuner import Autotuner

events = []

@contextmanager
def hold():
    events.append("begin")
    try:
        yield
    finally:
        events.append("end")

def timed(*args, **kwargs):
    events.append([len(args), kwargs])
    return "result"

AlgorithmSelectorCache.benchmark_choices = classmethod(timed)
for owner, name in (
    (CachingAutotuner, "benchmark_all_configs"),
    (InductorBenchmarker, "benchmark_gpu"),
    (TritonBenchmarker, "benchmark_gpu"),
    (Autotuner, "_bench"),
):
    assert name in vars(owner), (owner, name)
    setattr(owner, name, timed)
hold_with(hold)
time_alone()
time_alone()
class Choice:
    def __init__(self, fails):
        self.fails = fails

    def precompile(self):
        events.append("compiled")
        if self.fails:
            raise RuntimeError("no valid configuration")

choices = [Choice(False), Choice(True), object()]
calls = {
    "choices": lambda: AlgorithmSelectorCache.benchmark_choices(choices, None),
    "configs": lambda: CachingAutotuner.benchmark_all_configs(object(), 1),
    "inductor": lambda: InductorBenchmarker().benchmark_gpu(print),
    "triton": lambda: TritonBenchmarker().benchmark_gpu(print),
    "autotuner": lambda: Autotuner._bench(object(), config=1),
}
seen = {}
for name, call in calls.items():
    events.clear()
    assert call() == "result"
    seen[name] = list(events)
print(json.dumps(seen))
"""


def test_what_times_kernels_while_it_compiles_has_the_device_once():
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "2"},
    )
    given = {
        "choices": [3, {}],
        "configs": [2, {}],
        "inductor": [2, {}],
        "triton": [2, {}],
        "autotuner": [1, {"config": 1}],
    }
    expected = {n: ["begin", g, "end"] for n, g in given.items()}
    expected["choices"] = ["compiled", "compiled", *expected["choices"]]  # before it has it
    assert json.loads(done.stdout) == expected
