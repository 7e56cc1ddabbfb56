"""Weights that a program reads in packed form only, and their memory on the device given up.

What such a weight holds moves to the host's memory; on the device one value that is not a number
stands for all of it, so that whatever reads it by mistake is seen to be wrong, and nothing reads
memory that is no longer there. `state_dict` gives the values from the host; loading a state, and a
graph that reads a weight as it is, brings it back first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from thunder.core.prims import PrimIDs
from thunder.core.trace import TraceCtx
from torch.utils.weak import WeakTensorKeyDictionary

from thunder_tune.compiler.dispatch import CompiledGraph
from thunder_tune.executors import READS_PACKED
from thunder_tune.program.frontend import Graph

_NO_READERS = frozenset({PrimIDs.DEL, PrimIDs.UNPACK_TRIVIAL, PrimIDs.UNPACK_SEQUENCE})
_WEIGHTS = 1
"""Place of the weights among the arguments of a symbol that packs them."""


def read_packed_only(trace: TraceCtx) -> tuple[bool, ...]:
    """Return for each input of an executable trace whether all that read it pack it."""
    packed: set[str] = set()
    plain: set[str] = set()
    for bsym in trace.bound_symbols:
        if bsym.sym.id in _NO_READERS:
            continue
        weights: Sequence[Any] = ()
        if bsym.sym.id in READS_PACKED:
            given = bsym.args[_WEIGHTS]
            weights = given if isinstance(given, (tuple, list)) else (given,)
        names = [w.name for w in weights]
        packed.update(names)
        others = [p.name for p in bsym.flat_proxy_args]
        for name in names:
            others.remove(name)
        plain.update(others)
    return tuple(p.name in packed - plain for p in trace.args)


def releasable_bytes(compiled: CompiledGraph, static_inputs: Sequence[bool]) -> int:
    """Return the bytes of a graph's parameters and buffers that are read in packed form only."""
    given = zip(
        compiled.forward.args, read_packed_only(compiled.forward), static_inputs, strict=True
    )
    return sum(p.numel * p.dtype.bytes for p, is_packed, static in given if is_packed and static)


class WeightRelease:
    """Keeps on the host the weights of a model that its graphs read in packed form only.

    A weight that some graph reads as it is stays on the device from that graph's first call on.

    Args:
        model: Whose modules' states are to be right.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._on_host: Any = WeakTensorKeyDictionary()
        self._kept: Any = WeakTensorKeyDictionary()
        self._blanks: dict[tuple[torch.device, torch.dtype], torch.Tensor] = {}
        self._turn = 0
        for module in model.modules():
            self.watch(module)

    def watch(self, module: torch.nn.Module) -> None:
        """Keep the states right that a module gives and takes, of its own weights."""
        # Torch marks the hooks it is given, which a method does not take.
        module.register_state_dict_post_hook(partial(self._fill_state))  # type: ignore[no-untyped-call]
        module.register_load_state_dict_pre_hook(partial(self._before_loading))  # type: ignore[no-untyped-call]

    @property
    def host_bytes(self) -> int:
        """Bytes of the weights that are on the host now."""
        return sum(t.nbytes for t in self._on_host.values())

    def around(self, run: Graph, compiled: CompiledGraph, static_inputs: Sequence[bool]) -> Graph:
        """Return a graph that has the weights it reads, and gives up those it has packed.

        Args:
            run: The graph as it is to be called.
            compiled: The graph as dispatched.
            static_inputs: For each input, whether it is a parameter or buffer.
        """
        packed = read_packed_only(compiled.forward)
        packs, seen = compiled.packs, -1

        def wrapped(*inputs: Any) -> Any:  # noqa: ANN401 - the graph's
            nonlocal seen
            if seen == self._turn and not packs.is_stale:
                return run(*inputs)
            given = [
                (x, is_packed)
                for x, is_packed, static in zip(inputs, packed, static_inputs, strict=True)
                if static and isinstance(x, torch.Tensor)
            ]
            for x, is_packed in given:
                if not is_packed:
                    self._kept[x] = True
            is_new = seen < 0 or packs.is_stale
            wanted = [x for x, _ in given if is_new or x in self._kept]
            packs.accept(self.restore(wanted))
            result = run(*inputs)
            packs.accept(self._release([x for x, _ in given if x not in self._kept]))
            seen = self._turn
            return result

        return wrapped

    def restore(self, weights: Sequence[torch.Tensor] | None = None) -> list[torch.Tensor]:
        """Bring weights back to the device, and return those that were not there; None: all."""
        found = []
        for weight in list(self._on_host) if weights is None else weights:
            is_blank = weight in self._on_host and self._is_blank(weight)
            values = self._on_host.pop(weight, None)
            if is_blank:
                weight.data = values.to(weight.device, copy=True)
                found.append(weight)
        self._turn += bool(found)
        return found

    def _release(self, weights: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        going = [w for w in weights if w not in self._on_host or not self._is_blank(w)]
        for weight in going:
            self._on_host[weight] = weight.detach().to("cpu", copy=True)
            weight.data = self._blank(weight).expand(weight.shape)
        self._turn += bool(going)
        return going

    def _blank(self, weight: torch.Tensor) -> torch.Tensor:
        key = weight.device, weight.dtype
        if key not in self._blanks:
            self._blanks[key] = torch.full((), float("nan"), dtype=key[1], device=key[0])
        return self._blanks[key]

    def _is_blank(self, weight: torch.Tensor) -> bool:
        """Whether nobody has given a weight other memory since it was released."""
        return weight.data_ptr() == self._blank(weight).data_ptr()

    def _fill_state(
        self, module: torch.nn.Module, state: dict[str, Any], prefix: str, *_: object
    ) -> None:
        for name, weight in self._own(module).items():
            if prefix + name in state:
                state[prefix + name] = self._on_host[weight]

    def _before_loading(self, module: torch.nn.Module, *_: object) -> None:
        self.restore(list(self._own(module).values()))

    def _own(self, module: torch.nn.Module) -> Mapping[str, torch.Tensor]:
        """Return a module's own weights that are on the host, by name."""
        given = {**module._parameters, **module._buffers}
        return {
            n: t
            for n, t in given.items()
            if t is not None and t in self._on_host and self._is_blank(t)
        }
