"""Classification families of torchvision, cut to a few narrow layers and small images."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torchvision.models as zoo
from torch import nn
from torchvision.models.convnext import CNBlockConfig
from torchvision.models.efficientnet import FusedMBConvConfig, MBConvConfig
from torchvision.models.mobilenetv3 import InvertedResidualConfig
from torchvision.models.regnet import BlockParams
from torchvision.models.resnet import BasicBlock, Bottleneck
from torchvision.models.swin_transformer import PatchMergingV2, SwinTransformerBlockV2

from thunder_tune.testing.covered import Covered, floats, positional

CLASSES = 7


def _vit() -> Any:  # noqa: ANN401 - torchvision has no types
    model = zoo.VisionTransformer(32, 8, 2, 2, 32, 48, num_classes=CLASSES)
    nn.init.normal_(model.heads.head.weight, 0.0, 0.02)  # torchvision starts it at zero
    return model


def _convnext() -> Any:  # noqa: ANN401 - torchvision has no types
    return zoo.ConvNeXt([CNBlockConfig(8, 16, 1), CNBlockConfig(16, None, 1)], num_classes=CLASSES)


def _efficientnet() -> Any:  # noqa: ANN401 - torchvision has no types
    stages = [
        FusedMBConvConfig(1, 3, 1, 8, 8, 1),
        MBConvConfig(4, 3, 2, 8, 12, 1),
        MBConvConfig(6, 5, 1, 12, 12, 1),
    ]
    return zoo.EfficientNet(stages, 0.2, num_classes=CLASSES, last_channel=32)


def _mobilenet_v3() -> Any:  # noqa: ANN401 - torchvision has no types
    row = partial(InvertedResidualConfig, dilation=1, width_mult=1.0)
    stages = [
        row(8, 3, 8, 8, True, "RE", 2),
        row(8, 5, 24, 8, False, "HS", 1),
        row(8, 5, 24, 16, True, "HS", 2),
    ]
    return zoo.MobileNetV3(stages, 32, num_classes=CLASSES)


def _vgg() -> Any:  # noqa: ANN401 - torchvision has no types
    features = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(True), nn.MaxPool2d(2, 2),
        nn.Conv2d(8, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU(True), nn.MaxPool2d(2, 2),
    )  # fmt: skip
    model = zoo.VGG(features, num_classes=CLASSES)
    model.classifier = _classifier(12 * 49)
    return model


def _alexnet() -> Any:  # noqa: ANN401 - torchvision has no types
    model = zoo.AlexNet(num_classes=CLASSES)
    model.classifier = _classifier(256 * 36)
    return model


def _classifier(features: int) -> nn.Module:
    """The published head has 4096 features twice: most of the model, and no other ops."""
    return nn.Sequential(
        nn.Dropout(), nn.Linear(features, 32), nn.ReLU(True), nn.Linear(32, CLASSES)
    )


def _swin(*, v2: bool = False) -> Any:  # noqa: ANN401
    settings = {"block": SwinTransformerBlockV2, "downsample_layer": PatchMergingV2} if v2 else {}
    return zoo.SwinTransformer([4, 4], 16, [2, 1], [2, 2], [4, 4], num_classes=CLASSES, **settings)


def _maxvit() -> Any:  # noqa: ANN401 - torchvision has no types
    return zoo.MaxVit((32, 32), 8, 4, [16], [1], 8, 0.0, num_classes=CLASSES)


def _regnet() -> Any:  # noqa: ANN401 - torchvision has no types
    parameters = BlockParams.from_init_params(
        depth=3, w_0=16, w_a=8.0, w_m=2.0, group_width=8, se_ratio=0.25
    )
    return zoo.RegNet(parameters, num_classes=CLASSES, stem_width=8)


def _googlenet() -> Any:  # noqa: ANN401 - torchvision has no types
    return zoo.GoogLeNet(num_classes=CLASSES, init_weights=False)


# With batch norm, images leave at least 2x2 pixels to the last one: of two values a norm makes
# +1 and -1 whatever they are.
_MAKERS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "vit": (_vit, 32),
    "resnet_basic": (lambda: zoo.ResNet(BasicBlock, [1, 1, 1, 1], num_classes=CLASSES), 48),
    "resnet_bottleneck": (
        lambda: zoo.ResNet(
            Bottleneck, [1, 1, 1, 1], num_classes=CLASSES, groups=2, width_per_group=8
        ),
        48,
    ),
    "convnext": (_convnext, 32),
    "swin": (_swin, 32),
    "swin_v2": (lambda: _swin(v2=True), 32),
    "efficientnet": (_efficientnet, 32),
    "mobilenet_v2": (
        lambda: zoo.MobileNetV2(
            CLASSES, inverted_residual_setting=[[1, 8, 1, 1], [6, 8, 2, 2]], width_mult=0.5
        ),
        32,
    ),
    "mobilenet_v3": (_mobilenet_v3, 32),
    "mnasnet": (lambda: zoo.MNASNet(0.2, CLASSES), 48),
    "densenet": (lambda: zoo.DenseNet(4, (2, 2, 1, 1), 8, num_classes=CLASSES), 48),
    "regnet": (_regnet, 32),
    "shufflenet": (lambda: zoo.ShuffleNetV2([2, 1, 1], [8, 16, 24, 32, 48], CLASSES), 48),
    "googlenet": (_googlenet, 64),
    "squeezenet": (lambda: zoo.SqueezeNet("1_1", CLASSES), 48),
    "vgg": (_vgg, 32),
    "alexnet": (_alexnet, 64),
    "maxvit": (_maxvit, 32),
}

MODELS = tuple(
    Covered(
        name=name, family="torchvision", make=make, inputs=positional(floats(4, 3, side, side))
    )
    for name, (make, side) in _MAKERS.items()
)
"""Every family of this module."""


def timm_models() -> tuple[Covered, ...]:
    """Return models of timm, which must be installed."""
    import timm  # type: ignore[import-not-found,unused-ignore]

    names = ("resnet10t", "vit_tiny_patch16_224", "mixer_s32_224")
    return tuple(
        Covered(
            name=f"timm_{name}",
            family="timm",
            make=partial(timm.create_model, name, num_classes=CLASSES),
            inputs=positional(floats(1, 3, 224, 224)),
        )
        for name in names
    )
