"""Every classification model of torchvision, with random weights."""

from __future__ import annotations

from functools import cache

import torch
import torchvision

from thunder_tune.models.family import LoadedModel, ModelInfo
from thunder_tune.models.inputs import Inputs, scale_of
from thunder_tune.models.weights import calibrate_batch_norms, seeded
from thunder_tune.values.source import ModelSource

CALIBRATION_SIDE = 224
"""Largest side in pixels of the images that set batch norm statistics; larger ones add nothing."""


@cache
def _sides() -> dict[str, int]:
    """Return the side in pixels that each model's default weights are evaluated at."""
    sides = {}
    for name in torchvision.models.list_models(module=torchvision.models):
        transforms = torchvision.models.get_model_weights(name).DEFAULT.transforms()
        sides[name] = int(transforms.crop_size[0])
    return sides


def infos() -> tuple[ModelInfo, ...]:
    """List the classification models that the installed torchvision has."""
    return tuple(
        ModelInfo(name=name, family="torchvision", description=f"images 3x{side}x{side}")
        for name, side in _sides().items()
    )


def make(source: ModelSource) -> LoadedModel:
    """Build a model on the CPU in float32; its inputs are images of N(0, scale²)."""
    side = _sides()[source.name]
    # A ViT is built for one size, and 224 unless told; every other model takes its own.
    size = {"image_size": side} if source.name.startswith("vit_") else {}
    # Inception and GoogLeNet warn that their default initialisation is slow.
    slow = {"init_weights": True} if source.name in ("googlenet", "inception_v3") else {}
    with seeded(source.seed):
        model = torchvision.models.get_model(source.name, weights=None, **size, **slow)
        calibration_side = min(side, CALIBRATION_SIDE)
        calibrate_batch_norms(model, torch.randn(2, 3, calibration_side, calibration_side))
    shape = (source.batch_size, 3, side, side)
    dtype = getattr(torch, source.dtype)

    def make_inputs(seed: int) -> Inputs:
        generator = torch.Generator(source.device).manual_seed(seed)
        image = torch.randn(shape, generator=generator, device=source.device, dtype=dtype)
        return Inputs((image * scale_of(seed),))

    return LoadedModel(model, make_inputs)
