"""The Python entry points: load a recipe, look one up, tune a model, use one by name.

Importing this module makes `thunder.compile(model, recipe="tuned")` known to Thunder, and the back
end "thunder_tune" to torch.compile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import thunder.recipes
import torch
from thunder.core.transform_common import Transform

from thunder_tune.compiler.application import Application
from thunder_tune.compiler.tuned import TunedBackend, TunedModel, TunedRecipe, apply_recipe
from thunder_tune.errors import NotFoundError, RecipeError
from thunder_tune.machine import current_fingerprint
from thunder_tune.program import model_key, signature_of
from thunder_tune.recipes import read_recipe
from thunder_tune.values.shapes import studies_by_shape
from thunder_tune.values.space import PROGRAM

if TYPE_CHECKING:
    from thunder_tune.storage import Database
    from thunder_tune.values.recipe import Recipe

__all__ = [
    "LookedUpRecipe",
    "TunedModel",
    "TunedRecipe",
    "best_recipe",
    "load_recipe",
    "torch_backend",
]


def load_recipe(
    path: str | Path,
    *,
    strict: bool = False,
    transforms: Sequence[Transform] = (),
    release_weights: bool = False,
) -> TunedRecipe:
    """Load a recipe file for `thunder.compile(model, recipe=...)`.

    Args:
        path: File written by `thunder-tune run` or `thunder-tune export`.
        strict: Raise where the recipe does not fit model, machine or executors exactly, instead of
            applying what matches with one warning.
        transforms: Thunder's, for the executable traces: `[NvtxProfileTransform()]` of
            `thunder.dev_utils` makes every region and op an NVTX range.
        release_weights: Give up the device memory of weights that are read in packed form only;
            see `TunedRecipe`.

    Raises:
        RecipeError: The file is missing, damaged or of an unknown version.
    """
    return TunedRecipe(
        read_recipe(Path(path)),
        strict=strict,
        transforms=transforms,
        release_weights=release_weights,
    )


def best_recipe(
    model: Callable[..., Any],
    inputs: torch.Tensor | Sequence[Any] | Mapping[str, Any],
    *,
    study: str | None = None,
    storage: str | None = None,
    strict: bool = False,
    release_weights: bool = False,
) -> TunedRecipe:
    """Find the newest recipe of a model in the database.

    Args:
        model: The model that is to be compiled.
        inputs: Of one call: a tensor, a tuple of positional arguments, a mapping of keyword
            arguments, or (args, kwargs); only metadata is read.
        study: Look in this study alone, or in this run over several shapes.
        storage: Database; default `THUNDER_TUNE_STORAGE`, else the user's data folder.
        strict: As in `load_recipe`.
        release_weights: As in `load_recipe`.

    Raises:
        NotFoundError: No recipe fits; the message says what was looked for.
    """
    args, kwargs = _arguments(inputs)
    found = _look_up(model, args, kwargs, study=study, storage=storage)
    return TunedRecipe(found, strict=strict, release_weights=release_weights)


def _arguments(
    inputs: torch.Tensor | Sequence[Any] | Mapping[str, Any],
) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """Read the inputs of a call in the forms that an input factory may return too."""
    if isinstance(inputs, torch.Tensor):
        return (inputs,), {}
    if isinstance(inputs, Mapping):
        return (), inputs
    if (
        len(inputs) == 2
        and isinstance(inputs[0], (tuple, list))
        and isinstance(inputs[1], Mapping)
    ):
        return tuple(inputs[0]), inputs[1]
    return tuple(inputs), {}


def _look_up(
    model: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    study: str | None = None,
    storage: str | None = None,
) -> Recipe:
    from thunder_tune.storage import Database

    signature = signature_of(args, kwargs)
    key = model_key(model, signature)
    database = Database.open(storage)
    try:
        found = database.find_recipes(model_key=key)
        if study is not None:
            names = [summary.name for summary in database.studies()]
            studies = (study,) if study in names else studies_by_shape(study, names) or (study,)
            of_study = {r.digest for name in studies for r in database.recipes(name)}
            found = [r for r in found if r.digest in of_study]
        others = [] if found else _other_inputs(model, signature, database)
    finally:
        database.close()
    here = current_fingerprint("cuda" if _on_cuda(args, kwargs) else "cpu").loose_key
    fitting = [r for r in found if r.fingerprint.loose_key == here] or found
    if not fitting:
        name = type(model).__name__
        where = f" in study {study!r}" if study else ""
        advice = "tune it with 'thunder-tune run --model ...' or set THUNDER_TUNE_STORAGE"
        if others:
            known = " and ".join(others[:3])
            advice = f"there is one for {known}: load_recipe its file, which applies what matches"
        raise NotFoundError(f"no recipe for {name} on inputs {signature}{where}: {advice}")
    return fitting[0]


def _other_inputs(model: Callable[..., Any], signature: str, database: Database) -> list[str]:
    """Return the inputs, other than those asked for, that there is a recipe of the model for."""
    stored = dict.fromkeys(plan.signature for r in database.recipes() for plan in r.plans)
    others = (s for s in stored if s != signature)
    return [s for s in others if database.find_recipes(model_key=model_key(model, s))]


def _on_cuda(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    return any(getattr(x, "is_cuda", False) for x in (*args, *kwargs.values()))


class LookedUpRecipe:
    """The recipe "tuned": looked up in the database at the model's first call."""

    def apply(self, model: Callable[..., Any]) -> Callable[..., Any]:
        """Return the model; its first call finds the recipe and compiles."""

        class Deferred(TunedModel):
            def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
                if self.__dict__["_run"] is None:
                    tuned = apply_recipe(_look_up(model, args, kwargs), model)
                    self.__dict__["_run"] = tuned
                    self.__dict__["tuning"] = tuned.tuning
                return self.__dict__["_run"](*args, **kwargs)

            forward = __call__

        return Deferred(model, None, None)  # type: ignore[arg-type]

    def add_plugins(self, plugins: Sequence[Any]) -> None:
        """Refuse plugins, as `TunedRecipe` does."""
        TunedRecipe.add_plugins(self, plugins)  # type: ignore[arg-type]


def torch_backend(
    graph: Any,  # noqa: ANN401 - torch.fx.GraphModule
    inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compile by a recipe: `torch.compile(model, backend="thunder_tune", options={...})`.

    Args:
        graph: Dynamo's graph.
        inputs: Its example inputs.
        options: "recipe": path, `TunedRecipe` or `Recipe`; "strict": bool.

    Raises:
        RecipeError: No recipe is given, it cannot be read, or it names a back end for the whole
            program alone.
    """
    given = (options or {}).get("recipe")
    strict = bool((options or {}).get("strict", False))
    if given is None:
        raise RecipeError('backend "thunder_tune" needs options={"recipe": path}: none was given')
    if isinstance(given, (str, Path)):
        recipe = read_recipe(Path(given))
    else:
        recipe = given.recipe if isinstance(given, TunedRecipe) else given
    if all(part.kind == "whole-program" for part in recipe.by_shape):
        back_end = recipe.plans[0].assignment[PROGRAM]
        raise RecipeError(
            f"recipe {recipe.digest} is {back_end} for the whole program, nothing for each graph: "
            "apply it by thunder.compile(model, recipe=...)"
        )
    application = Application(recipe=recipe)
    compiled = TunedBackend(recipe, strict=strict, application=application)(graph, inputs)
    application.tell()
    return compiled


thunder.recipes.register_recipe("tuned", LookedUpRecipe)
if "thunder_tune" not in torch._dynamo.list_backends():  # an installation has an entry point
    torch._dynamo.register_backend(torch_backend, name="thunder_tune")
