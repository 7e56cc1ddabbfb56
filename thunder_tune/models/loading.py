"""From a model source to a model that can be run."""

from __future__ import annotations

import torch
from torch import nn

from thunder_tune.errors import InputError
from thunder_tune.models import huggingface, user
from thunder_tune.models.catalogue import family_of
from thunder_tune.models.family import LoadedModel, ModelInfo
from thunder_tune.models.weights import RANDOM_WEIGHTS, disable_dropout, vary_constants
from thunder_tune.values.source import ModelSource


def load(source: ModelSource) -> LoadedModel:
    """Make a model: on its device, in its dtype and mode, the same weights for the same seed.

    In inference its parameters ask for no gradient and it is in evaluation mode; in training it
    keeps its parameters' wishes and is in training mode.

    Raises:
        NotFoundError: No such model, module or factory.
        InputError: The device is not there, or a factory cannot be called.
        ModelError: The user's factory raised, or returned no module.
        MissingDependency: An optional package is needed; the message names the extra.
    """
    if source.device == "cuda" and not torch.cuda.is_available():
        raise InputError("device 'cuda': PyTorch sees no CUDA device here: use --device cpu")
    user.search_first(source.search_path)  # the user's metric may lie there too
    if source.is_user_factory:
        made = user.make(source)
        notes = [*made.notes, *_conversions(made.model, source)]
    else:
        made = family_of(source.name).make(source)
        vary_constants(made.model, source.seed)
        notes = [*made.notes, RANDOM_WEIGHTS]
        if source.mode == "train" and disable_dropout(made.model):
            notes.append("dropout is off: a random output cannot be judged")
    _place(made.model, source)
    make_inputs = user.input_maker(source) if source.inputs else made.make_inputs
    return LoadedModel(made.model, make_inputs, tuple(notes))


def check_names(source: ModelSource) -> ModelInfo | None:
    """Check that a source names things that exist, without building the model.

    Returns:
        What is known of a built-in model, or None for the user's own.

    Raises:
        NotFoundError: No such model, module or factory.
        InputError: A reference is no factory, or the inputs are missing.
        ModelError: The user's module cannot be imported.
        MissingDependency: An optional package is needed; the message names the extra.
    """
    user.search_first(source.search_path)
    if source.is_user_factory:
        user.check(source)
        return None
    if source.inputs:
        user.input_maker(source)
    family = family_of(source.name)
    if family is huggingface:
        huggingface.import_transformers(source.name)
    return next(info for info in family.infos() if info.name == source.name)


def _conversions(model: nn.Module, source: ModelSource) -> list[str]:
    """Say which types of the user's parameters are about to be converted."""
    others = {
        str(p.dtype).removeprefix("torch.")
        for p in model.parameters()
        if p.is_floating_point() and p.dtype != getattr(torch, source.dtype)
    }
    if not others:
        return []
    return [f"parameters were converted from {', '.join(sorted(others))} to {source.dtype}"]


def _place(model: nn.Module, source: ModelSource) -> None:
    """Move and convert the model, and set its mode."""
    dtype = getattr(torch, source.dtype)
    model.to(source.device)
    if any(p.is_floating_point() and p.dtype != dtype for p in model.parameters()):
        # Only then: a model built in its dtype may hold buffers in float32 on purpose.
        model.to(dtype)
    if source.mode == "inference":
        model.eval().requires_grad_(False)
    else:
        model.train()
