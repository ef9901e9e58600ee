"""Kernels of packages that others wrote: compiled for the CPU, they do what Triton's interpreter does, to the last bit.

The packages are not part of this project. ``third_party/fetch.py`` downloads them into a folder, and with that folder's
name in ``MRV2_THIRD_PARTY_KERNELS`` these tests execute the modules with the kernels; else they are skipped.
"""

import warnings

import pytest
import triton

from mrv2.checks.triton_cpu import InterpretedKernel, enabled

from .third_party import packages
from .third_party.cases import SIZES, Draw
from .third_party.harness import Comparison, Verdict
from .third_party.loader import loading

_FOLDER, _MISSING = packages.folder()

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(_MISSING), reason=_MISSING)]

#: Kernels that are no reference to anything: the interpreter does not run them, or Triton does not compile them.
_EXCUSED = (Verdict.NO_REFERENCE, Verdict.REFUSED, Verdict.REJECTED)


@pytest.fixture(scope="module")
def load():
    with loading(_FOLDER, packages.ROOTS) as load:
        yield load


@pytest.fixture(scope="module", params=packages.CASES, ids=lambda case: f"{case.package}-{case.name}")
def case(request):
    return request.param


def test_a_kernel_does_what_the_interpreter_does(case, load):
    comparison = Comparison()
    for size in range(SIZES):
        draw = Draw(size)
        with comparison.watching(draw.reached):
            case.run(load(case.module), draw)
    launches = comparison.launches
    assert launches
    if triton.__version__.startswith("3.6.") and case.name == "rope_of_complex_numbers":
        pytest.skip("Triton 3.6's interpreter computes tl.fma wrong, see the room's README")
    assert [launch for launch in launches if launch.verdict is Verdict.DIFFERENT] == []
    assert any(launch.verdict is Verdict.REJECTED for launch in launches) == case.rejected
    assert {launch.kernel for launch in launches if not (launch.changed or launch.verdict in _EXCUSED)} <= {
        launch.kernel for launch in launches if launch.changed
    }
    reports = [launch.report for launch in launches if launch.report]
    assert all(report.startswith("conflicts") for report in reports) and bool(reports) == case.conflicts
    assert any(launch.backward for launch in launches) == case.ordered


def test_nothing_is_found_where_kernels_just_run(case, load):
    if case.rejected:
        pytest.skip("Triton's front end does not compile it")
    with warnings.catch_warnings(), enabled() as session:
        warnings.simplefilter("error", InterpretedKernel)
        for size in range(SIZES):
            case.run(load(case.module), Draw(size))
    assert {finding.code for finding in session.findings} == ({"MRV211"} if case.conflicts else set())
