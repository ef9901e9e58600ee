"""The smallest logit whose quotient by a temperature reaches a threshold, at the ends of float32 too."""

import itertools

import numpy as np
import torch
import triton.language as tl

from mrv2.checks import triton_cpu
from mrv2.refrunner.kernels.draw import undivided
from mrv2.refrunner.kernels.launch import kernel

TEMPERATURES = (1e-30, 1e-3, 0.3, 0.8, 1.0, 1.7, 50.0, 1e25)
CUTS = (-np.inf, -3e38, -20.125, -1.0, -1e-40, 0.0, 1e-40, 1.1, 37.7, 3e38, np.inf)


@kernel
def write_undivided(cuts_ptr, temperatures_ptr, found_ptr):
    index = tl.program_id(0)
    tl.store(found_ptr + index, undivided(tl.load(cuts_ptr + index), tl.load(temperatures_ptr + index)))


def test_it_is_the_smallest():
    random = np.random.default_rng(0)
    pairs = [
        *itertools.product(CUTS, TEMPERATURES),
        *zip(random.normal(size=50), random.uniform(0.1, 3, 50), strict=True),
    ]
    cuts, temperatures = np.array(pairs, dtype=np.float32).T.copy()
    found = torch.empty(len(pairs))
    with triton_cpu.enabled():
        write_undivided[(len(pairs),)](torch.from_numpy(cuts), torch.from_numpy(temperatures), found)
    with np.errstate(over="ignore", under="ignore"):
        found = found.numpy()
        reaches = found / temperatures >= cuts
        below = np.nextafter(found, np.float32(-np.inf)) / temperatures >= cuts
    assert (reaches | (found == np.inf)).all()
    assert not (below & (found > -np.inf)).any()
