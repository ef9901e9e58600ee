"""Which variant of a kernel a launch needs.

A variant is a kernel for given types of its arguments and given compile-time constants, as for Triton's own launcher;
but integers are not specialised by their value (whether they are 1, or divisible by 16): that saves variants and
changes no result. What Triton takes for an argument, it takes here.
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl
from triton import knobs
from triton._C.libtriton import get_cache_invalidating_env_vars, native_specialize_impl
from triton.backends.compiler import BaseBackend
from triton.backends.nvidia.compiler import CUDAOptions
from triton.runtime.jit import JITFunction

from .stable_text import outer_values, text_of

#: Options of a launch that say how a GPU runs it, not what it computes.
_PERFORMANCE = frozenset({
    "num_warps", "num_stages", "num_ctas", "maxnreg", "cluster_dims", "ptx_version", "ptx_options", "ir_override",
    "launch_cooperative_grid", "launch_cluster", "launch_pdl", "backend_name", "arch", "warp_size", "enable_fp_fusion",
})  # fmt: skip
_OPTIONS = frozenset(CUDAOptions.__dataclass_fields__) | _PERFORMANCE
_MISSING = object()


@dataclass(frozen=True)
class Variant:
    """What the front end needs to know.

    Attributes:
        function: the kernel.
        signature: the type of each parameter in Triton's own words: ``"*fp32"``, ``"i32"``, ``"constexpr"``, or a
            tuple of these.
        constants: compile-time constants, by the place of the parameter and, within tuples, of the element.
        options: of the launch, those that change what it computes; ``debug`` turns assertions on.
    """

    function: JITFunction
    signature: Mapping[str, Any]
    constants: Mapping[str | tuple[int, ...], Any]
    options: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Of the kernel."""
        return str(self.function.__name__)

    def leaves(self) -> list[str]:
        """Types of what is passed at run time, tuples flattened."""
        return [kind for kind in _flat(tuple(self.signature.values())) if kind != "constexpr"]

    def key(self) -> str:
        """A digest that is the same in every process for the same kernel, types and constants.

        Raises:
            Unstable: a constant, or what the kernel reads from outside, is of a kind that has no stable text.
        """
        code = self.function.cache_key
        constants = [f"{place}={text_of(value)}" for place, value in self.constants.items()]
        options = [f"{name}={text_of(value)}" for name, value in sorted(self.options.items())]
        switches = sorted(get_cache_invalidating_env_vars().items())
        parts = (
            code, self.function.fn.__code__.co_filename, triton.__version__, repr(list(self.signature.items())),
            repr(constants), repr(options), repr(outer_values(self.function)), repr(switches),
        )  # fmt: skip
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()


class Call(NamedTuple):
    """The arguments of one launch.

    Attributes:
        key: tells the variant; hashable.
        values: of all parameters, defaults included.
        words: what is passed at run time: addresses, numbers, tensor descriptors.
        options: those that change what is computed.
    """

    key: tuple[Any, ...]
    values: list[Any]
    words: list[Any]
    options: dict[str, Any]


@dataclass(slots=True)
class _Parameter:
    name: str
    constant: bool
    read_only: bool
    annotation: str


