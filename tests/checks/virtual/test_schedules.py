"""Schedules: what each one does, schedules as text, deviations, and replays of recorded decisions."""

import itertools
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mrv2.checks.virtual import VirtualDeviceError, virtual_device
from mrv2.checks.virtual.runs import run_program
from mrv2.checks.virtual.schedules import (
    Decision,
    Deviating,
    Late,
    Moments,
    Priorities,
    Reason,
    Recorder,
    Schedule,
    expand,
)

ALL = ("late", "early", "random:0", "random:5", "pct", "pct:1", "pct:2:9", "starve", "starve:1")
TEXTS = (
    *ALL,
    "explore",
    "explore:7",
    "late@3",
    "random:3@18446744073709551615",
    "late+4=1",
    "starve:1@2+0=-,7=12",
    "late+3=1*,3=0",
)

BAD = """Late soon late:1 random: random:x random:-1 pct:1:2:3 late@ late@x late+ late+1 late+=1 late+1= late+1=x
    late+1=2, late,early late+1=* late+1=-* late+1=2**"""


def raced():
    """Two streams that add to and double one tensor, twice each; every order gives another number."""
    side = torch.cuda.Stream()
    data = torch.zeros(2, device="cuda")
    torch.cuda.synchronize()
    for _ in range(2):
        with torch.cuda.stream(side):
            data.add_(1)
        data.mul_(2)
    torch.cuda.synchronize()
    return data


def polled():
    """A host that polls until the work is done."""
    data = torch.ones(3, device="cuda") * 2
    done = torch.cuda.Event()
    done.record()
    polls = 0
    while not done.query():
        polls += 1
        assert polls < 1000
    return data


def two_streams_and_a_reader():
    side = torch.cuda.Stream()
    source = torch.full((4,), 3.0, pin_memory=True)
    with torch.cuda.stream(side):
        data = torch.empty(4, device="cuda")
        data.copy_(source, non_blocking=True)
    torch.cuda.current_stream().wait_stream(side)
    data.record_stream(torch.cuda.current_stream())
    return (data * 2).cpu()


class TestText:
    @pytest.mark.parametrize("text", TEXTS)
    def test_text_is_kept(self, text):
        assert str(Schedule.parse(text)) == text

    @given(
        st.sampled_from(ALL),
        st.integers(0, 2**64 - 1),
        st.lists(st.builds(Decision, st.integers(0, 10**6), st.none() | st.integers(0, 70))),
    )
    def test_every_schedule_is_read_back(self, base, seed, deviations):
        schedule = Schedule(base, seed, tuple(deviations))
        assert Schedule.parse(str(schedule)) == schedule

    @pytest.mark.parametrize("seed", [-1, 1 << 64])
    def test_a_seed_that_could_not_be_read_back_is_refused(self, seed):
        with pytest.raises(VirtualDeviceError, match="64 bits"):
            Schedule("late", seed)

    @pytest.mark.parametrize("text", ["", *BAD.split()])
    def test_anything_else_is_refused_in_four_parts(self, text):
        with pytest.raises(VirtualDeviceError) as caught:
            Schedule.parse(text)
        assert caught.value.subject.startswith("schedule ")
        assert "late, early, random[:N]" in caught.value.rule

    @pytest.mark.parametrize(
        "text",
        [
            f"random:{1 << 64}", "random:" + "9" * 5000, "late@" + "9" * 5000, "late+1=" + "9" * 5000,
            "late+" + "9" * 5000 + "=1", "pct:0:10001", "random:\N{SUPERSCRIPT TWO}", "late@\N{ARABIC-INDIC DIGIT ONE}",
        ],
    )  # fmt: skip
    def test_numbers_that_are_too_large_or_no_digits_are_refused(self, text):
        with pytest.raises(VirtualDeviceError) as caught:
            Schedule.parse(text)
        assert len(caught.value.subject) < 120

    def test_the_largest_numbers_are_taken(self):
        text = f"random:{(1 << 64) - 1}@{(1 << 64) - 1}+{(1 << 64) - 1}={(1 << 64) - 1}"
        assert str(Schedule.parse(text)) == text
        assert run_program(polled, Schedule.parse(text)).error is None
        assert run_program(polled, "pct:0:10000").error is None

    def test_the_seed_of_the_text_comes_first(self):
        assert Schedule.parse("late@3", seed=9).seed == 3
        assert Schedule.parse("late", seed=9).seed == 9

    def test_explore_is_not_one_run(self):
        with pytest.raises(VirtualDeviceError, match="many runs"), virtual_device("explore:3"):
            pass


