"""Apply a recipe to a user's model: what `thunder.compile(model, recipe=...)` is given."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
import torch.fx as fx
from thunder.core.transform_common import Transform

from thunder_tune.compiler.backends import whole_program
from thunder_tune.compiler.building import runnable
from thunder_tune.compiler.dispatch import applied_share, compile_graph
from thunder_tune.compiler.instrumenting import transformed
from thunder_tune.compiler.matching import Match, match
from thunder_tune.errors import RecipeError
from thunder_tune.machine import current_fingerprint
from thunder_tune.program import signature_of
from thunder_tune.program.dynamo import capture_graph
from thunder_tune.program.frontend import Capture, CapturedGraph, Graph
from thunder_tune.program.jit import JitFrontEnd
from thunder_tune.program.replay import Unsupported
from thunder_tune.program.structure import analyse
from thunder_tune.values.plan import resolve
from thunder_tune.values.recipe import Recipe
from thunder_tune.values.space import COMPOSED, CUDA_GRAPHS, PROGRAM


@dataclass(eq=False, repr=False)
class Application:
    """How a recipe was applied to a model, so far.

    Attributes:
        recipe: The recipe.
        shares: Of each compiled graph: ops, and the share of them that run as the recipe says.
        notes: What did not apply, and why.
        graphs: The compiled graphs; their `calls` count.
        fallbacks: Graphs that could not be captured and run by Inductor.
        eager_calls: Calls that ran no graph of the recipe at all.
    """

    recipe: Recipe
    shares: list[tuple[int, float]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    graphs: list[CapturedGraph] = field(default_factory=list)
    fallbacks: int = 0
    eager_calls: int = 0
    _told: int = 0

    def __repr__(self) -> str:
        notes = "".join(f"; {note}" for note in self.notes)
        return f"<recipe {self.recipe.digest}, applied to {self.applied:.0%}{notes}>"

    def note(self, what: str) -> None:
        """Note what does not apply; `tell` warns of it."""
        if what not in self.notes:
            self.notes.append(what)

    def tell(self) -> None:
        """Warn of what was noted since the last time, all in one warning."""
        new, self._told = self.notes[self._told :], len(self.notes)
        if new:
            text = f"recipe {self.recipe.digest} for {self.recipe.model}: {'; '.join(new)}"
            warnings.warn(text, stacklevel=3)

    @property
    def calls(self) -> int:
        """Times that a graph of the recipe ran."""
        return sum(graph.calls for graph in self.graphs)

    def ran_eagerly(self) -> None:
        """Note that a call was led past every graph of the recipe."""
        self.eager_calls += 1
        self.note(
            "a call ran outside the recipe: Dynamo gave its frames up (TORCH_LOGS=recompiles)"
        )

    @property
    def applied(self) -> float:
        """Share of ops that run where the recipe says; 0 before the first call."""
        if self.recipe.kind == "whole-program":
            return 1.0
        ran = [s for s, g in zip(self.shares, self.graphs, strict=True) if g.calls]
        total = sum(count for count, _ in ran)
        share = sum(count * part for count, part in ran) / total if total else 0.0
        share *= len(self.graphs) / (len(self.graphs) + self.fallbacks) if self.graphs else 1.0
        return 0.0 if self.eager_calls else share


class TunedModel(torch.nn.Module):
    """A model as a recipe runs it: same parameters, same names, same attributes.

    It shares the original's parameters, buffers and submodules, so `state_dict`, `to`, `train` and
    optimizers act on both.

    Attributes:
        tuning: How the recipe was applied (`tuning.applied`, `tuning.notes`).
    """

    def __init__(
        self,
        model: Any,  # noqa: ANN401 - a module or a function
        run: Callable[..., Any],
        application: Application,
        *,
        strict: bool = False,
    ) -> None:
        super().__init__()
        if isinstance(model, torch.nn.Module):
            for name in ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"):
                self.__dict__[name] = model.__dict__[name]
            self.training = model.training
        self.__dict__["_original"] = model
        self.__dict__["_run"] = run
        self.__dict__["_strict"] = strict
        self.__dict__["_was_called"] = False
        self.__dict__["tuning"] = application

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the model's
        """Run the model as the recipe says."""
        application = self.tuning
        if not self._was_called:
            _compare(application, signature_of(args, kwargs), strict=self._strict)
            self.__dict__["_was_called"] = True
        before = application.calls
        try:
            result = self._run(*args, **kwargs)
        except torch._dynamo.exc.BackendCompilerFailed as error:
            if isinstance(error.inner_exception, RecipeError):
                raise error.inner_exception from None
            raise
        if application.calls == before and application.recipe.kind == "composed":
            application.ran_eagerly()
        application.tell()
        return result

    forward = __call__

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.__dict__["_original"], name)

    def train(self, mode: bool = True) -> TunedModel:
        """Switch the model to training or evaluation."""
        original = self.__dict__["_original"]
        if isinstance(original, torch.nn.Module):
            original.train(mode)
        self.training = mode
        return self


def _compare(application: Application, signature: str, *, strict: bool) -> None:
    """Note that a recipe was tuned for other inputs; strict: refuse where nothing else would."""
    recipe = application.recipe
    tuned_for = [plan.signature for plan in recipe.plans]
    if signature in tuned_for:
        return
    what = f"was tuned for {tuned_for[0]}, called with {signature}"
    if strict and recipe.kind == "whole-program":
        raise RecipeError(f"recipe {recipe.digest} for {recipe.model}: {what} (strict)")
    application.note(what)


class _GraphTuner:
    """Compiles captured graphs by a recipe and reports what applied."""

    def __init__(
        self,
        recipe: Recipe,
        *,
        strict: bool,
        application: Application,
        transforms: Sequence[Transform] = (),
    ) -> None:
        self._recipe = recipe
        self._strict = strict
        self._application = application
        self._transforms = transforms

    def tune(self, captured: CapturedGraph, *, training: bool, device: str) -> None:
        """Bind a captured graph to what the recipe says of it."""
        front_end: Literal["dynamo", "thunder.jit"] = (
            "thunder.jit" if self._recipe.front_end == "thunder.jit" else "dynamo"
        )
        program = analyse([captured.trace], front_end=front_end, training=training)
        found = self._best_match([match(p, program, device) for p in self._recipe.plans])
        assignment = dict(found.assignment)
        if training and assignment.get(CUDA_GRAPHS) == "whole":
            self.differs("CUDA graphs are for inference: off in training")
            assignment[CUDA_GRAPHS] = "none"
        plan = resolve(program, {**assignment, PROGRAM: COMPOSED})
        compiled = compile_graph(captured, plan, range(len(program.ops)), training=training)
        share = applied_share(program, plan, compiled.places)
        if share < 1.0:
            self.differs(f"{share:.0%} of a graph's ops run where the recipe says")
        compiled = transformed(compiled, self._transforms, training=training)
        captured.bound = runnable(compiled, plan, captured.static_inputs)
        captured.calls = 0
        self._application.graphs.append(captured)
        self._application.shares.append((len(program.ops), share * (found.exact + found.carried)))

    def _best_match(self, matches: Sequence[Match]) -> Match:
        found = max(matches, key=lambda m: (m.exact, m.carried))
        if found.missing:
            self.differs(f"missing here: {'; '.join(found.missing)}")
        if found.exact < 1.0:
            self.differs(
                f"{found.exact:.0%} of the ops are as tuned, {found.carried:.0%} carried from "
                "another shape"
            )
        return found

    def differs(self, what: str) -> None:
        """Note what does not apply.

        Raises:
            RecipeError: Strict.
        """
        if self._strict:
            recipe = self._recipe
            raise RecipeError(f"recipe {recipe.digest} for {recipe.model}: {what} (strict)")
        self._application.note(what)


class TunedBackend:
    """A `torch.compile` back end that compiles each of Dynamo's graphs by a recipe.

    Args:
        recipe: The recipe.
        strict: Raise `RecipeError` where the recipe does not fit exactly.
        application: Where to report what was applied.
        transforms: As in `TunedRecipe`.
    """

    def __init__(
        self,
        recipe: Recipe,
        *,
        strict: bool,
        application: Application,
        transforms: Sequence[Transform] = (),
    ) -> None:
        self._tuner = _GraphTuner(
            recipe, strict=strict, application=application, transforms=transforms
        )
        self._application = application

    def __call__(self, graph: fx.GraphModule, inputs: Sequence[Any]) -> Graph:
        """Compile one graph; one that cannot be captured runs by Inductor, and says so."""
        try:
            captured = capture_graph(graph, inputs)
        except Unsupported as error:
            self._tuner.differs(f"a graph cannot be captured: {error}; it runs by Inductor")
            self._application.fallbacks += 1
            compiled: Graph = torch._dynamo.lookup_backend("inductor")(graph, list(inputs))
            return compiled
        self._tuner.tune(captured, training=_wants_gradients(inputs), device=_device_of(inputs))
        return captured


class _JitRun:
    """Runs a model that Dynamo cannot capture: one capture for each way it is called."""

    def __init__(self, model: Callable[..., Any], tuner: _GraphTuner) -> None:
        self._tuner = tuner
        self._model = model
        self._captures: dict[tuple[str, bool], Capture] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the model's
        inputs = torch.utils._pytree.tree_leaves((args, kwargs))
        if torch.is_autocast_enabled(_device_of(inputs)):
            self._tuner.differs("autocast is on, which a recipe by thunder.jit does not know")
            return self._model(*args, **kwargs)
        key = (signature_of(args, kwargs), torch.is_grad_enabled())
        if key not in self._captures:
            parameters = (
                list(self._model.parameters()) if isinstance(self._model, torch.nn.Module) else []
            )
            training = _wants_gradients([*inputs, *parameters])
            found = JitFrontEnd().capture(self._model, args, kwargs, training=training)
            for graph in found.graphs:
                self._tuner.tune(graph, training=training, device=_device_of(inputs))
            self._captures[key] = found
        return self._captures[key].entry(*args, **kwargs)


def _wants_gradients(inputs: Sequence[Any]) -> bool:
    return torch.is_grad_enabled() and any(
        isinstance(x, torch.Tensor) and x.requires_grad for x in inputs
    )


def _device_of(inputs: Sequence[Any]) -> str:
    return next((x.device.type for x in inputs if isinstance(x, torch.Tensor)), "cpu")


def apply_recipe(
    recipe: Recipe,
    model: Callable[..., Any],
    *,
    strict: bool = False,
    transforms: Sequence[Transform] = (),
) -> TunedModel:
    """Return the model as a recipe runs it; compiling happens at the first call.

    Args:
        recipe: The recipe.
        model: Module or function.
        strict: Raise `RecipeError` where machine, program or executors differ.
        transforms: As in `TunedRecipe`.

    Raises:
        RecipeError: Strict, and this machine is of another kind than the recipe's.
    """
    application = Application(recipe=recipe)
    here = current_fingerprint(recipe.source.device if torch.cuda.is_available() else "cpu")
    if here.loose_key != recipe.fingerprint.loose_key:
        difference = "; ".join(here.differences(recipe.fingerprint)[:4])
        text = f"recipe {recipe.digest} for {recipe.model} was tuned elsewhere: {difference}"
        if strict:
            raise RecipeError(f"{text} (strict)")
        application.notes.append(f"tuned elsewhere: {difference}")
        warnings.warn(text, stacklevel=2)
    if recipe.kind == "whole-program":
        run = whole_program(model, recipe.plans[0].assignment[PROGRAM])
    elif recipe.front_end == "thunder.jit":
        tuner = _GraphTuner(recipe, strict=strict, application=application, transforms=transforms)
        run = _JitRun(model, tuner)
    else:
        # Each input shape is a compilation of its own. Dynamo would give the model up after eight,
        # and run it eagerly without a word.
        limits = torch._dynamo.config
        limits.recompile_limit = max(limits.recompile_limit, 64)
        limits.accumulated_recompile_limit = max(limits.accumulated_recompile_limit, 1024)
        backend = TunedBackend(
            recipe, strict=strict, application=application, transforms=transforms
        )
        run = torch.compile(model, backend=backend, dynamic=False)
    return TunedModel(model, run, application, strict=strict)


class TunedRecipe:
    """A recipe in the form that `thunder.compile(model, recipe=...)` takes.

    Attributes:
        recipe: The recipe as data.
        strict: Whether to raise where it does not fit exactly.
        transforms: Applied to the executable traces: Thunder's `NvtxProfileTransform`,
            `DebugTransform`, or others with a `transform_trace_post_optimization`. Of no effect on
            whole-program back ends and where a CUDA graph is replayed.
    """

    def __init__(
        self, recipe: Recipe, *, strict: bool = False, transforms: Sequence[Transform] = ()
    ) -> None:
        self.recipe = recipe
        self.strict = strict
        self.transforms = transforms

    def apply(self, model: Callable[..., Any]) -> TunedModel:
        """Return the model as the recipe runs it."""
        return apply_recipe(self.recipe, model, strict=self.strict, transforms=self.transforms)

    def add_plugins(self, plugins: Sequence[Any]) -> None:
        """Refuse plugins: a recipe is a whole program, decided.

        Raises:
            RecipeError: Any plugin is given.
        """
        if plugins:
            names = ", ".join(type(p).__name__ for p in plugins)
            raise RecipeError(f"plugins beside a tuned recipe: {names}: leave them out")
