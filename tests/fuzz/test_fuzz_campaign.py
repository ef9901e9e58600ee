"""Machines, the shrinker, and campaigns whose processes and disks fail."""

import json
import sys
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test

from mrv2.checks.errors import CheckError
from mrv2.checks.virtual.schedules import Decision, Schedule
from mrv2.fuzz.campaign.coverage import SAMPLING, SCHEDULES, meetings, traits
from mrv2.fuzz.campaign.driver import CampaignDriver
from mrv2.fuzz.campaign.findings import FindingStore, FoundCase, read_found_case
from mrv2.fuzz.campaign.options import Options, check_features
from mrv2.fuzz.campaign.progress import ProgressLog, ProgressReader
from mrv2.fuzz.campaign.record import main, record
from mrv2.fuzz.campaign.worker import Worker
from mrv2.fuzz.case import CaseOutcome, Failure, run_case
from mrv2.fuzz.feature_sets.judge import Tally
from mrv2.fuzz.grammars import STOP
from mrv2.fuzz.machine import RARE, FuzzFailure, RunnerMachine, machine_of
from mrv2.fuzz.script import KINDS, Abort, Advance, Arrive, Preempt, Script, Skip
from mrv2.fuzz.shrink import Shrinker
from mrv2.fuzz.strategies import GRAMMAR_CHOICES, decisions
from mrv2.fuzz.targets.protocols import Feature
from mrv2.fuzz.targets.reference import ReferenceTarget
from mrv2.refrunner.api import SamplingParams

TARGET = ReferenceTarget()
QUICK = settings(max_examples=15, stateful_step_count=10, deadline=None, suppress_health_check=list(HealthCheck))
SMALL = Script((Arrive((1,), SamplingParams(max_tokens=1)),), {"max_num_reqs": 2})
BIG = Script(
    (
        Arrive((1, 2, 3, 4), SamplingParams(temperature=0.8, seed=3, max_tokens=8, top_k=5), 2),
        Advance(4),
        Skip(),
        Arrive((5, 6, 7), SamplingParams(max_tokens=8)),
        Preempt(3),
        Advance(3),
        Abort(2),
    ),
    {"max_num_reqs": 2, "pad_to": 4, "poison": True},
    3,
    Schedule("random:7", 0, (Decision(3, 1), Decision(8, None), Decision(9, 0, True))),
    "tiny-sliding",
)


def clean(script):
    return CaseOutcome((), 3, Tally(tokens=2), dict.fromkeys(RARE, 0), {})


def broken(script, signature="wrong"):
    return CaseOutcome((Failure(signature, f"{signature}, as seen", 4),), 3, Tally(), dict.fromkeys(RARE, 0), {})


class Playing(RunnerMachine):
    """Judges by a function in the place of a runner."""

    judge = staticmethod(clean)

    def run(self, script):
        return self.judge(script)


def test_a_machine_draws_what_it_says_and_is_silent_about_a_runner_that_is_right():
    seen = []

    class Machine(Playing):
        @staticmethod
        def judge(script):
            seen.append(script)
            return clean(script)

    run_state_machine_as_test(machine_of(TARGET, "refrunner", ("tiny", "tiny-sliding"), Machine), settings=QUICK)
    assert {script.schedule is None for script in seen} == {True, False}
    assert {script.model for script in seen} == {"tiny", "tiny-sliding"}
    assert any(script.schedule and script.schedule.deviations for script in seen)


def test_whatever_a_target_has_is_drawn_within_a_hundred_cases():
    seen = []

    class Machine(Playing):
        @staticmethod
        def judge(script):
            seen.append(script)
            return clean(script)

    chosen = settings(QUICK, max_examples=10, stateful_step_count=10, phases=[Phase.generate])
    for number in range(10):  # rounds as a campaign's: in a longer one most cases are hardly changed copies
        machine = seed(number)(machine_of(TARGET, "refrunner", ("tiny",), Machine))
        run_state_machine_as_test(machine, settings=chosen)
    turned = {(name, value) for script in seen for name, value in script.settings.items() if name in TARGET.knobs}
    assert {name for name, _ in turned} == set(TARGET.knobs)
    assert ("graph_mode", "full") in turned
    drawn = {name for script in seen for name in traits(script, TARGET.knobs)}
    assert {*SAMPLING, *KINDS, *(f"schedule {name}" for name in SCHEDULES), "deviations", "continues"} <= drawn
    assert {f"{count} steps in flight" for count in (1, 2, 3, 6)} <= drawn
    assert len([script for script in seen if script.relation]) < len(seen) / 3


