"""Version of thunder-tune."""

__version__ = "0.1.0"
