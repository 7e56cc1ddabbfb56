"""Judge random assignments of every small model, forward and backward, and write the table.

Run: python -m benchmarks.coverage [--device cpu|cuda] [--only NAME ...] [--assignments 5]
                                   [--jobs 1] [--limit SECONDS] [--log rows.jsonl]
                                   [--out docs/coverage.md]
Each model runs in a child process of its own, so that a crash or a hang is a row of the table.
With --log, rows are kept in a file, a model's newest one counts, and --out shows all of them: a
long run may be made in parts.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import math
import multiprocessing
import os
import platform
import shlex
import signal
import sys
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

MODES = ("forward", "backward")
Message = dict[str, Any]

CONTEXT = multiprocessing.get_context("forkserver")

PRELOADED = ("thunder_tune.testing.covering", "thunder_tune.testing.covered_transformers")
"""Children come from a process that has imported everything and done nothing."""


@dataclass
class Row:
    """What is known of one model, from its child's messages.

    Attributes:
        name: Of the model.
        family: Its family.
        found: By mode, what the capture gave.
        plain: By mode, the verdict of every op as a plain torch call.
        verdicts: By mode, the verdict of each random assignment.
        faults: Reasons that belong to no assignment: a crash, a time limit, not captured.
        seconds: Of the child.
    """

    name: str
    family: str
    found: dict[str, Message] = field(default_factory=dict)
    plain: dict[str, Message] = field(default_factory=dict)
    verdicts: dict[str, list[Message]] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def take(self, message: Message) -> None:
        """Add one message of the child."""
        if message["kind"] == "captured":
            self.found[message["mode"]] = message
            if not message["ops"]:
                self.faults.append(f"{message['mode']}: not captured: {message['reason']}")
        elif message["kind"] == "plain":
            self.plain[message["mode"]] = message
        elif message["kind"] == "verdict":
            self.verdicts.setdefault(message["mode"], []).append(message)
        else:
            self.faults.append(f"{message['mode']}: {message['reason']}")

    def passed(self, mode: str) -> int:
        """Return how many assignments were right."""
        return sum(not v["reason"] for v in self.verdicts.get(mode, []))

    @property
    def is_right(self) -> bool:
        """Whether something was judged in both modes, and nothing failed."""
        return set(self.plain) == set(MODES) and not self.reasons()

    def reasons(self) -> list[str]:
        """Return each different reason of a failure once."""
        found = list(self.faults)
        for mode in MODES:
            judged = [*([self.plain[mode]] if mode in self.plain else []), *self.of(mode)]
            found += dict.fromkeys(f"{mode}: {v['reason']}" for v in judged if v["reason"])
        return found

    def of(self, mode: str) -> list[Message]:
        """Return the verdicts of random assignments."""
        return self.verdicts.get(mode, [])

    def worst(self) -> float:
        """Return the worst error ratio that was judged."""
        judged = [*self.plain.values(), *(v for vs in self.verdicts.values() for v in vs)]
        ratios = [v["error_ratio"] for v in judged]
        return max((r for r in ratios if not math.isnan(r)), default=math.nan)


def judge_model(
    name: str, device: str, assignments: int, modes: Iterable[str], pipe: Connection
) -> None:
    """Judge one model in a process of its own; send a message for each thing found."""
    os.setsid()  # so that what a compiler starts ends with it
    warnings.simplefilter("ignore")
    from thunder_tune.testing.covered import covered
    from thunder_tune.testing.covering import Subject

    def tell(kind: str, mode: str, **content: object) -> None:
        pipe.send({"kind": kind, "mode": mode, **content})

    for mode in modes:
        try:
            subject = Subject(covered()[name], training=mode == "backward", device=device)
            program = subject.program
            tell(
                "captured",
                mode,
                front_end=program.front_end,
                ops=len(program.ops),
                classes=len(program.classes),
                reason=program.reason,
            )
            if not program.ops:
                continue
            tell("plain", mode, **asdict(subject.judge({})))
            for assignment in subject.assignments(assignments):
                tell("verdict", mode, **asdict(subject.judge(assignment)))
        except Exception as error:
            text = str(error).strip().splitlines() or [""]
            tell("fault", mode, reason=f"{type(error).__name__}: {text[0]}"[:300])


def cover(name: str, family: str, options: argparse.Namespace) -> Row:
    """Run one model's process to its end or its time limit."""
    row, started = Row(name, family), time.monotonic()
    ours, theirs = CONTEXT.Pipe(duplex=False)
    child = CONTEXT.Process(
        target=judge_model,
        args=(name, options.device, options.assignments, options.modes, theirs),
    )
    child.start()
    theirs.close()
    with contextlib.suppress(EOFError):
        while ours.poll(max(0.0, started + options.limit - time.monotonic())):
            row.take(ours.recv())
    child.join(max(5.0, started + options.limit - time.monotonic()))
    if child.is_alive():
        row.faults.append(f"not finished within {options.limit:.0f} s")
        assert child.pid is not None
        os.killpg(child.pid, signal.SIGKILL)
        child.join()
    elif child.exitcode:
        row.faults.append(f"the process ended with status {child.exitcode}")
    row.seconds = time.monotonic() - started
    return row


