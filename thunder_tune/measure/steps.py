"""One call of a program as a user would make it: a forward pass, or forward and backward."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from thunder_tune.errors import ModelError


class Inputs(Protocol):
    """Arguments of one call, on the device already."""

    @property
    def args(self) -> tuple[Any, ...]:
        """Positional arguments."""

    @property
    def kwargs(self) -> Mapping[str, Any]:
        """Keyword arguments."""


@dataclass(frozen=True, slots=True)
class Arguments:
    """Plain `Inputs`."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Outputs:
    """What one step gave.

    Attributes:
        tensors: Every tensor of the result, in the order of its containers, detached.
        gradients: One per parameter of a training step, None where there is none.
    """

    tensors: tuple[Tensor, ...]
    gradients: tuple[Tensor | None, ...] = ()


Step = Callable[[Inputs], Outputs]
"""Runs a program once; results may lie in buffers that the next call overwrites."""


def named_tensors(result: object, name: str = "output") -> Iterator[tuple[str, Tensor]]:
    """Yield every tensor of a model's result with its place in it, "output['logits']".

    Looks into mappings, sequences, dataclasses and containers registered as pytrees; what is not
    a tensor is left out.
    """
    if isinstance(result, Tensor):
        yield name, result
    elif isinstance(result, Mapping):
        for key, value in result.items():
            yield from named_tensors(value, f"{name}[{key!r}]")
    elif isinstance(result, (tuple, list)):
        for i, value in enumerate(result):
            yield from named_tensors(value, f"{name}[{i}]")
    elif dataclasses.is_dataclass(result) and not isinstance(result, type):
        for field in dataclasses.fields(result):
            yield from named_tensors(getattr(result, field.name), f"{name}.{field.name}")
    else:
        leaves = tree_leaves(result)
        for i, leaf in enumerate(leaves):
            if isinstance(leaf, Tensor):
                yield f"{name}[{i}]", leaf


def forward_step(call: Callable[..., object]) -> Step:
    """Return a step that runs a program without gradients.

    Args:
        call: Model or built candidate.

    Returns:
        The step; it raises ModelError where the result holds no tensor.
    """

    def step(inputs: Inputs) -> Outputs:
        with torch.no_grad():
            return Outputs(_tensors(call(*inputs.args, **inputs.kwargs)))

    return step


def training_step(
    call: Callable[..., object], parameters: Sequence[nn.Parameter], *, seed: int = 0
) -> Step:
    """Return a step that runs a program forward and backward.

    The backward pass starts from a fixed random cotangent for every floating-point output that
    depends on a parameter. It costs what a training loop pays between `zero_grad` and the
    optimizer: gradients go through the parameters' `grad`, hooks included, which is None before
    and after.

    Args:
        call: Model or built candidate that computes with `parameters`.
        parameters: Those to return gradients of, see `trainable`.
        seed: Of the cotangents; steps of one seed use the same ones.

    Returns:
        The step; it raises ModelError where no output depends on a trainable parameter.
    """
    parameters = tuple(parameters)
    cotangents = _Cotangents(seed)

    def step(inputs: Inputs) -> Outputs:
        for parameter in parameters:
            parameter.grad = None
        with torch.enable_grad():
            tensors = _tensors(call(*inputs.args, **inputs.kwargs))
            roots = [(i, t) for i, t in enumerate(tensors) if t.requires_grad]
            if not roots:
                raise ModelError(
                    "no output of the model depends on a trainable parameter: "
                    "use --mode inference, or set requires_grad"
                )
            torch.autograd.backward([t for _, t in roots], [cotangents.of(i, t) for i, t in roots])
        gradients = tuple(parameter.grad for parameter in parameters)
        for parameter in parameters:
            parameter.grad = None
        return Outputs(tuple(t.detach() for t in tensors), gradients)

    return step


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that training changes by name, each once."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def _tensors(result: object) -> tuple[Tensor, ...]:
    if isinstance(result, Tensor):  # the common case, kept off the timed path's cost
        return (result,)
    tensors = tuple(tensor for _, tensor in named_tensors(result))
    if not tensors:
        raise ModelError(
            f"the model returned {type(result).__name__} without any tensor in it: "
            "return a tensor, or a tuple, dictionary or dataclass of them"
        )
    return tensors


class _Cotangents:
    """Fixed random cotangents, one per output.

    Elements are multiples of 1/8 between -2 and 2, uniform: of order 1, and exact in every
    floating type, so that a float64 reference and a bfloat16 candidate go backward from the same
    numbers.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._made: dict[tuple[object, ...], Tensor] = {}

    def of(self, index: int, output: Tensor) -> Tensor:
        key = (index, output.shape, output.dtype, output.device)
        if key not in self._made:
            generator = torch.Generator(output.device)
            generator.manual_seed(self._seed * 1_000_003 + index)
            eighths = torch.randint(
                -16, 17, output.shape, generator=generator, device=output.device, dtype=torch.int8
            )
            self._made[key] = eighths.to(output.dtype) / 8
        return self._made[key]
