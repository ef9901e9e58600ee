"""The emitter: importing it registers the rule of each operation."""

from . import (
    casts,
    constants,
    control,
    elementwise,
    float8,
    functions,
    gather,
    library,
    mapping,
    matmul,
    memory,
    reduction,
    scan,
    shape,
    sorting,
)

__all__ = [
    "casts",
    "constants",
    "control",
    "elementwise",
    "float8",
    "functions",
    "gather",
    "library",
    "mapping",
    "matmul",
    "memory",
    "reduction",
    "scan",
    "shape",
    "sorting",
]
