"""Functions of numpy that never ask the arrays they are given: replaced in numpy's namespace.

Those that look at arrays only are given an array in the place of a tensor, since numpy would read the tensor to make
one. Those that read arrays in a list, or as an iterator, are told as reads when they begin.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .numpy_functions import METADATA
from .tracking import plain, tracked_in, untensored

#: Flags of an operand of ``numpy.nditer`` that may be written.
_WRITING = frozenset({"readwrite", "writeonly"})


def replacements() -> Mapping[str, Any]:
    """What to replace, by name."""
    looking = {function.__name__: _looking(function) for function in METADATA if hasattr(np, function.__name__)}
    return {**looking, "lexsort": _reading(np.lexsort), "nditer": _iterating(np.nditer)}


def _looking(stock: Callable[..., Any]) -> Callable[..., Any]:
    def look(*args: Any, **kwargs: Any) -> Any:
        return stock(*map(untensored, args), **{name: untensored(value) for name, value in kwargs.items()})

    return _named_like(stock, look)


def _reading(stock: Callable[..., Any]) -> Callable[..., Any]:
    def read(*args: Any, **kwargs: Any) -> Any:
        for source in tracked_in([*args, kwargs]):
            source.tell_all(f"numpy.{stock.__name__}")
        return stock(*plain(list(args)), **plain(kwargs))

    return _named_like(stock, read)


def _named_like(stock: Callable[..., Any], own: Callable[..., Any]) -> Callable[..., Any]:
    own.__name__ = stock.__name__
    own.__doc__ = stock.__doc__
    return own


def _iterating(stock: Any) -> Any:
    """``numpy.nditer``, which nobody can derive from: what is made is numpy's own, over plain arrays."""

    class Meta(type):
        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, stock)

    class nditer(metaclass=Meta):  # noqa: N801 - numpy's name
        __doc__ = stock.__doc__

        def __new__(cls, op: Any, flags: Any = (), op_flags: Any = None, *args: Any, **kwargs: Any) -> Any:
            operands = [*map(untensored, op)] if isinstance(op, (list, tuple)) else untensored(op)
            _tell_operands(operands, op_flags)
            given = () if op_flags is None else (op_flags,)
            return stock(plain(operands), flags, *given, *args, **kwargs)

    return nditer


def _tell_operands(operands: Any, flags: Any) -> None:
    many = operands if isinstance(operands, list) else [operands]
    each = flags if flags and not isinstance(flags[0], str) else [flags or ()] * len(many)
    for operand, own in zip(many, each, strict=False):
        for source in tracked_in(operand):
            source.tell_all("numpy.nditer", write=bool(_WRITING & set(own)))
