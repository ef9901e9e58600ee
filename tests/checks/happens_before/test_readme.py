"""The page of this room says what the code does."""

import dataclasses
import re
import subprocess
import sys
from enum import Enum
from pathlib import Path

from mrv2.checks.events import LaneKind, OperationKind, Space, SyncKind
from mrv2.checks.happens_before import core
from mrv2.checks.happens_before.records import RECORDS

README = (Path(core.__file__).parent / "README.md").read_text()
ROWS = {cells[1].strip(" `"): cells for line in README.splitlines() if len(cells := line.split("|")) == 5}


def test_schema_names_every_event_and_field():
    for event, kind in RECORDS.items():
        documented = re.findall(r"`(\w+)(=?)[^`]*`", ROWS[event][2])
        defaults = {field.name: field.default is not dataclasses.MISSING for field in dataclasses.fields(kind)}
        assert {name: bool(equals) for name, equals in documented} == defaults, event


def test_schema_names_every_kind():
    kinds: list[type[Enum]] = [LaneKind, OperationKind, Space, SyncKind]
    assert [member.value for kind in kinds for member in kind if f"`{member.value}`" not in README] == []


def test_map_names_every_module():
    modules = {path.stem for path in Path(core.__file__).parent.glob("*.py")} - {"__init__"}
    assert [name for name in sorted(modules) if f"`{name}`" not in README] == []


def test_importing_the_room_is_cheap():
    program = (
        "import sys, mrv2.checks.happens_before;"
        "print(sorted({'torch', 'triton', 'numpy', 'scipy', 'rich', 'typer'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
