"""Runs a candidate so that what it leaves unwritten, or remembers, comes to light."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from thunder_tune.measure.steps import Inputs, Outputs, Step


@dataclass(frozen=True, slots=True)
class Poison:
    """Bits to fill memory with: a byte for 8-bit types, else a 16-bit word over and over."""

    byte: int
    word: int


NAN = Poison(0xFF, 0x7FFD)
"""NaN in every floating type, and one that arithmetic does not make by itself."""
FINITE = Poison(0x5B, 0x5B5B)
"""Neither NaN nor infinity in any floating type."""
POISON_BYTES = 2**22
"""Small results are poisoned many times over, up to this size: an allocator has many free blocks
that fit them."""
MAX_COPIES = 64

_RAW = (
    (torch, ("empty", "empty_like", "empty_strided", "empty_permuted")),
    (Tensor, ("new_empty", "new_empty_strided")),
)
"""What gives Python memory as it is."""
_SAME_SIZE = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Buffers:
    """A model's buffers as they were; those that calls change are put back before every run."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._before = {name: b.detach().clone() for name, b in model.named_buffers()}

    def forget_unchanged(self) -> None:
        """Keep only those that differ by now; to be called after a call of the model."""
        now = dict(self._model.named_buffers())
        self._before = {
            name: value
            for name, value in self._before.items()
            if name in now and not _equal(now[name], value)
        }

    def restore(self) -> None:
        """Write the old values into the buffers, in place: compiled programs know the memory."""
        now = dict(self._model.named_buffers())
        with torch.no_grad():
            for name, value in self._before.items():
                now[name].copy_(value)


class Probe:
    """Calls a step on poisoned memory and hands out copies of what it returns.

    Before a call, memory of the results' sizes is filled with poison and freed, so that the
    allocator is likely to hand it to the candidate; the results of the call before are filled too,
    as a CUDA graph writes to the same place again. An element that still holds the poison after
    the call was never written.

    What a call frees it is likely to be given again, above all by CUDA's caching allocator, which
    prefers a block of the very size: an output never written then shows the call's own
    intermediate values instead of the poison. `run_poisoning` fills memory again whenever Python
    code of the candidate asks torch for it. Compiled code that reuses a buffer within itself asks
    nobody: what it leaves unwritten cannot be told from a wrong result.

    Args:
        step: The candidate.
        model: Whose parameters and buffers are never filled.
        buffers: Put back before every call.
        device: Whose memory to fill.
    """

    def __init__(
        self, step: Step, model: nn.Module, buffers: Buffers, *, device: torch.device
    ) -> None:
        self._step = step
        self._device = device
        self._buffers = buffers
        tensors = (*model.parameters(), *model.buffers())
        self._kept = {t.untyped_storage().data_ptr() for t in tensors}
        self._before: tuple[Tensor, ...] = ()

    def run(self, inputs: Inputs, like: Outputs, poison: Poison, *, seed: int = 0) -> Outputs:
        """Call the step once.

        Args:
            inputs: Of the call.
            like: Results of the expected sizes; their values do not matter.
            poison: What to fill memory with.
            seed: Of the random generators during the call.

        Returns:
            Copies that the next call does not overwrite.
        """
        self._buffers.restore()
        self._fill_results(poison)
        with fixed_randomness(seed):
            # The last thing before the call: whatever allocates after it takes the poison.
            _poison_free_memory(like, poison, self._device)
            results = self._step(inputs)
        own = self._kept | {t.untyped_storage().data_ptr() for t in _tensors(inputs)}
        self._before = tuple(
            t for t in results.tensors if t.untyped_storage().data_ptr() not in own
        )
        return copied(results)

    def run_poisoning(self, inputs: Inputs, like: Outputs, poison: Poison) -> Outputs:
        """Call the step once, all memory that it asks torch for being filled with poison too.

        Costs time and leaves what is compiled alone: frames that would be compiled again run as
        they are. A program that is compiled or captured in this call is spoiled all the same.
        """
        with torch.compiler.set_stance("eager_on_recompile"), _poisoned_raw_memory(poison):
            return self.run(inputs, like, poison)

    def _fill_results(self, poison: Poison) -> None:
        """Fill what the call before returned, and let go of it."""
        with torch.inference_mode():  # the one mode that may write to tensors of every mode
            for tensor in self._before:
                _fill(tensor, poison)
        self._before = ()


