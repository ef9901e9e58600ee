"""The workflows to copy say what ``mrv2`` understands."""

import itertools
import re
import shlex
from pathlib import Path

import pytest
import typer.main

from mrv2.ci.command.app import app

TEMPLATES = sorted((Path(__file__).resolve().parents[2] / "ci" / "templates").glob("*.yml"))


def commands(text):
    """Every call of mrv2, with a number in the place of what the workflow fills in."""
    filled = re.sub(r"\$\{\{.*?\}\}", "7", text)
    return [shlex.split(line) for line in re.findall(r"- run: (mrv2 .*)", filled)]


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_every_command_of_a_workflow_parses(path):
    found = commands(path.read_text())
    assert len(found) == path.read_text().count("run: mrv2")
    known = typer.main.get_command(app).commands
    values = [known[name].make_context(name, arguments).params for _, name, *arguments in found]
    assert [each["target"] for each in values] == ["my_adapter:MyTarget"] * len(values)


def test_the_night_writes_the_examples_that_pull_requests_read():
    (path,) = TEMPLATES
    short, night = (dict(itertools.pairwise(call)) for call in commands(path.read_text()))
    assert short["--examples"].split(",")[0] == f"read-only:{night['--db']}/examples"
    assert "--cases" in short and "--time" in night and night["--seed"] == "7"
    keys = re.findall(r"(?:key|restore-keys): (\S+)", path.read_text())
    assert {key.startswith("mrv2-fuzz-") for key in keys} == {True}


def test_a_workflow_that_says_what_nobody_understands_is_noticed():
    known = typer.main.get_command(app).commands
    with pytest.raises(Exception, match="No such option"):
        known["fuzz"].make_context("fuzz", ["--hours", "5"])
