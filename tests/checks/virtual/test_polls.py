"""What a program does with the answers of its polls: ignored ones are found, loops end, both ways are explored."""

import itertools

import pytest
import torch

from mrv2.checks.virtual import virtual_device
from mrv2.checks.virtual.explore import explore
from mrv2.checks.virtual.runs import run_program
from mrv2.checks.virtual.schedules import Late, Priorities, Reason, Schedule, Starve

ALL = ("late", "early", "random:0", "random:1", "random:2", "pct:0", "pct:1", "pct:2", "starve:0", "starve:1")


class Upload:
    """A pinned source that the host writes again after a poll; ``queries`` are two ways to ask."""

    def __init__(self):
        self.pinned = torch.zeros(4, pin_memory=True)
        self.data = self.pinned.to("cuda", non_blocking=True)
        self.event = torch.cuda.Event()
        self.event.record()

    def query(self, way):
        return self.event.query() if way == "event" else torch.cuda.current_stream().query()


def ignored(way):
    upload = Upload()
    upload.query(way)
    upload.pinned.fill_(2)
    return upload.data


def obeyed(way):
    upload = Upload()
    if not upload.query(way):
        upload.event.synchronize()
    upload.pinned.fill_(2)
    return upload.data


def obeyed_the_wrong_way_round(way):
    upload = Upload()
    if upload.query(way):
        torch.cuda.synchronize()
    else:
        upload.pinned.fill_(2)
    return upload.data


def waited_for(way):
    upload = Upload()
    for _ in range(5):
        upload.data.mul_(2)
    for polls in itertools.count():
        if upload.query(way):
            break
        assert polls < 100
    upload.pinned.fill_(2)
    return upload.data


def ignored_second(way):
    """Two events, the second of them ignored; the polls of the first must not run what the second is about."""
    first, second = Upload(), Upload()
    if not first.event.query():
        first.event.synchronize()
    second.query(way)
    second.pinned.fill_(2)
    return second.data


def another_event_each_turn():
    data = torch.ones(3, device="cuda") * 2
    for turn in itertools.count():
        event = torch.cuda.Event()
        event.record()
        if event.query():
            return data
        assert turn < 100
    raise AssertionError


def another_stream_that_waits_each_turn():
    side = torch.cuda.Stream()
    data = torch.ones(3, device="cuda") * 2
    for turn in itertools.count():
        side.wait_stream(torch.cuda.current_stream())
        if side.query():
            return data
        assert turn < 100
    raise AssertionError


def ring_of_events():
    """Slots that are taken again once their event says so, and else waited for: as engines do."""
    slots = [(torch.zeros(4, pin_memory=True), torch.cuda.Event()) for _ in range(2)]
    total = torch.zeros(4, device="cuda")
    for step in range(8):
        pinned, event = slots[step % 2]
        if not event.query():
            event.synchronize()
        pinned.fill_(step)
        total += pinned.to("cuda", non_blocking=True)
        event.record()
    return total


WAYS = ("event", "stream")


def codes(program, schedule):
    run = run_program(program, schedule)
    assert run.error is None
    return [finding.code for finding in run.findings]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("program", [ignored, obeyed_the_wrong_way_round, ignored_second])
def test_an_answer_that_is_ignored_is_found_in_late_and_starve(program, way):
    for schedule in ("late", "starve:0"):
        assert codes(lambda: program(way), schedule) == ["MRV201"]
    assert codes(lambda: program(way), "early") == []


@pytest.mark.parametrize("schedule", ALL)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("program", [obeyed, waited_for])
def test_an_answer_that_is_obeyed_is_right_in_every_schedule(program, way, schedule):
    run = run_program(lambda: program(way), schedule)
    assert (run.error, run.findings, run.data) == (None, (), [0.0] * 4)


@pytest.mark.parametrize("schedule", ALL)
@pytest.mark.parametrize("program", [another_event_each_turn, another_stream_that_waits_each_turn, ring_of_events])
def test_programs_that_poll_come_to_their_end_everywhere(program, schedule):
    assert codes(program, schedule) == []


def test_an_idle_device_says_yes_at_once():
    with virtual_device("late"):
        event = torch.cuda.Event()
        event.record()
        assert event.query()
        assert torch.cuda.current_stream().query()


def test_work_goes_on_from_the_second_poll_on():
    with virtual_device("late"):
        torch.ones(2, device="cuda").mul_(2)
        event = torch.cuda.Event()
        event.record()
        assert [event.query() for _ in range(4)] == [False, False, True, True]


def test_schedulers_tell_the_first_poll_from_later_ones():
    for scheduler in (Late(), Starve(0)):
        assert scheduler.choose((0,), Reason.FIRST_POLL) is None
        assert scheduler.choose((0,), Reason.POLL) == 0
    assert Starve(0).choose((0, 1), Reason.FIRST_POLL) == 1
    assert {Priorities(number).choose((0,), Reason.FIRST_POLL) for number in range(20)} == {None, 0}
    assert {Priorities(number).choose((0,), Reason.POLL) for number in range(20)} == {0}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("program", [ignored, obeyed_the_wrong_way_round])
def test_exploration_tries_both_answers(program, way):
    found = explore(lambda: program(way))
    assert found.exhausted
    assert {tuple(finding.code for finding in run.findings) for run in found.runs} == {(), ("MRV201",)}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("program", [obeyed, waited_for])
def test_exploration_of_a_program_that_obeys_finds_nothing(program, way):
    found = explore(lambda: program(way))
    assert found.exhausted
    assert len(found.runs) == 2
    assert [run.findings for run in found.runs] == [(), ()]


def test_each_combination_of_answers_is_met_once():
    answers = []

    def program():
        got = []
        for _ in range(3):
            torch.ones(2, device="cuda")
            event = torch.cuda.Event()
            event.record()
            got.append(event.query())
            torch.cuda.synchronize()
        answers.append(tuple(got))
        return got

    found = explore(program)
    assert found.exhausted
    assert sorted(answers) == sorted(itertools.product([False, True], repeat=3))


def test_a_way_that_leaves_races_behind_is_explored_as_well():
    """The answer yes leads past the operations whose order an earlier run turned round."""

    def program():
        side = torch.cuda.Stream()
        data = torch.zeros(1, device="cuda")
        event = torch.cuda.Event()
        event.record()
        if not event.query():
            with torch.cuda.stream(side):
                data.add_(1)
            data.mul_(2)
        torch.cuda.synchronize()
        return data

    found = explore(program)
    assert found.exhausted
    assert {tuple(run.data) for run in found.runs} >= {(0.0,), (1.0,), (2.0,)}


@pytest.mark.parametrize("program", [waited_for, ignored, obeyed_the_wrong_way_round])
def test_decisions_of_a_run_with_polls_repeat_it(program):
    def noting():
        return program("event")

    for text in (*ALL, *(f"random:{number}" for number in range(3, 20))):
        run = run_program(noting, text)
        again = run_program(noting, Schedule("late", 0, run.decisions))
        assert (again.data, again.findings) == (run.data, run.findings), text
    for run in explore(noting).runs:
        again = run_program(noting, run.schedule)
        assert (again.data, again.findings) == (run.data, run.findings)
