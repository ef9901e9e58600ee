"""Generated mutants of order: what is found in a source, and what each operator makes of it."""

import ast
from textwrap import dedent

import pytest

from mrv2.fuzz.mutants.generated.calls import Calls, Kind
from mrv2.fuzz.mutants.generated.sites import generate, mutants_of
from mrv2.fuzz.mutants.generated.text import SourceFile
from mrv2.fuzz.mutants.source import package_folder


def mutants(text, path="runner.py"):
    return mutants_of([SourceFile(path, dedent(text))])


def made(text, operator):
    """The one mutant of an operator, as the lines that differ from the original."""
    (found,) = [mutant for mutant in mutants(text) if mutant.operator == operator]
    before = dedent(text).splitlines()
    return [line.strip() for line in found.text.splitlines() if line not in before]


def operators(text):
    return [(mutant.kind, mutant.operator) for mutant in mutants(text)]


RECORD = """
    def upload(self, target, memory):
        target.copy_(memory, non_blocking=True)
        self.read = self.stream.record_event()
"""


def test_an_event_is_never_recorded_or_before_the_work_that_it_covers():
    assert made(RECORD, "delete") == ['self.read = __import__("torch").cuda.Event()']
    (early,) = [mutant for mutant in mutants(RECORD) if mutant.operator == "record a line early"]
    lines = [line.strip() for line in early.text.strip().splitlines()]
    assert lines[1:] == [
        "_mrv2_early = self.stream.record_event()",
        "target.copy_(memory, non_blocking=True)",
        "self.read = _mrv2_early",
    ]


def test_a_record_is_not_moved_before_what_it_needs():
    text = """
        def mark():
            event = torch.cuda.Event()
            event.record()
            return event
    """
    assert operators(text) == [(Kind.RECORD, "delete")]


def test_a_host_waits_not_at_all_or_too_late():
    text = """
        def result(self):
            self.done.synchronize()
            tokens = self.host.tolist()
            return tokens
    """
    assert made(text, "delete") == ["None"]
    (late,) = [mutant for mutant in mutants(text) if mutant.operator == "wait a line late"]
    lines = [line.strip() for line in late.text.strip().splitlines()]
    assert lines[1:] == ["None", "tokens = self.host.tolist()", "self.done.synchronize()", "return tokens"]


def test_a_wait_at_the_end_of_a_scope_moves_behind_the_statement_after_it():
    text = """
        def result(self):
            with phase("wait"):
                self.done.synchronize()
            rows = self.host.tolist()
            return rows
    """
    (late,) = [mutant for mutant in mutants(text) if mutant.operator == "wait a line late"]
    assert late.text.strip().splitlines()[-2:] == ["    self.done.synchronize()", "    return rows"]


def test_nothing_waits_behind_a_return():
    text = """
        def result(self):
            self.done.synchronize()
            return self.host
    """
    assert operators(text) == [(Kind.SYNCHRONISE, "delete")]


def test_streams_wait_the_other_way_round():
    text = """
        def download(self, tokens):
            self.copies.wait_stream(self.main)
            return tokens
    """
    assert made(text, "wait the other way round") == ["self.main.wait_stream(self.copies)"]


def test_a_poll_is_taken_for_yes():
    assert made("free = slot.event.query()", "take the answer for yes") == ["free = True"]


def test_the_allocator_hears_nothing_or_of_the_wrong_stream():
    text = "tokens.record_stream(copies)"
    assert made(text, "delete") == ["None"]
    assert made(text, "swap the stream") == ['tokens.record_stream(__import__("torch").cuda.current_stream())']


def test_an_allocator_hears_of_a_copy_to_memory_that_nobody_has():
    text = "torch.empty(1, device=device).copy_(spare)"
    assert operators(text) == [(Kind.KEPT, "delete")] and made(text, "delete") == ["None"]
    assert not mutants("kept = torch.empty(1, device=device).copy_(spare, non_blocking=True)")
    assert not mutants("self.table.copy_(spare, non_blocking=True)")


def test_who_also_tells_the_allocator_is_taken_for_the_rest_that_he_does():
    text = """
        class Device:
            def fresh(self, size):
                memory = torch.empty(size, pin_memory=True)
                torch.empty_like(memory, device=self.name).copy_(memory, non_blocking=True)
                return memory
            def step(self):
                return self.fresh(3)
    """
    assert kinds(text)["self.fresh(3)"] is Kind.PINNED


