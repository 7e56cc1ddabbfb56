"""The child: `python -m thunder_tune.workers.trial_process --fd N` answers jobs until told to end.

Standard output and error are the worker's log file, so whatever the compilers print ends there.
"""

from __future__ import annotations

import argparse
import ctypes
import faulthandler
import importlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from typing import Protocol

from thunder_tune.values.comparison import Round
from thunder_tune.values.fingerprint import Fingerprint
from thunder_tune.values.job import CompareJob, DescribeJob, Description, MeasureJob, Progress
from thunder_tune.values.screening import Screening, ScreenJob
from thunder_tune.values.trial import Failure, TrialResult
from thunder_tune.workers.child_process import DUMP_SIGNAL, SESSION
from thunder_tune.workers.failures import classify
from thunder_tune.workers.protocol import Channel, Message, MessageKind, ProtocolError

logger = logging.getLogger(__name__)

Tell = Callable[[Progress], None]
"""Reports the phase that begins to the parent, whose clock then runs against its limit."""

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


class Session(Protocol):
    """What answers the jobs in a child: the model, its capture, its judge.

    Faults of a model or a candidate come back inside the values. `is_spent` says that the
    process can no longer be trusted and asks to be replaced.
    """

    is_spent: bool

    def identify(self, job: DescribeJob) -> Fingerprint:
        """Say what results here depend on: machine and versions."""

    def describe(self, job: DescribeJob, tell: Tell) -> Description:
        """Capture the model and build its search space."""

    def measure(self, job: MeasureJob, tell: Tell) -> TrialResult:
        """Build, judge and time one candidate."""

    def screen(self, job: ScreenJob, tell: Tell) -> Screening:
        """Measure choices of a few classes, each alone."""

    def compare(self, job: CompareJob, tell: Tell, deadline: float) -> Round:
        """Time all contenders in interleaved blocks, beginning nothing after `deadline`."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve jobs on an inherited socket until its other end closes."""
    parser = argparse.ArgumentParser(prog="thunder_tune.workers.trial_process")
    parser.add_argument("--fd", type=int, required=True, help="descriptor of the channel")
    parser.add_argument("--parent", type=int, default=os.getppid(), help="process to end with")
    parser.add_argument("--session", default=SESSION, help="module:attribute that answers")
    options = parser.parse_args(arguments)
    _end_with(options.parent)
    faulthandler.enable()
    faulthandler.register(DUMP_SIGNAL)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    os.set_inheritable(options.fd, False)
    module, _, attribute = options.session.partition(":")
    session: Session = getattr(importlib.import_module(module), attribute)()
    channel = Channel(socket.socket(fileno=options.fd))
    # A copy that a candidate forks, and that goes on as if it were this process, must not answer.
    os.register_at_fork(after_in_child=channel.close)
    serve(channel, session)
    return 0


def serve(channel: Channel, session: Session) -> None:
    """Answer jobs one after the other until the other end closes.

    Also once the session is spent, of which the last answer tells: this process is ended by its
    parent, which as long as it lives finds all that candidates have started below it.
    """

    def tell(progress: Progress) -> None:
        channel.send(Message.of("progress", progress))

    while True:
        try:
            message = channel.receive()
        except EOFError:
            return
        if message is not None:
            _reply(channel, _answer(message, session, tell), session)


def _answer(message: Message, session: Session, tell: Tell) -> object:
    """Return the result of a job, or a `Failure` where the session itself is at fault."""
    try:
        if message.kind == "identify":
            return session.identify(message.read(DescribeJob))
        if message.kind == "describe":
            return session.describe(message.read(DescribeJob), tell)
        if message.kind == "measure":
            return session.measure(message.read(MeasureJob), tell)
        if message.kind == "screen":
            return session.screen(message.read(ScreenJob), tell)
        deadline = float("inf") if message.deadline is None else message.deadline
        return session.compare(message.read(CompareJob), tell, deadline)
    except Exception as error:
        logger.exception("the job %r failed", message.kind)
        session.is_spent = True
        return classify(error, "start")


def _reply(channel: Channel, answer: object, session: Session) -> None:
    kind: MessageKind = "failure" if isinstance(answer, Failure) else "result"
    try:
        channel.send(Message.of(kind, answer, spent=session.is_spent))
    except ProtocolError as error:  # too large, or a number that JSON does not have
        logger.exception("the answer could not be sent")
        channel.send(Message.of("failure", classify(error, "start"), spent=session.is_spent))


def _end_with(parent: int) -> None:
    """Have the kernel kill this process when its parent dies; Linux only.

    What descendants leave behind becomes this process's own child, not that of the first process:
    a daemon stays where the parent finds it.
    """
    if not sys.platform.startswith("linux"):
        return
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    if os.getppid() != parent:  # it died before the call
        os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
