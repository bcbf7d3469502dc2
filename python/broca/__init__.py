"""Take part in agent sessions."""

from ._version import __version__

__all__ = ["__version__"]