def table(rows: Sequence[Row], missing: Sequence[str]) -> str:
    """Return the table of results, what fails and why, and which models were not run."""
    right = sum(row.is_right for row in rows)
    whole = sum(row.is_right and all(row.of(m) for m in MODES) for row in rows)
    lines = [
        f"{right} of {len(rows)} models are right in everything that was judged, forward and "
        f"backward; {whole} of them with random assignments in both modes.",
        "",
        "| model | family | front end | ops | classes | plain torch | forward | backward "
        "| worst error ratio |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        found = row.found.get("forward") or row.found.get("backward") or {}
        plain = [m for m in MODES if m in row.plain and not row.plain[m]["reason"]]
        counts = [f"{row.passed(m)}/{len(row.of(m))}" if row.of(m) else "" for m in MODES]
        worst = "" if math.isnan(row.worst()) else f"{row.worst():.2f}"
        cells = [row.name, row.family, found.get("front_end", "")]
        cells += [str(found.get("ops", "")), str(found.get("classes", ""))]
        lines.append(f"| {' | '.join([*cells, ', '.join(plain), *counts, worst])} |")
    failures = [(row.name, text) for row in rows for text in row.reasons()]
    if failures:
        lines += ["", "What fails, and why:", ""]
        lines += [f"- `{name}`: {text}" for name, text in failures]
    if missing:
        lines += ["", f"Not run: {', '.join(missing)}."]
    return "\n".join(lines)


def document(rows: Sequence[Row], options: argparse.Namespace, command: str) -> str:
    """Return docs/coverage.md."""
    from importlib.metadata import PackageNotFoundError, version

    from thunder_tune.machine import current_fingerprint

    versions = []
    for package in ("torch", "torchvision", "lightning-thunder", "transformers", "timm"):
        try:
            versions.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            versions.append(f"{package} not installed")
    machine = current_fingerprint(options.device)
    kind = machine.device if options.device == "cuda" else platform.processor() or "x86-64"
    return _PAGE.format(
        command=command,
        date=datetime.datetime.now(tz=datetime.timezone.utc).date(),
        versions=", ".join(versions),
        machine=f"{kind}, {os.cpu_count()} CPU cores",
        assignments=max((len(row.of(m)) for row in rows for m in MODES), default=0),
        parts="Made in parts with --log: a row shows what was judged." if options.log else "",
        table=table(rows, [name for name in chosen(None) if name not in {r.name for r in rows}]),
    )


_PAGE = """# Coverage

Small models with random weights, the same ops as at published sizes. For each, random assignments
drawn with fixed seeds, each class to an executor or a fuser; the share of classes that goes to a
fuser differs from one assignment to the next. An assignment is right when every output, and in
training every parameter's gradient and every buffer that a call changes, agrees with a float64
reference within the policy `same`, and every op ran where the assignment says. A model whose
result does not vary with its input is not accepted as a reference.

    {command}

{date}; {versions}; {machine}. Up to {assignments} different assignments of each model in each mode
(a small program has fewer). "Plain torch": modes in which every op as a plain torch call is right.
"Forward" and "backward": random assignments that are right, of those judged; empty where none was.
"Worst error ratio": error of the worst output or gradient, relative to the eager model's own; the
policy allows 2. {parts}

{table}
"""


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.coverage")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="models or families")
    parser.add_argument("--assignments", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--limit", type=float, default=1800.0, help="seconds for one model")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--out", type=Path, help="write the page here")
    parser.add_argument("--log", type=Path, help="keep each model's row here as JSON")
    return parser.parse_args(arguments)


def chosen(only: Sequence[str] | None) -> Mapping[str, str]:
    """Return name -> family of the models asked for.

    Raises:
        SystemExit: A name is neither a model nor a family.
    """
    from thunder_tune.testing.covered import covered

    families = {name: model.family for name, model in covered().items()}
    unknown = [n for n in only or () if n not in families and n not in families.values()]
    if unknown:
        raise SystemExit(f"unknown model {unknown[0]!r}: use {', '.join(families)}, or a family")
    return {n: f for n, f in families.items() if not only or n in only or f in only}


def logged(path: Path | None) -> list[Row]:
    """Read the rows of earlier runs, oldest first."""
    if path is None or not path.exists():
        return []
    return [Row(**json.loads(line)) for line in path.read_text("utf-8").splitlines()]


def main() -> int:
    """Cover the models asked for; 1 where one fails."""
    options = parse(sys.argv[1:])
    CONTEXT.set_forkserver_preload(list(PRELOADED))
    threads = max(1, (os.cpu_count() or 1) // options.jobs)
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))

    def one(item: tuple[str, str]) -> Row:
        row = cover(*item, options)
        counts = ", ".join(
            f"{mode} {row.passed(mode)}/{len(row.verdicts.get(mode, []))}"
            for mode in options.modes
        )
        verdict = "right" if row.is_right else "WRONG"
        line = f"{row.name}: {verdict}; random assignments {counts} ({row.seconds:.0f} s)"
        print(line, *row.reasons(), sep="\n    ")
        sys.stdout.flush()
        if options.log:
            with options.log.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(row)) + "\n")
        return row

    with ThreadPoolExecutor(options.jobs) as pool:
        rows = list(pool.map(one, chosen(options.only).items()))
    if options.out:
        kept = {row.name: row for row in (*logged(options.log), *rows)}
        shown = [kept[name] for name in chosen(None) if name in kept]
        command = shlex.join(["python", "-m", "benchmarks.coverage", *sys.argv[1:]])
        options.out.write_text(document(shown, options, command), encoding="utf-8")
    return 0 if all(row.is_right for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
