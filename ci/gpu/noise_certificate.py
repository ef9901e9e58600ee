"""Certifies the noise of the reference sampler without a draw: ``python -m mrv2.ci.gpu.noise_certificate FILE``.

Every value of the coarse word is enumerated (with the least and the largest value of the word that refines it, between
which the transform is monotone in closed form), the mass of tails is computed from the law of the noise, and 2**22 keys
are searched for two with the same noise. Needs no GPU; 32 coarse bits are some ten minutes of a core.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from mrv2.fuzz.targets.reference_sampler import ReferenceSampler
from mrv2.stats.noise import TransformErrors, enumerate_transform, merged, noise_law, tail_error
from mrv2.stats.noise_keys import duplicate_rows, key_domain
from mrv2.stats.targets import Purpose

TAIL_TOKENS = 262_143
GAPS = (0.0, 9.0, 12.5, 16.0, 18.0, 20.0, 21.0, 22.0, 23.25, 25.0)
_PARTS = 256


def enumerated_part(part: int, coarse_bits: int) -> TransformErrors:
    """One of 256 parts of the coarse words."""
    return enumerate_transform(ReferenceSampler(compiled=True).noise, 64, coarse_bits, (part, _PARTS))


def main() -> int:
    """Write the certificate; 0 if every promise holds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--coarse-bits", type=int, default=32)
    parser.add_argument("--keys", type=int, default=2**22)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    options = parser.parse_args()
    sampler = ReferenceSampler(compiled=True)
    law = noise_law(sampler.noise, sampler.noise_bits)  # also compiles the kernel once, for all processes
    tails = {f"{gap:g}": tail_error(law, gap, TAIL_TOKENS) for gap in GAPS}
    with ProcessPoolExecutor(options.processes, get_context("spawn")) as pool:
        one = partial(enumerated_part, coarse_bits=options.coarse_bits)
        errors = merged(list(pool.map(one, range(_PARTS))))
    keys = key_domain(options.keys, np.random.default_rng(0))
    duplicates = duplicate_rows(sampler, keys, (Purpose.TARGET, Purpose.DRAFT), TAIL_TOKENS + 1)
    held = {
        "every noise is finite and monotone": errors.not_finite == errors.turns == 0,
        "noise is the quantile within 3e-6 nats": errors.winning_error < 3e-6,
        "tails within 1e-5 to 18 nats": all(abs(tails[f"{gap:g}"]) < 1e-5 for gap in GAPS if gap <= 18.0),
        "tails within 1e-3 to 22 nats": all(abs(tails[f"{gap:g}"]) < 1e-3 for gap in GAPS if gap <= 22.0),
        "no two keys have the same noise": not duplicates,
    }
    found = {"held": held, "errors": asdict(errors), "tail errors": tails, "keys": keys.count}
    options.file.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))
    return 0 if all(held.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
