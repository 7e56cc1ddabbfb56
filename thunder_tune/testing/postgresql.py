"""A PostgreSQL server of the tests' own: in a temporary folder, on a Unix socket there."""

from __future__ import annotations

import itertools
import os
import pwd
import shutil
import subprocess
import tempfile
from importlib.util import find_spec
from pathlib import Path

from sqlalchemy import URL, create_engine, text

_START_S = 60
_OPTIONS = "-c listen_addresses='' -c fsync=off -c shared_buffers=16MB -c max_connections=200"
"""No test cuts the power: what a killed process had committed is kept without fsync too."""


def missing_reason() -> str:
    """Say what a server here lacks, or "" where it lacks nothing."""
    if find_spec("psycopg") is None:
        return "the package psycopg is not installed"
    return "" if _programs() else "PostgreSQL's server (initdb, pg_ctl) is not installed"


class PostgresServer:
    """A server that trusts every local user; `close` stops it and removes its folder."""

    def __init__(self) -> None:
        """Create a cluster and start it."""
        programs = _programs()
        if programs is None:
            raise FileNotFoundError("PostgreSQL's server (initdb, pg_ctl) is not installed")
        self._pg_ctl = str(programs / "pg_ctl")
        # A socket's path is short, which a folder of pytest's is not.
        self.folder = Path(tempfile.mkdtemp(prefix="tt-pg-", dir="/tmp"))
        self._user = _server_user()
        if self._user is not None:
            shutil.chown(self.folder, self._user)
        self._data = self.folder / "data"
        self._names = itertools.count()
        words = ["-D", str(self._data), "-U", "postgres", "-A", "trust", "-E", "UTF8"]
        self._run(str(programs / "initdb"), *words, "--locale=C", "--no-sync")
        self.start()

    def start(self) -> None:
        """Start the server and wait until it answers."""
        log, options = str(self.folder / "log"), f"{_OPTIONS} -k {self.folder}"
        self._control("start", "-w", "-t", str(_START_S), "-l", log, "-o", options)

    def stop(self, mode: str = "fast") -> None:
        """Stop the server: "fast" ends its connections in order, "immediate" is a crash."""
        self._control("stop", "-w", "-t", str(_START_S), "-m", mode)

    def is_running(self) -> bool:
        """Return whether it was started and not stopped since."""
        return (self._data / "postmaster.pid").exists()

    def close(self) -> None:
        """Stop the server if it runs, and remove its folder."""
        if self.is_running():
            self.stop("immediate")
        shutil.rmtree(self.folder, ignore_errors=True)

    def new_database(self) -> str:
        """Create an empty database and return its URL."""
        name = f"test_{next(self._names)}"
        engine = create_engine(self._url("postgres"), isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.execute(text(f"CREATE DATABASE {name}"))
        engine.dispose()
        return self._url(name).render_as_string(hide_password=False)

    def _url(self, database: str) -> URL:
        return URL.create(
            "postgresql+psycopg",
            username="postgres",
            database=database,
            query={"host": str(self.folder)},
        )

    def _control(self, *words: str) -> None:
        self._run(self._pg_ctl, "-D", str(self._data), *words)

    def _run(self, *words: str) -> None:
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,  # which the server inherits: a pipe would never end
            stderr=subprocess.STDOUT,
            cwd=self.folder,
            check=False,
            user=self._user,
            group=_group(self._user),
            extra_groups=None if self._user is None else [],
        )
        if done.returncode:
            log = self.folder / "log"
            said = log.read_text()[-2000:] if log.exists() else ""
            raise RuntimeError(f"{' '.join(words[:4])} failed ({done.returncode}): {said}")


def _programs() -> Path | None:
    """Return the folder of the server's programs: where Debian keeps them, else in the PATH."""
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=_version)
    if versions:
        return versions[-1].parent
    found = shutil.which("initdb")
    return Path(found).resolve().parent if found else None


def _version(initdb: Path) -> int:
    name = initdb.parents[1].name
    return int(name) if name.isdecimal() else 0


def _server_user() -> str | None:
    """Return whom to run the server as, which refuses to be run by root; None: oneself."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"


def _group(user: str | None) -> int | None:
    return None if user is None else pwd.getpwnam(user).pw_gid
