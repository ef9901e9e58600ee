"""The proof that a mutant is equivalent, on runs that are written down by hand: two streams and a host."""

from mrv2.checks.events import OperationKind, Space, SyncKind
from mrv2.checks.happens_before.records import (
    Accesses,
    Acquires,
    Allocates,
    Frees,
    OperationBegins,
    Releases,
    Synchronises,
)
from mrv2.fuzz.mutants.generated.proof import copies_told_apart, relation_of, why_not_equivalent

HOST, MAIN, SIDE = range(3)


class Recorded:
    """Writes down a run; each method is something that the program does."""

    def __init__(self, *blocks):
        self.records = [
            Allocates(number, MAIN, 64, Space.DEVICE, ((f"{name}.py", 1, name),)) for number, name in enumerate(blocks)
        ]
        self._operations = self._tokens = 0

    def run(self, lane, *, reads=(), writes=(), line=1):
        number, self._operations = self._operations, self._operations + 1
        stack = (("a/runner.py", line, "step"),)
        self.records.append(OperationBegins(number, lane, OperationKind.KERNEL, "kernel", stack, HOST))
        for blocks, write in ((reads, False), (writes, True)):
            if blocks:
                self.records.append(Accesses(number, tuple((block, 0, 64) for block in blocks), write))
        return self

    def waits(self, lane, other):
        token, self._tokens = self._tokens, self._tokens + 1
        self.records.append(Releases(token, other))
        self.records.append(Synchronises(token, lane, SyncKind.WAIT_EVENT, "wait_event", ()))
        self.records.append(Acquires(lane, token, token))
        return self

    def drops(self, block, *after):
        self.records.append(Frees(block, HOST, (), tuple(after)))
        return self


def missing(original, mutant):
    return why_not_equivalent(relation_of(original.records), relation_of(mutant.records))


def test_an_order_that_another_path_keeps():
    original = Recorded("x").run(MAIN, writes=[0]).waits(SIDE, MAIN).waits(SIDE, MAIN).run(SIDE, reads=[0])
    mutant = Recorded("x").run(MAIN, writes=[0]).waits(SIDE, MAIN).run(SIDE, reads=[0])
    assert missing(original, mutant) is None


def test_the_same_stream_keeps_the_order():
    original = Recorded("x").run(MAIN, writes=[0]).waits(SIDE, MAIN).run(SIDE, reads=[0])
    assert missing(original, Recorded("x").run(MAIN, writes=[0]).run(MAIN, reads=[0])) is None


def test_an_order_that_is_gone_is_missing_though_nothing_collides():
    original = Recorded("x", "y").run(MAIN, writes=[0]).waits(SIDE, MAIN).run(SIDE, writes=[1])
    mutant = Recorded("x", "y").run(MAIN, writes=[0]).run(SIDE, writes=[1])
    assert missing(original, mutant) == (
        "1 of 4 operations lose an order, and no workload lets what they touch collide: "
        "first kernel kernel after kernel kernel"
    )
    assert missing(mutant, original) is None, "more order is no loss"


def test_a_wait_that_comes_too_late_is_missing():
    original = Recorded("x", "y").run(MAIN, writes=[0]).waits(SIDE, MAIN).run(SIDE, writes=[1])
    mutant = Recorded("x", "y").run(MAIN, writes=[0]).run(SIDE, writes=[1]).waits(SIDE, MAIN)
    assert "1 of 4 operations lose an order" in missing(original, mutant)


def test_other_accesses_are_another_program():
    original = Recorded("x", "y").run(MAIN, writes=[0])
    assert "it touches other memory" in missing(original, Recorded("x", "y").run(MAIN, writes=[1]))
    assert "it touches other memory" in missing(original, Recorded("x", "y").run(MAIN, reads=[0]))
    assert "it has 2 operations, and the original 3" in missing(original, Recorded("x", "y"))


def test_what_the_allocator_waits_for_counts():
    original = Recorded("x").run(SIDE, reads=[0]).drops(0, SIDE)
    assert "first free 0 after kernel kernel" in missing(original, Recorded("x").run(SIDE, reads=[0]).drops(0))
    assert missing(original, Recorded("x").run(SIDE, reads=[0]).waits(MAIN, SIDE).drops(0)) is None


def test_ordinary_memory_where_a_dropped_block_was_is_no_access():
    plain = Recorded("x", "y").drops(0).run(MAIN, writes=[1])
    assert missing(plain, Recorded("x", "y").drops(0).run(MAIN, writes=[1, 0])) is None
    bare = Recorded("x").drops(0).run(MAIN, writes=[0])
    assert missing(Recorded("x").drops(0), bare) is None


def copied():
    return Recorded("buffer", "copy").run(MAIN, reads=[0], writes=[1], line=7)


def test_a_copy_is_its_buffer_while_neither_is_written():
    run = copied().run(MAIN, reads=[1]).drops(1).run(MAIN, writes=[0])
    assert copies_told_apart(run.records, "runner.py", range(7, 8)) is None


def test_a_copy_whose_buffer_is_written_is_told_apart():
    for written in (0, 1):
        found = copies_told_apart(copied().run(MAIN, writes=[written]).drops(1).records, "runner.py", range(7, 8))
        assert found == "the buffer or its copy is written while both are in use"


def test_a_copy_that_nobody_saw_is_no_proof():
    assert copies_told_apart(copied().records, "runner.py", range(8, 9)) == "no copy of device memory was seen there"
