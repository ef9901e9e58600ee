"""The certificate of the noise: what it keeps when it is cut off, and that each promise can fail."""

from dataclasses import replace

import pytest

from mrv2.ci.gpu.noise_certificate import GAPS, Parts, promises
from mrv2.stats.noise import TransformErrors

OF = {"identity": {"code": "a"}, "coarse bits": 8}
FINE = TransformErrors(1024, 0, 0, 1.1e-6, 9e-7, ())
TAILS = dict.fromkeys((f"{gap:g}" for gap in GAPS), 1e-7)


def test_parts_are_continued(tmp_path):
    file = tmp_path / "parts"
    parts = Parts(file, OF)
    every = parts.missing()
    assert len(every) == len(set(every)) == 288
    wrong = replace(FINE, not_finite=1, examples=(7,))
    parts.add("coarse words", 3, wrong)
    parts.add("float32 numbers", 0, FINE)
    with file.open("a") as lines:
        lines.write('{"of": {"ident')
    again = Parts(file, OF)
    assert again.done == {("coarse words", 3): wrong, ("float32 numbers", 0): FINE}
    assert set(again.missing()) == set(every) - set(again.done)


def test_parts_of_another_kernel_are_not_taken(tmp_path):
    Parts(tmp_path / "parts", OF).add("coarse words", 0, FINE)
    assert Parts(tmp_path / "parts", {**OF, "identity": {"code": "b"}}).done == {}


def test_parts_together_are_their_worst(tmp_path):
    parts = Parts(tmp_path / "parts", OF)
    for _, index in [part for part in parts.missing() if part[0] == "float32 numbers"]:
        parts.add("float32 numbers", index, replace(FINE, losing_error=index * 1e-6))
    together = parts.together("float32 numbers")
    assert together.words == 32 * 1024 and together.losing_error == 31e-6


def test_promises_are_kept():
    held = dict(promises(FINE, FINE, TAILS, 2**22, 0))
    assert len(held) == 8 and all(held.values())


@pytest.mark.parametrize(
    ("coarse", "floats", "tails", "duplicates", "broken"),
    [
        ({"not_finite": 1}, {}, {}, 0, ["finite"]),
        ({}, {"turns": 1}, {}, 0, ["turns"]),
        ({}, {"winning_error": 2.9e-6}, {}, 0, ["quantile"]),
        ({"losing_error": 1e-3}, {}, {}, 0, ["quantile", "gap 18 errs", "gap 22 errs"]),
        ({}, {}, {"18": -2e-5}, 0, ["gap 18, by the law"]),
        ({}, {}, {"22": 2e-3}, 0, ["gap 22, by the law"]),
        ({}, {}, {}, 1, ["duplicate"]),
    ],
)  # fmt: skip
def test_each_promise_can_be_broken(coarse, floats, tails, duplicates, broken):
    held = dict(promises(replace(FINE, **coarse), replace(FINE, **floats), {**TAILS, **tails}, 2**22, duplicates))
    failed = [name for name, kept in held.items() if not kept]
    assert all(any(part in name for name in failed) for part in broken), failed
    assert set(failed) == {name for name in failed if any(part in name for part in [*broken, "errs by"])}
