"""Keeps classes from becoming sequences when their ``__getitem__`` is wrapped.

A tensor has ``__getitem__`` and is no sequence for C code, which asks for a slot of the type (``sq_item``): torch
builds ``torch.tensor([a, b])`` of two numbers by that. Python fills the slot when it is given a ``__getitem__`` and
does not empty it when that is taken away again. So the slots are put back, in the class and in all that derive from it.
Where they lie is tried on classes of our own first.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

#: Byte offset of ``tp_as_sequence`` in a type object, in CPython 3.8 and later on 64 bits.
_AS_SEQUENCE = 104
#: Words of that table: ``sq_item`` and ``sq_ass_item``.
_ITEM, _ASSIGN_ITEM = 3, 5
_WORD = 8


class SequenceSlots:
    """The slots of a class and of those that derive from it, as they are now."""

    def __init__(self, owner: type) -> None:
        self._owner = owner
        self._slots = {kind: tuple(word.value for word in _words(kind)) for kind in _family(owner)}

    def put_back(self) -> None:
        """Let them be as they were; a class that was made since gets those of the first one."""
        for kind in _family(self._owner):
            for word, value in zip(_words(kind), self._slots.get(kind, self._slots[self._owner]), strict=True):
                word.value = value


def can_keep_slots() -> bool:
    """Whether this interpreter has its slots where they are looked for."""

    class Plain:
        pass

    class Sequence:
        def __getitem__(self, index: int) -> int:
            return index

        def __setitem__(self, index: int, value: int) -> None:
            pass

    if ctypes.sizeof(ctypes.c_void_p) != _WORD:
        return False
    is_sequence = ctypes.pythonapi.PySequence_Check
    plain, sequence = ctypes.py_object(Plain()), ctypes.py_object(Sequence())
    is_sequence = ctypes.pythonapi.PySequence_Check
    empty, full = (tuple(word.value is None for word in _words(kind)) for kind in (Plain, Sequence))
    return not is_sequence(plain) and bool(is_sequence(sequence)) and all(empty) and not any(full)


def _family(owner: type) -> Iterator[type]:
    yield owner
    derived: type
    for derived in type.__subclasses__(owner):
        yield from _family(derived)


def _words(kind: type) -> tuple[ctypes.c_void_p, ctypes.c_void_p]:
    table = ctypes.c_void_p.from_address(id(kind) + _AS_SEQUENCE).value
    assert table is not None  # every class that Python makes has one
    item, assign = (ctypes.c_void_p.from_address(table + _WORD * index) for index in (_ITEM, _ASSIGN_ITEM))
    return item, assign
