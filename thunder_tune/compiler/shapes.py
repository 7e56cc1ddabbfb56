"""Which plan of a recipe runs a call: the one for its inputs, else the nearest larger one's."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from thunder_tune.compiler.application import Application
from thunder_tune.program import signature_of
from thunder_tune.values.recipe import Recipe, TunedPlan

_TENSOR = re.compile(r"\b(?:bool|b?float|u?int|complex)\w*\[([\d,]*)\]")
"""A tensor in a signature (`thunder_tune.program.signature_of`)."""

Run = Callable[..., Any]


def size_of(signature: str) -> int:
    """Return the elements of all tensors of a call, by its signature."""
    shapes = (text.split(",") if text else [] for text in _TENSOR.findall(signature))
    return sum(math.prod(map(int, shape)) for shape in shapes)


def nearest_first(plans: Sequence[TunedPlan], signature: str) -> list[TunedPlan]:
    """Sort plans by how well they suit a call's inputs.

    First comes the plan for exactly these inputs, then those for larger inputs, the smallest of
    them first, then those for smaller ones, the largest first. Larger means more elements.
    """
    size = size_of(signature)

    def distance(plan: TunedPlan) -> tuple[bool, bool, int]:
        more = size_of(plan.signature) - size
        return plan.signature != signature, more < 0, abs(more)

    return sorted(plans, key=distance)


class ByShape:
    """Leads every call to the run of the plan that suits its inputs' shapes.

    A run is made once for each plan, at the first call that needs it, and compiles once for each
    shape it is called with.

    Args:
        recipe: With a plan for each tuned shape.
        make_run: Returns what runs the model by a recipe of one plan.
        application: Where calls with other inputs are noted.
        strict: Refuse these, also where one back end runs the whole program and so nothing else
            would notice.
    """

    def __init__(
        self,
        recipe: Recipe,
        make_run: Callable[[Recipe], Run],
        application: Application,
        *,
        strict: bool,
    ) -> None:
        self._parts = {part.plans[0].signature: part for part in recipe.by_shape}
        self._plans = [part.plans[0] for part in self._parts.values()]
        self._make_run = make_run
        self._application = application
        self._strict = strict
        self._runs: dict[str, Run] = {}
        self._routes: dict[tuple[torch.Size | None, ...], Run] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the model's
        """Run the model by the plan for these inputs."""
        shapes = _shapes(args, kwargs)
        run = self._routes.get(shapes)
        if run is None:
            run = self._route(args, kwargs)
            self._routes[shapes] = run
        return run(*args, **kwargs)

    def _route(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Run:
        signature = signature_of(args, kwargs)
        plan = nearest_first(self._plans, signature)[0]
        part = self._parts[plan.signature]
        if part.kind == "whole-program":
            is_known = plan.signature == signature
            self._application.note_other_inputs(signature, plan.signature)
            if self._strict and not is_known:
                raise self._application.refusal()
            self._application.whole.add(signature)
        if plan.signature not in self._runs:
            self._runs[plan.signature] = self._make_run(part)
        return self._runs[plan.signature]


def _shapes(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[torch.Size | None, ...]:
    """Return the shapes of a call's inputs; runs on every call, so simple inputs go first."""
    values = (*args, *kwargs.values())
    if not all(isinstance(value, torch.Tensor) for value in values):
        values = tuple(torch.utils._pytree.tree_leaves((args, kwargs)))
    return tuple(v.shape if isinstance(v, torch.Tensor) else None for v in values)
