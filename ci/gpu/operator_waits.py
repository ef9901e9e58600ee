"""Which calls of torch make the host wait: measured on this GPU, for many more calls than the table of rules names.

    python -m mrv2.ci.gpu.operator_waits OUT.json        # in the folder of a checkout

Calls are the samples that torch has for its own operators, a few of each, and calls that only their source could tell
about. A kernel is parked in front of each; a call that has returned only when that kernel was over has waited. It is
made once before, so that no kernel is loaded then. What seems to wait is tried again behind a longer kernel, for the
host may have been slow.
"""

from __future__ import annotations

import importlib
import itertools
import json
import sys
import types
import unittest
import warnings
from collections.abc import Callable, Container, Iterator
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch

#: Calls that only their source could tell about; a part of the tests, and so of a checkout only.
RELATIVES = "tests.checks.sync.relatives"
#: Samples of each operator of torch.
SAMPLES = 6
_MILLISECONDS = (10, 80)
_TYPES = (torch.float32, torch.int64, torch.bool, torch.complex64)


def operators(device: str, only: Container[str] | None = None) -> Iterator[tuple[str, Callable[[], object]]]:
    """The samples that torch tests its own operators with, by name and number; the same ones on every device.

    Args:
        device: on which they are made.
        only: names of operators; all by default.
    """
    # torch's helpers import it, and use nothing of it that is needed here.
    module: Any = types.ModuleType("expecttest")
    module.TestCase = unittest.TestCase
    sys.modules.setdefault("expecttest", module)
    from torch.testing._internal.common_methods_invocations import op_db

    for info in op_db:
        kind = next((kind for kind in _TYPES if info.supports_dtype(kind, "cuda")), None)
        if kind is None or not (only is None or info.full_name in only):
            continue
        torch.manual_seed(0)
        name = info.full_name
        try:
            samples = list(itertools.islice(info.sample_inputs(device, kind), SAMPLES))
        except Exception as error:  # noqa: BLE001 - whatever torch's helpers raise, the next one is another
            yield f"{name}#-", _raiser(error)
            continue
        for number, sample in enumerate(samples):
            yield f"{name}#{number}", _bound(_by_name(info.name, info.op), sample)


def _raiser(error: Exception) -> Callable[[], object]:
    def call() -> object:
        raise error

    return call


def _by_name(name: str, function: Any) -> Callable[[], Any]:
    """Gives a function of torch as a program finds it, by its name: what wraps torch's functions wraps names."""
    find = attrgetter(name)
    try:
        found = find(torch) is function
    except AttributeError:
        found = False
    return partial(find, torch) if found else lambda: function


def _bound(find: Callable[[], Any], sample: Any) -> Callable[[], object]:
    return lambda: find()(sample.input, *sample.args, **sample.kwargs)


def _cycles(milliseconds: float) -> int:
    """Clock cycles of ``torch.cuda._sleep`` that take so long here."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(1_000)
    begin.record()
    torch.cuda._sleep(20_000_000)
    end.record()
    end.synchronize()
    return int(milliseconds * 20_000_000 / begin.elapsed_time(end))


def waits(call: Callable[[], object], cycles: tuple[int, ...]) -> bool:
    """Whether a call makes the host wait for the current stream.

    Args:
        call: made once more than there are lengths.
        cycles: lengths of the parked kernel.
    """
    call()
    for length in cycles:
        torch.cuda.synchronize()
        parked = torch.cuda.Event()
        torch.cuda._sleep(length)
        parked.record()
        kept = call()
        over = parked.query()
        del kept
        if not over:
            return False
    return True


def measure(calls: Iterator[tuple[str, Callable[[], object]]]) -> dict[str, bool | str]:
    """For each call whether it waits, or what it raised."""
    cycles = tuple(map(_cycles, _MILLISECONDS))
    found: dict[str, bool | str] = {}
    for name, call in calls:
        try:
            found[name] = waits(call, cycles)
        except Exception as error:  # noqa: BLE001 - what a sample raises is its own affair
            found[name] = f"{type(error).__name__}: {error}"[:200]
    return found


def main(path: str) -> None:
    """Measure, and write what was found."""
    warnings.simplefilter("ignore")
    calls = importlib.import_module(RELATIVES).calls

    document = {
        "device": torch.cuda.get_device_name(0),
        "torch": torch.__version__,
        "relatives": measure(calls()),
        "operators": measure(operators("cuda")),
    }
    Path(path).write_text(json.dumps(document, indent=0, sort_keys=True) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
