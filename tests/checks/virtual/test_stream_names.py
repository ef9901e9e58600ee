"""A stream is named with the line that made it, wherever a person reads of it."""

import linecache
from pathlib import Path

import pytest
import torch

from mrv2.checks.events import made_at, plain_name
from mrv2.checks.report.identity import identity
from mrv2.checks.virtual import virtual_device
from mrv2.checks.virtual.runs import run_program
from mrv2.checks.virtual.streams import STREAMS_PER_POOL
from mrv2.checks.virtual.witness import find_witness

HERE = Path(__file__).name


class Engine:
    def __init__(self):
        self.side = torch.cuda.Stream()
        self.down = torch.cuda.Stream(priority=-1)


def overtaken():
    engine = Engine()
    data = torch.zeros(4, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(engine.side):
        data.add_(1)
    with torch.cuda.stream(engine.down):
        data.mul_(2)
    torch.cuda.synchronize()
    return data


def same_race_elsewhere_made():
    side = torch.cuda.Stream()
    data = torch.zeros(4, device="cuda")
    torch.cuda.synchronize()

    with torch.cuda.stream(side):
        data.add_(1)
    data.mul_(2)
    torch.cuda.synchronize()


def line_of(name):
    """The text of the line that a name says it was made at."""
    file, _, line = name.removesuffix(")").rpartition("(made at ")[2].rpartition(":")
    assert Path(file).name == HERE
    return linecache.getline(__file__, int(line)).strip()


def lanes_of(run):
    (finding,) = run.findings
    return [side["lane"] for side in finding.evidence["operations"]]


def test_a_race_names_the_lines_that_made_its_streams():
    side, down = lanes_of(run_program(overtaken))
    assert (plain_name(side), plain_name(down)) == ("stream 1", "priority -1 stream 1")
    assert line_of(side) == "self.side = torch.cuda.Stream()"
    assert line_of(down) == "self.down = torch.cuda.Stream(priority=-1)"


def test_the_missing_edge_says_each_place_once():
    (finding,) = run_program(overtaken).findings
    side, down = lanes_of(run_program(overtaken))
    text = finding.evidence["missing_edge"]
    assert text.count(side.removeprefix("stream 1")) == text.count(down.removeprefix("priority -1 stream 1")) == 1
    assert "record an event on stream 1 after it, and let priority -1 stream 1 wait" in text


def test_the_timeline_names_them_too():
    assert "(made at " in find_witness(overtaken).timeline


def test_the_default_stream_was_made_by_nobody():
    side, default = sorted(lanes_of(run_program(same_race_elsewhere_made)), reverse=True)
    assert line_of(side) == "side = torch.cuda.Stream()"
    assert default == "default stream"


def test_fingerprints_do_not_depend_on_where_a_stream_was_made(tmp_path):
    source = Path(__file__).read_text().partition("def same_race_elsewhere_made")[2].partition("def line_of")[0]
    found = []
    for number, moved in enumerate((source, source.replace("    side =", "\n\n    side ="))):
        (tmp_path / "moved.py").write_text(f"import torch\n\n\ndef program{moved}")
        names = {}
        exec(compile((tmp_path / "moved.py").read_text(), str(tmp_path / "moved.py"), "exec"), names)
        (finding,) = run_program(names["program"]).findings
        found.append((identity(finding), finding.fingerprint(), str(finding.evidence["operations"])))
        assert len(found) == number + 1
    assert found[0][:2] == found[1][:2]
    assert found[0][2] != found[1][2]


def test_a_stream_kept_from_an_earlier_block_keeps_its_place():
    with virtual_device():
        engine = Engine()
    with virtual_device():
        assert line_of(engine.side.queue.name) == "self.side = torch.cuda.Stream()"
        assert line_of(repr(engine.down).removesuffix(">")) == "self.down = torch.cuda.Stream(priority=-1)"


def test_streams_that_share_one_of_the_pool_have_the_first_ones_place():
    with virtual_device():
        first = torch.cuda.Stream()
        others = [torch.cuda.Stream() for _ in range(STREAMS_PER_POOL)]
        assert others[-1].queue is first.queue
        assert line_of(first.queue.name) == "first = torch.cuda.Stream()"


@pytest.mark.parametrize("place", ["engine.py:12", ""])
def test_names_with_and_without_a_place(place):
    assert plain_name(made_at("stream 1", place)) == "stream 1"
    assert (made_at("stream 1", place) == "stream 1") is (place == "")
