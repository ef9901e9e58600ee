"""Certifies the noise of the reference sampler without a draw: ``python -m mrv2.ci.gpu.noise_certificate FILE``.

Two enumerations. Every value of the coarse word, with the least and the largest value of the word that refines it; and
one word for each number that float32 can make of the 64 bits, which is every noise there is, refined or not, since
between those two ends the rounded word only ascends. For the same words, the bound by which the kernel screens tokens
must not lie below the noise. Then the mass of tails, by the law of the noise and by the largest error alone; and 2**22
keys, each for two purposes, among which no two may have the same noise.

FILE.parts keeps what is done, so that a run which is cut off goes on where it ended. ``--device cuda`` asks the GPU's
own logarithm. Needs some ten minutes of a core, and a GPU only for its own noise.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mrv2.ci.command.environment import describe
from mrv2.fuzz.targets.reference_sampler import ReferenceSampler
from mrv2.stats.noise import TransformErrors, enumerate_transform, merged, noise_law, tail_error, tail_error_bound
from mrv2.stats.noise_floats import SHARED, enumerate_float32
from mrv2.stats.noise_keys import duplicate_rows, key_domain
from mrv2.stats.targets import Purpose

from .lines import add_line, read_lines

TAIL_TOKENS = 262_143
GAPS = (0.0, 9.0, 12.5, 16.0, 18.0, 20.0, 21.0, 22.0, 23.25, 25.0)
# Nats. A token is left out only if its bound is below the best score by 2e-4 and 2**-20 of that score; all roundings on
# the way to that comparison are at most 5.4e-5 and 8 / 2**24 of it (`refrunner/kernels/draw.py`).
BOUND_ROUNDING = 4e-5
_PARTS = {"float32 numbers": 32, "coarse words": 256}


def the_sampler(device: str) -> ReferenceSampler:
    """The reference on a device, compiled also for the CPU."""
    return ReferenceSampler(device=device, compiled=device == "cpu")


@dataclass(frozen=True)
class Part:
    """What a part of an enumeration found.

    Attributes:
        errors: of the noise.
        room: the least distance of the noise below its bound, in nats; negative where the noise is above it.
        tightest: the word where that is.
    """

    errors: TransformErrors
    room: float
    tightest: int


class _Bounded:
    """A sampler's noise of words, and the least room below their bound."""

    def __init__(self, sampler: ReferenceSampler) -> None:
        self.room, self.tightest = math.inf, 0
        self._sampler = sampler

    def __call__(self, words: NDArray[np.uint64]) -> NDArray[np.float64]:
        noise = self._sampler.noise(words)
        room = self._sampler.noise_bound(words) - noise
        least = int(room.argmin())  # the first NaN if there is one, which then stays
        if not room[least] >= self.room:
            self.room, self.tightest = float(room[least]), int(words[least])
        return noise


def enumerated_part(part: tuple[str, int], device: str, coarse_bits: int) -> tuple[str, int, Part]:
    """One part of one of the two enumerations."""
    name, index = part
    sampler = the_sampler(device)
    noise, share = _Bounded(sampler), (index, _PARTS[name])
    if name == "coarse words":
        errors = enumerate_transform(noise, sampler.noise_bits, coarse_bits, share)
    else:
        errors = enumerate_float32(noise, sampler.noise_bits, share)
    return name, index, Part(errors, noise.room, noise.tightest)


class Parts:
    """What is enumerated, in a file of JSON lines.

    Args:
        file: continued if it is there.
        of: what the lines must say to be of this very noise and enumeration.
    """

    def __init__(self, file: Path, of: dict[str, object]) -> None:
        self._file, self._of = file, of
        self.done: dict[tuple[str, int], Part] = {}
        for told in read_lines(file):
            if told["of"] == of:
                errors = {**told["errors"], "examples": tuple(told["errors"]["examples"])}
                self.done[told["name"], told["index"]] = Part(
                    TransformErrors(**errors), float(told["room"]), told["tightest"]
                )

    def missing(self) -> list[tuple[str, int]]:
        """Parts still to do."""
        every = ((name, index) for name, count in _PARTS.items() for index in range(count))
        return [part for part in every if part not in self.done]

    def add(self, name: str, index: int, part: Part) -> None:
        """Keep one more."""
        self.done[name, index] = part
        add_line(self._file, {"of": self._of, "name": name, "index": index, **asdict(part)})

    def together(self, name: str) -> Part:
        """What one enumeration found, all parts done."""
        return together([self.done[name, index] for index in range(_PARTS[name])])


