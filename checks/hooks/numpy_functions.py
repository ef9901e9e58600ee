"""Functions of numpy's namespace on tracked arrays: which arguments they read, which they write, and which neither.

A function that is in none of the tables reads all of its arguments and writes ``out``.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..events import ByteRange
from . import masks
from .byte_ranges import array_ranges, element_addresses, lane_ranges, selected_ranges
from .tracking import plain, tracked_in, untensored, untold


def _named(names: str) -> frozenset[Any]:
    """The functions of these names that the installed numpy has."""
    return frozenset(getattr(np, name) for name in names.split() if hasattr(np, name))


#: These look at shapes, types and addresses only.
METADATA = _named(
    "shape ndim size may_share_memory shares_memory result_type can_cast min_scalar_type common_type iscomplexobj "
    "isrealobj empty_like zeros_like ones_like full_like"
)
#: These give views where they can.
_VIEWS = _named(
    "reshape ravel transpose permute_dims matrix_transpose swapaxes moveaxis rollaxis expand_dims squeeze atleast_1d "
    "atleast_2d atleast_3d split array_split hsplit vsplit dsplit unstack diagonal flip fliplr flipud rot90 "
    "broadcast_to broadcast_arrays real imag"
) | {np.lib.stride_tricks.sliding_window_view}
#: These read some elements of one argument, by its position; what they do to addresses tells which.
_SELECTING = {np.take: 0, np.compress: 1, np.extract: 1, np.take_along_axis: 0}
#: These select by a mask, which comes first.
_MASKED = frozenset({np.compress, np.extract})
#: These write some elements of their first argument: how to mark in a mask which.
_MARKING: dict[Any, Callable[..., Any]] = {
    np.copyto: lambda mask, src, casting="same_kind", where=True: np.copyto(mask, True, where=where),
    np.put: lambda mask, ind, v, mode="raise": np.put(mask, ind, True, mode=mode),
    np.place: lambda mask, chosen, vals: np.place(mask, chosen, [True]),
    np.putmask: lambda mask, chosen, values: np.putmask(mask, chosen, True),
    np.fill_diagonal: lambda mask, val, wrap=False: np.fill_diagonal(mask, True, wrap=wrap),
    np.put_along_axis: lambda mask, indices, values, axis: np.put_along_axis(mask, indices, True, axis),
}
#: Position of ``out`` in functions whose signature cannot be looked up.
_OUT = {np.concatenate: 2, np.dot: 2}


def call(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Tell what a function is about to do with tracked arrays, do it, and keep track of views among the results."""
    if func in _VIEWS:
        return _call_for_views(func, args, kwargs)
    bare, named = plain(list(args)), plain(kwargs)
    if func in METADATA:
        return func(*bare, **named)
    name = f"numpy.{func.__name__}"
    outputs = list(tracked_in(_output(func, args, kwargs)))
    target = (args[0] if args else None) if func in _MARKING else None
    for source in tracked_in([*map(untensored, args), kwargs]):
        if source is not target and not any(source is output for output in outputs):
            certain = not (func in _MASKED and masks.follows_from(args[0], plain(source)))
            ranges = _read_ranges(func, args, source, bare, named) if certain else array_ranges(plain(source))
            source.tell(ranges, name, write=False, certain=certain)
    for written in tracked_in(target):
        written.tell(_marked_ranges(func, bare, named), name, write=True)
    for output in outputs:
        output.tell_all(name, write=True)
    result = func(*bare, **named)
    return outputs[0] if outputs and not isinstance(result, tuple) else result


def _output(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    position = _out_position(func)
    given = args[position] if position is not None and position < len(args) else None
    return kwargs.get("out", given)


@functools.cache
def _out_position(func: Any) -> int | None:
    if func in _OUT:
        return _OUT[func]
    try:
        parameters = inspect.signature(func).parameters.values()
    except ValueError:
        return None
    names = [parameter.name for parameter in parameters if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]
    takes_any = any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters)
    return names.index("out") if "out" in names and not takes_any else None


def _read_ranges(
    func: Any, args: Sequence[Any], source: Any, bare: list[Any], named: dict[str, Any]
) -> list[ByteRange]:
    position = _SELECTING.get(func)
    array = plain(source)
    if position is None or position >= len(args) or args[position] is not source:
        return array_ranges(array)
    addresses = [*bare]
    addresses[position] = element_addresses(array)
    options = {key: value for key, value in named.items() if key != "out"}
    return lane_ranges(np.asarray(func(*addresses, **options)), array.itemsize)


def _marked_ranges(func: Any, bare: list[Any], named: dict[str, Any]) -> list[ByteRange]:
    mask = np.zeros(bare[0].shape, dtype=bool)
    _MARKING[func](mask, *bare[1:], **named)
    return selected_ranges(bare[0], mask)


def _call_for_views(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    sources = list(tracked_in([*args, kwargs]))
    with untold():
        result = func(*plain(list(args)), **plain(kwargs))
    results = result if isinstance(result, (list, tuple)) else [result]
    for source in sources:
        if not any(np.may_share_memory(array, plain(source)) for array in results):
            source.tell_all(f"numpy.{func.__name__}")
    kept = [next((view for one in sources if (view := one.again(array)) is not array), array) for array in results]
    return type(result)(kept) if isinstance(result, (list, tuple)) else kept[0]
