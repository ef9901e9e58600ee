"""The race recorder on a real device: the seeded races, stretched too, the runner at work, and what it costs."""

import json
import time

import pytest
import torch

from mrv2.checks.cuda.recorder import race_recorder, stretched
from mrv2.fuzz.mutants.ordering import ORDERING
from mrv2.fuzz.mutants.targets import mutant
from mrv2.fuzz.programs import MODEL, random_workload
from mrv2.fuzz.targets.reference import ReferenceTarget
from mrv2.fuzz.workload import Driver, close

from .. import race_programs
from ..race_programs import CORRECT, ITEMS, SEEDED, double

pytestmark = pytest.mark.gpu

SEEDED_ITEMS = [item for item in ITEMS if item.source == SEEDED]
#: MRV210 to MRV212 are not the recorder's; a capture that fails leaves torch's generators broken for what comes after.
NOT_HERE = {"MRV210", "MRV211", "MRV212", "MRV502", "MRV503"}
ALL_ITEMS = [item for item in ITEMS if item.code not in NOT_HERE]
STEPS = 100


class _Described:
    """A pinned tensor as an object that torch takes for one of the device."""

    def __init__(self, tensor):
        self.tensor = tensor
        self.__cuda_array_interface__ = {
            "data": (tensor.data_ptr(), False), "shape": tuple(tensor.shape), "typestr": "<f4", "version": 3,
        }  # fmt: skip


@pytest.fixture(autouse=True)
def _uva_views_of_the_real_device(monkeypatch):
    monkeypatch.setattr(race_programs, "uva_view", lambda pinned: torch.as_tensor(_Described(pinned), device="cuda"))


def findings_of(program):
    with race_recorder() as recorder:
        result = program()
        del result
    torch.cuda.synchronize()
    return recorder.findings


def test_what_torch_does_for_a_capture_is_not_the_programs():
    """Two captures on two streams fill the same seed of torch's generator, and nothing orders the two fillings."""

    def program():
        captured = []
        for _ in range(2):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.stream(torch.cuda.Stream()):
                graph.capture_begin()
                captured.append((graph, torch.rand(8, device="cuda")))
                graph.capture_end()
        for graph, _ in captured:
            graph.replay()
        return captured

    assert findings_of(program) == []


def with_unlucky_memory(program):
    """What the host allocator hands out to the program holds no right values by chance."""

    def run():
        blocks = [torch.empty(4, pin_memory=True).fill_(77.0) for _ in range(64)]
        del blocks
        return program()

    return run


@pytest.mark.parametrize("item", ALL_ITEMS, ids=lambda item: f"{item.source[:6]}-{item.name}")
def test_the_wrong_program_is_found_and_the_mended_is_not(item):
    assert [finding.code for finding in findings_of(lambda: item.program(False))] == [item.code]
    assert [finding.title for finding in findings_of(lambda: item.program(True))] == []


def test_the_seeded_races_are_reported_and_the_correct_programs_silent(record_property):
    reported = {}
    for item in SEEDED_ITEMS:
        found = findings_of(lambda item=item: item.program(False))
        reported[item.name] = [f"{finding.code} {finding.verdict.value}" for finding in found]
    correct = {
        item.name: [finding.title for finding in findings_of(lambda item=item: item.program(True))]
        for item in ITEMS
        if item.source == CORRECT
    }
    record_property("seeded_races", json.dumps(reported))
    record_property("correct_programs", json.dumps(correct))
    assert sum(map(bool, reported.values())) >= 7
    assert not any(correct.values()) and len(correct) == 3


def test_stretching_shows_wrong_data(record_property):
    shown = {}
    for item in SEEDED_ITEMS:
        race = stretched(with_unlucky_memory(lambda item=item: item.program(False)))
        shown[item.name] = {
            "expected": race.expected, "stretched": race.stretched, "parked": race.parked, "corrupted": race.corrupted,
        }  # fmt: skip
    record_property("stretched", json.dumps(shown))
    assert sum(entry["corrupted"] for entry in shown.values()) >= 5


def test_stretching_leaves_a_correct_program_alone():
    found = tuple(findings_of(lambda: race_programs.write_write(False)))
    assert found and stretched(lambda: race_programs.write_write(True), found).corrupted is False


def drive(target, steps=STEPS, *, crash=False):
    """A runner with Triton attention through some steps; returns what it saw."""
    workload = random_workload(256, 7, steps)
    runner = target.build({"model": MODEL, "device": "cuda", "attention": "triton", **workload.capacities})
    trace = Driver(runner, workload).run()
    close(runner, trace)
    assert crash or trace.crash is None
    return trace