def test_hypothesis_shrinks_requests_and_schedule_together():
    class Machine(Playing):
        # Little else to draw: each run takes ten milliseconds, and the shrinker needs hundreds.
        settings = classmethod(lambda cls: st.just({}))
        relations = classmethod(lambda cls: st.none())
        requests = classmethod(lambda cls: st.just(Arrive((1,))))
        schedule_strategy = st.builds(Schedule, deviations=st.lists(decisions(), max_size=2).map(tuple))

        @staticmethod
        def judge(script):
            preempted = any(isinstance(event, Preempt) for event in script.events)
            late = any(item.moment > 1 for item in script.schedule.deviations)
            return broken(script) if preempted and late else clean(script)

    chosen = settings(QUICK, max_examples=200, stateful_step_count=4)
    with pytest.raises(FuzzFailure) as caught:
        run_state_machine_as_test(machine_of(TARGET, "refrunner", ("tiny",), Machine), settings=chosen)
    script = caught.value.script
    assert script.num_events == 2 and script.num_deviations == 1
    assert script.schedule.deviations[0].moment == 2
    assert "def test_replay():" in str(caught.value)


def test_features_that_are_switched_off_are_not_drawn():
    seen = []

    class Machine(Playing):
        features = ("top_k", "pad_to")

        @staticmethod
        def judge(script):
            seen.append(script)
            return clean(script)

    run_state_machine_as_test(machine_of(TARGET, "refrunner", ("tiny",), Machine), settings=QUICK)
    used = {name.split()[0] for script in seen for name in meetings(script, TARGET.knobs)}
    assert used and used <= {"top_k", "pad_to"}
    with pytest.raises(CheckError, match="--features topk"):
        check_features(("topk",), TARGET)


def test_what_a_target_does_not_promise_is_not_asked_of_it():
    class Promising(ReferenceTarget):
        features = frozenset(Feature) - {Feature.SEEDED_SAMPLING}

    seen = []

    class Machine(Playing):
        @staticmethod
        def judge(script):
            seen.append(script)
            return clean(script)

    for target in (TARGET, Promising()):
        seen.clear()
        run_state_machine_as_test(machine_of(target, "refrunner", ("tiny",), Machine), settings=QUICK)
        requests = [event for script in seen for event in script.events if isinstance(event, Arrive)]
        assert any(request.sampling.temperature for request in requests) is (target is TARGET)
    check_features(None, Promising())
    with pytest.raises(CheckError, match="--features temperature"):
        check_features(("temperature",), Promising())
    Promising.features = frozenset(Feature) - {Feature.PREEMPTION}
    with pytest.raises(CheckError, match="its features lack preemption"):
        check_features(None, Promising())


def test_the_shrinker_leaves_only_what_the_failure_needs():
    def fails(script):
        return any(isinstance(event, Abort) for event in script.events) and any(
            isinstance(event, Arrive) and len(event.prompt) >= 2 for event in script.events
        )

    shrinker = Shrinker(fails, TARGET.knobs)
    script = shrinker.shrink(BIG)
    kinds = [type(event) for event in script.events]
    assert kinds == [Arrive, Abort] and len(script.events[0].prompt) == 2
    assert script.events[0].sampling == SamplingParams(max_tokens=1)
    assert (script.schedule, script.steps_in_flight, script.model) == (None, 1, "tiny")
    assert script.settings == {"max_num_reqs": 2}
    assert shrinker.runs < 80


def test_the_shrinker_leaves_a_draw_its_seed():
    def fails(script):
        return any(isinstance(event, Arrive) and event.sampling.temperature > 0 for event in script.events)

    script = Shrinker(fails, TARGET.knobs).shrink(BIG)
    assert script.events == (Arrive((1,), SamplingParams(temperature=0.8, seed=3, max_tokens=1)),)


def test_the_shrinker_keeps_the_deviations_that_it_needs():
    def fails(script):
        return script.schedule is not None and Decision(8, None) in script.schedule.deviations

    script = Shrinker(fails, TARGET.knobs).shrink(BIG)
    assert script.schedule == Schedule("late", 0, (Decision(8, None),))
    assert script.events == ()


def found(script=SMALL, signature="wrong", minimised=False):
    return FoundCase("refrunner", signature, "as seen", script, script, 4, signature, minimised)


def test_a_finding_is_kept_once_and_only_gets_smaller(tmp_path):
    store = FindingStore(tmp_path)
    assert store.add(found(BIG))
    assert not store.add(found(SMALL)), "another script of the same failure, not minimised: the first one stays"
    assert store.all()[0].script == BIG
    assert not store.add(found(SMALL, minimised=True))
    assert (store.all()[0].script, store.all()[0].original) == (SMALL, BIG)
    assert not store.add(found(BIG, minimised=True))
    assert store.all()[0].script == SMALL
    assert store.add(found(signature="other"))
    assert len(store.all()) == 2


