"""What virtual_device is given: each wrong value is refused by name, and leaves nothing behind."""

import pytest
import torch

from mrv2.checks.happens_before import HappensBefore
from mrv2.checks.virtual import VirtualDeviceError, virtual_device
from mrv2.checks.virtual.runs import run_program
from mrv2.checks.virtual.schedules import Decision, Late, Schedule


def doubled():
    data = torch.ones(2, device="cuda")
    return (data * 2).cpu().tolist()


def on_two_streams():
    side, down = torch.cuda.Stream(), torch.cuda.Stream()
    with torch.cuda.stream(side):
        doubled()
    with torch.cuda.stream(down):
        return doubled()


class Answers(Late):
    """Late, but for one answer."""

    def __init__(self, answer):
        self.answer = answer

    def choose(self, ready, reason):
        return self.answer if ready else None


@pytest.mark.parametrize(
    ("given", "subject", "rule"),
    [
        ({"kernels": "x"}, "kernels='x'", "'compiled' or 'interpreted'"),
        ({"kernels": True}, "kernels=True", "'compiled' or 'interpreted'"),
        ({"seed": "x"}, "seed='x'", "an integer"),
        ({"seed": -1}, "seed=-1", "0 or more"),
        ({"seed": True}, "seed=True", "an integer"),
        ({"poison": 999}, "poison=999", "a byte, 0 to 255"),
        ({"poison": -1}, "poison=-1", "a byte, 0 to 255"),
        ({"poison": "x"}, "poison='x'", "a byte, 0 to 255"),
        ({"schedule": 3}, "schedule=3", "start, choose, decisions"),
        ({"schedule": None}, "schedule=None", "start, choose, decisions"),
        ({"schedule": Late}, "Late", "start, choose, decisions"),
        ({"hooks": 3}, "hooks=3", "hooks are functions"),
        ({"hooks": (3,)}, "hooks=(3,)", "hooks are functions"),
        ({"hooks": (lambda runtime: None,)}, "which returned None", "hooks are functions"),
        ({"sink": 3}, "sink=3", "it lacks lane, "),
        ({"trace": 3}, "trace=3", "the path of a file"),
    ],
)
def test_a_wrong_value_is_refused_before_the_program_begins(given, subject, rule):
    with pytest.raises(VirtualDeviceError) as caught, virtual_device(**given):
        pytest.fail("the block began")
    assert subject in caught.value.subject
    assert rule in caught.value.rule
    assert not torch.cuda.is_available()


@pytest.mark.parametrize(
    "given",
    [
        {"kernels": "interpreted"},
        {"seed": 2**64 - 1},
        {"poison": 0},
        {"poison": 255},
        {"poison": lambda number: number % 256},
        {"schedule": Schedule("random:1", 3)},
        {"schedule": Late()},
        {"schedule": Answers(0)},
        {"hooks": [lambda runtime: lambda: None]},
        {"sink": HappensBefore()},
    ],
)
def test_a_right_value_is_taken(given):
    with virtual_device(**given):
        assert doubled() == [2, 2]


@pytest.mark.parametrize("answer", [999, -1, True, "0", 1.0])
def test_a_scheduler_that_answers_what_is_no_index_is_named(answer):
    with pytest.raises(VirtualDeviceError, match="index into ready"), virtual_device(Answers(answer)):
        doubled()
    run = run_program(doubled, "early")
    assert run.data == [2, 2]  # and nothing is left behind
    with pytest.raises(VirtualDeviceError, match="index into ready"):
        run_program(doubled, scheduler=Answers(answer))


def test_a_function_that_poisons_is_checked_at_each_allocation():
    with pytest.raises(VirtualDeviceError, match="poison of allocation"), virtual_device(poison=lambda number: 999):
        torch.empty(4, device="cuda")


@pytest.mark.parametrize("schedule", ["starve:99", "starve:3", Schedule("starve:99")])
def test_a_stream_that_is_to_starve_must_exist(schedule):
    with pytest.raises(VirtualDeviceError, match="the streams 0 to 2"), virtual_device(schedule):
        on_two_streams()


@pytest.mark.parametrize("schedule", ["starve", "starve:0", "starve:1", "starve:2"])
def test_a_stream_that_exists_may_starve(schedule):
    with virtual_device(schedule):
        assert on_two_streams() == [2, 2]


def test_a_program_that_raises_is_not_told_of_its_streams():
    with pytest.raises(KeyError), virtual_device("starve:99"):
        raise KeyError("x")


@pytest.mark.parametrize("parts", [(3,), ("late", "x"), ("late", -1), ("late", True), ("late", 0, ("4=1",))])
def test_a_schedule_of_wrong_parts_is_refused(parts):
    with pytest.raises(VirtualDeviceError, match="a schedule is one of"):
        Schedule(*parts)


def test_a_schedule_of_right_parts_is_taken():
    assert str(Schedule("late", 3, (Decision(4, 1),))) == "late@3+4=1"


def uses_one_stream_of_its_own(schedule: str) -> None:
    with virtual_device(schedule):
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.zeros(1, device="cuda").add_(1)
        torch.cuda.synchronize()


@pytest.mark.parametrize("schedule", ["starve:44", "late+3=9", "early+1=44*"])
def test_a_schedule_that_names_a_stream_which_was_never_made_is_refused(schedule):
    with pytest.raises(VirtualDeviceError, match="must exist"):
        uses_one_stream_of_its_own(schedule)


@pytest.mark.parametrize("schedule", ["starve", "starve:1", "late+3=1", "late+1=-"])
def test_streams_that_exist_may_be_named(schedule):
    uses_one_stream_of_its_own(schedule)


@pytest.mark.parametrize("schedule", ["starve:44", "late+1=44"])
def test_a_typed_schedule_of_a_single_run_names_streams_that_exist(schedule):
    with pytest.raises(VirtualDeviceError, match="the streams 0 to 2"):
        run_program(on_two_streams, schedule)


@pytest.mark.parametrize("schedule", ["starve:2", "late+1=2"])
def test_a_typed_schedule_of_a_single_run_may_name_streams_that_exist(schedule):
    assert run_program(on_two_streams, schedule).data == [2, 2]


@pytest.mark.parametrize("schedule", ["starve:44", "late+1=44"])
def test_a_drawn_schedule_may_name_any_stream(schedule):
    assert run_program(on_two_streams, Schedule.parse(schedule)).data == [2, 2]


def test_what_a_program_raised_matters_more_than_the_streams_it_never_made():
    assert run_program([].pop, "starve:44").error == "IndexError: pop from empty list"
