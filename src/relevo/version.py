"""The version of relevo."""

__version__ = "0.1.0"
