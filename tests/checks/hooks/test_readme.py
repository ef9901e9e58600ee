"""The page of this room says what the code does."""

from pathlib import Path

from mrv2.checks.codes import CODES
from mrv2.checks.findings import Soundness
from mrv2.checks.hooks import patching

ROOM = Path(patching.__file__).parent
README = (ROOM / "README.md").read_text()


def test_map_names_every_module():
    modules = {path.stem for path in ROOM.glob("*.py")} - {"__init__"}
    assert {module for module in modules if f"`{module}`" not in README} == set()


def test_promises_are_those_of_the_registry():
    sound = {Soundness.SOUND: "sound", Soundness.BEST_EFFORT: "best effort"}
    for code in ("MRV207", "MRV211", "MRV212"):
        assert f"| {code} | {sound[CODES[code].soundness]}" in README
