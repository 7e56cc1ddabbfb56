"""Apply a recipe to a user's model: what `thunder.compile(model, recipe=...)` is given."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
import torch.fx as fx
from thunder.core.transform_common import Transform

from thunder_tune.compiler.application import Application, AppliedGraph
from thunder_tune.compiler.backends import whole_program
from thunder_tune.compiler.building import runnable
from thunder_tune.compiler.dispatch import applied_share, compile_graph
from thunder_tune.compiler.instrumenting import transformed
from thunder_tune.compiler.matching import Match, match
from thunder_tune.compiler.releasing import WeightRelease
from thunder_tune.compiler.shapes import ByShape, nearest_first
from thunder_tune.errors import RecipeError
from thunder_tune.machine import current_fingerprint
from thunder_tune.program import signature_of
from thunder_tune.program.dynamo import capture_graph, lift_recompile_limits
from thunder_tune.program.frontend import Capture, CapturedGraph, Graph
from thunder_tune.program.jit import JitFrontEnd
from thunder_tune.program.replay import Unsupported
from thunder_tune.program.structure import analyse
from thunder_tune.values.plan import resolve
from thunder_tune.values.program import Program
from thunder_tune.values.recipe import Recipe
from thunder_tune.values.space import COMPOSED, PROGRAM


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
        release: WeightRelease | None = None,
    ) -> None:
        super().__init__()
        if isinstance(model, torch.nn.Module):
            for name in ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"):
                self.__dict__[name] = model.__dict__[name]
            self.training = model.training
        self.__dict__["_original"] = model
        self.__dict__["_run"] = run
        self.__dict__["tuning"] = application
        self.__dict__["_release"] = release
        if release is not None:
            release.watch(self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the model's
        """Run the model as the recipe says."""
        application, before = self.tuning, self.tuning.call
        application.call = (args, kwargs)
        application.turn += 1
        try:
            result = self._run(*args, **kwargs)
        finally:
            application.call = before
        application.tell()
        return result

    forward = __call__

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.__dict__["_original"], name)

    @property
    def released_bytes(self) -> int:
        """Device memory of weights that was given up, in bytes."""
        release = self.__dict__["_release"]
        return release.host_bytes if release is not None else 0

    def restore_weights(self) -> None:
        """Bring weights back whose memory was given up, to move, convert or train the model."""
        release = self.__dict__["_release"]
        if release is not None:
            release.restore()

    def train(self, mode: bool = True) -> TunedModel:
        """Switch the model to training or evaluation."""
        original = self.__dict__["_original"]
        if isinstance(original, torch.nn.Module):
            original.train(mode)
        self.training = mode
        return self


class _GraphTuner:
    """Compiles captured graphs by a recipe and reports what applied."""

    def __init__(
        self,
        recipe: Recipe,
        *,
        strict: bool,
        application: Application,
        transforms: Sequence[Transform] = (),
        release: WeightRelease | None = None,
    ) -> None:
        self._recipe = recipe
        self._release = release
        self._strict = strict
        self._application = application
        self._transforms = transforms

    def tune(self, captured: CapturedGraph, inputs: Sequence[Any], *, training: bool) -> None:
        """Bind a captured graph to what the recipe says of it.

        Args:
            captured: The graph.
            inputs: Of the graph, or of the model.
            training: Whether gradients are asked for.
        """
        front_end: Literal["dynamo", "thunder.jit"] = (
            "thunder.jit" if self._recipe.front_end == "thunder.jit" else "dynamo"
        )
        program = analyse([captured.trace], front_end=front_end, training=training)
        signature = self._application.signature(inputs)
        found = self._best_match(program, signature, _device_of(inputs))
        plan = resolve(program, {**found.assignment, PROGRAM: COMPOSED})
        compiled = compile_graph(captured, plan, range(len(program.ops)), training=training)
        share = applied_share(program, plan, compiled.places)
        if share < 1.0:
            self.differs(f"{share:.0%} of a graph's ops run where the recipe says")
        compiled = transformed(compiled, self._transforms, training=training)
        captured.bound = runnable(compiled, plan, captured.static_inputs)
        if self._release is not None and not training:
            static = captured.static_inputs
            captured.bound = self._release.around(captured.bound, compiled, static)
        captured.calls = 0
        self._application.add(
            AppliedGraph(
                graph=captured,
                signature=signature,
                ops=len(program.ops),
                share=share * (found.exact + found.carried),
            )
        )

    def _best_match(self, program: Program, signature: str, device: str) -> Match:
        parts = [part for part in self._recipe.by_shape if part.kind == "composed"]
        plans = nearest_first([part.plans[0] for part in parts], signature)
        plan, found = max(
            ((p, match(p, program, device)) for p in plans),
            key=lambda pair: (pair[1].exact, pair[1].carried),
        )
        self._application.note_other_inputs(signature, plan.signature)
        if found.missing:
            self.differs(f"missing here: {'; '.join(found.missing)}")
        if found.exact < 1.0:
            self.differs(
                f"{found.exact:.0%} of the ops are as tuned, {found.carried:.0%} carried from "
                f"another shape, for {signature}"
            )
        return found

    def differs(self, what: str) -> None:
        """Note what does not apply.

        Raises:
            RecipeError: Strict.
        """
        self._application.note(what)
        if self._strict:
            raise self._application.refusal()


class TunedBackend:
    """A `torch.compile` back end that compiles each of Dynamo's graphs by a recipe.

    Args:
        recipe: The recipe.
        strict: Raise `RecipeError` where the recipe does not fit exactly.
        application: Where to report what was applied.
        transforms: As in `TunedRecipe`.
        release: Gives up the memory of weights that are read in packed form only; or None.
    """

    def __init__(
        self,
        recipe: Recipe,
        *,
        strict: bool,
        application: Application,
        transforms: Sequence[Transform] = (),
        release: WeightRelease | None = None,
    ) -> None:
        self._tuner = _GraphTuner(
            recipe,
            strict=strict,
            application=application,
            transforms=transforms,
            release=release,
        )
        self._application = application

    def __call__(self, graph: fx.GraphModule, inputs: Sequence[Any]) -> Graph:
        """Compile one graph; one that cannot be captured runs by Inductor, and says so."""
        try:
            captured = capture_graph(graph, inputs)
        except Unsupported as error:
            self._tuner.differs(f"a graph cannot be captured: {error}; it runs by Inductor")
            self._application.fallbacks[self._application.signature(inputs)] += 1
            compiled: Graph = torch._dynamo.lookup_backend("inductor")(graph, list(inputs))
            return compiled
        self._tuner.tune(captured, _variable(inputs), training=_wants_gradients(inputs))
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
                self._tuner.tune(graph, inputs, training=training)
            self._captures[key] = found
        return self._captures[key].entry(*args, **kwargs)


class _ComposedRun:
    """Runs a model by a composed recipe: each input shape is a compilation of its own."""

    def __init__(
        self,
        model: Callable[..., Any],
        recipe: Recipe,
        *,
        strict: bool,
        application: Application,
        transforms: Sequence[Transform],
        release: WeightRelease | None,
    ) -> None:
        self._application = application
        self._run: Callable[..., Any]
        how: Any = {
            "strict": strict,
            "application": application,
            "transforms": transforms,
            "release": release,
        }
        if recipe.front_end == "thunder.jit":
            self._run = _JitRun(model, _GraphTuner(recipe, **how))
        else:
            backend = TunedBackend(recipe, **how)
            self._run = torch.compile(model, backend=backend, dynamic=False)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the model's
        before = self._application.calls
        try:
            result = self._run(*args, **kwargs)
        except torch._dynamo.exc.BackendCompilerFailed as error:
            if isinstance(error.inner_exception, RecipeError):
                raise error.inner_exception from None
            raise
        if self._application.calls == before:
            self._application.ran_eagerly()
        return result


def _wants_gradients(inputs: Sequence[Any]) -> bool:
    return torch.is_grad_enabled() and any(
        isinstance(x, torch.Tensor) and x.requires_grad for x in inputs
    )


def _variable(inputs: Sequence[Any]) -> list[Any]:
    """Return what a graph of Dynamo's is called with anew each time: no parameters, no buffers."""
    return [x for x in inputs if getattr(x, "_dynamo_static_input_type", None) is None]


