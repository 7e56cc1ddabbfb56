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
import datetime
import json
import math
import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

MODES = ("forward", "backward")
Message = dict[str, Any]


@dataclass
class Row:
    """What is known of one model, from its child's messages.

    Attributes:
        name: Of the model.
        family: Its family.
        found: By mode, what the capture gave.
        verdicts: By mode, the verdict of each assignment.
        faults: Reasons that belong to no assignment: a crash, a time limit, not captured.
        seconds: Of the child.
    """

    name: str
    family: str
    found: dict[str, Message] = field(default_factory=dict)
    verdicts: dict[str, list[Message]] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def take(self, message: Message) -> None:
        """Add one message of the child."""
        if message["kind"] == "captured":
            self.found[message["mode"]] = message
            if not message["ops"]:
                self.faults.append(f"{message['mode']}: not captured: {message['reason']}")
        elif message["kind"] == "verdict":
            self.verdicts.setdefault(message["mode"], []).append(message)
        else:
            self.faults.append(f"{message['mode']}: {message['reason']}")

    def passed(self, mode: str) -> int:
        """Return how many assignments were right."""
        return sum(not v["reason"] for v in self.verdicts.get(mode, []))

    def is_right(self, assignments: int) -> bool:
        """Whether nothing failed and every distinct assignment asked for was judged."""
        judged = [self.verdicts.get(mode, []) for mode in MODES]
        return (
            not self.faults
            and all(0 < len(v) <= assignments for v in judged)
            and all(self.passed(mode) == len(self.verdicts[mode]) for mode in MODES)
        )

    def reasons(self) -> list[str]:
        """Return each different reason of a failure once."""
        found = list(self.faults)
        for mode in MODES:
            texts = [v["reason"] for v in self.verdicts.get(mode, []) if v["reason"]]
            found += [f"{mode}: {text}" for text in dict.fromkeys(texts)]
        return found

    def worst(self) -> float:
        """Return the worst error ratio that was judged."""
        ratios = [v["error_ratio"] for vs in self.verdicts.values() for v in vs]
        return max((r for r in ratios if not math.isnan(r)), default=math.nan)


def run_child(name: str, device: str, assignments: int, modes: Iterable[str]) -> None:
    """Judge one model and print a JSON message for each thing found."""
    from thunder_tune.testing.covered import covered
    from thunder_tune.testing.covering import Subject

    def tell(kind: str, mode: str, **content: object) -> None:
        print(json.dumps({"kind": kind, "mode": mode, **content}), flush=True)

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
            for assignment in subject.assignments(assignments) if program.ops else ():
                verdict = subject.judge(assignment)
                tell("verdict", mode, error_ratio=verdict.error_ratio, reason=verdict.reason)
        except Exception as error:
            text = str(error).strip().splitlines() or [""]
            tell("fault", mode, reason=f"{type(error).__name__}: {text[0]}"[:300])


def cover(name: str, family: str, options: argparse.Namespace) -> Row:
    """Run one model's child to its end or its time limit."""
    row, started = Row(name, family), time.monotonic()
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.coverage", "--child", name]
    command += ["--device", options.device, "--assignments", str(options.assignments)]
    command += ["--modes", *options.modes]
    threads = str(max(1, (os.cpu_count() or 1) // options.jobs))
    child = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": threads},
    )
    try:
        output, errors = child.communicate(timeout=options.limit)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, 9)
        output, errors = child.communicate()
        row.faults.append(f"not finished within {options.limit:.0f} s")
    for line in output.splitlines():
        if line.startswith("{"):
            row.take(json.loads(line))
    if child.returncode and not row.faults:
        last = (errors.strip().splitlines() or [""])[-1]
        row.faults.append(f"the process ended with status {child.returncode}: {last}"[:300])
    row.seconds = time.monotonic() - started
    return row


def table(rows: Sequence[Row], assignments: int) -> str:
    """Return the table of results and the line that sums it up."""
    right = sum(row.is_right(assignments) for row in rows)
    lines = [
        f"{right} of {len(rows)} models are right in every assignment, forward and backward.",
        "",
        "| model | family | front end | ops | classes | forward | backward | worst error ratio |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        found = row.found.get("forward") or row.found.get("backward") or {}
        counts = [f"{row.passed(mode)}/{len(row.verdicts.get(mode, []))}" for mode in MODES]
        worst = "" if math.isnan(row.worst()) else f"{row.worst():.2f}"
        cells = [row.name, row.family, found.get("front_end", "")]
        cells += [str(found.get("ops", "")), str(found.get("classes", "")), *counts, worst]
        lines.append(f"| {' | '.join(cells)} |")
    failures = [(row.name, text) for row in rows for text in row.reasons()]
    if failures:
        lines += ["", "What fails, and why:", ""]
        lines += [f"- `{name}`: {text}" for name, text in failures]
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
        assignments=options.assignments,
        table=table(rows, options.assignments),
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
(a small program has fewer). Columns "forward" and "backward": assignments that are right, of those
judged. "Worst error ratio": error of the worst output or gradient, relative to the eager model's
own; the policy allows 2.

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
    parser.add_argument("--child", help=argparse.SUPPRESS)
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
    if options.child:
        run_child(options.child, options.device, options.assignments, options.modes)
        return 0

    def one(item: tuple[str, str]) -> Row:
        row = cover(*item, options)
        counts = ", ".join(
            f"{mode} {row.passed(mode)}/{len(row.verdicts.get(mode, []))}"
            for mode in options.modes
        )
        print(f"{row.name}: {counts} ({row.seconds:.0f} s)", *row.reasons(), sep="\n    ")
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
    return 0 if all(row.is_right(options.assignments) for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
