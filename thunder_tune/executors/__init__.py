"""Operator executors that the router can send one op to, by name."""

from thunder_tune.executors.catalogue import (
    OPERATOR_EXECUTORS,
    accepts,
    computes_in,
    executors_for,
    operator_executor,
    unavailable_reason,
)
from thunder_tune.executors.packing import PackStore
from thunder_tune.executors.weight_only import READS_PACKED

__all__ = [
    "OPERATOR_EXECUTORS",
    "READS_PACKED",
    "PackStore",
    "accepts",
    "computes_in",
    "executors_for",
    "operator_executor",
    "unavailable_reason",
]
