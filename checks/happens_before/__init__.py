"""Races by happens-before, from the events of a run."""

from .core import HappensBefore

__all__ = ["HappensBefore"]
