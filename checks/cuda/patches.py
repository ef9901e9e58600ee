"""Functions and methods of torch, wrapped for a while.

Nothing is wrapped while nobody watches, so that a program that is not watched pays nothing. A wrapped function serves
every module that imported it by name. Methods of classes that torch wrote in C, such as ``torch.Event``, cannot be set
from Python; their entry in the class's own dictionary is exchanged instead, and the interpreter told that it was.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from ..hooks.patching import Patches
from .sequence_slots import SequenceSlots, can_keep_slots

#: From what is called now to what is called instead.
Wrap = Callable[[Any], Callable[..., Any]]
_IMMUTABLE_TYPE = 1 << 8  # Py_TPFLAGS_IMMUTABLETYPE
_SEQUENCE_METHODS = ("__getitem__", "__setitem__")


class CallPatches:
    """Wrappers around calls, to be undone together."""

    def __init__(self) -> None:
        self._patches = Patches()
        self._fixed: list[tuple[type, str, Any]] = []
        self._slots: dict[type, SequenceSlots] = {}
        self._functions: dict[int, tuple[Any, Callable[..., Any]]] = {}

    def method(self, owner: type, name: str, wrap: Wrap) -> None:
        """Wrap a method that a class has or inherits; nothing if this version of torch has none of that name."""
        if not hasattr(owner, name):
            return
        if name in _SEQUENCE_METHODS:
            if not can_keep_slots():
                return  # torch's warning is still heard; it only says less
            self._slots.setdefault(owner, SequenceSlots(owner))
        if not owner.__flags__ & _IMMUTABLE_TYPE:
            self._patches.set(owner, name, _named_like(getattr(owner, name), wrap))
            self._put_slots_back()
        elif name in vars(owner):
            original = vars(owner)[name]
            self._fixed.append((owner, name, original))
            _exchange(owner, name, _named_like(original, wrap))

    def function(self, module: ModuleType, name: str, wrap: Wrap) -> None:
        """Wrap a function, from :meth:`install` on; nothing if this version of torch has none of that name."""
        original = getattr(module, name, None)
        if original is not None and id(original) not in self._functions:
            self._functions[id(original)] = (original, _named_like(original, wrap))

    def install(self) -> None:
        """Put the wrapped functions wherever a module has them by name, the program's modules too."""
        for module in list(sys.modules.values()):
            if isinstance(module, ModuleType):
                found = {
                    alias: self._functions[id(value)][1]
                    for alias, value in list(vars(module).items())
                    if id(value) in self._functions
                }
                if found:
                    self._patches.update(module, found)

    def undo(self) -> None:
        """Put everything back."""
        self._patches.undo()
        self._put_slots_back()
        while self._fixed:
            _exchange(*self._fixed.pop())
        self._functions.clear()

    def _put_slots_back(self) -> None:
        for slots in self._slots.values():
            slots.put_back()


def _named_like(original: Any, wrap: Wrap) -> Callable[..., Any]:
    wrapped = wrap(original)
    functools.update_wrapper(wrapped, original, updated=())
    return wrapped


def _exchange(owner: type, name: str, value: Any) -> None:
    """Exchange an entry of the dictionary behind a class, which Python shows read-only."""
    own = next(found for found in gc.get_referents(vars(owner)) if isinstance(found, dict))
    own[name] = value
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(owner))
