from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from thunder_tune import dashboards
from thunder_tune.dashboards.chinese import CHINESE
from thunder_tune.dashboards.languages import preferred, translator
from thunder_tune.values.comparison import Verdict
from thunder_tune.values.study import StudyState
from thunder_tune.values.trial import Phase, Role, State

FOLDER = Path(str(dashboards.__file__)).parent
WORDS = re.compile(r"""(?<![\w.])_\(\s*(?:'([^']*)'|"([^"]*)")\s*\)""")


def said() -> set[str]:
    files = [*FOLDER.glob("templates/*.html"), *FOLDER.rglob("*.py")]
    found = (m for f in files for m in WORDS.finditer(f.read_text("utf-8")))
    return {m.group(1) or m.group(2) for m in found}


def test_everything_that_is_said_has_chinese_words():
    values = {v for kind in (Verdict, StudyState, Phase, Role, State) for v in get_args(kind)}
    assert (said() | values) - CHINESE.keys() == set()


def test_nothing_is_translated_that_nobody_says():
    dynamic = {
        *(v for kind in (Verdict, StudyState, Phase, Role, State) for v in get_args(kind)),
        *("composed", "whole-program", "host", "device"),
        "there is no such page",
        "this should not have happened: see the dashboard's output",
        "this page is too old: load it again, then cancel the study",
    }
    assert CHINESE.keys() - said() - dynamic == set()


@pytest.mark.parametrize(
    ("header", "language"),
    [
        ("", "en"),
        ("zh-CN,zh;q=0.9,en;q=0.8", "zh"),
        ("en-US,zh;q=0.9", "en"),
        ("de,fr;q=0.5", "en"),
        ("en;q=0.1,zh;q=0.2", "zh"),
        ("zh;q=0", "en"),
        ("zh;q=x, ,;;,", "en"),
        ("zh;q=nan", "en"),
    ],
)
def test_the_browsers_preference_counts(header: str, language: str):
    assert preferred(header) == language


def test_unknown_words_stay_english():
    assert translator("zh")("never heard") == "never heard"
