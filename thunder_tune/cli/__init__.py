"""The command line: `thunder-tune`.

Nothing here imports torch, ray or sqlalchemy before a command that needs it runs, so that
`thunder-tune --help` answers at once.
"""

from __future__ import annotations

import signal
import sys

__all__ = ["main"]


def main() -> None:
    """Run `thunder-tune` with the arguments of the process and exit.

    SIGTERM, the Ctrl-C of a job scheduler, ends it in the same way.
    """
    from thunder_tune.cli.exits import run

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(run(sys.argv[1:]))
