"""Traces: the same findings offline, the same bytes every time, and an answer to every damaged file."""

import json
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mrv2.checks.errors import CheckError
from mrv2.checks.events import LaneKind, OperationKind, Space, SyncKind
from mrv2.checks.findings import Finding, Site, Soundness, Verdict
from mrv2.checks.happens_before import HappensBefore, Recorder, Replayer, Tee, TraceWriter, read_trace, replay_trace
from mrv2.checks.happens_before.records import RECORDS

REPORTED = Finding(
    "MRV212",
    Verdict.VIOLATION,
    Soundness.SOUND,
    "lanes out of bounds",
    where=(Site("k.py", 3, "kernel"),),
    evidence={"lanes": [1, 2], "share": 0.5, "nothing": None},
    remedy="mask them",
    step=2,
    replay="r.json",
)


def everything(drive):
    """A program that uses every event, with races of several kinds."""
    source, target, results = drive.pinned(), drive.device(), drive.pinned()
    drive.step = 1
    drive.upload(drive.one, source=(source, 0, 64), target=(target, 0, 64), protected=True)
    drive.touch(writes=[(source, 0, 4)])
    kernel = drive.open(drive.two)
    drive.wait(drive.two, drive.sink.release(drive.one))
    drive.download(drive.two, source=(target, 0, 64), target=(results, 0, 64))
    drive.touch(reads=[(results, 0, 8)], certain=False)
    drive.run(kernel, reads=[(target, 0, 8), (target, 16, 24)])
    with drive.branch(drive.one) as branch:
        drive.kernel(branch, writes=[(target, 0, 8)])
    worker = drive.thread()
    drive.touch(host=worker, writes=[(results, 0, 8)])
    drive.sink.end_lane(worker)
    drive.synchronize(None)
    spare = drive.device()
    drive.kernel(drive.two, reads=[(spare, 0, 8)])
    drive.free(spare)
    drive.free(target, after=[drive.two])
    drive.sink.report(REPORTED)


def write(path, driver_type, program=everything, shift=0):
    with TraceWriter(path) as writer:
        drive = driver_type(writer)
        drive.next_address += shift
        program(drive)
    return path


@pytest.fixture
def trace(tmp_path, driver_type):
    return write(tmp_path / "run.jsonl", driver_type)


@pytest.fixture
def direct(driver_type):
    judge = HappensBefore()
    everything(driver_type(judge))
    return judge.findings


def test_offline_findings_are_those_of_the_run(trace, direct):
    judge = HappensBefore()
    assert replay_trace(trace, judge) == Counter(record.event for record in read_trace(trace))
    assert judge.findings == direct
    assert {finding.code for finding in direct} >= {"MRV201", "MRV203", "MRV204", "MRV205", "MRV210", "MRV212"}


def test_a_replayed_trace_is_the_same_trace(trace, tmp_path):
    again = tmp_path / "again.jsonl"
    with TraceWriter(again) as writer:
        replay_trace(trace, writer)
    assert again.read_bytes() == trace.read_bytes()


def test_addresses_do_not_show(trace, tmp_path, driver_type):
    assert write(tmp_path / "other.jsonl", driver_type, shift=1 << 30).read_bytes() == trace.read_bytes()


def test_every_event_occurs_and_stacks_are_written_once(trace):
    lines = [json.loads(line) for line in trace.read_text().splitlines()]
    assert lines[0] == {"trace": 1, "writer": "mrv2"}
    assert {line["event"] for line in lines[1:]} == {*RECORDS, "stack", "end"}
    frames = [json.dumps(line["frames"]) for line in lines[1:] if line["event"] == "stack"]
    assert len(frames) == len(set(frames))
    assert lines[-1] == {"event": "end", "events": len(lines) - 2 - len(frames)}


def test_a_replaced_block_is_another_block(driver_type):
    def program(drive):
        first = drive.device(base=1 << 20)
        drive.kernel(drive.two, writes=[(first, 0, 8)])
        second = drive.device(base=1 << 20)
        drive.kernel(drive.one, writes=[(second, 0, 8)])

    records, judge = [], HappensBefore()
    program(driver_type(Recorder(records.append)))
    Replayer(judge).tell_all(records)
    assert judge.findings == []


def test_bytes_outside_all_blocks_are_left_out(driver_type):
    records = []
    drive = driver_type(Recorder(records.append))
    operation = drive.kernel(drive.one)
    count = len(records)
    drive.sink.access(operation, [(5, 10)], write=True)
    assert len(records) == count


