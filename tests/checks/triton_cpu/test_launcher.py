"""Running a built variant: programs, arguments, memory that is not there, early ends."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from mrv2.checks.triton_cpu.errors import DeviceAssertion, LogFull, OutOfFuel
from mrv2.checks.triton_cpu.ir import Scalar, Tensor
from mrv2.checks.triton_cpu.launcher import pack_blocks

from .hand_written import ADD_ONE, ADD_ONE_SITES, block, built, line, source


@pytest.fixture
def add_one(tmp_path):
    return built(source(ADD_ONE, *ADD_ONE_SITES), tmp_path)


def arrays(count: int) -> tuple[np.ndarray, np.ndarray]:
    return np.arange(count, dtype=np.int32), np.zeros(count, np.int32)


def run(kernel, one, other, programs, **options):
    arguments = kernel.pack((one.ctypes.data, other.ctypes.data))
    return kernel.launch(arguments, (programs, 1, 1), blocks=options.pop("blocks", block(one, other)), **options)


def test_all_programs_run(add_one):
    one, other = arrays(16)
    result = run(add_one, one, other, 4)
    assert other.tolist() == list(range(1, 17))
    assert result.stopped is None
    assert not len(result.strays)


def test_each_access_is_in_the_log(add_one):
    one, other = arrays(8)
    result = run(add_one, one, other, 2)
    base, to = one.ctypes.data, other.ctypes.data
    rows = [(int(r["low"]), int(r["high"]), int(r["site"]), int(r["program"])) for r in result.records]
    assert rows == [
        (base, base + 16, 0, 0),
        (to, to + 16, 1, 0),
        (base + 16, base + 32, 0, 1),
        (to + 16, to + 32, 1, 1),
    ]
    assert result.ranges(write=False) == [(base, base + 32)]
    assert result.ranges(write=True) == [(to, to + 32)]


def test_stored_bytes_are_kept(add_one):
    one, other = arrays(8)
    result = run(add_one, one, other, 2)
    last = result.records[-1]
    stored = np.frombuffer(result.stored, np.int32, 4, int(last["stored"]))
    assert stored.tolist() == [5, 6, 7, 8]
    assert result.records[0]["stored"] == -1


def test_programs_run_in_the_order_asked_for(add_one):
    one, other = arrays(12)
    result = run(add_one, one, other, 3, order=np.array([2, 0, 1], np.int32))
    assert result.records["program"].tolist() == [2, 2, 0, 0, 1, 1]
    assert other.tolist() == list(range(1, 13))


def test_lanes_outside_of_all_memory_are_left_out(add_one):
    one, other = arrays(8)
    other[6:] = 77
    blocks = pack_blocks([(one.ctypes.data, one.ctypes.data + 32), (other.ctypes.data, other.ctypes.data + 24)])
    result = run(add_one, one, other, 2, blocks=blocks)
    assert other.tolist() == [1, 2, 3, 4, 5, 6, 77, 77]
    (stray,) = result.strays
    edge = other.ctypes.data + 24
    assert (stray["low"], stray["high"], stray["lanes"], stray["site"], stray["program"]) == (edge, edge + 8, 2, 1, 1)


def test_a_lane_that_is_half_inside_is_outside(add_one):
    one, other = arrays(4)
    blocks = pack_blocks([(one.ctypes.data, one.ctypes.data + 16), (other.ctypes.data, other.ctypes.data + 14)])
    result = run(add_one, one, other, 1, blocks=blocks)
    assert other.tolist() == [1, 2, 3, 0]
    assert result.strays["lanes"].tolist() == [1]


def test_without_checks_nothing_is_logged(tmp_path):
    kernel = built(source(ADD_ONE, *ADD_ONE_SITES), tmp_path, audit=False)
    one, other = arrays(8)
    result = run(kernel, one, other, 2, blocks=b"")
    assert other.tolist() == list(range(1, 9))
    assert not result.log
    assert result.conflicts() == ([], [])
    assert result.ranges(write=True) == []


def test_blocks_are_sorted_and_joined():
    packed = np.frombuffer(pack_blocks([(30, 40), (10, 20), (15, 25), (40, 41)]), np.uint64)
    assert packed.tolist() == [10, 25, 30, 41]


def test_a_result_outlives_the_next_launch(add_one):
    one, other = arrays(8)
    first = run(add_one, one, other, 1)
    before = first.records.tolist()
    run(add_one, other, one, 2)
    assert first.records.tolist() == before


def test_threads_do_not_share_logs(add_one):
    wrong = []
    turn = threading.Barrier(4)

    def work(count: int) -> None:
        one, other = arrays(4 * count)
        turn.wait()
        for _ in range(50):
            result = run(add_one, one, other, count)
            if result.records["program"].tolist() != [p for p in range(count) for _ in range(2)]:
                wrong.append(result.records)

    threads = [threading.Thread(target=work, args=(count,)) for count in (1, 2, 3, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


SPIN = """
  while (index[1] == 1) { SPEND_FUEL(0, 1) }
