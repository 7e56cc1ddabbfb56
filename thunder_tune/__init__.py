"""thunder-tune: find the fastest accurate way to run a PyTorch model."""

from thunder_tune.__about__ import __version__

__all__ = ["__version__"]