def _device_of(inputs: Sequence[Any]) -> str:
    return next((x.device.type for x in inputs if isinstance(x, torch.Tensor)), "cpu")


def apply_recipe(
    recipe: Recipe,
    model: Callable[..., Any],
    *,
    strict: bool = False,
    transforms: Sequence[Transform] = (),
    release_weights: bool = False,
) -> TunedModel:
    """Return the model as a recipe runs it; compiling happens at the first call.

    Args:
        recipe: The recipe.
        model: Module or function.
        strict: Raise `RecipeError` where machine, program or executors differ.
        transforms: As in `TunedRecipe`.
        release_weights: As in `TunedRecipe`.

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
    lift_recompile_limits()
    parts = recipe.by_shape
    # One shape's whole-program back end may meet others: torch.compile then makes them dynamic.
    dynamic = None if len(parts) == 1 else False

    release = None
    if release_weights and isinstance(model, torch.nn.Module):
        release = WeightRelease(model)

    def make_run(part: Recipe) -> Callable[..., Any]:
        if part.kind == "whole-program":
            return whole_program(model, part.plans[0].assignment[PROGRAM], dynamic=dynamic)
        return _ComposedRun(
            model,
            part,
            strict=strict,
            application=application,
            transforms=transforms,
            release=release,
        )

    if len(parts) == 1 and recipe.kind == "composed":
        run = make_run(recipe)
    else:
        run = ByShape(recipe, make_run, application, strict=strict)
    return TunedModel(model, run, application, release)


class TunedRecipe:
    """A recipe in the form that `thunder.compile(model, recipe=...)` takes.

    Attributes:
        recipe: The recipe as data.
        strict: Whether to raise where it does not fit exactly.
        transforms: Applied to the executable traces: Thunder's `NvtxProfileTransform`,
            `DebugTransform`, or others with a `transform_trace_post_optimization`. Of no effect on
            whole-program back ends and where a CUDA graph is replayed.
        release_weights: Whether weights that are read in packed form only give up their memory on
            the device after the first call: they are kept on the host. `state_dict` and
            `load_state_dict` go on as before; called in another way than by the recipe, the model
            gives NaN until `restore_weights`.
    """

    def __init__(
        self,
        recipe: Recipe,
        *,
        strict: bool = False,
        transforms: Sequence[Transform] = (),
        release_weights: bool = False,
    ) -> None:
        self.recipe = recipe
        self.strict = strict
        self.transforms = transforms
        self.release_weights = release_weights

    def apply(self, model: Callable[..., Any]) -> TunedModel:
        """Return the model as the recipe runs it."""
        return apply_recipe(
            self.recipe,
            model,
            strict=self.strict,
            transforms=self.transforms,
            release_weights=self.release_weights,
        )

    def add_plugins(self, plugins: Sequence[Any]) -> None:
        """Refuse plugins: a recipe is a whole program, decided.

        Raises:
            RecipeError: Any plugin is given.
        """
        if plugins:
            names = ", ".join(type(p).__name__ for p in plugins)
            raise RecipeError(f"plugins beside a tuned recipe: {names}: leave them out")
