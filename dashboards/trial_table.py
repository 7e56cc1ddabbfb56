"""The trials of one study in memory, by column: paging, sorting and charts read it.

Trials are only ever added, so a table is brought up to date by reading what follows its last row.
"""

from __future__ import annotations

import math
import threading
from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from thunder_tune.storage import Database, TrialOutline
from thunder_tune.values.space import COMPOSED, PROGRAM

KEPT = 4
"""Studies whose tables stay in memory."""

ABSENT = -1
"""Code of a dimension that a trial does not have."""


@dataclass(slots=True)
class TrialTable:
    """Rows by number, and every dimension's choices as small codes.

    Attributes:
        rows: Outlines; their assignments hold the program alone.
        codes: For each dimension the code of each row's choice, or `ABSENT`.
        choices: For each dimension its choices by code.
    """

    rows: list[TrialOutline] = field(default_factory=list)
    codes: dict[str, array[int]] = field(default_factory=dict)
    choices: dict[str, list[str]] = field(default_factory=dict)
    _code_of: dict[str, dict[str, int]] = field(default_factory=dict)

    @property
    def last(self) -> int:
        """The last row's number, -1 for none."""
        return self.rows[-1].number if self.rows else -1

    def extend(self, outlines: Sequence[TrialOutline]) -> None:
        """Append rows."""
        codes, code_of = self.codes, self._code_of  # a million steps: nothing is looked up twice
        for outline in outlines:
            length = len(self.rows)
            for name, choice in outline.assignment.items():
                column = codes.get(name)
                if column is None:
                    column = codes[name] = array("i")
                    self.choices[name], code_of[name] = [], {}
                if len(column) < length:
                    _pad(column, length)
                known = code_of[name]
                code = known.get(choice)
                if code is None:
                    code = known[choice] = len(known)
                    self.choices[name].append(choice)
                column.append(code)
            program = outline.assignment.get(PROGRAM, COMPOSED)
            self.rows.append(replace(outline, assignment={PROGRAM: program}))
        for column in codes.values():
            _pad(column, len(self.rows))


def _pad(column: array[int], length: int) -> None:
    column.extend([ABSENT] * (length - len(column)))


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
            while len(table.rows) < count:
                outlines = self._database.outlines(study, after=table.last)
                if not outlines:
                    break
                table.extend(outlines)
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
    "program": lambda row: row.assignment[PROGRAM],
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
    return (
        f"{row.assignment[PROGRAM]} {row.failure_kind} {row.failure_cause} {row.worker}".casefold()
    )


def _is_value(value: float | str | None) -> bool:
    return value is not None and not (isinstance(value, float) and math.isnan(value))