def test_the_runner_has_no_finding(record_property):
    began = time.perf_counter()
    plain = drive(ReferenceTarget())
    plain_seconds = time.perf_counter() - began
    with race_recorder() as recorder:
        began = time.perf_counter()
        recorded = drive(ReferenceTarget())
        seconds = time.perf_counter() - began
    found = [f"{finding.code} {finding.verdict.value} {finding.title}" for finding in recorder.findings]
    record_property(
        "runner",
        json.dumps({
            "steps": len(recorded.steps), "findings": found, "unseen_kernels": dict(recorder.unseen),
            "seconds_plain_with_first_compilation": plain_seconds, "seconds_recorded": seconds,
        }),
    )  # fmt: skip
    assert found == []
    assert recorded.results == plain.results
    assert len(recorded.steps) >= STEPS


# Of those whose order a poll makes by luck, as a slot's event that is recorded too early, a real device shows no race
# when the results were waited for meanwhile.
@pytest.mark.parametrize(
    "name", ["download_event_on_main_stream", "download_does_not_wait", "download_event_too_early"]
)
def test_a_runner_without_one_of_its_fences_is_found(name):
    (mutation,) = (item for item in ORDERING if item.name == name)
    with mutant(mutation) as target, race_recorder() as recorder:
        drive(target, 20, crash=True)
    assert recorder.findings


def microseconds(call, between=torch.cuda.synchronize, count=2000):
    """Of the host, for one call; the least of five measurements, the device idle before each."""
    best = float("inf")
    for _ in range(5):
        torch.cuda.synchronize()
        between()
        began = time.perf_counter()
        for _ in range(count):
            call()
        best = min(best, time.perf_counter() - began)
    torch.cuda.synchronize()
    return best / count * 1e6


def operations():
    """What is timed; few enough at a time that the launch queue never fills for long."""
    x, y = torch.ones(64, device="cuda"), torch.ones(64, device="cuda")
    pinned, event = torch.ones(64, pin_memory=True), torch.cuda.Event()
    return {
        "add_": lambda: x.add_(1),
        "x+y": lambda: x + y,
        "view": lambda: x.view(8, 8),
        "pinned copy_": lambda: x.copy_(pinned, non_blocking=True),
        "triton": lambda: double[(1,)](x, y, 64, BLOCK=64),
        "event.record": event.record,
        "event.query": event.query,
    }


#: What one call of each is to the journal: an operation, or a wait; and the end of the result, which is dropped.
ENTRIES = {
    "add_": 1, "x+y": 2, "view": 0, "pinned copy_": 1, "triton": 1, "event.record": 1, "event.query": 1,
}  # fmt: skip


def entries(recorder, call, count=50):
    """How much a call writes down each time, once all that it touches is known."""
    call()
    recorder.runtime.sink.flush()
    for _ in range(count):
        call()
    return len(recorder.runtime.sink._entries) / count


def test_what_it_costs(record_property):
    """What a call writes down is judged; how long that takes is reported beside the bar of 10 us."""
    calls = operations()
    for call in calls.values():
        call()
    torch.cuda.synchronize()  # so that the poll says yes
    before = {name: microseconds(call) for name, call in calls.items()}
    judged, written = {}, {}
    with race_recorder() as recorder:
        during = {}
        for name, call in operations().items():
            torch.cuda.synchronize()
            written[name] = entries(recorder, call)
            # What is written down is judged between the measurements.
            during[name] = microseconds(call, recorder.runtime.sink.flush)
            recorder.runtime.sink.flush()
            for _ in range(2000):
                call()
            began = time.perf_counter()
            recorder.runtime.sink.flush()
            judged[name] = round((time.perf_counter() - began) / 2000 * 1e6, 2)
    after = {name: microseconds(call) for name, call in calls.items()}
    added = {name: round(during[name] - before[name], 2) for name in before}
    left = {name: round(after[name] - before[name], 2) for name in before}
    record_property("entries_of_a_call", json.dumps(written))
    record_property("microseconds_before", json.dumps({name: round(value, 2) for name, value in before.items()}))
    record_property("microseconds_added_by_the_recorder_at_the_call", json.dumps(added))
    record_property("microseconds_to_judge_it_later", json.dumps(judged))
    record_property("microseconds_left_after_it", json.dumps(left))
    assert written == ENTRIES
    assert recorder.findings == []


def polled(kind):
    """A download that is read when an event of some class says yes."""
    result, event = torch.ones(4, device="cuda").to("cpu", non_blocking=True), kind()
    event.record()
    while not event.query():
        pass
    return result.tolist()


def test_polls_order_whichever_class_the_event_has(record_property):
    silent = {f"{kind.__module__}.{kind.__name__}": [] for kind in (torch.cuda.Event, torch.Event)}
    for kind, name in zip((torch.cuda.Event, torch.Event), silent, strict=True):
        silent[name] = [finding.title for finding in findings_of(lambda kind=kind: polled(kind))]
    record_property("findings_of_polls", json.dumps(silent))
    assert not any(silent.values())