def together(parts: Sequence[Part]) -> Part:
    """What several parts found."""
    tightest = min(parts, key=lambda part: -math.inf if math.isnan(part.room) else part.room)
    return Part(merged([part.errors for part in parts]), tightest.room, tightest.tightest)


def enumerate_all(parts: Parts, device: str, coarse_bits: int, processes: int) -> None:
    """Do the missing parts."""
    one = partial(enumerated_part, device=device, coarse_bits=coarse_bits)
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        for name, index, part in pool.map(one, parts.missing()):
            parts.add(name, index, part)


def promises(
    coarse: Part, floats: Part, tails: dict[str, float], keys: int, duplicates: int
) -> Iterator[tuple[str, bool]]:
    """Each promise in words, and whether it is kept."""
    both = together([coarse, floats])
    errors = both.errors
    worst = max(errors.winning_error, errors.losing_error) + SHARED
    proved = {gap: tail_error_bound(worst, 64, gap, TAIL_TOKENS) for gap in (18.0, 22.0)}
    yield "every noise is finite", errors.not_finite == 0
    yield "noise never turns by more than 4e-6 nats as the word ascends", errors.turns == 0
    yield f"noise is within {worst:.2g} nats of its quantile, for all 2**64 words: below 3e-6", worst < 3e-6
    yield (
        f"noise is above its bound by at most {max(0.0, -both.room):.2g} nats: below 4e-5",
        both.room > -BOUND_ROUNDING,
    )
    yield f"so a tail to gap 18 errs by at most {proved[18.0]:.2g}: below 1e-5", proved[18.0] < 1e-5
    yield f"so a tail to gap 22 errs by at most {proved[22.0]:.2g}: below 0.1 %", proved[22.0] < 1e-3
    yield "tail mass within 1e-5 up to gap 18, by the law of the noise", _within(tails, 18.0, 1e-5)
    yield "tail mass within 0.1 % up to gap 22, by the law of the noise", _within(tails, 22.0, 1e-3)
    yield f"no duplicate rows of noise in {keys:,} keys", duplicates == 0


def _within(tails: dict[str, float], most: float, error: float) -> bool:
    return all(bool(abs(tails[f"{gap:g}"]) < error) for gap in GAPS if gap <= most)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the certificate; 0 if every promise holds."""
    parser = argparse.ArgumentParser(prog="python -m mrv2.ci.gpu.noise_certificate", description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--coarse-bits", type=int, default=32)
    parser.add_argument("--keys", type=int, default=2**22)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    options = parser.parse_args(arguments)
    sampler = the_sampler(options.device)
    law = noise_law(sampler.noise, sampler.noise_bits)  # also compiles the kernel once, for all processes
    tails = {f"{gap:g}": tail_error(law, gap, TAIL_TOKENS) for gap in GAPS}
    of: dict[str, object] = {"identity": asdict(sampler.noise_identity()), "coarse bits": options.coarse_bits}
    parts = Parts(options.file.with_name(options.file.name + ".parts"), of)
    enumerate_all(parts, options.device, options.coarse_bits, options.processes)
    floats, coarse = (parts.together(name) for name in _PARTS)
    keys = key_domain(options.keys, np.random.default_rng(0))
    duplicates = duplicate_rows(sampler, keys, (Purpose.TARGET, Purpose.DRAFT), TAIL_TOKENS + 1)
    held = dict(promises(coarse, floats, tails, keys.count, len(duplicates)))
    found = {
        "held": held,
        "coarse words": asdict(coarse),
        "float32 numbers": asdict(floats),
        "relative error of the tail mass by gap": tails,
        "keys, each for two purposes": keys.count,
        "pairs of keys with the same noise": len(duplicates),
        **of,
        "environment": describe(),
    }
    options.file.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps({name: found[name] for name in found if name != "environment"}, indent=1))
    return 0 if all(held.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
