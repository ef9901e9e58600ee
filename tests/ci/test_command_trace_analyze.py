"""mrv2 trace analyze: text, JSON, a page; what is cut, has no device, or is no trace."""

import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from mrv2.ci.command.app import app
from mrv2.ci.report.json_report import first_fault
from mrv2.ci.report.timeline_text import SCREEN

from ..checks.timeline.synthetic import Recording, decode, write

TRACES = Path(__file__).parents[1] / "checks" / "timeline" / "traces"


def mrv2(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["trace", "analyze", *map(str, arguments)])


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", sorted(path.name for path in TRACES.glob("*.json.gz")))
def test_the_first_screen(name: str) -> None:
    done = mrv2(TRACES / name)
    assert done.exit_code == 0
    first, _, rest = done.stdout.partition("\n\n")
    assert len(first.splitlines()) <= SCREEN
    assert first.startswith("Chrome trace; steps: 6, by ")
    assert "waits of the host, longest together first:" in rest and "bubbles, the longest 20 of " in rest


def test_the_first_screen_of_a_trace_with_everything() -> None:
    """All parts, several devices, three sorts of waits, copies of pageable memory, bubbles, and a file that is cut."""
    recording, other = decode(Recording()), Recording(device=1)
    recording.range("mrv2.state_update", 1310, 5)
    recording.range("mrv2.drafting", 1360, 5)
    recording.copy("down", 1366, 1950, 5, 200, "Pageable", took=20)
    recording.call("DeviceSynchronize", 1405, 5)
    other.correlation = 1000
    other.kernel("elsewhere", 1100, 1200, 100)
    path = write(Path("all.json"), recording.events + other.events)
    path.write_text(path.read_text()[:-2])
    done = mrv2("all.json")
    first, _, rest = done.stdout.partition("\n\n")
    assert len(first.splitlines()) == SCREEN
    assert "device 0 of 2: idle " in first and rest.startswith("device 1: idle ")


def test_a_wait_is_shown_with_its_place() -> None:
    done = mrv2(TRACES / "ordinary.json.gz")
    assert "\nwait: 6 x cudaMemcpyAsync (pageable upload) in 6 steps, " in done.stdout
    assert "\n  6 x cudaStreamSynchronize (stream) in 6 steps, " in done.stdout
    assert re.search(r"\n      aten::item\n      mrv2/ci/gpu/record_traces\.py\(\d+\): step\n", done.stdout)
    assert "copies of pageable memory: 12 in all steps, 25559040 bytes" in done.stdout


def test_json_report() -> None:
    mrv2(TRACES / "v2_06b.json.gz", "--json", "out.json", "--bubble-us", "400")
    report = json.loads(Path("out.json").read_text())
    assert first_fault(report) is None
    assert (report["command"], report["verdict"], report["findings"]) == ("trace-analyze", None, [])
    metrics = report["metrics"]
    assert (len(metrics["steps"]), metrics["steps_found_by"]) == (6, "ranges mrv2.step")
    assert metrics["devices"][0]["idle_share_in_gaps_over_5us"] == pytest.approx(0.359, abs=0.001)
    assert all(bubble["length_us"] > 400 for bubble in metrics["bubbles"])
    assert metrics["num_bubbles"] == len(metrics["bubbles"]) > 0
    assert metrics["trace"]["file"] == "v2_06b.json.gz"


def test_fields_of_the_json_are_documented() -> None:
    mrv2(TRACES / "ordinary.json.gz", "--json", "out.json")
    page = (Path(__file__).parents[2] / "checks" / "timeline" / "README.md").read_text()
    metrics = json.loads(Path("out.json").read_text())["metrics"]
    names = {*metrics, *metrics["steps"][0], *metrics["devices"][0], *metrics["waits"][0], *metrics["bubbles"][0]}
    assert not [name for name in sorted(names) if f"`{name}`" not in page]


def test_the_screen_of_the_readme_is_what_is_printed() -> None:
    done = mrv2(TRACES / "v2_06b.json.gz", "--bubble-us", "100")
    page = (Path(__file__).parents[2] / "checks" / "timeline" / "README.md").read_text()
    assert f"```text\n{done.stdout.partition(chr(10) * 2)[0]}\n```" in page


