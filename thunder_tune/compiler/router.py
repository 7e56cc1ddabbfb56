"""The router: an operator executor that sends each op to the executor assigned to it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from thunder.core.symbol import BoundSymbol, Symbol
from thunder.extend import Executor, OperatorExecutor

from thunder_tune.compiler.tagging import op_index
from thunder_tune.executors import accepts

_logger = logging.getLogger(__name__)


class Router(OperatorExecutor):
    """Placed first in Thunder's executor list; claims the ops that are assigned one by one.

    Args:
        targets: Executor by op index. Ops that lie in a region are not in it.
    """

    def __init__(self, targets: Mapping[int, Executor]) -> None:
        super().__init__("thunder_tune_router", version="1")
        self._targets = targets
        self._asked: Executor | None = None

    def _target(self, bsym: BoundSymbol) -> Executor | None:
        index = op_index(bsym)
        return self._targets.get(index) if index is not None else None

    def can_execute(self, bsym: BoundSymbol) -> bool:
        """Whether the assigned executor implements the op; its checker may touch the device."""
        target = self._target(bsym)
        self._asked = target
        if target is None or bsym.sym.id not in target.implmap:
            return False
        try:
            return accepts(target, bsym)
        except Exception as error:  # a checker that fails has refused
            _logger.info("%s refused %s: %s", target.name, bsym.sym.name, error)
            return False

    def can_fuse(self, bsym: BoundSymbol) -> bool:
        """Fuse nothing: the region fuser does."""
        return False

    def get_execution_transform(self, bsym: BoundSymbol) -> Callable[..., Any] | None:
        """Return the assigned executor's transform, or its symbol."""
        target = self._target(bsym)
        if target is None:
            return None
        transform: Callable[..., Any] | None = target.get_execution_transform(bsym)
        if transform is not None:
            return transform
        symbol: Callable[..., Any] = target.implmap[bsym.sym.id].symbol
        return symbol

    def get_grad_transform(self, sym: Symbol) -> Callable[..., Any] | None:
        """Return the assigned executor's gradient rule.

        Thunder asks right after `can_execute`, with the symbol alone; hence the remembered target.
        """
        if self._asked is None:
            return None
        rule: Callable[..., Any] | None = self._asked.get_grad_transform(sym)
        return rule
