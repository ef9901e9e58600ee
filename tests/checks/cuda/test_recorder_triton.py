"""What launches touch: exact bytes where the arguments decide, possible ones where data does, declared ones beyond."""

import pytest
import torch
import triton
import triton.language as tl

from mrv2.checks.cuda import recorder_triton
from mrv2.checks.findings import Verdict

from ..race_programs import double, side_stream
from .facade import on_facade


@triton.jit
def gather(index_ptr, x_ptr, out_ptr):
    lane = tl.arange(0, 4)
    tl.store(out_ptr + lane, tl.load(x_ptr + tl.load(index_ptr + lane)))


@triton.jit
def through_table(table_ptr, out_ptr):
    source = tl.load(table_ptr).to(tl.pointer_type(tl.float32))
    tl.store(out_ptr, tl.load(source))


def run(program):
    with on_facade() as (recorder, _):
        program()
    return recorder


def on_side(launch, touch):
    side = side_stream()
    launch()
    with torch.cuda.stream(side):
        touch()
    torch.cuda.synchronize()


def rehearsals(program):
    """How many launches a program's needed to be run over empty memory."""
    with pytest.MonkeyPatch.context() as patch:
        calls = []
        stock = recorder_triton._rehearse
        patch.setattr(recorder_triton, "_rehearse", lambda *args: calls.append(args) or stock(*args))
        run(program)
    return len(calls)


@pytest.mark.parametrize(("first", "codes"), [(4, []), (3, ["MRV204"])])
def test_masked_lanes_are_not_touched(first, codes):
    def program():
        x, out = torch.ones(8, device="cuda"), torch.zeros(8, device="cuda")
        on_side(lambda: double[(1,)](x, out, 4, BLOCK=8), lambda: x[first:].fill_(2))

    findings = run(program).findings
    assert [finding.code for finding in findings] == codes
    assert all(finding.verdict is Verdict.VIOLATION for finding in findings)


def test_what_data_decides_is_only_suspected():
    def program():
        index, x, out = torch.arange(4, device="cuda"), torch.ones(8, device="cuda"), torch.zeros(4, device="cuda")
        on_side(lambda: gather[(1,)](index, x, out), lambda: x[6:].fill_(2))

    (finding,) = run(program).findings
    assert (finding.code, finding.verdict) == ("MRV204", Verdict.SUSPECT)


def test_a_second_launch_with_the_same_numbers_is_not_run_again():
    def program():
        x, out = torch.ones(8, device="cuda"), torch.zeros(8, device="cuda")
        for _ in range(3):
            double[(1,)](x, out, 4, BLOCK=8)

    assert rehearsals(program) == 1


def test_one_at_another_place_in_its_block_is():
    def program():
        x, out = torch.ones(16, device="cuda"), torch.zeros(8, device="cuda")
        for first in (0, 4, 4):
            double[(1,)](x[first:], out, 4, BLOCK=8)

    assert rehearsals(program) == 2


def bindings(program):
    """How many launches of a program had their arguments bound, beyond the binding that the launch itself needs."""
    with pytest.MonkeyPatch.context() as patch:
        calls, stock = [], recorder_triton.prepared
        patch.setattr(recorder_triton, "prepared", lambda kernel: calls.append(kernel) or stock(kernel))
        found = run(program).findings
    # Once for a launch, and once more for a variant that is met for the first time.
    return len(calls), [finding.code for finding in found]


def test_a_launch_that_was_told_before_is_known_by_its_arguments():
    def program(last=4, grid=(1,), touch=False):
        def launches():
            x, out = torch.ones(8, device="cuda"), torch.zeros(8, device="cuda")
            for number in (4, 4, 4, last):
                double[grid](x, out, number, BLOCK=8)
            if touch:
                on_side(lambda: double[(1,)](x, out, 4, BLOCK=8), lambda: x[3:].fill_(2))

        return launches

    assert bindings(program()) == (2, [])
    assert bindings(program(last=5)) == (3, [])
    # The one that was known is judged as the first was.
    assert bindings(program(touch=True)) == (2, ["MRV204"])
    # What a grid is made of by a function, nobody knows beforehand.
    assert bindings(program(grid=lambda meta: (1,))) == (5, [])


def test_memory_that_lies_where_other_memory_was_is_met_anew():
    def program():
        out = torch.zeros(8, device="cuda")
        for _ in range(3):
            x = torch.ones(8, device="cuda")
            double[(1,)](x, out, 4, BLOCK=8)
            del x

    count, codes = bindings(program)
    assert count == 4 and codes == []


def test_what_data_decides_and_what_goes_elsewhere_is_bound_each_time():
    def program():
        index, x, out = torch.arange(4, device="cuda"), torch.ones(8, device="cuda"), torch.zeros(4, device="cuda")
        table = torch.tensor([x.data_ptr()], device="cuda")
        for _ in range(2):
            gather[(1,)](index, x, out)
            through_table[(1,)](table, out)

    recorder = run(program)
    assert recorder.unseen == {"triton:through_table": 2}
    assert bindings(program)[0] == 6


def table_program():
    x, out = torch.ones(4, device="cuda"), torch.zeros(4, device="cuda")
    table = torch.tensor([x.data_ptr()], device="cuda")
    torch.cuda.synchronize()
    side = side_stream()
    with torch.cuda.stream(side):
        x.fill_(2)
    through_table[(1,)](table, out)
    torch.cuda.synchronize()
    return x


def test_addresses_from_memory_are_counted():
    recorder = run(table_program)
    assert recorder.findings == [] and recorder.unseen == {"triton:through_table": 1}


def test_declared_effects_are_judged():
    kept = []

    def reads(arguments):
        return kept, ()

    def program():
        x, out = torch.ones(4, device="cuda"), torch.zeros(4, device="cuda")
        kept.append(x)
        table = torch.tensor([x.data_ptr()], device="cuda")
        side = side_stream()
        with torch.cuda.stream(side):
            x.fill_(2)
        through_table[(1,)](table, out)
        torch.cuda.synchronize()

    with on_facade(effects={"through_table": reads}) as (recorder, _):
        program()
        kept.clear()
    assert [finding.code for finding in recorder.findings] == ["MRV204"]
    assert recorder.unseen == {}
