"""Whatever a candidate does: it is classified, its log says why, and the next one is well."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from thunder_tune.testing.faulty_models import REFERENCE
from thunder_tune.testing.planted_faults import (
    AT,
    FAULT,
    MODEL,
    ORPHANS_VARIABLE,
    PLANTING_SESSION,
    PRINTED_BYTES,
)
from thunder_tune.testing.pool_contract import PATIENCE_S, collect
from thunder_tune.values.comparison import Contender, Round
from thunder_tune.values.documents import failure_groups
from thunder_tune.values.job import CompareJob, Limits, MeasureJob, Setting, TimingRequest
from thunder_tune.values.source import ModelSource
from thunder_tune.values.space import COMPOSED, PROGRAM
from thunder_tune.values.trial import Candidate, TrialResult
from thunder_tune.workers import InlinePool, trial_child
from thunder_tune.workers.log_file import HEAD_BYTES, TAIL_BYTES
from thunder_tune.workers.temporary_folder import SHARED_VARIABLE

COMPOSED_PROGRAM = {PROGRAM: COMPOSED}


class Bed:
    """A pool of one worker, and what there is to see of it from outside."""

    def __init__(self, folder: Path) -> None:
        self.orphans = folder / "orphans"
        self.temporary = folder / "temporary"
        self.temporary.mkdir()
        self.pool = InlinePool(log_folder=str(folder / "logs"), session=PLANTING_SESSION)

    def measure(self, fault: str = "", at: str = "compile", device: str = "cpu") -> TrialResult:
        assignment = {**COMPOSED_PROGRAM, FAULT: fault, AT: at}
        candidate = Candidate(assignment=assignment, plan_key=fault)
        self.pool.submit(MeasureJob(setting=setting(device), candidate=candidate))
        (result,) = collect(self.pool, 1).values()
        return result

    def compare(self, *faults: tuple[str, str]) -> Round:
        contenders = tuple(
            Contender(name=name, assignment={**COMPOSED_PROGRAM, FAULT: fault})
            for name, fault in faults
        )
        job = CompareJob(setting=setting(), contenders=contenders, blocks=2, calls=2)
        return self.pool.compare(job, PATIENCE_S)

    def check_leftovers(self, children: int) -> None:
        """Nothing is left but the pool's children, each with its temporary folder.

        The one that measured last, unless it was ended, and the one that stands by.
        """
        family = [p for p in psutil.Process().children(recursive=True) if runs(p.pid)]
        assert len([p for p in family if "_inductor" not in " ".join(p.cmdline())]) == children
        assert len(list(self.temporary.glob("*-trial-*"))) == children
        if self.orphans.exists():
            assert not [pid for pid in map(int, self.orphans.read_text().split()) if runs(pid)]


def setting(device: str = "cpu") -> Setting:
    return Setting(
        source=ModelSource(name=MODEL, inputs=REFERENCE + "make_inputs", device=device),
        limits=Limits(compile_s=3.0, host_memory_bytes=5 * 2**28)
        if device == "cpu"
        else Limits(compile_s=10.0),
        timing=TimingRequest(max_s=0.1),
    )


def runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture(scope="module")
def bed(tmp_path_factory) -> Iterator[Bed]:
    folder = tmp_path_factory.mktemp("faults")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(ORPHANS_VARIABLE, str(folder / "orphans"))
        patched.setenv(SHARED_VARIABLE, str(folder / "temporary"))
        patched.setattr(trial_child, "_cores_per_worker", lambda slots: 4)
        bed = Bed(folder)
        yield bed
        bed.pool.close()
        bed.check_leftovers(children=0)


@dataclass(frozen=True)
class Row:
    """A fault, where it happens, what becomes of it, and what of the process."""

    fault: str
    at: str
    kind: str
    message: str
    log: str
    process: str = "kept"
    device: str = "cpu"


HANGS = "compiling took longer than the limit of 3 s"
SPINS = "compiling took longer than the limit of 10 s"
ILLEGAL = "illegal memory access"
NO_SPACE = "No space left on device"
PICKLE = "Unpicklable: planted: holds a lock"
NO_TEXT = "(its text could not be had: RuntimeError)"
ODD = r"ValueError: planted: \x00 and \udcff and \x1b[31m"

STATE = (
    "the candidate changed torch's default dtype, default device, function modes, deterministic "
    "algorithms, autocast, anomaly detection, number of threads, precision of float32 products, "
    "cuDNN flags: set back"
)

MATRIX = [
    Row("raises", "capture", "capture", "ValueError: planted: <object", "Traceback"),
    Row("raises", "compile", "compile", "ValueError: planted: <object", "Traceback"),
    Row("raises", "check", "run", "ValueError: planted: <object", "Traceback"),
    Row("raises", "time", "run", "ValueError: planted: <object", "Traceback"),
    Row("raises_unpicklable", "compile", "compile", PICKLE, "Traceback"),
    Row("raises_unprintable", "compile", "compile", NO_TEXT, "Traceback"),
    Row("raises_odd_characters", "compile", "compile", ODD, "Traceback"),
    Row("panics", "compile", "crash", "exited with status 1", "planted panic", "replaced"),
    Row("segfaults", "compile", "crash", "killed by SIGSEGV", "Segmentation fault", "replaced"),
    Row("aborts", "check", "crash", "killed by SIGABRT", "Fatal Python error", "replaced"),
    Row("exits", "time", "crash", "exited with status 3", "exited with status 3", "replaced"),
    Row("ignores_sigterm", "compile", "timeout", HANGS, "in ignores_sigterm", "replaced"),
    Row("holds_the_interpreter", "compile", "timeout", HANGS, "in holds_the_inter", "replaced"),
    Row("fills_host_memory", "check", "out-of-memory", "GiB of host memory", "GiB", "replaced"),
    Row("fills_the_temporary_folder", "check", "run", NO_SPACE, "Traceback", "replaced"),
    Row("leaves_a_daemon_and_dies", "check", "crash", "SIGKILL", "SIGKILL", "replaced"),
    Row("changes_torch_state", "time", "run", "called in another way than it was", STATE),
    Row("answers_nan", "check", "not-finite", "", "Traceback"),
    Row("answers_another_shape", "check", "wrong-shape", "", "Traceback"),
    Row("leaves_memory_unwritten", "check", "unwritten", "", "Traceback"),
    Row("answers_with_noise", "check", "wrong", "times eager's, above 2", "Traceback"),
    Row("answers_otherwise_later", "check", "unstable", "between two runs on one", "Traceback"),
]
ON_GPU = [
    Row("spins_on_the_gpu", "compile", "timeout", SPINS, "in synchronize", "replaced", "cuda"),
    Row("fills_gpu_memory", "check", "out-of-memory", "CUDA", "Traceback", "kept", "cuda"),
    Row("writes_elsewhere", "check", "crash", ILLEGAL, "Traceback", "replaced", "cuda"),
]


@pytest.mark.parametrize(
    "row",
    [
        *(pytest.param(row, id=f"{row.fault}-{row.at}") for row in MATRIX),
        *(pytest.param(row, id=f"{row.fault}", marks=pytest.mark.gpu) for row in ON_GPU),
    ],
)
def test_a_fault_costs_one_trial(bed, row):
    if row.at == "capture":
        bed.pool.cancel()  # a child captures once: this is for a new one
    bad = bed.measure(row.fault, row.at, row.device)
    assert (bad.state, bad.timing) == ("failed", None)
    assert (bad.failure.kind, bad.failure.phase) == (row.kind, row.at)
    assert row.message in bad.failure.message
    assert bad.failure.message.isprintable()
    assert row.log in Path(bad.failure.log).read_text(errors="replace")
    good = bed.measure(device=row.device)
    assert good.failure is None
    assert good.accuracy.error_ratio == 1.0
    assert (good.process_id == bad.process_id) == (row.process == "kept")
    bed.check_leftovers(children=2)


def test_a_log_of_a_gib_keeps_its_beginning_and_its_end(bed):
    printing = bed.measure("prints", "check")
    assert printing.failure is None
    log = Path(bed.measure("raises").failure.log)
    assert log.stat().st_size < HEAD_BYTES + 5 * TAIL_BYTES < PRINTED_BYTES
    text = log.read_text()
    assert "planted: it begins" in text
    assert " bytes are left out here\n" in text
    assert "planted: it ends" in text


def test_a_copy_of_the_process_does_not_answer_in_its_place(bed):
    forking, after = bed.measure("forks_and_falls_through"), bed.measure("raises")
    assert forking.failure is None
    assert "planted: <object" in after.failure.message
    assert "planted: in the copy" in Path(after.failure.log).read_text()


def test_compile_workers_stay_for_the_next_candidate(bed):
    bed.orphans.write_text("")
    keeping, after = bed.measure("keeps_compile_workers", "compile"), bed.measure()
    assert (keeping.failure, after.failure) == (None, None)
    assert keeping.process_id == after.process_id
    assert all(runs(int(pid)) for pid in bed.orphans.read_text().split())


def test_processes_that_a_good_candidate_leaves_are_ended(bed):
    leaving = bed.measure("leaves_processes", "time")
    assert leaving.failure is None
    assert len(bed.orphans.read_text().split()) >= 3
    bed.check_leftovers(children=1)
    after = bed.measure()
    assert after.failure is None
    assert after.process_id != leaving.process_id


def test_failures_of_one_cause_are_one_group(bed):
    results = [bed.measure("raises") for _ in range(3)]
    assert len({r.failure.message for r in results}) > 1
    assert [count for _, count in failure_groups(results)] == [3]


def test_a_round_goes_on_without_them(bed):
    round_ = bed.compare(
        ("good", ""),
        ("changes state", "changes_torch_state"),
        ("leaves processes", "leaves_processes"),
        ("raises", "raises"),
        ("segfaults", "segfaults"),
        ("good too", ""),
    )
    assert {n: f.kind for n, f in round_.failures.items()} == {
        "changes state": "run",
        "raises": "compile",
        "segfaults": "crash",
    }
    well = ["good", "good too", "leaves processes"]
    assert sorted(b.contender for b in round_.blocks) == sorted(well * 2)
    assert round_.accuracy["good"] == round_.accuracy["good too"]
    bed.check_leftovers(children=1)
