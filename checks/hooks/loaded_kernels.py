"""Which kernels a GPU would have loaded by now: the first launch of another one waits for the whole device.

Triton makes a kernel of its own for each combination of types, compile-time constants and options, and also for
whether an address or a number is divisible by 16, and a number 1. Compiled for the CPU it makes fewer (see
``variants``), so what a GPU would load is worked out apart.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping
from typing import Any

from triton._C.libtriton import native_specialize_impl
from triton.backends.compiler import BaseBackend
from triton.runtime.jit import JITFunction

from ..triton_cpu.variants import constant_key


class LoadedKernels:
    """The kernels that were launched so far."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loaded: weakref.WeakKeyDictionary[Any, set[Any]] = weakref.WeakKeyDictionary()

    def adds(self, kernel: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Note a launch; says whether it is the first of its kind. Interpreted kernels are never loaded."""
        if not isinstance(kernel, JITFunction):
            return False
        variant = _variant(kernel, args, kwargs)
        with self._lock:
            known = self._loaded.setdefault(kernel, set())
            if variant in known:
                return False
            known.add(variant)
        return True


def _variant(kernel: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """What Triton's launcher keeps its compiled kernels by."""
    given = {name: value for name, value in kwargs.items() if name in kernel.signature.parameters}
    bound = kernel.signature.bind(*args, **given)
    bound.apply_defaults()
    options = sorted((name, constant_key(value)) for name, value in kwargs.items() if name not in given)
    values = zip(kernel.params, bound.arguments.values(), strict=True)
    return (*(_specialised(parameter, value) for parameter, value in values), *options)


def _specialised(parameter: Any, value: Any) -> Any:
    if parameter.is_constexpr:
        return constant_key(value)
    by_value = not parameter.do_not_specialize
    by_alignment = not parameter.do_not_specialize_on_alignment
    return native_specialize_impl(BaseBackend, value, parameter.is_const, by_value, by_alignment)