def test_pinned_memory_becomes_pageable_or_is_given_out_twice():
    text = """
        def buffer(self, size):
            return torch.empty(size, pin_memory=True)
    """
    assert made(text, "make it pageable") == ["return torch.empty(size, pin_memory=False)"]
    (again,) = made(text, "return the buffer of the call before")
    kept = "vars(self).setdefault('_mrv2_kept', {})"
    assert again == f"return {kept}.setdefault(repr((size, True,)), torch.empty(size, pin_memory=True))"
    assert made("sent = numbers.pin_memory()", "make it pageable") == ["sent = numbers"]
    assert not mutants("plain = torch.empty(3, pin_memory=False)")


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        ("with torch.cuda.stream(side):\n    work()", 'with __import__("contextlib").nullcontext():'),
        ("side = torch.cuda.Stream(device)", 'side = __import__("torch").cuda.current_stream()'),
        ("main = torch.cuda.current_stream(device)", "main = torch.cuda.default_stream(device)"),
    ],
    ids=["scope", "new stream", "current stream"],
)
def test_another_stream_is_taken(text, changed):
    assert made(text, "swap the stream") == [changed]


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        ("slot = ring[step % depth]", "slot = ring[step % max(1, (depth) - 1)]"),
        ("place = (place + 1) % len(ring)", "place = (place + 1) % max(1, (len(ring)) - 1)"),
        ("kept = deque(maxlen=4)", "kept = deque(maxlen=max(1, (4) - 1))"),
        ("ring = [torch.empty(9) for _ in range(n)]", "ring = [torch.empty(9) for _ in range(max(1, (n) - 1))]"),
        ("RING_DEPTH = 3", "RING_DEPTH = 2"),
    ],
    ids=["place", "turn", "deque", "list", "constant"],
)
def test_a_ring_is_one_shorter(text, changed):
    assert made(text, "shrink the ring by one") == [changed]


@pytest.mark.parametrize("text", ["even = number % 2 == 0", "limit = 3", "rows = [i for i in range(n)]"])
def test_what_is_no_ring_is_left_alone(text):
    assert not mutants(text)


GROWING = """
    class Ring:
        def free(self):
            for slot in self.slots:
                if slot.event.query():
                    return slot
            self.slots.append(Slot())
            return self.slots[-1]
"""


def test_a_ring_that_grows_uses_the_oldest_slot_again_or_keeps_the_newest_only():
    (shorter,) = made(GROWING, "shrink the ring by one")
    assert shorter == "self.slots.append(self.slots.pop(0) if self.slots else Slot())"
    assert made(GROWING, "drop the reference") == ["self.slots[:] = [Slot()]"]


def test_what_is_kept_for_its_memory_alone_is_dropped():
    text = """
        class Output:
            def __init__(self, tokens, copies):
                self.sources = tokens
                self.copies = copies
            def result(self):
                return self.copies
    """
    assert made(text, "drop the reference") == ["self.sources = None"]


def test_a_copy_is_the_buffer_itself():
    assert made("return_value = self.tokens.clone()", "return the buffer") == ["return_value = self.tokens"]


def test_kernels_are_not_the_hosts():
    text = """
        @triton.jit
        def kernel(ring, n):
            tl.load(ring + other[tl.program_id(0) % n])
    """
    assert not mutants(text)


def kinds(text):
    file = SourceFile("runner.py", dedent(text))
    calls = Calls([file])
    found = (node for node in ast.walk(file.tree) if isinstance(node, ast.Call))
    return {ast.unparse(call): kind for call in found if (kind := calls.kind(call)) is not None}


def test_a_function_that_only_wraps_makes_places_of_its_callers():
    text = """
        class Device:
            def mark(self):
                event = torch.cuda.Event()
                event.record()
                return event
        class Lease:
            def end(self):
                self.event = self.device.mark()
        class Upload:
            def end(self):
                if self.lease is not None:
                    self.lease.end()
        def step(upload):
            upload.end()
    """
    assert kinds(text)["upload.end()"] is Kind.RECORD
    assert kinds(text)["self.device.mark()"] is Kind.RECORD


def test_a_name_that_means_two_things_is_taken_for_neither():
    text = """
        class One:
            def end(self):
                self.event.record()
        class Two:
            def end(self):
                self.words.clear()
        def step(it):
            it.end()
    """
    assert "it.end()" not in kinds(text)


def test_a_function_with_other_arguments_or_of_another_class_is_not_meant():
    text = """
        class Recorder:
            def join(self):
                self.main.wait_stream(self.side)
            def go(self):
                self.join()
                return ", ".join(["a"])
        class Other:
            def make(self):
                return self.fresh()
            def fresh(self):
                return torch.empty(1, pin_memory=True)
        class Third:
            def fresh(self):
                return 1
    """
    found = kinds(text)
    assert found["self.join()"] is Kind.WAIT and found["self.fresh()"] is Kind.PINNED
    assert "', '.join(['a'])" not in found


def test_columns_of_the_tree_count_bytes():
    assert made("s = 'é' + str(x.query())", "take the answer for yes") == ["s = 'é' + str(True)"]


def test_every_kind_of_place_is_found_in_the_reference_runner():
    found = generate(package_folder("mrv2.refrunner"))
    assert {mutant.kind for mutant in found} == set(Kind)
    assert len({mutant.name for mutant in found}) == len(found) > 60
    for mutant in found:
        ast.parse(mutant.text)
        assert mutant.text != (package_folder("mrv2.refrunner") / mutant.file).read_text()
