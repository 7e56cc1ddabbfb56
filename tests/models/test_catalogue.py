from __future__ import annotations

import pytest

from thunder_tune.errors import NotFoundError
from thunder_tune.models import catalogue
from thunder_tune.models.catalogue import family_of


def test_every_name_is_listed_once():
    names = [info.name for info in catalogue()]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("mlp", "small"),
        ("nanogpt", "small"),
        ("vit_b_16", "torchvision"),
        ("resnet50", "torchvision"),
        ("bert_large", "huggingface"),
        ("llama_3_2_1b", "huggingface"),
    ],
)
def test_the_models_of_the_manual_are_there(name: str, family: str):
    assert [info.family for info in catalogue() if info.name == name] == [family]


def test_detection_models_are_not_offered():
    assert "fasterrcnn_resnet50_fpn" not in [info.name for info in catalogue()]


def test_an_unknown_name_lists_close_ones():
    with pytest.raises(NotFoundError, match=r"unknown model 'vit_b16': did you mean vit_b_16"):
        family_of("vit_b16")


def test_spelling_in_capitals_and_dashes_finds_the_close_name():
    with pytest.raises(NotFoundError, match=r"did you mean resnet50"):
        family_of("ResNet-50")


def test_an_unknown_name_without_close_ones_says_where_to_look():
    with pytest.raises(NotFoundError, match=r"see `thunder-tune models`.*package.module:factory"):
        family_of("qqqqqqqq")
