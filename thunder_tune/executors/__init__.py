"""Operator executors that the router can send one op to, by name."""

from thunder_tune.executors.catalogue import (
    OPERATOR_EXECUTORS,
    operator_executor,
    unavailable_reason,
)
from thunder_tune.executors.packing import PackStore

__all__ = ["OPERATOR_EXECUTORS", "PackStore", "operator_executor", "unavailable_reason"]
