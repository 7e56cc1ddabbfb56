"""Whether assignments of a model compute what the model computes, forward and backward."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from random import Random

import torch
from torch import nn

from thunder_tune.compiler import build, viability
from thunder_tune.compiler.backends import unavailable_reason
from thunder_tune.measure.accuracy import Judge, Rejected
from thunder_tune.measure.steps import Inputs, Step, forward_step, trainable, training_step
from thunder_tune.program import Capture, capture
from thunder_tune.search_spaces import build_space
from thunder_tune.study.plans import PlanLedger
from thunder_tune.testing.covered import Covered
from thunder_tune.values.fusers import FUSERS
from thunder_tune.values.plan import resolve
from thunder_tune.values.program import Program
from thunder_tune.values.source import ModelSource
from thunder_tune.values.space import Dimension, SearchSpace

FUSED_SHARES = (0.1, 0.9, 0.5, 0.3, 0.7)
"""Chance that a class goes to a fuser, by assignment: few, most, half of them ..."""
_DRAWS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What one assignment of one model gave.

    Attributes:
        error_ratio: Worst error relative to eager's own, gradients included; nan if never judged.
        reason: Why it failed, in one line, or "".
    """

    error_ratio: float
    reason: str = ""


class Subject:
    """A model captured in one mode, and the judge of its assignments.

    Args:
        model: Of the list.
        training: Forward and backward, or forward alone.
        device: "cpu" or "cuda".

    Attributes:
        program: As captured; without ops where no front end could, `program.reason` says why.

    Raises:
        ModelError: The model cannot be judged.
    """

    def __init__(self, model: Covered, *, training: bool, device: str) -> None:
        self._training, self._device = training, device
        loaded = model.load(training=training, device=device)
        self._model = loaded.model
        self._judge = Judge(loaded.model, loaded.make_inputs, device=device, training=training)
        inputs = self._judge.inputs[0]
        self._capture = capture(loaded.model, inputs.args, inputs.kwargs, training=training)
        self._buffers = _buffers(loaded.model)
        self._source = ModelSource(
            name=model.name, device=device, mode="train" if training else "inference"
        )

    @property
    def program(self) -> Program:
        """The captured program."""
        return self._capture.program

    def assignments(self, count: int) -> Iterator[dict[str, str]]:
        """Yield different assignments, drawn with fixed seeds; fewer where there are no more."""
        space = _space(self._capture, self._source)
        ledger = PlanLedger(self.program, space)
        for number in range(count):
            random = Random(number)
            share = FUSED_SHARES[number % len(FUSED_SHARES)]
            for _ in range(_DRAWS):
                drawn = {d.name: _draw(d, share, random) for d in ledger.open_dimensions}
                candidate = ledger.candidate(ledger.composed(drawn))
                if not ledger.is_taken(candidate.plan_key):
                    ledger.take(candidate.plan_key)
                    yield dict(candidate.assignment)
                    break

    def judge(self, assignment: dict[str, str]) -> Verdict:
        """Build an assignment and judge it; whatever is raised is the verdict's reason."""
        built = None
        try:
            built = build(self._model, resolve(self.program, assignment), self._capture)
            step = self._step(built)
            step(self._judge.inputs[0])
            if built.applied < 1.0:
                return Verdict(
                    error_ratio=float("nan"), reason=f"applied {built.applied:.1%} of the ops"
                )
            found = self._judge.judge(step)
            ratio = max(found.error_ratio, found.gradient_error_ratio or 0.0)
            return Verdict(error_ratio=ratio, reason=self._wrong_buffers(step))
        except Rejected as error:
            ratio = error.accuracy.error_ratio if error.accuracy else float("nan")
            return Verdict(error_ratio=ratio, reason=f"{error.kind}: {error}")
        except Exception as error:
            inner = getattr(error, "inner_exception", error)  # Dynamo's own says only "back_end"
            text = str(inner).strip().splitlines() or [""]
            return Verdict(
                error_ratio=float("nan"), reason=f"{type(inner).__name__}: {text[0]}"[:300]
            )
        finally:
            if built is not None:
                built.close()

    def _step(self, call: object) -> Step:
        assert callable(call)
        if not self._training:
            return forward_step(call)
        return training_step(call, tuple(trainable(self._model).values()))

    def _wrong_buffers(self, step: Step) -> str:
        """Compare what one step leaves in the model's buffers with what the model leaves there."""
        inputs = self._judge.inputs[0]
        expected = self._after(self._step(self._model), inputs)
        for name, value in self._after(step, inputs).items():
            close = torch.allclose(value, expected[name], rtol=1e-4, atol=1e-5, equal_nan=True)
            if not close:
                return f"wrong: buffer {name} after a call"
        return ""

    def _after(self, step: Step, inputs: Inputs) -> dict[str, torch.Tensor]:
        now = dict(self._model.named_buffers())
        with torch.no_grad():
            for name, value in self._buffers.items():
                now[name].copy_(value)
        step(inputs)
        return _buffers(self._model)


def _buffers(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: b.detach().clone() for name, b in model.named_buffers()}


def _space(found: Capture, source: ModelSource) -> SearchSpace:
    return build_space(
        found.program,
        source=source,
        policy="same",
        preset="full",
        viable=viability(found, source.device),
        back_end_reason=partial(unavailable_reason, device=source.device),
    )


def _draw(dimension: Dimension, fused_share: float, random: Random) -> str:
    fused = [c for c in dimension.choices if c in FUSERS]
    others = [c for c in dimension.choices if c not in FUSERS]
    wants_fuser = random.random() < fused_share
    return random.choice((fused if wants_fuser else others) or list(dimension.choices))
