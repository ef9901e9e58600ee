"""``assert_sampler_correct``: the example of the README, and what its failure says."""

import functools
import re
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from mrv2.stats import assertion
from mrv2.stats.assertion import SamplerIncorrectError
from mrv2.stats.errors import ArgumentError
from mrv2.stats.planted.clean import CleanSampler
from mrv2.stats.planted.faults import LostLastBlock

README = Path(assertion.__file__).with_name("README.md")


@pytest.fixture
def example(monkeypatch):
    """Runs the test of the README for an engine that draws with a sampler; narrow rows, for a second."""
    quick = functools.partial(assertion.assert_sampler_correct, layers=("contract",))
    monkeypatch.setattr(assertion, "assert_sampler_correct", quick)
    adapter, test = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)

    def run(sampler):
        for name in ("my_engine", "my_engine.sampling", "my_engine.audited"):
            monkeypatch.setitem(sys.modules, name, ModuleType(name))
        sys.modules["my_engine.sampling"].draw = lambda *arguments: sampler.sample(*arguments).astype(np.int32)
        exec(adapter, vars(sys.modules["my_engine.audited"]))
        found = {}
        exec(test, found)
        (function,) = [value for name, value in found.items() if name.startswith("test_")]
        function()

    return run


def test_the_example_of_the_readme_passes_for_a_correct_engine(example):
    example(CleanSampler())


def test_its_failure_says_what_is_wrong_why_and_what_to_do(example):
    with pytest.raises(SamplerIncorrectError) as caught:
        example(LostLastBlock())
    lines = str(caught.value).splitlines()
    assert lines[:2] == ["", "SAMPLER AUDIT of my engine: FAIL"]
    for part in ("The sampler is wrong", "Likely cause: last block is never drawn. ", "To repair: ", "Next: repair"):
        assert any(part in line for line in lines), part
    assert max(map(len, lines)) <= 112
    assert caught.value.report.causes


@pytest.mark.parametrize("target", [CleanSampler().sample, CleanSampler, object()], ids=["function", "class", "object"])
def test_what_is_no_sampler_is_refused(target):
    with pytest.raises(ArgumentError, match=r"a sampler has a name and sample\(") as caught:
        assertion.assert_sampler_correct(target)
    assert "Your own sampler" in str(caught.value)


def test_pytest_shows_the_line_of_the_test_and_none_of_ours(pytester):
    pytester.makepyfile(
        """
        from mrv2.stats.assertion import assert_sampler_correct
        from mrv2.stats.planted.faults import LostLastBlock

        def test_sampler():
            assert_sampler_correct(LostLastBlock(), layers=("contract",), vocab_size=1500)
        """
    )
    result = pytester.runpytest_inprocess("-p", "no:randomly", "-p", "no:cacheprovider")
    result.assert_outcomes(failed=1)
    shown = result.stdout.str()
    assert "SAMPLER AUDIT of lost last block: FAIL" in shown
    assert "assertion.py" not in shown
