import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from mrv2.stats.errors import ArgumentError
from mrv2.stats.ledger import EvidenceKey, EvidenceLedger

KEY = EvidenceKey("cliff 18: tail", "abc123", "H200", "3.9", "float32", 151_936)


def fill(path, portions=3):
    ledger = EvidenceLedger(path)
    for index in range(portions):
        ledger.append(KEY, f"night {index}", np.array([index, 10]))
    return ledger


def test_counts_of_portions_are_added(tmp_path):
    ledger = fill(tmp_path / "new" / "ledger.jsonl")
    assert ledger.total(KEY, 2).tolist() == [3, 30] and ledger.damaged() == 0


def test_a_portion_that_is_there_twice_counts_once(tmp_path):
    ledger = fill(tmp_path / "ledger.jsonl")
    ledger.append(KEY, "night 1", np.array([1, 10]))
    assert ledger.total(KEY, 2).tolist() == [3, 30]


@pytest.mark.parametrize(
    "change",
    [{"test": "other"}, {"kernel": "d"}, {"gpu": "B200"}, {"triton": "3.6"}, {"dtype": "bfloat16"}, {"vocab_size": 4}],
)
def test_another_key_starts_anew_and_keeps_the_old(tmp_path, change):
    ledger, other = fill(tmp_path / "ledger.jsonl"), replace(KEY, **change)
    assert ledger.total(other, 2).tolist() == [0, 0]
    ledger.append(other, "night 9", np.array([7, 7]))
    assert ledger.total(other, 2).tolist() == [7, 7] and ledger.total(KEY, 2).tolist() == [3, 30]


def test_a_kill_at_any_byte_loses_only_what_was_not_written(tmp_path):
    path = tmp_path / "ledger.jsonl"
    fill(path, 2)
    content = path.read_bytes()
    ends = [index + 1 for index, byte in enumerate(content) if byte == ord("\n")]
    cut = tmp_path / "cut.jsonl"
    for length in range(len(content) + 1):
        cut.write_bytes(content[:length])
        # A line that lacks nothing but its end is whole.
        whole = sum(length >= end - 1 for end in ends)
        ledger = EvidenceLedger(cut)
        assert ledger.total(KEY, 2).tolist() == [sum(range(whole)), 10 * whole], length
        if length % 17 == 0 or length in ends:
            ledger.append(KEY, "after", np.array([100, 100]))
            assert ledger.total(KEY, 2).tolist() == [100 + sum(range(whole)), 100 + 10 * whole], length
            assert ledger.damaged() == (length not in {0, *ends, *(end - 1 for end in ends)}), length


def test_a_changed_byte_is_seen(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ledger = fill(path)
    content = path.read_bytes()
    path.write_bytes(content.replace(b'"counts":[1,10]', b'"counts":[9,10]'))
    assert ledger.total(KEY, 2).tolist() == [2, 20] and ledger.damaged() == 1


def test_two_processes_write_at_the_same_time(tmp_path):
    path = tmp_path / "ledger.jsonl"
    script = (
        "import sys, numpy as np; from pathlib import Path; from mrv2.stats.ledger import *\n"
        "key = EvidenceKey('t', 'k', 'g', 'v', 'd', 2)\n"
        "for i in range(100): EvidenceLedger(Path(sys.argv[1])).append(key, f'{sys.argv[2]} {i}', np.array([1, 2]))\n"
    )
    processes = [subprocess.Popen([sys.executable, "-c", script, str(path), name]) for name in ("a", "b")]
    assert [process.wait(60) for process in processes] == [0, 0]
    ledger = EvidenceLedger(path)
    assert ledger.total(EvidenceKey("t", "k", "g", "v", "d", 2), 2).tolist() == [200, 400] and ledger.damaged() == 0


def test_nothing_there_is_no_evidence(tmp_path):
    ledger = EvidenceLedger(tmp_path / "none.jsonl")
    assert ledger.total(KEY, 2).tolist() == [0, 0] and ledger.damaged() == 0 and list(ledger.portions()) == []


def test_what_cannot_be_added_is_refused(tmp_path):
    ledger = fill(tmp_path / "ledger.jsonl")
    with pytest.raises(ArgumentError, match="cells"):
        ledger.total(KEY, 3)
    with pytest.raises(ArgumentError):
        ledger.append(KEY, "x", np.array([-1, 2]))
