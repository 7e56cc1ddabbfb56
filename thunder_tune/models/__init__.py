"""Where models come from: built-in families and the user's own factory."""

from thunder_tune.models.catalogue import catalogue
from thunder_tune.models.family import LoadedModel, ModelInfo
from thunder_tune.models.inputs import Inputs
from thunder_tune.models.loading import check_names, load

__all__ = ["Inputs", "LoadedModel", "ModelInfo", "catalogue", "check_names", "load"]
