"""What a model should give for some inputs, and how well its own arithmetic does."""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Literal

import torch
from torch import Tensor, nn

from thunder_tune.errors import ModelError
from thunder_tune.measure.distances import Distance, Target
from thunder_tune.measure.faults import flat
from thunder_tune.measure.judgeable import (
    UNRESOLVED,
    Case,
    NotJudgeable,
    Slot,
    check_not_random,
    check_references,
    variation,
)
from thunder_tune.measure.probing import NAN, Buffers, Probe, copied, fixed_randomness
from thunder_tune.measure.steps import (
    Inputs,
    Outputs,
    Step,
    forward_step,
    named_tensors,
    trainable,
    training_step,
)
from thunder_tune.measure.widening import (
    exact_arithmetic,
    first_line,
    release_memory,
    widened_inputs,
    widened_model,
)

SELF_ULPS = 128
"""Assumed error, in units of the last place, of a model that is its own reference.

Deep float32 models are typically off by 1e-6 to 1e-5.
"""
FLOOR_ULPS = 4
"""Relative error of float32 results that counts as none: sums in another order.

Of 16-bit results it is half a unit, about twice what rounding the exact result costs
(uniform over half a unit either way, for significands between 1 and 2).
"""
INTEGER_FLOOR = 1e-3
"""Share of integer or boolean elements that may differ for free: ties of an argmax."""
CLASS_NAMES = ("logits",)
"""Named outputs whose largest element is a prediction."""

Precision = Literal["float64", "float32"]
WAYS: tuple[tuple[Precision, bool], ...] = (
    ("float64", False),
    ("float64", True),
    ("float32", False),
)
"""What is tried for a reference, and whether weights are widened as they are used.

That needs no copy, and gives no gradients.
"""
_Row = tuple[Target | None, ...]


