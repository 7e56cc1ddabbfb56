"""The trials of one study in memory, by column: paging, sorting and charts read it.

Trials are only ever added, so a table is brought up to date by reading what follows its last row.
"""

from __future__ import annotations

import gc
import math
import threading
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby

from thunder_tune.storage import Database, Outlined, TrialOutline

KEPT = 4
"""Studies whose tables stay in memory."""

ABSENT = -1
"""Code of a dimension that a trial does not have."""


@dataclass(slots=True)
class TrialTable:
    """Rows by number, and every dimension's choices as small codes.

    Attributes:
        rows: Outlines.
        codes: For each dimension the code of each row's choice, or `ABSENT`.
        choices: For each dimension its choices by code.
        measured: By role, the complete rows that have a latency.
    """

    rows: list[TrialOutline] = field(default_factory=list)
    codes: dict[str, array[int]] = field(default_factory=dict)
    choices: dict[str, list[str]] = field(default_factory=dict)
    measured: dict[str, list[TrialOutline]] = field(default_factory=dict)
    _code_of: dict[str, dict[str, int]] = field(default_factory=dict)

    @property
    def last(self) -> int:
        """The last row's number, -1 for none."""
        return self.rows[-1].number if self.rows else -1

    def extend(self, outlined: Sequence[Outlined]) -> None:
        """Append rows; readers in other threads find in the columns what they find in the rows."""
        for names, found in groupby(outlined, key=lambda one: tuple(one[1])):
            run = list(found)  # of equal dimensions: column by column, a million steps are quick
            first = len(self.rows)
            columns = zip(*(assignment.values() for _row, assignment in run), strict=True)
            for name, chosen in zip(names, columns, strict=True):
                self._append(name, chosen, first)
            for column in self.codes.values():
                _pad(column, first + len(run))
            self.rows.extend(row for row, _assignment in run)
            for row, _assignment in run:
                if row.state == "complete" and row.latency_ms:
                    self.measured.setdefault(row.role, []).append(row)

    def _append(self, name: str, chosen: Sequence[str], first: int) -> None:
        """Append the choices of one dimension, for rows that begin at `first`."""
        column = self.codes.setdefault(name, array("i"))
        choices, code_of = self.choices.setdefault(name, []), self._code_of.setdefault(name, {})
        for choice in dict.fromkeys(chosen):
            if choice not in code_of:
                code_of[choice] = len(choices)
                choices.append(choice)
        _pad(column, first)
        column.extend(map(code_of.__getitem__, chosen))


def _pad(column: array[int], length: int) -> None:
    column.extend([ABSENT] * (length - len(column)))


@contextmanager
def _without_collector() -> Iterator[None]:
    """Pause Python's cycle collector: it would walk, again and again, rows that only grow."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class Tables:
    """Tables of the studies looked at last; threads may share it."""

    def __init__(self, database: Database) -> None:
        """Read from `database`; nothing is read yet."""
        self._database = database
        self._kept: OrderedDict[str, TrialTable] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, study: str) -> TrialTable:
        """Return a study's table, up to date.

        Raises:
            NotFoundError: There is no such study.
        """
        count, last = self._database.count(study)
        with self._lock:
            table = self._kept.pop(study, None)
            if table is None or len(table.rows) > count or table.last > last:
                table = TrialTable()
            with _without_collector():
                while len(table.rows) < count:
                    outlined = self._database.outlines(study, after=table.last)
                    if not outlined:
                        break
                    table.extend(outlined)
            self._kept[study] = table
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
            return table

    def warm(self, studies: Sequence[str]) -> None:
        """Read tables ahead, so that a first look does not wait for them."""
        for study in studies[:KEPT]:
            self.of(study)


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """Which trials a page shows.

    Attributes:
        sort: Name in `SORTS`.
        descending: Whether the largest come first; what has no value is last either way.
        state: Only this state, or "".
        role: Only this role, or "".
        text: Only rows whose program, failure or worker contains it, or "".
        page: From 1.
        size: Rows of a page.
    """

    sort: str = "number"
    descending: bool = False
    state: str = ""
    role: str = ""
    text: str = ""
    page: int = 1
    size: int = 50


SORTS: dict[str, Callable[[TrialOutline], float | str | None]] = {
    "number": lambda row: row.number,
    "latency": lambda row: row.latency_ms,
    "error": lambda row: row.error_ratio,
    "memory": lambda row: row.peak_memory_bytes,
    "first_call": lambda row: row.first_call_s,
    "program": lambda row: row.program,
    "state": lambda row: row.state,
    "failure": lambda row: row.failure_kind or None,
}


def select(table: TrialTable, query: Query) -> tuple[list[TrialOutline], int]:
    """Return the rows of one page, and how many rows the filter leaves."""
    wanted = query.text.casefold()
    rows = [
        row
        for row in table.rows
        if (not query.state or row.state == query.state)
        and (not query.role or row.role == query.role)
        and (not wanted or wanted in _searched(row))
    ]
    key = SORTS[query.sort]
    known = [row for row in rows if _is_value(key(row))]
    unknown = [row for row in rows if not _is_value(key(row))]
    known.sort(key=key, reverse=query.descending)  # type: ignore[arg-type]  # values of one kind
    start = (query.page - 1) * query.size
    return [*known, *unknown][start : start + query.size], len(rows)


def _searched(row: TrialOutline) -> str:
    return f"{row.program} {row.failure_kind} {row.failure_cause} {row.worker}".casefold()


def _is_value(value: float | str | None) -> bool:
    return value is not None and not (isinstance(value, float) and math.isnan(value))
