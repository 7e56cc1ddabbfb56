"""Operator executors that the router can send one op to, by name."""

from thunder_tune.executors.catalogue import (
    OPERATOR_EXECUTORS,
    computes_in,
    executors_for,
    operator_executor,
    unavailable_reason,
)
from thunder_tune.executors.packing import PackStore

__all__ = [
    "OPERATOR_EXECUTORS",
    "PackStore",
    "computes_in",
    "executors_for",
    "operator_executor",
    "unavailable_reason",
]