class Reference:
    """References of a model for several inputs, in float64 or else float32.

    The wider copy of the model lives only while this is built; in inference, where there is no
    room for one, each weight is widened where it is read. References stay on the device up to a
    quarter of its memory, the rest in host memory; those of 16-bit models as float32.

    Args:
        model: On its device; its buffers are the same before and after.
        inputs: Two sets or more.
        device: Where the model is.
        training: Whether gradients of trainable parameters belong to the results.

    Attributes:
        form: Shapes and types that the results of candidates must have, as meta tensors.
        precision: "float64" or "float32".
        slots: What there is to judge.
        cases: One for each set of inputs.
        buffers: Those of the model, to be put back before a candidate runs.
        held_bytes: Device memory that the references take.

    Raises:
        NotJudgeable: A result is zero, constant, does not vary with the input, is random, or is
            beyond the model's own arithmetic.
        ModelError: The model raises, or gives no tensor.
    """

    def __init__(
        self, model: nn.Module, inputs: Sequence[Inputs], *, device: torch.device, training: bool
    ) -> None:
        self._model = model
        self._device = device
        self._training = training
        self._own_ulp = _unit_in_last_place(model)
        self.held_bytes = 0
        self.buffers = Buffers(model)
        self._output_names, self.form = self._first_run(inputs[0])
        gradients = trainable(model) if training else ()
        self._names = (*self._output_names, *(f"gradient of {name}" for name in gradients))
        self.buffers.forget_unchanged()
        self.buffers.restore()
        self.precision, rows = self._compute(inputs)
        probe = Probe(self._step(model), model, self.buffers, device=device)
        eager = [self._measure(probe, i, row) for i, row in zip(inputs, rows, strict=True)]
        self.slots = self._slots(rows, eager)
        self.cases = tuple(
            Case(i, row, self._scales(row), distances)
            for i, row, distances in zip(inputs, rows, eager, strict=True)
        )
        check_references(self.slots, self.cases)
        one, other = (flat(probe.run(inputs[0], self.form, NAN, seed=s)) for s in (0, 1))
        check_not_random(self.cases[0], self.slots, one, other)
        self.buffers.restore()

    def _step(self, call: Callable[..., object], model: nn.Module | None = None) -> Step:
        if not self._training:
            return forward_step(call)
        return training_step(call, tuple(trainable(model or self._model).values()))

    def _first_run(self, inputs: Inputs) -> tuple[tuple[str, ...], Outputs]:
        """Run the model as it is; return the names of its outputs and their form."""
        names: list[str] = []

        def noting(*args: object, **kwargs: object) -> object:
            result = self._model(*args, **kwargs)
            names.extend(name for name, _ in named_tensors(result))
            return result

        try:
            with fixed_randomness(0):
                results = _without_values(self._step(noting)(inputs))
        except (ModelError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            place = _place(error)
            what = f"{type(error).__name__}: {first_line(error)}"
            raise ModelError(
                f"the model raised {what} ({place})"
                if place
                else f"the model cannot be called with these inputs: {what}"
            ) from error
        return tuple(names), results

    def _compute(self, inputs: Sequence[Inputs]) -> tuple[Precision, list[_Row]]:
        """Run it in float64; in float32 where that does not fit or an op does not have it."""
        reasons = []
        for name, as_used in WAYS:
            if as_used and self._training:
                continue
            try:
                return name, self._in_precision(inputs, getattr(torch, name), as_used=as_used)
            except ModelError:
                raise
            except (RuntimeError, TypeError, ValueError, NotImplementedError) as error:
                way = ", weights widened as used" if as_used else ""
                reasons.append(f"{name}{way}: {first_line(error)}")
            self.held_bytes = 0
            release_memory()
        raise NotJudgeable(
            f"no reference can be computed ({'; '.join(reasons)}): use a smaller batch if memory "
            "is short"
        )

    def _in_precision(
        self, inputs: Sequence[Inputs], dtype: torch.dtype, *, as_used: bool
    ) -> list[_Row]:
        wide = self._model if as_used else widened_model(self._model, dtype)
        buffers = self.buffers if as_used else Buffers(wide)
        step = self._step(wide, wide)
        rows = []
        for item in inputs:
            buffers.restore()
            with exact_arithmetic(dtype, as_used=as_used), fixed_randomness(0):
                results = flat(copied(step(widened_inputs(item, dtype))))
            rows.append(
                tuple(
                    None if tensor is None else self._keep(tensor, own, name)
                    for tensor, own, name in zip(
                        results, flat(self.form), self._names, strict=True
                    )
                )
            )
        del wide, buffers, step
        release_memory()
        return rows

    def _keep(self, tensor: Tensor, own: Tensor | None, name: str) -> Target:
        if own is not None and own.shape != tensor.shape:
            raise ValueError(f"{name} has another shape in {tensor.dtype}")
        is_coarse = self._own_ulp > torch.finfo(torch.float32).eps
        dtype, place = torch.float32 if is_coarse else torch.float64, self._device
        if place.type == "cuda":
            room = torch.cuda.get_device_properties(place).total_memory // 4
            fits = self.held_bytes + tensor.numel() * dtype.itemsize <= room
            place = place if fits else torch.device("cpu")
        has_classes = name in self._output_names and _predicts(name, self._output_names)
        target = Target.of(tensor, dtype=dtype, device=place, has_classes=has_classes)
        if place.type == "cuda":
            self.held_bytes += target.tensor.nbytes
        return target

    def _measure(self, probe: Probe, inputs: Inputs, row: _Row) -> tuple[Distance | None, ...]:
        """Return the distances of the eager model in its own precision."""
        results = flat(probe.run(inputs, self.form, NAN))
        found: list[Distance | None] = []
        for tensor, target, name in zip(results, row, self._names, strict=True):
            if tensor is None or target is None:
                found.append(None)
                continue
            if not target.is_finite_where_due(tensor):
                raise NotJudgeable(
                    f"{name} of the eager model is NaN or infinite in {tensor.dtype} where "
                    f"{self.precision} is finite: use --dtype bfloat16 or float32"
                )
            found.append(target.distance(tensor))
        return tuple(found)

    def _slots(
        self, rows: Sequence[_Row], eager: Sequence[Sequence[Distance | None]]
    ) -> tuple[Slot, ...]:
        errors = [[d.error for row in eager if (d := row[i])] for i in range(len(self._names))]
        slots = []
        for i, name in enumerate(self._names):
            own = flat(self.form)[i]
            is_gradient = i >= len(self._output_names)
            slots.append(
                Slot(
                    name=name,
                    is_gradient=is_gradient,
                    is_floating=own is None or own.is_floating_point(),
                    floor=self._floor(own),
                    is_resolved=not errors[i] or median(errors[i]) <= UNRESOLVED,
                    variation=math.inf if is_gradient else variation([r[i] for r in rows]),
                )
            )
        # What is lost in rounding is held to the error that gradients have typically.
        typical = [median(e) for e, s in zip(errors, slots, strict=True) if _is_judged(s) and e]
        level = median(typical) if typical else 0.0
        return tuple(
            replace(s, floor=max(s.floor, level)) if s.is_gradient and not s.is_resolved else s
            for s in slots
        )

    def _floor(self, own: Tensor | None) -> float:
        if own is None:
            return self._own_ulp
        if not own.is_floating_point():
            return INTEGER_FLOOR
        ulp = max(torch.finfo(own.dtype).eps, self._own_ulp)
        if torch.finfo(getattr(torch, self.precision)).eps >= ulp:
            return SELF_ULPS * ulp
        return FLOOR_ULPS * ulp if ulp <= torch.finfo(torch.float32).eps else ulp / 2

    def _scales(self, row: _Row) -> tuple[float, ...]:
        """Return the norm that each slot's error is relative to."""
        gradients = [t for t, s in zip(row, self.slots, strict=True) if t and s.is_gradient]
        elements = max(1, sum(t.tensor.numel() for t in gradients))
        typical = math.sqrt(sum(t.norm**2 for t in gradients) / elements)
        scales = []
        for target, slot in zip(row, self.slots, strict=True):
            norm = target.norm if target else 0.0
            if target and slot.is_gradient and not (slot.is_resolved and norm):
                norm = max(norm, typical * math.sqrt(target.tensor.numel()))
            scales.append(norm)
        return tuple(scales)


def _without_values(results: Outputs) -> Outputs:
    return copied(
        Outputs(
            tuple(t.to("meta") for t in results.tensors),
            tuple(None if g is None else g.to("meta") for g in results.gradients),
        )
    )


def _is_judged(slot: Slot) -> bool:
    return slot.is_gradient and slot.is_resolved


def _predicts(name: str, names: Sequence[str]) -> bool:
    """Whether an output's largest element is a prediction: by name, where outputs have names."""
    has_names = any("'" in n or "." in n for n in names)
    return not has_names or name.endswith(
        tuple(f"{c}{end}" for c in CLASS_NAMES for end in ("", "']"))
    )


def _unit_in_last_place(model: nn.Module) -> float:
    """Return that of the type that most parameters have, or 0 without any."""
    counts: dict[torch.dtype, int] = {}
    for parameter in model.parameters():
        if parameter.is_floating_point():
            counts[parameter.dtype] = counts.get(parameter.dtype, 0) + parameter.numel()
    return torch.finfo(max(counts, key=lambda d: counts[d])).eps if counts else 0.0


def _place(error: BaseException) -> str:
    """Return file:line where the model's own code raised; "" where none of it had begun."""
    torch_folder = str(Path(torch.__file__).parent)
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if not f.filename.startswith(torch_folder)]
    frame = (own or frames)[-1]
    return "" if frame.filename == __file__ else f"{frame.filename}:{frame.lineno}"
