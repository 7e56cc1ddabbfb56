"""The user's own model: factories named as "package.module:factory"."""

from __future__ import annotations

import difflib
import importlib
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from thunder_tune.errors import InputError, ModelError, NotFoundError, headline
from thunder_tune.models.family import LoadedModel
from thunder_tune.models.inputs import Inputs
from thunder_tune.models.weights import seeded
from thunder_tune.values.source import ModelSource

Factory = Callable[..., Any]


def search_first(folders: Sequence[str]) -> None:
    """Let imports look into the folders of the user's own code before any other."""
    for folder in reversed(folders):
        if folder not in sys.path:
            sys.path.insert(0, folder)


def check(source: ModelSource) -> Factory:
    """Import both factories and return the model's, without calling either.

    Raises:
        InputError: A reference names nothing, or no input factory is given.
        ModelError: The module cannot be imported.
    """
    if source.inputs is None:
        raise InputError(
            f"model {source.name!r} needs --inputs package.module:make_inputs, "
            "a function that returns the arguments of one call"
        )
    factory = _find(source.name, source.search_path)
    _find(source.inputs, source.search_path)
    return factory


def make(source: ModelSource) -> LoadedModel:
    """Call the user's factory; default-device tensors land on the source's device.

    Raises:
        InputError: As in `check`.
        ModelError: The factory raised, or returned no module.
    """
    factory = check(source)
    with seeded(source.seed), torch.device(source.device):
        model = _call(factory, source.name, _options(source, source.seed))
    if not isinstance(model, nn.Module):
        raise ModelError(
            f"model {source.name!r}: the factory returned {type(model).__name__}, "
            "it must return a torch.nn.Module"
        )
    return LoadedModel(model, input_maker(source))


def input_maker(source: ModelSource) -> Callable[[int], Inputs]:
    """Return the function that makes the user's inputs for a seed.

    Floating-point tensors are converted to the source's dtype, as the model's parameters are;
    none is moved.

    Raises:
        InputError: The reference names nothing.
    """
    reference = source.inputs or ""
    factory = _find(reference, source.search_path)
    dtype = getattr(torch, source.dtype)

    def make_inputs(seed: int) -> Inputs:
        with seeded(seed), torch.device(source.device):
            value = _call(factory, reference, _options(source, seed))
        inputs = _as_inputs(value, reference)
        _check_device(inputs, source.device, reference)
        return inputs.map(lambda t: t.to(dtype) if t.is_floating_point() else t)

    return make_inputs


def _options(source: ModelSource, seed: int) -> dict[str, Any]:
    """Return what a factory may ask for by naming a parameter."""
    return {
        "batch_size": source.batch_size,
        "seq_len": source.seq_len,
        "seed": seed,
        "device": torch.device(source.device),
        "dtype": getattr(torch, source.dtype),
    }


def _find(reference: str, search_path: tuple[str, ...]) -> Factory:
    """Import what "package.module:name" refers to."""
    module_name, _, attribute = reference.partition(":")
    if not module_name or not attribute:
        raise InputError(f"{reference!r} is no factory: write package.module:factory")
    search_first(search_path)
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and f"{module_name}.".startswith(f"{error.name}."):
            raise NotFoundError(
                f"{reference!r}: there is no module {error.name!r} in "
                f"{', '.join(search_path) or 'the current folder'} or among the installed ones"
            ) from error
        raise ModelError(_explain(reference, error)) from error
    except (Exception, SystemExit) as error:
        raise ModelError(_explain(reference, error)) from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            close = difflib.get_close_matches(part, dir(found), n=3)
            hint = f": did you mean {', '.join(close)}?" if close else ""
            raise NotFoundError(f"{reference!r}: {module_name} has no {part!r}{hint}")
        found = getattr(found, part)
    if isinstance(found, nn.Module) or not callable(found):
        raise InputError(
            f"{reference!r} is a {type(found).__name__}: name a function that returns a new one"
        )
    factory: Factory = found
    return factory


def _call(factory: Factory, reference: str, options: Mapping[str, Any]) -> object:
    """Call a factory with those options that it has parameters for."""
    try:
        parameters = inspect.signature(factory).parameters
    except (TypeError, ValueError):  # some builtins have no signature
        parameters = inspect.Signature().parameters
    chosen = {name: options[name] for name in parameters if name in options}
    for name, parameter in parameters.items():
        optional = parameter.default is not parameter.empty or parameter.kind in (
            parameter.VAR_POSITIONAL,
            parameter.VAR_KEYWORD,
        )
        if name not in chosen and not optional:
            raise InputError(
                f"{reference!r} needs an argument {name!r}: give it a default; the arguments that "
                f"are filled in are {', '.join(options)}"
            )
    try:
        result: object = factory(**chosen)
    except (Exception, SystemExit) as error:
        raise ModelError(_explain(reference, error)) from error
    return result


def _explain(reference: str, error: BaseException) -> str:
    """Say in one line what was raised and where in the user's code."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [
        f
        for f in frames
        if f.filename != __file__
        and "site-packages" not in f.filename
        and not f.filename.startswith(("<frozen", sys.base_prefix))
    ]
    place = (own or list(frames))[-1]
    where = f"{place.filename}:{place.lineno}"
    if isinstance(error, SyntaxError) and error.filename:
        where = f"{error.filename}:{error.lineno}"
    return f"{reference!r} raised {type(error).__name__}: {headline(str(error))} ({where})"


def _as_inputs(value: object, reference: str) -> Inputs:
    """Read a tensor, a tuple, a dict of keywords, or (args, kwargs)."""
    if isinstance(value, torch.Tensor):
        inputs = Inputs((value,))
    elif isinstance(value, Mapping):
        inputs = Inputs((), dict(value))
    elif isinstance(value, (tuple, list)):
        last_two = len(value) == 2 and isinstance(value[0], (tuple, list))
        if last_two and isinstance(value[1], Mapping):
            inputs = Inputs(tuple(value[0]), dict(value[1]))
        else:
            inputs = Inputs(tuple(value))
    else:
        inputs = Inputs()
    if not inputs.tensors():
        raise ModelError(
            f"{reference!r} returned {type(value).__name__} without a tensor: return a tensor, "
            "a tuple, a dict of keyword arguments, or (args, kwargs)"
        )
    return inputs


def _check_device(inputs: Inputs, device: str, reference: str) -> None:
    """Refuse inputs that lie elsewhere: to move them would hide a copy that every call pays."""
    wrong = next((t.device for t in inputs.tensors() if t.device.type != device), None)
    if wrong is not None:
        raise ModelError(
            f"{reference!r} made inputs on {wrong}, the model is on {device}: create them without "
            "a device or on the one given as the parameter `device`"
        )
