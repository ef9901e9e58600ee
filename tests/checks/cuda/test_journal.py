"""Events that are judged later: in their order, by all threads, and not before they are complete."""

from mrv2.checks.cuda.journal import MAX_ENTRIES, Entry, Journal
from mrv2.checks.events import LaneKind, OperationKind, Space, SyncKind
from mrv2.checks.happens_before.core import HappensBefore

STACK = (("program.py", 1, "f"),)


def race_on_two_streams(sink, *, ordered):
    host = sink.lane(LaneKind.HOST, "main")
    lanes = [sink.lane(LaneKind.STREAM, f"stream {number}") for number in (1, 2)]
    block = sink.allocate(lanes[0], 4096, 64, Space.DEVICE, STACK)
    for number, lane in enumerate(lanes):
        if number and ordered:
            sync = sink.sync(lane, SyncKind.WAIT_EVENT, "wait_event", STACK)
            sink.acquire(lane, sink.release(lanes[0]), sync=sync)
        operation = sink.operation(lane, OperationKind.KERNEL, f"kernel {number}", STACK, issuer=host, open=True)
        sink.access(operation, [(4096, 4128)], write=True)
        sink.close(operation)
    sink.free(block, host, STACK, after=lanes)


def test_the_verdict_is_that_of_the_sink():
    for ordered in (True, False):
        judge, direct = HappensBefore(), HappensBefore()
        journal = Journal(judge)
        race_on_two_streams(journal, ordered=ordered)
        assert judge.findings == []
        journal.flush()
        race_on_two_streams(direct, ordered=ordered)
        assert judge.findings == direct.findings
        assert bool(direct.findings) is not ordered


def test_what_is_not_complete_holds_back_what_follows():
    called = []
    journal = Journal(HappensBefore())
    entry = Entry((called.append, None))
    journal.add(entry)
    journal.add((called.append, "second"))
    journal.flush()
    assert called == []
    entry[1] = "first"
    journal.flush()
    assert called == ["first", "second"]


def test_a_long_journal_is_judged_before_anyone_asks():
    called = []
    journal = Journal(HappensBefore())
    for number in range(MAX_ENTRIES):
        journal.add((called.append, number))
        journal.flush_if_long()
    assert called == []
    journal.add((called.append, MAX_ENTRIES))
    journal.flush_if_long()
    assert called == [*range(MAX_ENTRIES + 1)]
