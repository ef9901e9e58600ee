"""Mutants: a faulty copy beside the original, which stays as it is, and nothing left behind."""

import gc
import importlib
import inspect
import pkgutil
import sys
from pathlib import Path

import pytest

from mrv2.checks.libraries import portable_path
from mrv2.checks.triton_cpu.stable_text import text_of
from mrv2.fuzz import mutants
from mrv2.fuzz.mutants import ADDED, EDGES, MUTATIONS, PLANTED, MutantTarget, Mutation, mutant, mutated_package
from mrv2.fuzz.mutants.source import PACKAGE, package_folder
from mrv2.fuzz.targets.protocols import RunnerTarget, SamplerProvider
from mrv2.refrunner import config as original

CAPACITIES = {"max_num_reqs": 3, "max_num_batched_tokens": 8, "max_model_len": 32, "block_size": 4, "num_kv_blocks": 17}
ALL = (*MUTATIONS, *EDGES, *ADDED)
TEN_ROWS = Mutation("ten_rows", "config.py", "max_num_reqs: int = 16", "max_num_reqs: int = 10", "ten rows by default")


def mutant_modules():
    return {name for name in sys.modules if name.startswith("mrv2_mutant_")}


@pytest.fixture(autouse=True)
def _nothing_is_left():
    before = {name: module for name, module in sys.modules.items() if name.startswith("mrv2.refrunner")}
    yield
    assert mutant_modules() == set()
    assert all(sys.modules[name] is module for name, module in before.items())


def test_the_copy_is_changed_and_the_original_is_not():
    text = Path(original.__file__).read_text()
    with mutated_package(TEN_ROWS) as package:
        changed = importlib.import_module(f"{package}.config")
        assert changed.RunnerConfig().max_num_reqs == 10
        assert Path(changed.__file__).read_text() == text.replace("= 16", "= 10", 1)
        folder = Path(changed.__file__).parent
    assert original.RunnerConfig().max_num_reqs == 16
    assert Path(original.__file__).read_text() == text
    assert not folder.exists()


def test_a_mutant_lives_in_its_own_modules():
    with mutated_package(TEN_ROWS) as package:
        runner = importlib.import_module(f"{package}.model_runner")
        assert runner.RunnerConfig.__module__ == f"{package}.config"
        assert runner.RunnerConfig is not original.RunnerConfig


def test_only_the_file_that_is_changed_is_written():
    with mutated_package(TEN_ROWS) as package:
        changed, same = (Path(importlib.import_module(f"{package}.{name}").__file__) for name in ("config", "api"))
    assert same == Path(original.__file__).with_name("api.py")
    # From its outermost package on, a report names it as it does the original.
    assert portable_path(original.__file__) == "refrunner/config.py"
    assert changed.parts[-2:] == ("refrunner", "config.py") and changed != Path(original.__file__)


def test_a_changed_file_in_a_folder_is_named_as_the_original():
    greater = Mutation(
        "greater", "kernels/block_table.py", "PAD_SLOT = tl.constexpr(-1)", "PAD_SLOT = tl.constexpr(-2)", ""
    )
    with mutated_package(greater) as package:
        module = importlib.import_module(f"{package}.kernels.block_table")
        assert module.PAD_SLOT.value == -2
        assert portable_path(module.__file__) == "refrunner/kernels/block_table.py"


def test_kernels_of_files_that_are_not_changed_are_served_by_what_was_built_for_the_original():
    def text(package):
        return text_of(importlib.import_module(f"{package}.kernels.draw").sample_blocks)

    stages = Mutation(
        "stages", "kernels/gumbel.py", "PURPOSE_TARGET = tl.constexpr(0)", "PURPOSE_TARGET = tl.constexpr(1)", ""
    )
    with mutated_package(TEN_ROWS) as same, mutated_package(stages) as other:
        assert text(same) == text("mrv2.refrunner") != text(other)


def test_two_mutants_side_by_side():
    twelve = Mutation("ten_rows", "config.py", TEN_ROWS.old, "max_num_reqs: int = 12", "the same name, another fault")
    with mutated_package(TEN_ROWS) as first, mutated_package(twelve) as second:
        modules = [importlib.import_module(f"{package}.config") for package in (first, second)]
        assert [module.RunnerConfig().max_num_reqs for module in modules] == [10, 12]


