"""Where the database lies: a URL or a path, else the user's data folder."""

from __future__ import annotations

import os
import re
from pathlib import Path

from platformdirs import user_data_dir
from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from thunder_tune.errors import StorageError

VARIABLE = "THUNDER_TUNE_STORAGE"
ELSEWHERE = f"choose another place with --storage or {VARIABLE}"


def locate(text: str | None = None) -> URL:
    """Return the URL of a database.

    Args:
        text: SQLAlchemy URL or the path of an SQLite file; None: what the environment variable
            THUNDER_TUNE_STORAGE says, else a file in the user's data folder, which is created.

    Raises:
        StorageError: It is no URL, or the user's data folder cannot be created.
    """
    if text is None:
        text = os.environ.get(VARIABLE) or _default_path()
    if not text.strip():
        raise StorageError(f"storage {text!r}: give a path or a URL such as sqlite:///PATH")
    if "://" not in text:
        return _absolute(URL.create("sqlite", database=os.path.expanduser(text)))
    try:
        return _absolute(make_url(text))
    except (ArgumentError, ValueError) as error:
        visible = re.sub(r"(://[^:/@]*):.*@", r"\1:***@", text)
        raise StorageError(
            f"storage {visible!r} is not a database URL: use sqlite:///PATH or "
            "postgresql+psycopg://USER@HOST/NAME"
        ) from error


def shown(url: URL) -> str:
    """Return a URL as people and logs may see it: without its password."""
    secret = {key: "hidden" for key in url.query if "password" in key.lower()}
    return url.update_query_dict(secret).render_as_string(hide_password=True)


def sqlite_path(url: URL) -> Path | None:
    """Return the file of an SQLite URL; None for other databases and for one in memory."""
    if url.get_backend_name() != "sqlite" or not url.database or url.database == ":memory:":
        return None
    return Path(url.database.removeprefix("file:"))


def _absolute(url: URL) -> URL:
    """Make an SQLite path independent of the current folder, which may change later."""
    path = sqlite_path(url)
    if path is None or (url.database or "").startswith("file:"):
        return url
    return url.set(database=os.path.abspath(path))


def _default_path() -> str:
    folder = Path(user_data_dir("thunder-tune", appauthor=False))
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(
            f"data folder {folder} cannot be created ({error.strerror}): {ELSEWHERE}"
        ) from error
    return str(folder / "thunder_tune.db")
