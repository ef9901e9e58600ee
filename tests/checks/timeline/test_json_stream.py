"""Events of a Chrome trace, one by one: packed or not, cut anywhere, damaged, and not a trace at all."""

import gzip
import json

import pytest

from mrv2.checks.errors import CheckError
from mrv2.checks.timeline import json_stream
from mrv2.checks.timeline.json_stream import EventStream

EVENTS = [{"name": f"é{index}", "ts": index / 3, "args": {"a": [1, {"b": '}\\"'}]}} for index in range(40)]
WHOLE = json.dumps({"schemaVersion": 1, "distributedInfo": {"rank": 3}, "traceEvents": EVENTS, "traceName": "x"})
TEXT = json.dumps(EVENTS, ensure_ascii=False, indent=1)
#: Numbers with a fraction stay text, digit by digit.
EVENTS = json.loads(TEXT, parse_float=str)


@pytest.fixture(autouse=True, params=[1, 64, 1 << 20])
def _chunk(request, monkeypatch):
    monkeypatch.setattr(json_stream, "CHUNK", request.param)


def read(path):
    stream = EventStream(path)
    return list(stream.events()), stream


def write(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize("pack", [str.encode, lambda text: gzip.compress(text.encode())], ids=["plain", "packed"])
def test_all_events_and_the_header(tmp_path, pack):
    events, stream = read(write(tmp_path / "trace", pack(WHOLE)))
    assert (events, stream.cut, stream.count) == (EVENTS, None, len(EVENTS))
    assert stream.header == {"schemaVersion": 1, "distributedInfo": {"rank": 3}, "traceName": "x"}


def test_it_can_be_read_twice(tmp_path):
    stream = EventStream(write(tmp_path / "trace", WHOLE))
    assert list(stream.events()) == list(stream.events()) == EVENTS


def test_the_bare_array_and_letters_that_are_not_ascii(tmp_path):
    events, stream = read(write(tmp_path / "trace", TEXT))
    assert (events, stream.cut) == (EVENTS, None)


@pytest.mark.parametrize("packed", [False, True])
def test_a_cut_file_gives_what_is_whole_and_says_where_it_ends(tmp_path, packed):
    content = gzip.compress(WHOLE.encode()) if packed else WHOLE.encode()
    checksum = 8 if packed else 0  # nobody needs it once the last bracket is there
    for end in range(25, len(content) - checksum - 1, len(content) // 40):
        events, stream = read(write(tmp_path / "trace", content[:end]))
        assert events == EVENTS[: len(events)]
        assert stream.cut is not None and f"{len(events)} events from its beginning" in stream.cut


@pytest.mark.parametrize("content", ["", "  \n", '"text"', "12", "QDSTRM binary"])
def test_what_is_no_trace(tmp_path, content):
    with pytest.raises(CheckError, match="a trace is an object"):
        read(write(tmp_path / "trace", content))


def test_damage_in_the_middle_is_told_with_its_place(tmp_path):
    damaged = WHOLE.replace('"ts": 3.0', '"ts": 3.0 here is no JSON')
    with pytest.raises(CheckError, match="event 10, character"):
        read(write(tmp_path / "trace", damaged))


def test_a_missing_file(tmp_path):
    with pytest.raises(CheckError, match="No such file"):
        read(tmp_path / "nowhere.json")


def test_a_number_that_no_computer_counts_to(tmp_path):
    with pytest.raises(CheckError, match=r"event 2, .* thousands of digits"):
        read(write(tmp_path / "trace", f'[{{"ts": 1}}, {{"ts": {"9" * 5000}, "dur": 1}}]'))
