"""Campaigns on a Ray cluster of this machine, and examples that campaigns share."""

import json
import sys
import types

import pytest
from hypothesis.database import DirectoryBasedExampleDatabase, MultiplexedDatabase, ReadOnlyDatabase

from mrv2.checks.errors import CheckError
from mrv2.fuzz.campaign.cluster import ROUNDS_A_SHIFT, ClusterDriver, work
from mrv2.fuzz.campaign.corpus import corpus
from mrv2.fuzz.campaign.findings import FindingStore, FoundCase
from mrv2.fuzz.campaign.options import Options
from mrv2.fuzz.script import Arrive, Script, Skip

CASE = Script((Arrive((1,)), Skip()), {"max_num_reqs": 2})
FOUND = FoundCase("refrunner", "wrong", "wrong, as seen", CASE, CASE, 4, "wrong", True)

# A process in the place of a worker, which imports nothing of ours: has a finding, counts the cases that it was asked
# for, and says where its first round was. The first one of all kills the process that started it.
_WORKER = """
import json, os, signal, sys
from pathlib import Path
folder, marks, finding = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
options = json.loads(sys.stdin.readline())
try:
    (marks / "killed").touch(exist_ok=False)
except FileExistsError:
    pass
else:
    os.kill(int(sys.stdin.readline()), signal.SIGKILL)
    sys.exit()
(folder / "findings" / "0123456789abcdef.json").write_text(finding)
line = {"cases": options["cases"], "steps": 1, "rounds": options["first_round"]}
(folder / "workers" / f"0-{os.getpid()}.jsonl").write_text(json.dumps(line) + "\\n")
"""


def command(marks):
    # Defined here and not at the top, so that Ray sends it by value: its workers do not know this file.
    worker, finding = _WORKER, json.dumps(FOUND.as_json())

    def start(folder, number):
        import sys

        return [sys.executable, "-c", worker, str(folder), str(marks), finding]

    return start


def test_a_shift_hands_back_what_its_folder_holds(tmp_path):
    (tmp_path / "killed").touch()
    options = Options("refrunner", cases=100, first_round=30)
    shift = work(options.as_json(), [], command(tmp_path), lambda: False)
    assert [json.loads(each)["signature"] for each in shift.findings] == ["wrong"]
    assert [json.loads(line) for line in shift.lines] == [{"cases": 100, "steps": 1, "rounds": 30}]


def test_a_shift_that_is_told_to_ends_in_order(tmp_path):
    asleep = [sys.executable, "-c", "import signal; signal.pause()"]
    known = json.dumps(FOUND.as_json())
    shift = work(Options("refrunner", cases=100).as_json(), [known], lambda folder, number: asleep, lambda: True)
    assert [json.loads(each)["signature"] for each in shift.findings] == ["wrong"] and shift.lines == ()


def test_a_cluster_that_loses_a_worker_loses_nothing(tmp_path):
    pytest.importorskip("ray")
    options = Options("refrunner", cases=150)
    seen = []
    driver = ClusterDriver(tmp_path / "campaign", options, 2, command(tmp_path), "local")
    state = driver.run(None, seen.append)
    assert (tmp_path / "killed").exists(), "the process of the first shift was killed"
    assert state.progress.counts["cases"] == 300 and state.progress.counts["steps"] == 3
    assert state.progress.counts["rounds"] == sum(ROUNDS_A_SHIFT * shift for shift in range(3)), "all were done, once"
    assert [case.signature for case in FindingStore(tmp_path / "campaign" / "findings").all()] == ["wrong"]
    assert state.workers == 0 and seen


def test_without_ray_a_cluster_is_refused_by_name(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(CheckError, match=r"pip install mrv2\[cluster\]"):
        ClusterDriver(tmp_path / "campaign", Options("refrunner"), 1, command(tmp_path), "local")
    assert not (tmp_path / "campaign").exists()


def test_examples_are_kept_in_folders_and_several_places_are_one(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    corpus(str(two)).save(b"test", b"nightly")
    shared = corpus(f"{one}, read-only:{two}")
    assert isinstance(shared, MultiplexedDatabase)
    shared.save(b"test", b"new")
    assert set(shared.fetch(b"test")) == {b"new", b"nightly"}
    assert set(corpus(str(two)).fetch(b"test")) == {b"nightly"}
    assert isinstance(corpus(str(one)), DirectoryBasedExampleDatabase)
    assert isinstance(corpus(f"read-only:{two}"), ReadOnlyDatabase)


@pytest.mark.parametrize("text", ["", "a,,b", "http://host"])
def test_a_place_that_is_none_is_refused(text):
    with pytest.raises(CheckError, match="each place is a folder or a URL"):
        corpus(text)


def test_a_server_of_redis_is_used_by_its_url(monkeypatch):
    kept, urls = {}, []

    class Redis:
        from_url = classmethod(lambda cls, url: urls.append(url) or cls())
        sadd = staticmethod(lambda key, value: kept.setdefault(key, set()).add(value))
        smembers = staticmethod(lambda key: kept.get(key, set()))
        expire = publish = staticmethod(lambda *_: None)
        pipeline = lambda self: self  # noqa: E731
        execute = lambda self, **_: [1, True]  # noqa: E731
        __enter__ = lambda self: self  # noqa: E731
        __exit__ = lambda self, *_: None  # noqa: E731

    package = types.ModuleType("redis")
    package.Redis = Redis
    monkeypatch.setitem(sys.modules, "redis", package)
    monkeypatch.delitem(sys.modules, "hypothesis.extra.redis", raising=False)
    database = corpus("redis://host:6379/0")
    database.save(b"test", b"value")
    assert urls == ["redis://host:6379/0"] and {b"value"} in kept.values()
    monkeypatch.setitem(sys.modules, "redis", None)
    monkeypatch.delitem(sys.modules, "hypothesis.extra.redis", raising=False)
    with pytest.raises(CheckError, match="the package redis must be installed"):
        corpus("redis://host:6379/0")
