"""The certificate of the noise: what it keeps when it is cut off, and that each promise can fail."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from mrv2.ci.gpu.noise_certificate import GAPS, Part, Parts, promises, together
from mrv2.fuzz.targets.reference_sampler import ReferenceSampler
from mrv2.stats.noise import TransformErrors

RESULTS = Path(__file__).parents[2] / "ci" / "gpu" / "results"
OF = {"identity": {"code": "a"}, "coarse bits": 8}
ERRORS = TransformErrors(1024, 0, 0, 1.1e-6, 9e-7, ())
FINE = Part(ERRORS, -1e-6, 5)
TAILS = dict.fromkeys((f"{gap:g}" for gap in GAPS), 1e-7)


def test_parts_are_continued(tmp_path):
    file = tmp_path / "parts"
    parts = Parts(file, OF)
    every = parts.missing()
    assert len(every) == len(set(every)) == 288
    wrong = Part(replace(ERRORS, not_finite=1, examples=(7,)), float("inf"), 1)
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
        parts.add("float32 numbers", index, Part(replace(ERRORS, losing_error=index * 1e-6), abs(index - 9), index))
    worst = parts.together("float32 numbers")
    assert worst.errors.words == 32 * 1024 and worst.errors.losing_error == 31e-6
    assert (worst.room, worst.tightest) == (0, 9)
    assert together([FINE, Part(ERRORS, float("nan"), 3), Part(ERRORS, -1.0, 4)]).tightest == 3


def test_promises_are_kept():
    held = dict(promises(FINE, FINE, TAILS, 2**22, 0))
    assert list(held.values()) == [True] * 9 and json.dumps(held)


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
    first, second = (replace(FINE, errors=replace(ERRORS, **errors)) for errors in (coarse, floats))
    held = dict(promises(first, second, {**TAILS, **tails}, 2**22, duplicates))
    failed = [name for name, kept in held.items() if not kept]
    assert all(any(part in name for name in failed) for part in broken), failed
    assert set(failed) == {name for name in failed if any(part in name for part in [*broken, "errs by"])}


@pytest.mark.parametrize("room", [-1e-4, float("nan")])
def test_a_bound_below_the_noise_is_a_broken_promise(room):
    held = dict(promises(FINE, replace(FINE, room=room), TAILS, 2**22, 0))
    assert [name for name, kept in held.items() if not kept] == [name for name in held if "its bound" in name]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_record_is_of_the_noise_that_is_drawn(device):
    """Who changes the noise or its bound runs ``python -m mrv2.ci.gpu.noise_certificate`` again, and records it."""
    record = json.loads(max(RESULTS.glob(f"*_noise_certificate_{device}.json")).read_text())
    assert record["identity of the noise"]["kernel"] == ReferenceSampler(compiled=True).noise_identity().kernel
    assert all(record["held"].values()) and record["coarse words"]["errors"]["words"] == 2**33
