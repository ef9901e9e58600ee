"""Torch's warnings as data: those of Python methods, and those of operators that only C++ hears of."""

import threading
import warnings

import pytest
import torch

from mrv2.checks.cuda.native_warnings import NativeWarnings, library
from mrv2.checks.cuda.sync_warnings import SyncWarnings

#: A warning that torch gives without a GPU, from Python and from C++: the net is told to look for this one.
RESIZED = "An output with one or more elements was resized"


def resize():
    torch.add(torch.ones(3), 1, out=torch.ones(2))


def resize_below_python():
    torch.ops.aten.add.out(torch.ones(3), torch.ones(3), out=torch.ones(2))


class Mode:
    def __init__(self):
        self.set = [0]

    def get(self):
        return self.set[-1]


@pytest.fixture
def net():
    mode, heard = Mode(), []
    made = SyncWarnings(lambda: heard.append(threading.current_thread()), mode.get, mode.set.append, RESIZED)
    made.arm()
    yield made, heard, mode
    made.disarm()
    assert mode.set == [0, 1, 0]


def test_both_ways_are_heard_in_the_call(net, capfd, recwarn):
    made, heard, _ = net
    made.begin()
    resize()
    assert len(heard) == 1
    resize_below_python()
    made.end()
    assert len(heard) == 2
    assert "resized" not in capfd.readouterr().err and not recwarn.list


def test_the_same_line_is_heard_each_time(net):
    _, heard, _ = net
    for _ in range(3):
        resize()
    assert len(heard) == 3


def test_outside_of_a_hot_path_cpp_writes_to_stderr_as_ever(net, capfd):
    made, heard, _ = net
    resize_below_python()
    assert heard == [] and RESIZED in capfd.readouterr().err
    made.begin()
    made.begin()
    made.end()
    resize_below_python()
    made.end()
    assert len(heard) == 1
    resize_below_python()
    assert len(heard) == 1 and RESIZED in capfd.readouterr().err


def test_other_warnings_pass(net, capfd, recwarn):
    made, heard, _ = net
    made._message = "something else"
    made.begin()
    warnings.warn("of the program", UserWarning, stacklevel=1)
    resize()
    resize_below_python()
    made.end()
    assert heard == []
    assert [str(one.message)[:14] for one in recwarn.list] == ["of the program", RESIZED[:14]]
    assert RESIZED in capfd.readouterr().err


def test_a_program_that_ignores_warnings_is_heard_nevertheless(net):
    _, heard, _ = net
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        resize()
    with warnings.catch_warnings(action="ignore"):
        resize()
    with warnings.catch_warnings(record=True) as caught:
        warnings.resetwarnings()
        resize()
    with warnings.catch_warnings():
        warnings.filterwarnings("error")
        resize()
    assert len(heard) == 4 and caught == []


def test_threads_are_told_apart(net, capfd):
    made, heard, _ = net

    def work(inside):
        if inside:
            made.begin()
        resize_below_python()
        if inside:
            made.end()

    for inside in (True, False):
        thread = threading.Thread(target=work, args=(inside,))
        thread.start()
        thread.join()
    assert len(heard) == 1 and heard[0] is not threading.current_thread()
    assert RESIZED in capfd.readouterr().err


def test_nothing_is_left_behind():
    mode = Mode()
    before = list(warnings.filters), warnings._showwarnmsg, warnings.simplefilter, library().get()
    made = SyncWarnings(lambda: None, mode.get, mode.set.append)
    made.arm()
    made.begin()
    assert warnings._showwarnmsg is not before[1] and library().get() != before[3]
    made.disarm()
    assert (list(warnings.filters), warnings._showwarnmsg, warnings.simplefilter, library().get()) == before


def test_a_thread_that_never_ends_its_part_gets_its_warnings_back(capfd):
    heard, go, done = [], threading.Event(), threading.Event()
    native = NativeWarnings(lambda text: bool(heard.append(text)) or True)

    def work():
        native.begin()
        resize_below_python()
        done.set()
        go.wait()
        resize_below_python()

    thread = threading.Thread(target=work)
    thread.start()
    done.wait()
    assert len(heard) == 1 and capfd.readouterr().err == ""
    native.close()
    go.set()
    thread.join()
    assert len(heard) == 1 and RESIZED in capfd.readouterr().err
