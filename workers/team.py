"""What the workers of one pool have in common where they are on several machines."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass

from thunder_tune.errors import WorkerError
from thunder_tune.values.fingerprint import Fingerprint

logger = logging.getLogger(__name__)


class OtherMachine(WorkerError):
    """A worker is on a machine whose results cannot be compared with those of the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """What an actor says of itself once it runs.

    Attributes:
        process_id: Its process.
        node: Ray's id of the node.
        version: Of thunder-tune there.
    """

    process_id: int
    node: str
    version: str


class Team:
    """Keeps machines apart: who answers first decides on which kind the study is.

    Any thread may call; nothing is asked twice of a node that was found unfit.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._fingerprint: Fingerprint | None = None
        self._unfit: set[str] = set()

    @property
    def unfit(self) -> frozenset[str]:
        """Ids of the nodes whose machine is another."""
        with self._lock:
            return frozenset(self._unfit)

    def admit(self, name: str, node: str, found: Fingerprint) -> None:
        """Take a worker in.

        Raises:
            OtherMachine: Its machine or its software differs from that of the first.
        """
        with self._lock:
            first = self._fingerprint = self._fingerprint or found
            if found.strict_key == first.strict_key:
                return
            is_news = node not in self._unfit
            self._unfit.add(node)
        reason = "; ".join(found.differences(first))
        if is_news:
            logger.warning("node %s is left out, its results would not compare: %s", node, reason)
        raise OtherMachine(f"{name} is on another kind of machine than the first: {reason}")
