"""Static search for hidden waits on hot paths; see README.md."""

from .linter import Result, lint

__all__ = ["Result", "lint"]
