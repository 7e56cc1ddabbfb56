from __future__ import annotations

import itertools
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

_numbers = itertools.count()


@pytest.fixture
def write_module(tmp_path: Path) -> Iterator[Callable[[str], str]]:
    """Write a module of the user's and return its name; `tmp_path` is its search path."""
    before = list(sys.path)

    def write(text: str) -> str:
        name = f"users_model_{next(_numbers)}"
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(text))
        return name

    yield write
    sys.path[:] = before