"""


def test_a_program_that_never_ends_is_stopped(tmp_path):
    kernel = built(source(SPIN, line(7), parameters=()), tmp_path, kinds=())
    result = kernel.launch(kernel.pack(()), (2, 3, 1), blocks=b"", fuel=1000)
    error = result.error()
    assert isinstance(error, OutOfFuel)
    assert error.program == (0, 1, 0)
    assert "program (0, 1, 0) at kernel.py:7" in str(error)


def test_fuel_is_for_each_program(tmp_path):
    text = SPIN.replace("while (index[1] == 1)", "for (int k = 0; k < 10; k++)")
    kernel = built(source(text, line(7), parameters=()), tmp_path, kinds=())
    assert kernel.launch(kernel.pack(()), (100, 1, 1), blocks=b"", fuel=10).error() is None
    assert isinstance(kernel.launch(kernel.pack(()), (1, 1, 1), blocks=b"", fuel=9).error(), OutOfFuel)


def test_a_failed_assertion_names_line_program_and_message(tmp_path):
    text = SPIN.replace(
        "while (index[1] == 1) { SPEND_FUEL(0, 1) }", "if (index[0] == 2) stop(launch, ASSERTION_FAILED, 0);"
    )
    kernel = built(source(text, line(9, message="too large"), parameters=()), tmp_path, kinds=())
    error = kernel.launch(kernel.pack(()), (4, 1, 1), blocks=b"").error()
    assert isinstance(error, DeviceAssertion)
    assert isinstance(error, AssertionError)
    assert "program (2, 0, 0) at kernel.py:9: device_assert: too large" in str(error)


SPIN_AND_STORE = """
  int32_t value = index[0];
  for (;;) {
    SPEND_FUEL(0, 1)
    for (int lane = 0; lane < 6; lane += 2)
      WRITE(int32_t, arguments[1] + 4 * lane, value++, 1);
  }
"""


def test_a_full_log_ends_the_launch(tmp_path):
    """Nothing is stored that is not in the log, but for the lane that found it full."""
    kernel = built(source(SPIN_AND_STORE, *ADD_ONE_SITES), tmp_path)
    one, other = arrays(8)
    result = run(kernel, one, other, 3, log_limit=1 << 15)
    error = result.error()
    assert isinstance(error, LogFull)
    assert error.program == (0, 0, 0)
    assert not result.log
    assert other.max() <= 1026


def test_a_log_within_its_limit_does_not_end_the_launch(add_one):
    one, other = arrays(16)
    assert run(add_one, one, other, 4, log_limit=1 << 15).error() is None


def test_the_first_reason_to_stop_is_told(tmp_path):
    text = "stop(launch, ASSERTION_FAILED, 0); for (;;) { SPEND_FUEL(1, 1) }"
    kernel = built(source(text, line(9, message="first"), line(10), parameters=()), tmp_path, kinds=())
    assert isinstance(kernel.launch(kernel.pack(()), (1, 1, 1), blocks=b"").error(), DeviceAssertion)


PRINT = """
  int32_t lanes[3] = {index[0], 5, 6};
  uint16_t half = 0x3fc0;
  launch->print(0, 0, lanes);
  launch->print(0, 1, &half);
"""


@pytest.mark.parametrize("kind", [KeyboardInterrupt, BrokenPipeError])
def test_an_error_of_a_print_ends_the_launch_and_is_raised(tmp_path, monkeypatch, kind):
    values = (Tensor((3,), Scalar("i32")), Scalar("bf16"))
    text = f"{PRINT} for (;;) {{ SPEND_FUEL(0, 1) }}"
    kernel = built(source(text, line(3, values=values), parameters=()), tmp_path, kinds=())
    printed = []

    def interrupted(said):
        printed.append(said)
        raise kind

    with monkeypatch.context() as patch:
        patch.setattr("builtins.print", interrupted)
        with pytest.raises(kind):
            kernel.launch(kernel.pack(()), (2, 1, 1), blocks=b"")
    assert len(printed) == 1
    quiet = built(source("", line(3), parameters=()), tmp_path, kinds=())
    assert quiet.launch(quiet.pack(()), (2, 1, 1), blocks=b"").error() is None


def test_prints_look_like_the_interpreters(tmp_path, capsys):
    values = (Tensor((3,), Scalar("i32")), Scalar("bf16"))
    kernel = built(source(PRINT, line(3, message="seen:", values=values), parameters=()), tmp_path, kinds=())
    kernel.launch(kernel.pack(()), (2, 1, 1), blocks=b"")
    said = capsys.readouterr().out.splitlines()
    assert said == [
        "(0, 0, 0) seen: [0 5 6]",
        "(0, 0, 0) seen: [1.5]",
        "(1, 0, 0) seen: [1 5 6]",
        "(1, 0, 0) seen: [1.5]",
    ]


def test_a_grid_beyond_what_a_gpu_can_count_is_refused(add_one):
    one, other = arrays(4)
    with pytest.raises(OverflowError, match="programs or more"):
        run(add_one, one, other, 1 << 31)
