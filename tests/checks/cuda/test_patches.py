"""Wrapped calls of torch, and that nothing of them is left."""

import ctypes
import gc
import sys

import pytest
import torch

from mrv2.checks.cuda.patches import CallPatches
from mrv2.checks.cuda.sequence_slots import can_keep_slots


class Derived(torch.Tensor):
    pass


def is_sequence(value):
    return bool(ctypes.pythonapi.PySequence_Check(ctypes.py_object(value)))


def noting(name, notes):
    def wrap(original):
        def noted(*args, **kwargs):
            notes.append(name)
            return original(*args, **kwargs)

        return noted

    return wrap


@pytest.fixture
def patches():
    made = CallPatches()
    yield made
    made.undo()


def test_inherited_methods_are_wrapped_and_inherited_again(patches):
    notes = []
    patches.method(torch.Tensor, "item", noting("item", notes))
    patches.method(torch.Tensor, "no_such_method", noting("none", notes))
    assert torch.ones(1).item() == 1.0 and torch.nn.Parameter(torch.ones(1)).item() == 1.0
    patches.undo()
    assert torch.ones(1).item() == 1.0
    assert notes == ["item", "item"] and "item" not in vars(torch.Tensor)


def test_classes_written_in_c_get_their_own_methods_back(patches):
    notes, before = [], vars(torch.Event)["query"]
    patches.method(torch.Event, "query", noting("query", notes))
    event = torch.Event("cpu")
    assert event.query() and notes == ["query"]
    patches.undo()
    assert vars(torch.Event)["query"] is before
    assert event.query() and notes == ["query"]


def test_functions_are_wrapped_wherever_they_were_imported(patches):
    notes, before = [], torch.equal
    namespace = type(torch)("a_program")
    namespace.equal = torch.equal
    sys.modules["a_program"] = namespace
    try:
        patches.function(torch, "equal", noting("equal", notes))
        patches.function(torch, "no_such_function", noting("none", notes))
        patches.install()
        assert namespace.equal(torch.ones(1), torch.ones(1)) and torch.equal(torch.ones(1), torch.ones(1))
        patches.undo()
        assert notes == ["equal", "equal"] and namespace.equal is before and torch.equal is before
    finally:
        del sys.modules["a_program"]


def test_a_wrapped_getitem_makes_no_sequence(patches):
    assert can_keep_slots()
    notes, number = [], torch.ones(())
    derived = number.as_subclass(Derived)
    assert not is_sequence(number) and not is_sequence(derived)
    patches.method(torch.Tensor, "__getitem__", noting("get", notes))
    patches.method(torch.Tensor, "__setitem__", noting("set", notes))

    class Later(torch.Tensor):
        pass

    later = number.as_subclass(Later)
    rows = torch.zeros(2, 2)
    rows[0] = rows[1] + 1
    assert notes == ["get", "set"] and rows.tolist() == [[1, 1], [0, 0]]
    assert torch.tensor([number, number]).tolist() == [1, 1]
    assert not is_sequence(number) and not is_sequence(derived)
    patches.undo()
    assert not any(map(is_sequence, (number, derived, later)))
    assert torch.tensor([number, number]).tolist() == [1, 1] and rows[0, 0] == 1 and len(notes) == 2
    del later, Later
    gc.collect()
