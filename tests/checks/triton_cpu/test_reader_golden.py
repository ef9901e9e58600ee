"""What the front ends of Triton 3.6 to 3.9 print is read, and read right."""

import pytest
from triton._C.libtriton import ir

from mrv2.checks.triton_cpu.reader import read
from mrv2.checks.triton_cpu.reader.operations import RULES

from .golden_kernels import CASES, GOLDEN, RUNNER, VERSION
from .reading import generic, structure

FILES = sorted(GOLDEN.glob("*/*.ttir"))
HERE = sorted(name for name, case in CASES.items() if case.here)


def test_each_version_has_its_files():
    versions = {folder.name: int(folder.name.split(".")[1]) for folder in GOLDEN.iterdir()}
    assert set(versions) == {"3.6", "3.7", "3.8", "3.9"}
    for folder, minor in versions.items():
        expected = {name for name, case in CASES.items() if case.versions[0] <= minor <= case.versions[1]}
        assert {file.stem for file in (GOLDEN / folder).glob("*.ttir")} == expected


#: Comparisons that hold for NaNs, which the language has no words for, and what is written by hand in other tests.
NOT_MADE = {
    *(f"create_fcmp{word}" for word in ("ONE", "UEQ", "UGE", "UGT", "ULE", "ULT")),
    *("create_approx_divf", "create_grid_dependency_wait", "create_grid_dependency_launch_dependents"),
}


def test_the_kernels_make_everything_that_the_front_end_can_make(monkeypatch):
    stock, made = ir.builder, set()

    class Recording(stock):
        def __getattribute__(self, name):
            made.add(name)
            return super().__getattribute__(name)

    monkeypatch.setattr(ir, "builder", Recording)
    for name in HERE:
        CASES[name].ttir()
    assert {name for name in dir(stock) if name.startswith("create_")} - made <= NOT_MADE


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}-{file.stem}")
def test_golden_files_are_read(file):
    module = read(file.read_text())
    assert module.kernel.name == CASES[file.stem].kernel.__name__
    assert all(operation.name in RULES for operation in module.kernel.body.walk())


@pytest.mark.parametrize("name", sorted(set(HERE) - set(RUNNER)))  # the runner's kernels may change
def test_golden_files_say_what_the_installed_version_says(name):
    golden = GOLDEN / f"{VERSION[0]}.{VERSION[1]}" / f"{name}.ttir"
    if not golden.exists():
        pytest.skip(f"no golden files of Triton {VERSION[0]}.{VERSION[1]}")
    assert structure(read(golden.read_text()), places=False) == structure(read(CASES[name].ttir()), places=False)


@pytest.mark.parametrize("name", HERE)
def test_the_custom_form_means_what_the_generic_form_says(name, tmp_path):
    """The generic form names every operand, attribute and type, so it tells what the custom form leaves unsaid."""
    text = CASES[name].ttir()
    assert structure(read(text)) == structure(read(generic(text, tmp_path)))
