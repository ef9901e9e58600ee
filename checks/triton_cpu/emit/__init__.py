"""The emitter: importing it registers the rule of each operation."""

from . import (
    assembly,
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
    "assembly",
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