class TestExpand:
    def test_each_stream_is_starved_in_turn(self):
        assert [*map(str, expand("late, early,random:3,starve", streams=3))] == [
            "late", "early", "random:3", "starve:0", "starve:1", "starve:2",
        ]  # fmt: skip

    def test_no_schedule_comes_twice(self):
        assert [*map(str, expand("starve:1,starve,late,late"))] == ["starve:1", "starve:0", "late"]

    def test_seed_is_of_those_that_name_none(self):
        assert [*map(str, expand("random:1,random:1@4", seed=7))] == ["random:1@7", "random:1@4"]

    def test_a_bad_one_is_refused(self):
        with pytest.raises(VirtualDeviceError):
            expand("late,,early")


class TestBehaviour:
    def test_late_runs_nothing_until_it_must_and_early_leaves_nothing(self):
        for name, pending in (("late", True), ("early", False)):
            with virtual_device(name) as device:
                torch.ones(2, device="cuda")
                assert bool(device.runtime.streams.default.pending) is pending

    @pytest.mark.parametrize("starved", [0, 1])
    def test_starve_holds_back_one_stream_only(self, starved):
        with virtual_device(f"starve:{starved}") as device:
            side = torch.cuda.Stream()
            torch.ones(2, device="cuda")
            with torch.cuda.stream(side):
                torch.ones(2, device="cuda")
            pending = [any(not item.mark for item in queue.pending) for queue in device.runtime.streams.queues.values()]
            assert pending == [starved == 0, starved == 1]

    @pytest.mark.parametrize("schedule", ALL)
    def test_a_loop_that_polls_comes_to_its_end(self, schedule):
        run = run_program(polled, schedule)
        assert run.data == [2.0, 2.0, 2.0]
        assert not run.findings

    @pytest.mark.parametrize("schedule", ALL)
    def test_an_ordered_program_gives_the_same_in_every_schedule(self, schedule):
        run = run_program(two_streams_and_a_reader, schedule)
        assert run.data == [6.0] * 4
        assert not run.findings

    @pytest.mark.parametrize("kind", ["random", "pct"])
    def test_numbers_and_seeds_give_other_orders_and_equal_ones_the_same(self, kind):
        texts = [f"{kind}:{number}@{seed}" for number in range(4) for seed in range(3)]
        outcomes = {text: run_program(raced, text).data[0] for text in texts}
        assert len(set(outcomes.values())) > 2
        assert outcomes == {text: run_program(raced, text).data[0] for text in texts}

    def test_the_findings_do_not_depend_on_the_schedule(self):
        found = {tuple(sorted(f.fingerprint() for f in run_program(raced, schedule).findings)) for schedule in ALL}
        assert len(found) == 1
        assert found != {()}


class TestPriorities:
    """The scheduler of Burckhardt et al."""

    def ask(self, scheduler, questions, ready=(0, 1), reason=Reason.ENQUEUE):
        return [scheduler.choose(ready, reason) for _ in range(questions)]

    def test_without_changes_the_highest_always_runs(self):
        for number in range(20):
            scheduler = Priorities(number, changes=0)
            assert len(set(self.ask(scheduler, 50))) == 1

    def test_all_three_are_highest_about_equally_often(self):
        first = Counter(self.ask(Priorities(number, changes=0), 1)[0] for number in range(300))
        assert set(first) == {None, 0, 1}
        assert min(first.values()) > 60

    def test_each_change_lowers_the_highest_once(self):
        for number in range(30):
            scheduler = Priorities(number, changes=3)
            points = len(scheduler._points)
            answers = self.ask(scheduler, 5000)
            assert sum(before != after for before, after in itertools.pairwise(answers)) <= points

    def test_the_host_cannot_go_on_where_it_waits_or_polls(self):
        for number, reason in itertools.product(range(20), (Reason.HOST_SYNC, Reason.POLL, Reason.END)):
            assert None not in self.ask(Priorities(number), 20, reason=reason)
            assert self.ask(Priorities(number), 1, ready=(), reason=reason) == [None]


