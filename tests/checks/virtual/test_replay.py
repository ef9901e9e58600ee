"""Replay files: the same run again byte for byte, differences named, files that are nothing but data."""

import copy
import json
from pathlib import Path

import pytest
import torch

from mrv2.checks.errors import CheckError
from mrv2.checks.events import LaneKind, OperationKind, Space
from mrv2.checks.happens_before import HappensBefore
from mrv2.checks.libraries import portable_path
from mrv2.checks.virtual.replay import Replay, read_replay, record_replay, repeat, run_twice, write_replay
from mrv2.checks.virtual.runs import run_program
from mrv2.checks.virtual.schedules import Schedule
from mrv2.checks.virtual.transcript import Digest, Transcript, entry_line

NAMED = {"callable": "demo:raced"}


def raced(rounds=2):
    side = torch.cuda.Stream()
    pinned = torch.zeros(4, pin_memory=True)
    data = torch.empty(4, device="cuda")
    data.copy_(pinned, non_blocking=True)
    for _ in range(rounds):
        with torch.cuda.stream(side):
            data.add_(1)
        data.mul_(2)
        pinned.numpy()[1:3] = 5
    torch.cuda.synchronize()
    return data, torch.rand(2, device="cuda")


def longer():
    return raced(3)


class Counting:
    """A program that keeps state, so no two runs of it are the same."""

    def __init__(self):
        self.calls = 0

    def __call__(self):
        self.calls += 1
        return torch.zeros(self.calls, device="cuda")


def unstable_data():
    """The same events, other data: what the device computes depends on something outside."""
    return torch.full((1,), float(next(_numbers)), device="cuda")


_numbers = iter(range(1000))


@pytest.fixture
def recorded() -> Replay:
    return record_replay(raced, NAMED, "random:2@5")[0]


def save(path: Path, replay: Replay) -> dict:
    write_replay(path, replay)
    return json.loads(path.read_text())


class TestRepetition:
    @pytest.mark.parametrize("schedule", ["late", "early", "random:1", "pct:2", "starve:1", "late+2=0,5=1"])
    def test_ten_repetitions_are_the_same(self, schedule):
        replay, run = record_replay(raced, NAMED, schedule)
        assert replay.events > 20 and run.findings
        for _ in range(10):
            again = repeat(replay, raced)
            assert again.same
            assert again.run.same_outcome(run)

    def test_two_schedules_are_two_transcripts(self):
        digests = {record_replay(raced, NAMED, schedule)[0].sha256 for schedule in ("late", "early", "starve:1")}
        assert len(digests) == 3

    def test_other_program_is_told_with_the_event(self, recorded):
        again = repeat(recorded, longer)
        assert not again.same
        assert again.difference.within == 1
        lines: list[str] = []
        run_program(longer, recorded.schedule, note=lambda entry: lines.append(entry_line(entry).rstrip()))
        assert again.difference.now == lines[again.difference.event]
        before: list[str] = []
        run_program(raced, recorded.schedule, note=lambda entry: before.append(entry_line(entry).rstrip()))
        assert lines[: again.difference.event] == before[: again.difference.event]
        assert lines[again.difference.event] != before[again.difference.event]

    def test_a_run_that_stops_earlier_or_goes_on_is_told(self):
        def short():
            return torch.zeros(1, device="cuda").add_(1)

        def long():
            data = torch.zeros(1, device="cuda").add_(1)
            torch.cuda.synchronize()
            return data

        brief, extended = (record_replay(program, NAMED, "early")[0] for program in (short, long))
        assert not repeat(brief, long).same
        assert not repeat(extended, short).same

    def test_other_findings_of_the_same_events_are_told(self, recorded):
        changed = Replay(**{**vars(recorded), "findings": ()})
        again = repeat(changed, raced)
        assert again.findings_differ and again.difference is None and not again.same

    def test_a_long_run_is_located_to_within_a_few_events(self, monkeypatch):
        monkeypatch.setattr("mrv2.checks.virtual.transcript._MARKS", 8)
        replay, _ = record_replay(raced, NAMED, "late")
        assert 4 <= len(replay.marks) <= 8 < replay.every * 8
        assert repeat(replay, raced).same
        difference = repeat(replay, longer).difference
        exact = repeat_exactly(raced, longer)
        assert difference.event <= exact < difference.event + difference.within

    def test_what_comes_after_the_last_mark_counts_too(self, recorded):
        every = recorded.events - 1
        digest = Digest(every)
        run_program(raced, recorded.schedule, note=digest.add)
        coarse = Replay(**{**vars(recorded), "every": every, "marks": tuple(digest.marks)})
        assert repeat(coarse, raced).same
        wrong = Replay(**{**vars(coarse), "sha256": "0" * 64})
        assert repeat(wrong, raced).difference.event == every