def test_tee_tells_all(driver_type, direct, trace, tmp_path):
    judge, path = HappensBefore(), tmp_path / "tee.jsonl"
    with TraceWriter(path) as writer:
        everything(driver_type(Tee(writer, judge)))
    assert judge.findings == direct
    assert path.read_bytes() == trace.read_bytes()


def test_tee_hands_out_numbers_of_its_own(driver_type):
    one, two = HappensBefore(), HappensBefore()
    one.lane(LaneKind.HOST, "someone else")
    everything(driver_type(Tee(one, two)))
    assert [finding.code for finding in one.findings] == [finding.code for finding in two.findings]


def test_an_interrupted_program_leaves_a_whole_trace(tmp_path, driver_type):
    def program(drive):
        drive.kernel(drive.one)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "run.jsonl", driver_type, program)
    assert len(list(read_trace(tmp_path / "run.jsonl"))) == 4


def test_writing_where_nothing_can_be_written(tmp_path):
    with pytest.raises(CheckError, match="must be writable"):
        TraceWriter(tmp_path / "missing" / "run.jsonl")


# ---- damaged files


def changed(trace, kind, /, **fields):
    """The trace with other fields in the first event of a kind; a field of ``...`` is removed."""
    lines = [json.loads(line) for line in trace.read_text().splitlines()]
    line = next(line for line in lines if line.get("event") == kind)
    line.update(fields)
    for name in [name for name, value in line.items() if value is ...]:
        del line[name]
    trace.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return trace


DAMAGE = {
    "other version": lambda t: t.write_text(t.read_text().replace('"trace":1', '"trace":2')),
    "empty file": lambda t: t.write_text(""),
    "no header": lambda t: t.write_text("".join(t.read_text().splitlines(True)[1:])),
    "another file": lambda t: t.write_text("hello\n"),
    "a list": lambda t: t.write_text("[]\n"),
    "cut in a line": lambda t: t.write_bytes(t.read_bytes()[:-300]),
    "cut between lines": lambda t: t.write_text("".join(t.read_text().splitlines(True)[:-5])),
    "line missing": lambda t: t.write_text(
        "".join(line for i, line in enumerate(t.read_text().splitlines(True)) if i != 20)
    ),
    "end that counts otherwise": lambda t: changed(t, "end", events=3),
    "something after the end": lambda t: t.write_text(t.read_text() + '{"event":"lane"}\n'),
    "blank line": lambda t: t.write_text(t.read_text().replace("\n", "\n\n", 1)),
    "no text": lambda t: t.write_bytes(b'{"trace":1}\n\xff\xfe\n'),
    "deep nesting": lambda t: t.write_text('{"trace":1}\n' + "[" * 100_000 + "\n"),
    "unknown event": lambda t: changed(t, "operation", event="explode"),
    "unknown field": lambda t: changed(t, "operation", command="rm"),
    "missing field": lambda t: changed(t, "operation", name=...),
    "unknown kind": lambda t: changed(t, "operation", kind="teapot"),
    "kind that is a list": lambda t: changed(t, "operation", kind=["kernel"]),
    "lane of the future": lambda t: changed(t, "operation", lane=99),
    "negative lane": lambda t: changed(t, "operation", lane=-1),
    "lane that is true": lambda t: changed(t, "operation", lane=True),
    "name that is a number": lambda t: changed(t, "operation", name=3),
    "flag that is a number": lambda t: changed(t, "access", write=1),
    "number out of order": lambda t: changed(t, "operation", operation=7),
    "unknown stack": lambda t: changed(t, "operation", stack=99),
    "bytes beyond the block": lambda t: changed(t, "access", ranges=[[0, 0, 65]]),
    "bytes backwards": lambda t: changed(t, "access", ranges=[[0, 8, 4]]),
    "bytes of no block": lambda t: changed(t, "access", ranges=[[9, 0, 1]]),
    "bytes that are text": lambda t: changed(t, "access", ranges=["all"]),
    "ranges that are none": lambda t: changed(t, "access", ranges=0),
    "block of negative size": lambda t: changed(t, "allocate", size=-1),
    "frame of another shape": lambda t: changed(t, "stack", frames=[["a.py", "b"]]),
    "frames that are none": lambda t: changed(t, "stack", frames=3),
    "finding without code": lambda t: changed(t, "report", finding={}),
    "finding that is text": lambda t: changed(t, "report", finding="MRV201"),
    "finding with a numeric title": lambda t: changed(t, "report", finding=damaged_finding(title=1)),
    "finding of an unknown verdict": lambda t: changed(t, "report", finding=damaged_finding(verdict="guilty")),
    "access of a closed operation": lambda t: changed(t, "access", operation=2, ranges=[[0, 0, 1]]),
    "close of what is not open": lambda t: changed(t, "close", operation=0),
    "token used before its release": lambda t: changed(t, "acquire", token=99),
    "sync used before it began": lambda t: changed(t, "acquire", sync=99),
    "second free": lambda t: changed(t, "free", block=1),
}