class Binder:
    """How one kernel takes its arguments.

    Args:
        function: the kernel.
    """

    def __init__(self, function: JITFunction) -> None:
        self._function = weakref.ref(function)
        self._signature: inspect.Signature = function.signature
        self.names: list[str] = list(function.arg_names)
        self._parameters = [_Parameter(p.name, p.is_constexpr, p.is_const, p.annotation_type) for p in function.params]
        kinds = {parameter.kind for parameter in self._signature.parameters.values()}
        self._debug = function.debug
        self._plain = kinds <= {inspect.Parameter.POSITIONAL_OR_KEYWORD}
        self._positions = {name: index for index, name in enumerate(self.names)}
        self._defaults = [p.default if p.has_default else _MISSING for p in function.params]

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Call:
        """Take the arguments of a launch.

        Raises:
            TypeError: an argument is missing, given twice, or of a type that Triton does not take.
            KeyError: a keyword is neither a parameter nor an option.
        """
        values, options = self._values(args, kwargs)
        key: list[Any] = []
        words: list[Any] = []
        for value, parameter in zip(values, self._parameters, strict=True):
            if parameter.constant:
                key.append(value if value.__class__ is int else constant_key(value))
            elif parameter.annotation:
                key.append(_take(value, parameter, words))
            elif isinstance(value, torch.Tensor):
                key.append(value.dtype)
                words.append(value.data_ptr())
            elif value.__class__ is int and -0x80000000 <= value < 0x80000000:
                key.append("i32")
                words.append(value)
            else:
                key.append(_take(value, parameter, words))
        if options or self._debug or knobs.runtime.debug:
            self._set_debug(options)
            key.append(tuple((name, constant_key(value)) for name, value in sorted(options.items())))
        return Call(tuple(key), values, words, options)

    def _set_debug(self, options: dict[str, Any]) -> None:
        """Turn assertions on if the launch, the kernel or the environment says so."""
        if options.pop("debug", self._debug) or knobs.runtime.debug:
            options["debug"] = True

    def variant(self, call: Call) -> Variant:
        """What the front end needs to know of a launch."""
        signature: dict[str, Any] = {}
        constants: dict[str | tuple[int, ...], Any] = {}
        for index, (value, parameter) in enumerate(zip(call.values, self._parameters, strict=True)):
            kind = "constexpr" if parameter.constant else parameter.annotation or mangled(value, parameter.read_only)
            signature[parameter.name] = kind
            _constants(kind, value, (index,), constants)
        return Variant(self.function, signature, constants, call.options)

    def alive(self) -> JITFunction | None:
        """The kernel; None if it is gone."""
        return self._function()

    @property
    def function(self) -> JITFunction:
        """The kernel, which is alive while it is launched."""
        function = self._function()
        assert function is not None
        return function

    def _values(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """The value of each parameter, and the options that change what is computed."""
        given = len(args)
        if not self._plain or given > len(self.names):
            return self._bound(args, kwargs)
        values = [*args, *self._defaults[given:]]
        options = {}
        for name, value in kwargs.items():
            index = self._positions.get(name)
            if index is None:
                if _changes_results(name):
                    options[name] = value
            elif index < given:
                return self._bound(args, kwargs)
            else:
                values[index] = value
        if _MISSING in values[given:]:
            return self._bound(args, kwargs)
        return values, options

    def _bound(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """The same in Python's own way, with its errors."""
        mine = {name: value for name, value in kwargs.items() if name in self._positions}
        bound = self._signature.bind(*args, **mine)
        bound.apply_defaults()
        options = {name: value for name, value in kwargs.items() if name not in mine and _changes_results(name)}
        return list(bound.arguments.values()), options


def _changes_results(name: str) -> bool:
    if name in _PERFORMANCE:
        return False
    if name not in _OPTIONS:
        raise KeyError(f"Keyword argument {name} was specified but unrecognised")
    return True


# One argument


def _take(value: Any, parameter: _Parameter, words: list[Any]) -> Any:
    """Appends what is passed at run time; returns what the variant depends on."""
    if parameter.annotation:
        words.append(value.data_ptr() if hasattr(value, "data_ptr") else value)
        return None
    kind = value.__class__
    if value is None:
        return None
    if kind is int:
        words.append(value)
        return _integer(value)
    if kind is float or kind is bool:
        words.append(value)
        return kind
    if hasattr(value, "data_ptr"):
        words.append(value.data_ptr())
        return value.dtype
    found = mangled(value, parameter.read_only)
    constants: dict[str | tuple[int, ...], Any] = {}
    _constants(found, value, (), constants)
    _words(found, value, words)
    return (found, *((place, constant_key(constant)) for place, constant in constants.items()))


def _integer(value: int) -> str:
    return "i32" if -0x80000000 <= value < 0x80000000 else "i64" if value < 1 << 63 else "u64"


def mangled(value: Any, read_only: bool = False) -> Any:
    """Triton's words for the type of an argument: one, or a tuple of them.

    Raises:
        TypeError: in Triton's words, for a type that it does not take.
        OverflowError: an integer has more than 64 bits.
    """
    return native_specialize_impl(BaseBackend, value, read_only, False, False)[0]


def _words(kind: Any, value: Any, words: list[Any]) -> None:
    if isinstance(kind, tuple):
        for inner, element in zip(kind, value, strict=True):
            _words(inner, element, words)
    elif kind != "constexpr":
        words.append(value.data_ptr() if hasattr(value, "data_ptr") else value)


def _constants(kind: Any, value: Any, place: tuple[int, ...], found: dict[str | tuple[int, ...], Any]) -> None:
    if isinstance(kind, tuple):
        for index, (inner, element) in enumerate(zip(kind, value, strict=True)):
            _constants(inner, element, (*place, index), found)
    elif kind == "constexpr":
        found[place] = value.value if isinstance(value, tl.constexpr) else value


def _flat(kinds: tuple[Any, ...]) -> list[str]:
    found: list[str] = []
    for kind in kinds:
        found += _flat(kind) if isinstance(kind, tuple) else [kind]
    return found


# Compile-time constants


def constant_key(value: Any) -> Any:
    """Tells a constant from all others, also 1 from True, and 0.0 from -0.0."""
    kind = value.__class__
    if kind is int or kind is str or value is None:
        return value
    if kind is float:
        return (float, value.hex())
    if isinstance(value, tl.constexpr):
        return constant_key(value.value)
    if isinstance(value, tuple | list):
        return (kind, *map(constant_key, value))
    if isinstance(value, np.generic):  # of which 0.0 and -0.0 are equal, and NaN is not
        return (kind, value.tobytes())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = (getattr(value, field.name) for field in dataclasses.fields(value))
        return (kind, *map(constant_key, fields))
    return (kind, value)


# The grid


def extents(grid: Any) -> tuple[int, int, int]:
    """Three extents from one to three, as Triton takes them."""
    x, y, z = (*map(int, grid), 1, 1)[:3]
    return max(x, 0), max(y, 0), max(z, 0)