def repeat_exactly(one, two):
    """Number of the first event that differs under late."""
    transcripts = []
    for program in (one, two):
        lines: list[str] = []
        run_program(program, "late", note=lambda entry, lines=lines: lines.append(entry_line(entry)))
        transcripts.append(lines)
    return next(i for i, (a, b) in enumerate(zip(*transcripts, strict=False)) if a != b)


class TestTwice:
    @pytest.mark.parametrize("schedule", ["late", "random:3", "starve:0"])
    def test_a_deterministic_program_is_the_same_twice(self, schedule):
        run, difference = run_twice(raced, schedule)
        assert difference is None
        assert run.findings

    def test_state_between_calls_is_told(self):
        _, difference = run_twice(Counting(), "late")
        assert '"allocate",0,0,4,' in difference.before
        assert '"allocate",0,0,8,' in difference.now

    def test_other_data_of_the_same_events_are_told(self):
        _, difference = run_twice(unstable_data, "late")
        assert difference.before != difference.now

    def test_a_run_that_stops_earlier_is_told(self):
        calls = []

        def shrinking():
            calls.append(1)
            torch.cuda.synchronize()
            if len(calls) == 1:
                torch.cuda.current_stream().synchronize()

        _, difference = run_twice(shrinking, "late")
        assert "Stream.synchronize" in difference.before
        assert difference.now == ""


class TestTranscript:
    def test_where_memory_that_nobody_announced_lies_does_not_show(self):
        """An allocator may put it where a block was before, or not."""
        noted = []
        for base in (64, 4096):
            entries = []
            transcript = Transcript(HappensBefore(), entries.append)
            lane = transcript.lane(LaneKind.HOST, "host")
            block = transcript.allocate(lane, 64, 16, Space.DEVICE, ())
            for time, address in enumerate((64, base)):
                operation = transcript.operation(lane, OperationKind.KERNEL, "kernel", ())
                transcript.access(operation, [(address, address + 8)], write=True)
                if time == 0:
                    transcript.free(block, lane, ())
            noted.append([entry for entry in entries if entry[0] == "access"])
        assert noted[0] == noted[1] and [entry[2] for entry in noted[0]] == [((int(block), 0, 8),), ()]

    def test_no_address_and_no_folder_of_this_machine_is_in_it(self):
        lines: list[str] = []
        run_program(raced, "early", note=lambda entry: lines.append(entry_line(entry)))
        text = "".join(lines)
        assert str(Path(__file__).parent) not in text
        assert '"test_replay.py"' in text
        numbers = [int(word) for word in text.replace("[", ",").replace("]", ",").split(",") if word.isdecimal()]
        assert max(numbers) < 10_000

    def test_a_file_is_named_from_its_outermost_package_on(self, tmp_path):
        inner = tmp_path / "engine" / "kernels"
        inner.mkdir(parents=True)
        for folder in (inner, inner.parent):
            (folder / "__init__.py").touch()
        assert portable_path(str(inner / "copy.py")) == "engine/kernels/copy.py"
        assert portable_path(str(tmp_path / "script.py")) == "script.py"
        assert portable_path("<string>") == "<string>"

    def test_stacks_end_where_the_program_is_called(self):
        (finding, *_) = run_program(raced, "late").findings
        assert {site.function for site in finding.where} == {"raced"}