def test_an_exception_inside_the_scope_leaves_nothing():
    folders = []

    def fail(package):
        folders.append(Path(importlib.import_module(f"{package}.config").__file__).parent)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), mutated_package(TEN_ROWS) as package:
        fail(package)
    assert [folder.exists() for folder in folders] == [False]


@pytest.mark.parametrize("old", ["max_num_reqs: int = 17", "int = "])
def test_a_stale_mutation_is_refused(old):
    count = inspect.getsource(original).count(old)
    assert count != 1
    stale = Mutation("stale", "config.py", old, "x", "out of date")
    with pytest.raises(ValueError, match=f"'stale'.*config.py, found {count} times"), mutated_package(stale):
        pass


def test_a_mutation_of_a_missing_file_is_refused():
    missing = Mutation("missing", "no_such_file.py", "a", "b", "out of date")
    with pytest.raises(FileNotFoundError), mutated_package(missing):
        pass


def test_a_mutant_that_cannot_be_imported_leaves_nothing():
    future = "from __future__ import "
    broken = Mutation("broken", "config.py", f"{future}annotations", f"{future}nonsense", "a syntax error")
    with mutated_package(broken) as package, pytest.raises(SyntaxError):
        importlib.import_module(f"{package}.config")


@pytest.mark.parametrize("mutation", ALL, ids=lambda mutation: mutation.name)
def test_the_catalogue_is_up_to_date(mutation):
    """Its text is there, and the faulty runner can be built."""
    with mutant(mutation) as target:
        runner = target.build({"model": "tiny", **CAPACITIES})
        assert type(runner._runner).__module__.startswith(f"mrv2_mutant_{mutation.name}_")
        runner.close()


def test_thirty_faults_are_planted_in_every_part():
    planted = [mutation for part in PLANTED.values() for mutation in part]
    assert len({(mutation.file, mutation.new) for mutation in planted}) == len(planted) == 30
    assert min(map(len, PLANTED.values())) >= 3


def test_names_and_descriptions_of_the_catalogue():
    assert len({mutation.name for mutation in ALL}) == len(ALL)
    assert all(mutation.name.isidentifier() and mutation.doc and mutation.old != mutation.new for mutation in ALL)


@pytest.mark.parametrize("mutation", ALL, ids=lambda mutation: mutation.name)
def test_every_mutation_is_a_target_by_name(mutation):
    target = getattr(mutants, mutation.name)
    assert isinstance(target, MutantTarget)
    assert isinstance(target, RunnerTarget)
    assert isinstance(target, SamplerProvider)
    assert mutation.doc in target.name
    # Nothing is copied before it is used.
    assert mutant_modules() == set()


def test_an_unknown_mutant_is_no_attribute():
    with pytest.raises(AttributeError, match="no_such_mutant"):
        _ = mutants.no_such_mutant


def test_a_target_is_copied_once_and_closed_for_good():
    with mutant(TEN_ROWS) as target:
        first, second = (target.build({"model": "tiny", **CAPACITIES}) for _ in range(2))
        assert type(first._runner) is type(second._runner)
        assert type(target.sampler()._module.__name__) is str
        assert len({name.split(".")[0] for name in mutant_modules()}) == 1
    target.close()
    assert mutant_modules() == set()


def test_a_forgotten_target_cleans_up_after_itself():
    target = MutantTarget(TEN_ROWS)
    target.build({"model": "tiny", **CAPACITIES})
    assert mutant_modules()
    del target
    gc.collect()
    assert mutant_modules() == set()


def written_down():
    """Every mutation of the reference runner that a module of the package names, by its name."""
    names = [one.name for one in pkgutil.iter_modules(mutants.__path__)]
    modules = [importlib.import_module(f"{mutants.__name__}.{name}") for name in names]
    groups = [value for module in modules for value in vars(module).values() if isinstance(value, tuple)]
    return {one.name: one for group in groups for one in group if isinstance(one, Mutation)}


def test_every_mutation_follows_the_source():
    """One that is out of date fails only where it is run, which for most is outside of the suite."""
    found = written_down()
    texts = {one.file: (package_folder(PACKAGE) / one.file).read_text(encoding="utf-8") for one in found.values()}
    times = {name: texts[one.file].count(one.old) for name, one in found.items()}
    assert len(found) > 60 and {name: count for name, count in times.items() if count != 1} == {}