def test_no_cut_of_a_finding_is_read_as_one(tmp_path):
    FindingStore(tmp_path).add(found())
    (path,) = tmp_path.glob("*.json")
    whole = path.read_bytes()
    assert read_found_case(path) == found()
    for length in range(0, len(whole) - 1, 17):
        path.write_bytes(whole[:length])
        with pytest.raises(CheckError):
            read_found_case(path)


def test_a_torn_line_of_progress_costs_only_itself(tmp_path):
    log = ProgressLog(tmp_path, 0)
    for _ in range(3):
        log.write({"cases": 2, "steps": 10, "hits": {"wrong": 1}, "meetings": ["a b c"]})
    (path,) = tmp_path.glob("*.jsonl")
    whole = path.read_bytes()
    line = len(whole) // 3
    for length in range(len(whole) + 1):
        path.write_bytes(whole[:length])
        assert ProgressReader(tmp_path).read().counts["cases"] == 2 * (length // line)
    again = ProgressLog(tmp_path, 0)
    again.write({"cases": 5})
    assert ProgressReader(tmp_path).read().counts["cases"] == 11, (
        "a process that comes after a torn line has its own file"
    )


DAMAGED = [
    "no JSON",
    "7",
    "null",
    '{"cases": "three"}',
    '{"cases": -1}',
    '{"cases": true}',
    '{"cpu_seconds": null}',
    '{"time": NaN}',
    '{"meetings": "top_k"}',
    '{"meetings": [7]}',
    '{"hits": ["wrong"]}',
    '{"traits": {"top_k": 1.5}}',
    '{"environment": "torch"}',
]


@pytest.mark.parametrize("line", DAMAGED)
def test_a_damaged_line_is_not_counted_and_told(tmp_path, line):
    log = ProgressLog(tmp_path, 0)
    log.write({"cases": 2, "steps": 4})
    (path,) = tmp_path.glob("*.jsonl")
    with path.open("a") as file:
        file.write(f"{line}\n")
    log.write({"cases": 3})
    progress = ProgressReader(tmp_path).read()
    assert (progress.counts["cases"], progress.counts["steps"], progress.damaged) == (5, 4, 1)


def test_progress_is_read_on_where_it_ended(tmp_path):
    log, reader = ProgressLog(tmp_path, 0), ProgressReader(tmp_path)
    log.write({"cases": 2})
    (path,) = tmp_path.glob("*.jsonl")
    assert reader.read().counts["cases"] == 2
    with path.open("a") as file:
        file.write('{"cases": 3')
    assert reader.read().counts["cases"] == 2, "half a line"
    with path.open("a") as file:
        file.write("}\n")
    ProgressLog(tmp_path, 1).write({"cases": 4})
    assert [reader.read().counts["cases"] for _ in range(2)] == [9, 9]


def test_a_worker_that_cannot_be_started_leaves_none_behind(tmp_path):
    """The first one would work for ever, and the second one is no program."""
    forever = [sys.executable, "-c", "import signal; signal.pause()"]
    driver = CampaignDriver(tmp_path, Options("refrunner"), 2, lambda number: forever if number == 0 else ["/none"])
    with pytest.raises(FileNotFoundError):
        driver.run(None, lambda state: None)
    assert driver.state().workers == 0


def test_a_worker_finds_minimises_and_does_not_report_twice(tmp_path, monkeypatch):
    ran = []

    def judge(target, script, note=None):
        ran.append(script)
        skipped = any(isinstance(event, Skip) for event in script.events)
        return broken(script, "skip") if skipped else clean(script)

    monkeypatch.setattr("mrv2.fuzz.campaign.worker.run_case", judge)
    Worker(TARGET, Options("refrunner", cases=60, cases_a_round=20), tmp_path, 0).run()
    (case,) = FindingStore(tmp_path / "findings").all()
    assert case.minimised and case.script.events == (Skip(),) and len(case.original.events) > 1
    progress = ProgressReader(tmp_path / "workers").read()
    assert progress.counts["cases"] == len(ran)
    assert progress.counts["rounds"] == 3 and progress.hits["skip"] > 3
    assert progress.meetings == {name for script in ran for name in meetings(script, TARGET.knobs)}


def test_a_request_that_the_target_rightly_refuses_is_no_smaller_failure(tmp_path):
    """A grammar without a stop token is refused; the wrong token behind it needs the grammar."""
    sampling = SamplingParams(max_tokens=3, grammar=GRAMMAR_CHOICES[0], stop_token_ids=(STOP,))
    script = Script((Arrive((1, 2), sampling), Skip()), {**BIG.settings, "max_model_len": 48, "grammars": True})
    bare = replace(script, events=(Arrive((1,), replace(sampling, stop_token_ids=())),))
    assert [failure.refusal for failure in run_case(TARGET, bare).failures] == [True]

    def judge(target, script, note=None):
        arrivals = [event for event in script.events if isinstance(event, Arrive)]
        if any(event.sampling.grammar and not event.sampling.stop_token_ids for event in arrivals):
            return CaseOutcome((Failure("refused", "", 3, True),), 1, Tally(), {}, {})
        return broken(script) if any(event.sampling.grammar for event in arrivals) else clean(script)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mrv2.fuzz.campaign.worker.run_case", judge)
        Worker(TARGET, Options("refrunner"), tmp_path, 0)._minimise(found(script))
    (case,) = FindingStore(tmp_path / "findings").all()
    (event,) = case.script.events
    assert case.cause == "wrong" and event.sampling.stop_token_ids == (STOP,)


def test_a_worker_whose_driver_is_gone_does_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "mrv2.fuzz.campaign.worker.run_case", lambda target, script, note=None: pytest.fail("it went on")
    )
    Worker(TARGET, Options("refrunner", cases=60), tmp_path, 0, parent=2**30).run()
    assert ProgressReader(tmp_path / "workers").read().counts["cases"] == 0


