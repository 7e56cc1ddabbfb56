"""The command line: `thunder-tune`.

Nothing here imports torch, ray or sqlalchemy before a command that needs it runs, so that
`thunder-tune --help` answers at once.
"""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run `thunder-tune` with the arguments of the process and exit."""
    from thunder_tune.cli.exits import run

    sys.exit(run(sys.argv[1:]))
