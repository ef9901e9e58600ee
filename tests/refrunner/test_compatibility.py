"""The table of settings that exclude each other: each pair is refused by name, and neither half of it alone is."""

from dataclasses import fields, replace

import pytest

from mrv2.checks.virtual import virtual_device
from mrv2.refrunner.compatibility import PAIRS
from mrv2.refrunner.config import RunnerConfig
from mrv2.refrunner.errors import ConfigurationError

# Beside the defaults, which exclude nothing.
NEUTRAL = {"device": "cuda", "attention": "triton"}
# What a way to verify drafts comes with.
WITH_DRAFTS = {"speculation": "draft"}
# For settings that any value above zero turns on.
ON = {"bool": True, "int": 1, "float": 0.5}
TYPES = {field.name: field.type for field in fields(RunnerConfig)}


def value(setting):
    return setting.values[0] if setting.values else ON[TYPES[setting.field]]


@pytest.fixture(scope="module", autouse=True)
def device():
    with virtual_device():
        yield


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: f"{pair.first.field}-{pair.second.field}")
def test_each_pair_is_refused_by_name_and_each_half_is_not(pair):
    first, second = ({side.field: value(side)} for side in (pair.first, pair.second))
    with pytest.raises(ConfigurationError) as caught:
        RunnerConfig(**{**NEUTRAL, **first, **second})
    error = caught.value
    assert all(f"{name}={value!r}" in error.subject for name, value in {**first, **second}.items())
    assert (error.reason, error.remedy) == (pair.reason, pair.remedy)
    for half in (first, second):
        assert RunnerConfig(**{**NEUTRAL, **(WITH_DRAFTS if "verification" in half else {}), **half})


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: f"{pair.first.field}-{pair.second.field}")
def test_every_value_of_a_setting_is_refused(pair):
    for one in pair.first.values or (value(pair.first),):
        for other in pair.second.values or (value(pair.second),):
            with pytest.raises(ConfigurationError, match="do not go together"):
                RunnerConfig(**{**NEUTRAL, pair.first.field: one, pair.second.field: other})


def test_the_table_names_fields_that_are_there_and_no_pair_twice():
    names = {field.name for field in fields(RunnerConfig)}
    assert {side.field for pair in PAIRS for side in (pair.first, pair.second)} <= names
    assert len({(pair.first, pair.second) for pair in PAIRS}) == len(PAIRS)


def test_an_index_of_a_device_does_not_hide_its_kind():
    with pytest.raises(ConfigurationError, match=r"with device='cpu:0'"):
        RunnerConfig(device="cpu:0", graph_mode="piecewise")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"device": "cpu:1"}, "torch ignores another index"),
        ({"graph_mode": "eager", "graph_sizes": (1, 2)}, "the sizes would be ignored"),
        ({"verification": "block"}, "the setting would be ignored"),
    ],
)
def test_what_nothing_would_read_is_refused(settings, words):
    with pytest.raises(ConfigurationError, match=words):
        RunnerConfig(**settings)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"graph_mode": "partial"}, "graph_mode='partial'"),
        ({"graph_mode": None}, "graph_mode=None"),
        ({"graph_sizes": [1, 2]}, "graph_sizes"),
        ({"graph_sizes": (2, 1)}, "ascending"),
        ({"graph_sizes": (1, 1)}, "ascending"),
        ({"graph_sizes": (0,)}, "from 1 to 256"),
        ({"graph_sizes": (1.0,)}, "whole numbers"),
        ({"graph_sizes": (True,)}, "whole numbers"),
        ({"graph_sizes": (257,)}, "from 1 to 256"),
        ({"graph_mode": "full", "graph_sizes": (17,)}, "from 1 to 16"),
        ({"graph_sizes": tuple(range(1, 66))}, "at most 64 graphs"),
        ({"memory_fraction": 1.5}, "memory_fraction=1.5"),
        ({"memory_fraction": float("nan")}, "memory_fraction=nan"),
        ({"memory_fraction": True}, "memory_fraction=True"),
        ({"memory_fraction": "all"}, "memory_fraction='all'"),
    ],
)
def test_wrong_values_are_refused(settings, words):
    with pytest.raises(ConfigurationError, match=words) as caught:
        replace(RunnerConfig(device="cuda", attention="triton"), **settings)
    error = caught.value
    assert all((error.subject, error.rule, error.reason, error.remedy))