def test_a_failure_that_does_not_repeat_says_so(tmp_path, monkeypatch):
    ran = []

    def judge(target, script, note=None):
        ran.append(script)
        return broken(script) if len(ran) == 7 else clean(script)

    monkeypatch.setattr("mrv2.fuzz.campaign.worker.run_case", judge)
    Worker(TARGET, Options("refrunner", cases=60, cases_a_round=20), tmp_path, 0).run()
    (case,) = FindingStore(tmp_path / "findings").all()
    assert case.text.startswith("not repeated") and case.original == ran[6]


def test_another_target_does_not_continue_a_campaign(tmp_path):
    CampaignDriver(tmp_path, Options("refrunner"), 1, lambda number: ["true"])
    with pytest.raises(CheckError, match="another folder for each target"):
        CampaignDriver(tmp_path, Options("my_engine:target"), 1, lambda number: ["true"])


def test_campaigns_of_several_machines_add_up(tmp_path):
    folders = [tmp_path / name for name in ("one", "two")]
    for number, folder in enumerate(folders):
        CampaignDriver(folder, Options("refrunner", seed=number), 1, lambda number: ["true"])
        line = {"cases": 3, "steps": 50, "cpu_seconds": 2.0, "case_seconds": 1.5, "traits": {"top_k": 2}}
        ProgressLog(folder / "workers", 0).write({**line, "states": {"row reuses": 7}, "meetings": ["top_k skip cpu"]})
        ProgressLog(folder / "workers", 1).write({"environment": {"torch": f"2.{number}"}})
    FindingStore(folders[1] / "findings").add(found())
    sums = record(folders, "abc")
    assert (sums["cases"], sums["steps"], sums["steps_a_cpu_second"], sums["engine_overhead"]) == (6, 100, 25.0, 0.25)
    assert sums["environments"] == [{"torch": "2.0"}, {"torch": "2.1"}]
    assert sums["seeds"] == [0, 1] and sums["meetings"] == 1 and sums["findings"] == ["wrong"]
    assert sums["cases_with"] == {"top_k": 4} and sums["happened"] == {"row reuses": 14}
    assert main([*map(str, folders), "--commit", "abc", "--out", str(tmp_path / "sums.json")]) == 1
    assert json.loads((tmp_path / "sums.json").read_text()) == sums
    CampaignDriver(tmp_path / "other", Options("my_engine:target"), 1, lambda number: ["true"])
    with pytest.raises(CheckError, match="must have one target"):
        record([*folders, tmp_path / "other"], "abc")
    assert main([str(tmp_path / "none"), "--commit", "abc", "--out", str(tmp_path / "sums.json")]) == 2


def test_a_worker_that_cannot_work_ends_the_campaign_with_its_reason(tmp_path):
    command = [
        sys.executable,
        "-c",
        "import sys; print('OSError: No space left on device', file=sys.stderr); sys.exit(1)",
    ]
    driver = CampaignDriver(tmp_path, Options("refrunner"), 1, lambda number: command)
    with pytest.raises(CheckError, match="No space left on device"):
        driver.run(None, lambda state: None)


def test_a_full_disk_changes_no_finding(tmp_path, monkeypatch):
    store = FindingStore(tmp_path)
    store.add(found(BIG))
    (path,) = tmp_path.glob("*.json")
    before = path.read_bytes()

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("mrv2.fuzz.campaign.durable.os.fsync", full)
    for case in (found(SMALL, minimised=True), found(signature="other")):
        with pytest.raises(OSError, match="No space left"):
            store.add(case)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