def test_the_page_has_a_picture_of_host_and_streams() -> None:
    mrv2(TRACES / "v2_06b.json.gz", "--html", "out.html")
    page = Path("out.html").read_text()
    picture = ElementTree.fromstring(page[page.index("<svg") : page.index("</svg>") + 6])
    space = "{http://www.w3.org/2000/svg}"
    texts = [text.text for text in picture.iter(f"{space}text")]
    assert texts[:3] == ["host", "GPU 0 stream 7", "GPU 0 stream 25"]
    # Four of the six, and the begin of the next one: the device is behind.
    assert [text for text in texts if text and text.startswith("step")] == [f"step {number}" for number in range(1, 6)]
    width = float(str(picture.get("viewBox")).split()[2])
    boxes = [(float(str(box.get("x"))), float(str(box.get("width")))) for box in picture.iter(f"{space}rect")]
    assert boxes and all(left >= 0 and left + wide <= width + 1 for left, wide in boxes)
    assert "<script" not in page and "http" not in page.replace("http://www.w3.org/2000/svg", "")


def test_a_cut_trace_is_inconclusive_and_says_how_far_it_goes() -> None:
    whole = (TRACES / "v2_tiny.json.gz").read_bytes()
    Path("cut.json.gz").write_bytes(whole[: len(whole) // 2])
    done = mrv2("cut.json.gz")
    assert done.exit_code == 3
    assert "warning: the compressed data end early or are damaged" in done.stdout
    assert "events from its beginning; what is said holds for what was read" in done.stdout


def test_a_trace_of_the_host_alone_is_inconclusive() -> None:
    event = {"ph": "X", "cat": "user_annotation", "name": "mrv2.step", "ts": 1, "dur": 5, "pid": 1, "tid": 1}
    Path("host.json").write_text(json.dumps({"traceEvents": [event]}))
    done = mrv2("host.json", "--html", "out.html")
    assert done.exit_code == 3
    assert "was only the CPU recorded?" in done.stdout and Path("out.html").is_file()


@pytest.mark.parametrize(
    ("content", "told"),
    [("", "it is empty"), ('{"traceEvents": []}', "no event with a time"), ("hello", "begins with 'h'")],
)
def test_what_is_no_trace_is_named_in_four_parts(content: str, told: str) -> None:
    Path("trace.json").write_text(content)
    done = mrv2("trace.json")
    assert done.exit_code == 2
    assert "error: trace trace.json" in done.stderr and told in done.stderr
    assert all(part in done.stderr for part in ("rule ", "why ", "instead "))


def test_a_name_that_is_no_text() -> None:
    event = {"ph": "X", "cat": "kernel", "name": "half \ud800 <b>", "ts": 1, "dur": 5, "pid": 0, "tid": 7}
    Path("odd.json").write_text(json.dumps({"traceEvents": [event]}))
    done = mrv2("odd.json", "--html", "out.html", "--json", "out.json")
    assert (done.exit_code, first_fault(json.loads(Path("out.json").read_text()))) == (3, None)
    assert "warning: the calls behind 1 of 1 kernels, copies and fills are not in the trace" in done.stdout
    assert "<b>" not in Path("out.html").read_text(encoding="utf-8")


def test_a_threshold_that_is_none() -> None:
    done = mrv2(TRACES / "ordinary.json.gz", "--bubble-us", "nan")
    assert (done.exit_code, "it is a time of 0 µs or more" in done.stderr) == (2, True)


def test_a_step_without_length_has_no_picture() -> None:
    recording = Recording()
    recording.range("mrv2.step", 1000, 0)
    done = mrv2(write(Path("trace.json"), recording.events), "--html", "page.html")
    assert done.exit_code == 3, done.output
    assert "<svg" not in Path("page.html").read_text() and "steps: 1, by ranges mrv2.step" in done.output


@pytest.mark.parametrize("option", ["--json", "--html"])
def test_the_trace_itself_is_not_written_over(option: str) -> None:
    path = write(Path("trace.json"), decode(Recording()).events)
    before = path.read_bytes()
    done = mrv2(path, option, "./trace.json")
    assert done.exit_code == 2 and f"error: {option} trace.json" in done.output
    assert "the command reads it, and would lose it" in done.output
    assert path.read_bytes() == before