def damaged_finding(**fields):
    from mrv2.checks.happens_before.finding_json import finding_to_json

    return {**finding_to_json(REPORTED), **fields}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_named(trace, damage):
    DAMAGE[damage](trace)
    with pytest.raises(CheckError) as caught:
        replay_trace(trace, HappensBefore())
    error = caught.value
    assert str(trace) in error.subject
    assert error.rule and error.reason and error.remedy


def test_line_of_the_damage_is_named(trace):
    changed(trace, "stack", frames=3)
    with pytest.raises(CheckError, match=r"line \d+: 3 is not a list of frames"):
        list(read_trace(trace))


def test_missing_file_is_named(tmp_path):
    with pytest.raises(CheckError, match="No such file"):
        list(read_trace(tmp_path / "nowhere.jsonl"))


@settings(max_examples=200, deadline=None)
@given(cut=st.integers(0, 10_000), junk=st.binary(max_size=8))
def test_any_cut_and_junk_is_an_error_or_the_whole_trace(tmp_path_factory, driver_type, cut, junk):
    path = write(tmp_path_factory.mktemp("t") / "run.jsonl", driver_type)
    whole = path.read_bytes()
    cut %= len(whole)
    path.write_bytes(whole[:cut] + junk + whole[cut + len(junk) :])
    try:
        replay_trace(path, HappensBefore())
    except CheckError:
        pass
    else:
        assert len(path.read_bytes()) == len(whole)


# ---- random programs survive the file

numbers = st.integers(0, 2)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("kernel"), numbers, numbers, st.booleans()),
        st.tuples(st.just("touch"), numbers, st.booleans()),
        st.tuples(st.just("wait"), numbers, numbers),
        st.tuples(st.just("sync"), numbers),
    ),
    max_size=20,
)


def carry_out(drive, program):
    blocks = [drive.pinned(), drive.device(), drive.pinned()]
    streams = [drive.one, drive.two, drive.sink.lane(LaneKind.STREAM, "stream 3")]
    for line, (name, *arguments) in enumerate(program):
        if name == "kernel":
            stream, block, write = arguments
            drive.kernel(streams[stream], line, **{"writes" if write else "reads": [(blocks[block], 0, 8)]})
        elif name == "touch":
            block, write = arguments
            drive.touch(line, **{"writes" if write else "reads": [(blocks[block % 2 * 2], 0, 8)]})
        elif name == "wait":
            drive.wait(streams[arguments[0]], drive.sink.release(streams[arguments[1]]), line=line)
        else:
            drive.synchronize(drive.sink.release(streams[arguments[0]]), line)


@settings(max_examples=100, deadline=None)
@given(program=steps)
def test_findings_survive_recording(driver_type, program):
    judge, again, records = HappensBefore(), HappensBefore(), []
    carry_out(driver_type(Tee(judge, Recorder(records.append))), program)
    Replayer(again).tell_all(records)
    assert again.findings == judge.findings


def test_records_say_what_was_told(driver_type):
    records = []
    drive = driver_type(Recorder(records.append))
    drive.step = 3
    block = drive.pinned(line=5)
    drive.kernel(drive.one, 10, reads=[(block, 8, 16)], certain=False)
    lane, *_, allocation, operation, access = records
    assert (lane.kind, lane.name) == (LaneKind.HOST, "MainThread")
    assert (allocation.size, allocation.space, allocation.stack[0]) == (64, Space.PINNED, ("runner.py", 5, "execute"))
    assert (operation.kind, operation.issuer, operation.step) == (OperationKind.KERNEL, 0, 3)
    assert access.ranges == ((0, 8, 16),)
    assert not access.certain
    drive.wait(drive.host, None, SyncKind.EVENT_QUERY)
    assert records[-1] == replace(records[-1], kind=SyncKind.EVENT_QUERY, step=3)
