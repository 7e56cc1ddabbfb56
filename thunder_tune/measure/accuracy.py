"""Whether a candidate computes what the model computes, and how precisely.

Every candidate is held against a reference in higher precision, beside the eager model in its own
precision: a candidate may differ from eager and be nearer to the truth. Errors are relative
(||out - ref|| / ||ref||), per output and per parameter's gradient, the median over inputs of each,
the worst over all of them.

A median over inputs forgives one wrong answer and a norm forgives a small wrong part, so that
three more things are asked: no part of an output may be far worse than the whole
(`policies.PART`), no input far worse than the others, and each answer must be nearer to its own
reference than to other inputs' (`thunder_tune.measure.summary`). Every policy but `any` asks.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from thunder_tune.errors import InputError, ModelError, headline
from thunder_tune.measure.distances import Distance
from thunder_tune.measure.faults import (
    Rejected,
    Results,
    check_form,
    check_not_stale,
    check_repeats,
    check_written,
    distances_to_others,
    flat,
    not_finite,
    refuse_not_finite,
)
from thunder_tune.measure.judgeable import Case, NotJudgeable
from thunder_tune.measure.policies import METRIC, policy
from thunder_tune.measure.probing import FINITE, NAN, Probe
from thunder_tune.measure.reference import Reference
from thunder_tune.measure.steps import Inputs, Outputs, Step
from thunder_tune.measure.summary import Summary
from thunder_tune.values.trial import Accuracy

__all__ = ["METRIC", "Judge", "NotJudgeable", "Rejected"]

INPUTS = 4
_OF_UNKNOWN_CAUSE = ("wrong", "not-finite", "unstable")
"""Kinds of failure that unwritten memory brings about too."""

Metric = Callable[[tuple[Tensor, ...], tuple[Tensor, ...]], float]


class Judge:
    """Judges candidates of one model; references are computed once and serve all of them.

    Args:
        model: On its device, in the mode (train or eval) to be judged in. It is kept, and its
            buffers are put back before every run.
        make_inputs: Makes the inputs of a seed, on the device.
        device: "cpu" or "cuda".
        training: Whether steps give gradients of `steps.trainable(model)`, in that order.
        policies: Names; the first decides whether a candidate is accepted.
        metric: "package.module:function" called with the outputs and the reference's outputs (two
            tuples of tensors), and the smallest value allowed on any input; decides instead of
            the first policy, and is in `Accuracy.policies` as "metric".
        seed: Of the inputs; another seed gives fresh ones.
        inputs: Sets of inputs, at least 2. The last is held out: judged, never timed.

    Attributes:
        inputs: Sets to time with: all but the held-out one.

    Raises:
        NotJudgeable: The model's results cannot tell a right candidate from a wrong one.
        ModelError: The model raises, or gives no tensor.
        InputError: A policy or the metric does not exist, or a number is too small.
    """

    def __init__(
        self,
        model: nn.Module,
        make_inputs: Callable[[int], Inputs],
        *,
        device: str,
        training: bool = False,
        policies: Sequence[str] = ("same",),
        metric: tuple[str, float] | None = None,
        seed: int = 0,
        inputs: int = INPUTS,
    ) -> None:
        if inputs < 2:
            raise InputError(f"inputs {inputs}: at least 2 are needed to tell answers apart")
        if not policies and metric is None:
            raise InputError("no policy: give at least one, or a metric")
        self._model, self._make_inputs = model, make_inputs
        self._device, self._training, self._count = device, training, inputs
        self._policies = tuple(policy(name) for name in policies)
        self._asked = metric
        self._metric = None if metric is None else (load_metric(metric[0]), metric[1])
        made = [make_inputs(seed * 1_000 + k) for k in range(inputs)]
        self.inputs: tuple[Inputs, ...] = tuple(made[:-1])
        self._reference = Reference(model, made, device=torch.device(device), training=training)

    @property
    def reference(self) -> str:
        """Precision of the references: "float64" or "float32"."""
        return self._reference.precision

    @property
    def held_bytes(self) -> int:
        """Device memory that references take; not a candidate's."""
        return self._reference.held_bytes

    @property
    def _policy_names(self) -> tuple[str, ...]:
        return (*(p.name for p in self._policies), *((METRIC,) if self._metric else ()))

    def for_seed(self, seed: int) -> Judge:
        """Return a judge of the same model on fresh inputs; drop the old one to free memory."""
        return Judge(
            self._model,
            self._make_inputs,
            device=self._device,
            training=self._training,
            policies=[p.name for p in self._policies],
            metric=self._asked,
            seed=seed,
            inputs=self._count,
        )

    def judge(self, step: Step) -> Accuracy:
        """Judge a candidate: run every input once, and the first one again at the end.

        The held-out input is run once before, unjudged: what a program keeps for good (a CUDA
        graph's outputs) exists then and can be poisoned.

        Args:
            step: Runs the candidate; may return buffers that its next call overwrites.

        Returns:
            Its accuracy, with the verdict under each policy.

        Raises:
            Rejected: It is wrong under the policy that decides, or broken in another way.
        """
        buffers, device = self._reference.buffers, torch.device(self._device)
        probe = Probe(step, self._model, buffers, device=device)
        try:
            return self._judge(probe)
        except Rejected as rejected:
            if rejected.kind in _OF_UNKNOWN_CAUSE:
                self._refuse_unwritten(probe)
            raise
        finally:
            self._reference.buffers.restore()

    def _judge(self, probe: Probe) -> Accuracy:
        slots, cases = self._reference.slots, self._reference.cases
        rows: list[tuple[Distance | None, ...]] = []
        others: list[tuple[float, ...]] = []
        scores: list[float] = []
        first: Results = ()
        probe.run(cases[-1].inputs, self._reference.form, NAN)
        for index, case in enumerate(cases):
            results = self._run(probe, case)
            rows.append(self._distances(case, results))
            others.append(distances_to_others(flat(results), slots, index, cases))
            if self._metric:
                scores.append(_score(self._metric[0], results, case))
            first = first or flat(results)
        summary = Summary(slots, cases, rows, others)
        refused = dict.fromkeys(self._policy_names, False)
        check_not_stale(slots, rows, others, self._with_verdicts(summary, refused))
        again = probe.run(cases[0].inputs, self._reference.form, FINITE)
        check_form(again, self._reference.form, slots, cases[0])
        check_repeats(first, flat(again), slots, cases[0], rows[0])
        return self._verdict(summary, scores)

    def _refuse_unwritten(self, probe: Probe) -> None:
        """Refuse as unwritten what a faulty candidate never wrote, though it did not show.

        Raises:
            Rejected: Of kind "unwritten".
        """
        slots, form, case = self._reference.slots, self._reference.form, self._reference.cases[0]
        try:
            first, again = (probe.run_poisoning(case.inputs, form, p) for p in (NAN, FINITE))
            for results in (first, again):
                check_form(results, form, slots, case)
        except Exception:  # it is refused in any case, for what it did before
            return
        check_written(flat(first), flat(again), slots)

    def _run(self, probe: Probe, case: Case) -> Outputs:
        """Run one input; refuse results of another form, or not finite where they should be."""
        form, slots = self._reference.form, self._reference.slots
        results = probe.run(case.inputs, form, NAN)
        check_form(results, form, slots, case)
        faulty = not_finite(flat(results), case)
        if faulty is not None:
            again = probe.run(case.inputs, form, FINITE)
            check_form(again, form, slots, case)
            is_finite_then = not_finite(flat(again), case) is None
            one, other = flat(results)[faulty], flat(again)[faulty]
            refuse_not_finite(slots[faulty], one, other, is_finite_then)
        return results

    def _distances(self, case: Case, results: Outputs) -> tuple[Distance | None, ...]:
        return tuple(
            None if tensor is None or target is None else target.distance(tensor)
            for tensor, target in zip(flat(results), case.targets, strict=True)
        )

    def _with_verdicts(self, summary: Summary, verdicts: dict[str, bool]) -> Accuracy:
        return replace(summary.accuracy, policies=verdicts, reference=self.reference)

    def _verdict(self, summary: Summary, scores: Sequence[float]) -> Accuracy:
        refusals = {p.name: summary.refusal(p) for p in self._policies}
        decides = self._policies[0].name if self._policies else METRIC
        if self._metric:
            least, decides = self._metric[1], METRIC
            worst = min(scores)
            refusals[METRIC] = (
                ""
                if worst >= least
                else f"metric {worst:.6g} is below {least:g} ({summary.worst_name()})"
            )
        verdicts = {name: not reason for name, reason in refusals.items()}
        accuracy = self._with_verdicts(summary, verdicts)
        if refusals[decides]:
            raise Rejected("wrong", refusals[decides], accuracy)
        return accuracy


def load_metric(name: str) -> Metric:
    """Import the user's metric, "package.module:function".

    Raises:
        InputError: There is no such function.
        ModelError: Its module cannot be imported.
    """
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise InputError(f"metric {name!r}: write it as package.module:function")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise InputError(f"metric {name!r} cannot be imported: {error}") from error
    except Exception as error:
        what = f"{type(error).__name__}: {headline(str(error))}"
        raise ModelError(f"metric {name!r}: its module raised {what}") from error
    if not callable(found):
        raise InputError(f"metric {name!r} is not a function")
    metric: Metric = found
    return metric


def _score(metric: Metric, results: Outputs, case: Case) -> float:
    references = tuple(
        t.tensor.to(r.device) for r, t in zip(results.tensors, case.targets, strict=False) if t
    )
    try:
        return float(metric(results.tensors, references))
    except Exception as error:
        what = f"{type(error).__name__}: {headline(str(error))}"
        raise InputError(f"the metric raised {what}") from error