class TestMoments:
    def test_waiting_is_no_moment(self):
        moments = Moments()
        script = [
            (Reason.ENQUEUE, 0, 0), (Reason.ENQUEUE, None, 0), (Reason.HOST_SYNC, 1, 0), (Reason.HOST_SYNC, None, 0),
            (Reason.ENQUEUE, None, 1), (Reason.POLL, 0, 2), (Reason.POLL, None, 3), (Reason.HOST_ACCESS, None, 4),
            (Reason.END, 0, 4),
        ]  # fmt: skip
        for reason, answer, number in script:
            assert moments.question(reason) == number
            moments.answer(answer, reason)

    @pytest.mark.parametrize("schedule", ALL)
    def test_the_same_moments_in_every_schedule(self, schedule):
        def moments(scheduler):
            seen = []

            class Spy(Recorder):
                def choose(self, ready, reason):
                    answer = super().choose(ready, reason)
                    seen.append(self._moments.now)
                    return answer

            run_program(raced, scheduler=Spy(scheduler))
            return max(seen)

        assert moments(Schedule.parse(schedule).scheduler()) == moments(Late())


class TestDeviations:
    def test_decisions_of_a_run_are_a_schedule_with_the_same_result(self):
        for text in (*ALL, "random:7", "random:8", "random:9"):
            run = run_program(raced, text)
            again = run_program(raced, Schedule("late", 0, run.decisions))
            assert again.data == run.data, text

    def test_late_decides_nothing(self):
        assert run_program(raced, "late").decisions == ()

    @pytest.mark.parametrize("schedule", ["late", "early", "random:2", "starve:1"])
    def test_any_deviations_make_a_schedule(self, schedule):
        @given(
            st.lists(st.builds(Decision, st.integers(0, 12), st.none() | st.integers(0, 3), st.booleans()), max_size=8)
        )
        def check(deviations):
            run = run_program(raced, Schedule(schedule, 0, tuple(deviations)))
            assert run.error is None
            assert len(run.findings) == len(run_program(raced, "late").findings)

        check()

    def test_a_host_that_goes_on_is_a_deviation_too(self):
        # Under early, the host passes by the moment at which each operation is enqueued, and then touches the source.
        run = run_program(overwritten, Schedule.parse("early+1=-,2=-"))
        assert run.data == [1.0]
        assert run_program(overwritten, "early").data == [0.0]

    def test_decisions_answer_in_their_order_and_those_that_cannot_are_passed_over(self):
        chosen = Deviating(Late(), [Decision(1, 5), Decision(1, 2), Decision(1, None), Decision(1, 1), Decision(2, 1)])
        ready = (1, 2)
        answers = [chosen.choose(ready, Reason.ENQUEUE) for _ in range(6)]
        assert answers == [None, 1, None, 0, None, None]
        assert chosen.decisions() == (Decision(1, 2), Decision(1, None), Decision(2, 1))

    def test_a_rush_runs_as_long_as_its_stream_can_at_that_moment(self):
        chosen = Deviating(Late(), [Decision(0, 1, rush=True), Decision(0, 2)])
        questions = [(1, 2), (1, 2), (2,), (2,), (1,)]
        answers = [chosen.choose(ready, Reason.ENQUEUE) for ready in questions]
        assert answers == [0, 0, 0, None, None]
        assert chosen.decisions() == (Decision(0, 1, rush=True), Decision(0, 2))

    def test_one_rush_stands_for_many_steps(self):
        assert run_program(raced, "late+4=1*").data == run_program(raced, "late+4=1,4=1").data

    def test_a_scheduler_can_run_again(self):
        chosen = Deviating(Late(), [Decision(0, 1)])
        for _ in range(2):
            chosen.start(0)
            assert chosen.choose((1,), Reason.ENQUEUE) == 0
            assert chosen.decisions() == (Decision(0, 1),)


def overwritten():
    pinned = torch.zeros(1, pin_memory=True)
    data = torch.empty(1, device="cuda")
    data.copy_(pinned, non_blocking=True)
    pinned.add_(1)
    return data
