"""The GPU suite's record of a run."""

import json
from collections import Counter

import pytest

from mrv2.ci.gpu import results

JUNIT = """<?xml version="1.0"?><testsuites><testsuite name="pytest">
<testcase classname="tests.a" name="test_good" time="1.5"><properties>
<property name="cost" value="{&quot;us&quot;: 0.5}" />
</properties></testcase>
<testcase classname="tests.a" name="test_bad" time="0.5"><failure message="no">trace</failure></testcase>
<testcase classname="tests.a" name="test_broken" time="0.1"><error message="setup">trace</error></testcase>
<testcase classname="tests.b" name="test_left_out" time="0.0"><skipped message="why">trace</skipped></testcase>
</testsuite></testsuites>"""


def test_record_holds_outcomes_and_versions(tmp_path, capsys):
    (tmp_path / "junit.xml").write_text(JUNIT)
    assert results.main(str(tmp_path / "junit.xml"), str(tmp_path / "out"), "pytest -m gpu") == 1
    (path,) = (tmp_path / "out").iterdir()
    record = json.loads(path.read_text())
    assert record["counts"] == {"passed": 1, "failed": 1, "error": 1, "skipped": 1}
    good = record["tests"]["tests.a::test_good"]
    assert good == {"outcome": "passed", "seconds": 1.5, "figures": {"cost": {"us": 0.5}}}
    assert "figures" not in record["tests"]["tests.a::test_bad"]
    assert {"devices", "driver", "torch", "triton", "numpy"} <= record["environment"].keys()
    assert str(path) in capsys.readouterr().out


MEASURED = """<?xml version="1.0"?><testsuites><testsuite name="pytest">
<testcase classname="tests.a" name="test_cost" time="1.5"><properties><property name="cost" value='{"add": 7.5}' />
</properties></testcase></testsuite></testsuites>"""


def test_what_tests_measured_and_further_parts_are_in_it(tmp_path):
    (tmp_path / "junit.xml").write_text(MEASURED)
    (tmp_path / "part.json").write_text('{"outcome": "failed"}')
    assert results.main(str(tmp_path / "junit.xml"), str(tmp_path / "out"), "x", f"part={tmp_path}/part.json") == 1
    (path,) = (tmp_path / "out").iterdir()
    record = json.loads(path.read_text())
    assert record["tests"]["tests.a::test_cost"]["figures"] == {"cost": {"add": 7.5}}
    assert record["part"] == {"outcome": "failed"} and record["verdict"] == "fail"


@pytest.mark.parametrize(
    ("counts", "verdict"),
    [
        ({"passed": 2, "skipped": 1}, "pass"),
        ({"passed": 2, "failed": 1}, "fail"),
        ({"passed": 2, "error": 1}, "fail"),
        ({"skipped": 3}, "inconclusive"),
        ({}, "inconclusive"),
    ],
)
def test_nothing_that_did_not_run_passes(counts, verdict):
    assert results.verdict_of(Counter(counts)) == verdict


def test_missing_junit_file_is_no_test(tmp_path):
    assert results.read_junit(tmp_path / "none.xml") == {}
