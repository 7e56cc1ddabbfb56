"""The command line: `thunder-tune`.

Nothing here imports torch, ray or sqlalchemy before a command that needs it runs, so that
`thunder-tune --help` answers at once.
"""

from __future__ import annotations

import signal
import sys
from types import FrameType

__all__ = ["main"]


def main() -> None:
    """Run `thunder-tune` with the arguments of the process and exit.

    SIGTERM, the Ctrl-C of a job scheduler, ends it in the same way.
    """
    from thunder_tune.cli.exits import run

    for number in _ENDINGS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # as of what a shell starts with "&"
            signal.signal(number, _interrupt)
    sys.exit(run(sys.argv[1:]))


_ENDINGS = (signal.SIGINT, signal.SIGTERM)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Interrupt the command, once: what it still does takes seconds and ought to be done."""
    for each in _ENDINGS:
        signal.signal(each, _stay)
    raise KeyboardInterrupt


def _stay(number: int, frame: FrameType | None) -> None:
    """Do nothing; to ignore the signal instead would be passed on to child processes."""
