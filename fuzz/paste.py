"""A failing case as a test to paste."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from .case import Failure
from .script import Script, as_code
from .targets.named import OWN_TARGETS

WIDTH = 110


def as_test(reference: str, script: Script, failures: Sequence[Failure]) -> str:
    """A test of pytest that runs a script and demands that nothing is wrong.

    Args:
        reference: the target's name on the command line.
        script: what runs.
        failures: what went wrong; the first one is named in a comment.
    """
    path = OWN_TARGETS.get(reference, reference)
    module, _, name = path.partition(":")
    parts = [kind for kind in _KINDS if f"{kind}(" in as_code(script)]
    imports = [f"from mrv2.fuzz.script import {', '.join(sorted(parts))}"]
    if script.schedule is not None:
        imports.append("from mrv2.checks.virtual.schedules import Schedule")
    params = [kind for kind in ("Grammar", "SamplingParams") if f"{kind}(" in as_code(script)]
    if params:
        imports.append(f"from mrv2.refrunner.api import {', '.join(params)}")
    seen = textwrap.shorten(failures[0].text, WIDTH) if failures else "nothing"
    return "\n".join(
        [
            *sorted([*imports, "from mrv2.fuzz.case import run_case", f"from {module} import {name.split('.')[0]}"]),
            "",
            "",
            "def test_replay():",
            f"    # seen: {seen}",
            f"    script = {_script(script)}",
            f"    target = {name}() if isinstance({name}, type) else {name}",
            "    assert run_case(target, script).failures == ()",
        ]
    )


_KINDS = ("Script", "Arrive", "Advance", "Skip", "Preempt", "Abort", "Collect", "Admit")


def _script(script: Script) -> str:
    """One event a line, as one reads it."""
    events = "".join(f"            {as_code(event)},\n" for event in script.events)
    rest = as_code(Script((), script.settings, script.steps_in_flight, script.schedule, script.model, script.relation))
    further = rest.removeprefix("Script(events=()").removeprefix(", ").removesuffix(")")
    lines = f"        {further},\n" if further else ""
    return f"Script(\n        events=(\n{events}        ),\n{lines}    )"