def copied(results: Outputs) -> Outputs:
    """Return copies of all results, dense in memory; complex ones as pairs of real numbers."""
    return Outputs(
        tuple(_copy(t) for t in results.tensors),
        tuple(None if g is None else _copy(g) for g in results.gradients),
    )


def share_unwritten(first: Tensor, second: Tensor) -> float:
    """Return the share of elements that were never written.

    Args:
        first: Result of a run on memory filled with `NAN`, which no computation gives.
        second: Result of a run on memory filled with `FINITE`; asked where `NAN` may be a value.
    """
    if first.dtype == torch.bool or not first.numel():
        return 0.0
    never = _holds(first, NAN)
    if not (first.is_floating_point() and first.element_size() > 1):
        never &= _holds(second, FINITE)
    return float(never.double().mean())


@contextmanager
def fixed_randomness(seed: int) -> Iterator[None]:
    """Give all random generators one state inside, and their own states back after."""
    devices = [torch.cuda.current_device()] if _uses_cuda() else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(seed)
        yield


def _uses_cuda() -> bool:
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]  # torch has none


def _poison_free_memory(like: Outputs, poison: Poison, device: torch.device) -> None:
    wanted = [(t, MAX_COPIES) for t in like.tensors]
    wanted += [(g, 2) for g in like.gradients if g is not None]
    held = []
    try:
        for tensor, most in wanted:
            for _ in range(max(1, min(most, POISON_BYTES // max(1, tensor.nbytes)))):
                held.append(torch.empty(tensor.shape, dtype=tensor.dtype, device=device))
                _fill(held[-1], poison)
    except torch.OutOfMemoryError:  # the candidate may need all of it: some poison is enough
        held.clear()


@contextmanager
def _poisoned_raw_memory(poison: Poison) -> Iterator[None]:
    """Fill with poison, inside the block, whatever torch gives Python uninitialized."""

    def poisoned(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
        @functools.wraps(make)
        def made(*args: object, **kwargs: object) -> Tensor:
            tensor = make(*args, **kwargs)
            # A kernel more would be part of the graph for good.
            if not (_uses_cuda() and torch.cuda.is_current_stream_capturing()):
                with torch.no_grad():
                    _fill(tensor, poison)
            return tensor

        return made

    with ExitStack() as stack:
        for owner, names in _RAW:
            for name in names:
                stack.enter_context(patch.object(owner, name, poisoned(getattr(owner, name))))
        yield


def _fill(tensor: Tensor, poison: Poison) -> None:
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    span = 1 + sum((size - 1) * stride for size, stride in sizes)
    # An expanded tensor has several elements in one place, which torch refuses to write to.
    if tensor.dtype != torch.bool and 0 < tensor.numel() <= span:
        tensor.copy_(_element(tensor, poison))


def _holds(tensor: Tensor, poison: Poison) -> Tensor:
    whole = _SAME_SIZE[tensor.element_size()]
    return tensor.view(whole) == _element(tensor, poison).view(whole)


def _element(tensor: Tensor, poison: Poison) -> Tensor:
    size, device = tensor.element_size(), tensor.device
    if size == 1:
        bits = torch.tensor([poison.byte], dtype=torch.uint8, device=device)
    else:
        bits = torch.full((size // 2,), poison.word, dtype=torch.int16, device=device)
    return bits.view(tensor.dtype)[0]


def _copy(tensor: Tensor) -> Tensor:
    tensor = tensor.detach()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    return tensor.clone(memory_format=torch.contiguous_format)


def _equal(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and bool(torch.equal(one, other))


def _tensors(inputs: Inputs) -> list[Tensor]:
    leaves = tree_leaves((inputs.args, dict(inputs.kwargs)))
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)]
