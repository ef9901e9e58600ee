import dataclasses
import subprocess
import sys

import pytest

from mrv2.checks.codes import CODES, RANGES, UnknownCodeError, explain, range_of
from mrv2.checks.findings import Soundness

FIRST_SLICE = {
    "MRV301", "MRV302", "MRV303", "MRV304", "MRV305", "MRV306", "MRV307", "MRV308",
    "MRV401", "MRV402", "MRV403", "MRV701",
}  # fmt: skip


def test_registry_holds_the_codes_of_the_first_slice() -> None:
    assert set(CODES) >= FIRST_SLICE


@pytest.mark.parametrize("code", sorted(CODES))
def test_every_entry_is_complete(code: str) -> None:
    info = CODES[code]
    assert info.code == code
    assert isinstance(info.soundness, Soundness)
    texts = [value for value in dataclasses.astuple(info) if isinstance(value, str)]
    assert all(text.strip() for text in (*texts, info.example.before, info.example.after))
    assert info.example.before != info.example.after
    assert range_of(code) in RANGES.values()


def test_codes_of_state_and_startup_are_never_false_alarms() -> None:
    own = {code: info for code, info in CODES.items() if code in FIRST_SLICE}
    assert [code for code, info in own.items() if info.soundness is not Soundness.SOUND] == ["MRV401"]


def test_ranges_cover_the_seven_hundreds() -> None:
    assert list(RANGES) == [f"MRV{hundred}xx" for hundred in range(1, 8)]


def test_codes_cannot_be_changed_from_outside() -> None:
    with pytest.raises(TypeError):
        CODES["MRV999"] = CODES["MRV301"]  # type: ignore[index]


def test_lower_case_and_blanks_are_accepted() -> None:
    assert explain(" mrv302 ") is CODES["MRV302"]


@pytest.mark.parametrize(("wrong", "close"), [("MRV399", "MRV30"), ("MVR401", "MRV401"), ("701", "MRV701")])
def test_unknown_code_names_close_ones(wrong: str, close: str) -> None:
    with pytest.raises(UnknownCodeError) as caught:
        explain(wrong)
    error = caught.value
    assert wrong in error.subject
    assert f"did you mean {close}" in error.remedy
    assert error.rule and error.reason


def test_unknown_code_without_close_ones_points_to_the_list() -> None:
    with pytest.raises(UnknownCodeError) as caught:
        explain("zebra")
    assert caught.value.remedy == "mrv2 explain --list shows them all"


def test_importing_checks_is_cheap() -> None:
    program = (
        "import sys, mrv2.checks, mrv2.checks.codes, mrv2.checks.findings;"
        "print(sorted({'torch', 'triton', 'numpy', 'scipy', 'rich', 'typer'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
