"""The search space of a program on a machine, one module for each family of dimensions.

`building.build_space` is the way in; `presets/*.yaml` say which families a preset offers.
"""

from thunder_tune.search_spaces.building import PRESETS, build_space

__all__ = ["PRESETS", "build_space"]
