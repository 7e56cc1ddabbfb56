"""One job with one child: send it, follow its progress, end it when it exceeds a limit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from thunder_tune.values.job import Progress
from thunder_tune.values.trial import Failure, FailureKind
from thunder_tune.workers.child_process import ChildProcess
from thunder_tune.workers.failures import group_of, printable
from thunder_tune.workers.phase_watch import DOING, PhaseWatch
from thunder_tune.workers.protocol import Message, ProtocolError
from thunder_tune.workers.standstill import resume_abandoned

T = TypeVar("T")

_LOOK_EVERY_S = 0.1
_GIB = 2**30


@dataclass(frozen=True)
class Done(Generic[T]):
    """What came of one job.

    Attributes:
        value: The child's answer, or None.
        failure: Why there is none.
        healthy: Whether the child can take another job.
        subject: Contender that the child was working for last, or "".
        phase_s: Seconds that the child spent in each phase, as seen from outside.
        process_id: The child.
        log: Its log file, or "".
    """

    value: T | None = None
    failure: Failure | None = None
    healthy: bool = False
    subject: str = ""
    phase_s: Mapping[str, float] = field(default_factory=dict)
    process_id: int = 0
    log: str = ""

    def logged(self, failure: Failure | None) -> Failure | None:
        """Point a failure to the log, unless it points to one already."""
        return replace(failure, log=failure.log or self.log) if failure else None


def converse(
    child: ChildProcess,
    message: Message,
    kind: type[T],
    *,
    watch: PhaseWatch,
    memory_limit_bytes: int,
) -> Done[T]:
    """Have the child answer one message.

    Args:
        child: Running and idle; left running, even where a limit was exceeded.
        message: The job.
        kind: Type of its result.
        watch: Knows the limits of the phases.
        memory_limit_bytes: Host memory that the child and its descendants may use.
    """
    value: T | None = None
    failure: Failure | None = None
    healthy = False
    try:
        child.channel.send(message, timeout_s=watch.limit_s)
        while value is None and failure is None:
            answer = child.channel.receive(_LOOK_EVERY_S)
            child.log.cut()
            if answer is None:
                resume_abandoned()
                watch.look(stands_still=child.stands_still())
            if answer is None and not child.is_alive():
                failure = _died(child, watch)
            elif answer is None or answer.kind == "progress":
                if answer is not None:
                    watch.begin(answer.read(Progress))
                failure = _exceeded(child, watch, memory_limit_bytes)
            elif answer.kind == "failure":
                failure = replace(answer.read(Failure), phase=watch.phase)
                healthy = not answer.spent
            else:
                value = answer.read(kind)
                healthy = not answer.spent
    except ProtocolError as error:
        failure = _failure(child, "crash", watch, f"the process sent nonsense while {{}}: {error}")
    except (EOFError, OSError):
        failure = _exceeded(child, watch, memory_limit_bytes) or _died(child, watch)
    return Done(
        value=value,
        failure=failure,
        healthy=healthy,
        subject=watch.subject,
        phase_s=watch.seconds(),
        process_id=child.pid,
        log=child.log.path,
    )


def _exceeded(child: ChildProcess, watch: PhaseWatch, memory_limit_bytes: int) -> Failure | None:
    """Say which limit the child has exceeded, if any."""
    if reason := watch.overdue():
        child.dump_stacks()
        return _failure(child, "timeout", watch, f"{{}} {reason}")
    if child.memory_bytes() <= memory_limit_bytes:
        return None
    used = child.exclusive_memory_bytes()
    if used <= memory_limit_bytes:
        return None
    return _failure(
        child,
        "out-of-memory",
        watch,
        f"{{}} used {used / _GIB:.2f} GiB of host memory; "
        f"the limit is {memory_limit_bytes / _GIB:.2f} GiB",
    )


def _died(child: ChildProcess, watch: PhaseWatch) -> Failure:
    ending = child.ending()
    words = printable(child.last_words())
    verb = "was " if ending.startswith("killed") else ""
    failure = _failure(child, "crash", watch, f"the process {verb}{ending} while {{}}")
    more = ", perhaps by the kernel for want of memory" if "SIGKILL" in ending else ""
    more += f": {words}" if words else ""
    more += f"; log: {child.log.path}" if child.log.path else ""
    return replace(failure, message=failure.message + more)


def _failure(child: ChildProcess, kind: FailureKind, watch: PhaseWatch, message: str) -> Failure:
    """Build a failure of the phase at hand, and log it; "{}" in the message stands for it."""
    text = message.replace("{}", DOING[watch.phase])
    child.log.note(text)
    return Failure(kind=kind, phase=watch.phase, message=text, group=group_of(text))
