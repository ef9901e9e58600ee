"""The emitter: importing it registers the rule of each operation."""

from . import casts, constants, control, elementwise, functions, memory

__all__ = ["casts", "constants", "control", "elementwise", "functions", "memory"]