class TestFiles:
    def test_what_is_written_is_read_back(self, tmp_path, recorded):
        assert save(tmp_path / "r.json", recorded)["replay"] == 1
        assert read_replay(tmp_path / "r.json") == recorded

    def test_deviations_are_kept(self, tmp_path):
        replay, _ = record_replay(raced, NAMED, Schedule.parse("early+1=-,3=1,4=0*"))
        save(tmp_path / "r.json", replay)
        assert read_replay(tmp_path / "r.json").schedule == Schedule.parse("early+1=-,3=1,4=0*")

    @pytest.mark.parametrize(
        ("path", "value"),
        [
            (("replay",), 2),
            (("replay",), True),
            (("replay",), 1.0),
            (("program",), "demo:raced"),
            (("program",), {"callable": 3}),
            (("program",), {"callable": "demo:raced", "target": "x", "workload": {}}),
            (("program",), {"target": "refrunner"}),
            (("program",), {"target": "refrunner", "workload": []}),
            (("schedule",), "late"),
            (("schedule", "base"), "soon"),
            (("schedule", "base"), 3),
            (("schedule", "base"), "random:" + "9" * 5000),
            (("schedule", "base"), "pct:0:3000000"),
            (("schedule", "base"), "random:\N{SUPERSCRIPT TWO}"),
            (("schedule", "base"), "random:\N{ARABIC-INDIC DIGIT ONE}"),
            (("schedule", "deviations"), ["9" * 5000 + "=1"]),
            (("schedule", "deviations"), ["1=" + "9" * 5000]),
            (("schedule", "seed"), 1 << 64),
            (("schedule", "seed"), 1.0),
            (("schedule", "seed"), -1),
            (("schedule", "seed"), True),
            (("schedule", "deviations"), [[1, 2]]),
            (("schedule", "deviations"), ["1=x"]),
            (("schedule", "deviations"), {"1": 2}),
            (("environment",), []),
            (("environment", "torch"), 2.13),
            (("trace", "events"), "many"),
            (("trace", "events"), 10**9),
            (("trace", "every"), 0),
            (("trace", "marks"), [1.5]),
            (("trace", "sha256"), "xyz"),
            (("findings",), [3]),
            (("more",), 1),
        ],
    )
    def test_a_malformed_file_is_refused_in_four_parts(self, tmp_path, recorded, path, value):
        file = tmp_path / "r.json"
        content = copy.deepcopy(save(file, recorded))
        place = content
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value
        file.write_text(json.dumps(content))
        with pytest.raises(CheckError) as caught:
            read_replay(file)
        assert caught.value.subject == f"replay {file}"
        assert caught.value.rule and caught.value.reason and caught.value.remedy

    @pytest.mark.parametrize("name", ["replay", "schedule", "base", "seed"])
    def test_two_entries_of_one_name_are_refused(self, tmp_path, recorded, name):
        file = tmp_path / "r.json"
        content = save(file, recorded)
        value = content["schedule"][name] if name in content["schedule"] else content[name]
        entry = f"{json.dumps(name)}:{json.dumps(value, separators=(',', ':'))}"
        text = json.dumps(content, separators=(",", ":"))
        file.write_text(text)
        assert read_replay(file) == recorded
        file.write_text(text.replace(entry, f"{entry},{entry}"))
        with pytest.raises(CheckError, match="two entries of one name"):
            read_replay(file)

    def test_a_number_of_too_many_digits_is_refused(self, tmp_path, recorded):
        file = tmp_path / "r.json"
        save(file, recorded)
        file.write_text(file.read_text().replace('"seed":5', f'"seed":{"9" * 5000}'))
        with pytest.raises(CheckError):
            read_replay(file)

    @pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"replay": NaN}', "[" * 100_000, "\xff"])
    def test_what_is_no_file_of_ours_is_refused(self, tmp_path, text):
        file = tmp_path / "r.json"
        file.write_bytes(text.encode("latin-1"))
        with pytest.raises(CheckError):
            read_replay(file)

    def test_each_missing_field_is_refused(self, tmp_path, recorded):
        file = tmp_path / "r.json"
        content = save(file, recorded)
        for name in content:
            file.write_text(json.dumps({key: value for key, value in content.items() if key != name}))
            with pytest.raises(CheckError):
                read_replay(file)

    def test_a_missing_file_is_refused(self, tmp_path):
        with pytest.raises(CheckError, match="readable"):
            read_replay(tmp_path / "none.json")
