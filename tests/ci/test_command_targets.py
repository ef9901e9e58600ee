import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from mrv2.ci.command.targets import importable, resolve_program, resolve_target
from mrv2.ci.report.problem import InputError, four_parts

MODULE = """
    import sys
    from mrv2.fuzz.targets.protocols import Feature, Knob


    class Good:
        name = "good"
        features = frozenset({Feature.ABORT})
        knobs = {"depth": Knob((1, 2), "ring depth")}

        def build(self, config):
            return None


    class Outer:
        inner = Good()


    class NeedsArguments(Good):
        def __init__(self, path):
            self.path = path


    class Raises(Good):
        def __init__(self):
            raise OSError("no device")


    class Exits(Good):
        def __init__(self):
            sys.exit(0)


    class Refusal(Exception):
        subject, rule, reason, remedy = "device 9", "it must exist", "nothing to run on", "device 0"


    class Refuses(Good):
        def __init__(self):
            raise Refusal("no")


    class Nameless(Good):
        name = ""


    class WrongFeatures(Good):
        features = frozenset({"abort"})


    class WrongKnobs(Good):
        knobs = {"depth": 1}


    class WrongBuild(Good):
        build = None


    class Empty:
        pass


    instance = Good()
    number = 3


    def factory():
        return Good()
"""


@pytest.fixture(autouse=True)
def _module_folder(tmp_path: Path) -> Iterator[None]:
    package = tmp_path / "user_engine"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "adapter.py").write_text(textwrap.dedent(MODULE))
    (package / "broken.py").write_text("import no_such_dependency\n")
    (package / "syntax.py").write_text("def f(:\n")
    (package / "exits.py").write_text("import sys\nsys.exit(0)\n")
    with importable(tmp_path):
        yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "user_engine"]:
        del sys.modules[name]


@pytest.mark.parametrize("name", ["Good", "instance", "Outer.inner"])
def test_class_instance_and_dotted_name_are_found(name: str) -> None:
    target = resolve_target(f"user_engine.adapter:{name}")
    assert target.name == "good"
    assert not isinstance(target, type)


def test_reference_runner_is_found_by_its_name() -> None:
    target = resolve_target("refrunner")
    assert target.name == "refrunner"


@pytest.mark.parametrize(
    "reference", ["", "refrunners", "user_engine.adapter", ":Good", "user_engine:", "a b:c", "a:b:c"]
)
def test_other_forms_are_refused(reference: str) -> None:
    with pytest.raises(InputError, match=r"package\.module:object"):
        resolve_target(reference)


@pytest.mark.parametrize(
    ("reference", "word"),
    [
        ("absent_engine:Target", "ModuleNotFoundError"),
        ("user_engine.absent:Target", "ModuleNotFoundError"),
        ("user_engine.broken:Target", "no_such_dependency"),
        ("user_engine.syntax:Target", "SyntaxError"),
        ("user_engine.exits:Target", "SystemExit"),
        ("user_engine.adapter:NeedsArguments", "without arguments"),
        ("user_engine.adapter:Raises", "OSError: no device"),
        ("user_engine.adapter:Exits", "SystemExit"),
    ],
)
def test_what_the_module_or_class_raises_is_told(reference: str, word: str) -> None:
    with pytest.raises(InputError, match=word) as caught:
        resolve_target(reference)
    assert reference in caught.value.subject


def test_missing_name_lists_close_ones() -> None:
    with pytest.raises(InputError, match="instance") as caught:
        resolve_target("user_engine.adapter:instanse")
    assert "instance" in caught.value.remedy


def test_refusal_of_the_target_itself_is_kept() -> None:
    with pytest.raises(Exception, match="no") as caught:
        resolve_target("user_engine.adapter:Refuses")
    parts = four_parts(caught.value)
    assert parts is not None and parts.subject == "device 9"


@pytest.mark.parametrize(
    ("name", "faults"),
    [
        ("Nameless", ["name"]),
        ("WrongFeatures", ["features"]),
        ("WrongKnobs", ["knobs"]),
        ("WrongBuild", ["build"]),
        ("Empty", ["name", "features", "knobs", "build"]),
        ("number", ["name", "features", "knobs", "build"]),
        ("factory", ["name", "features", "knobs", "build"]),
    ],
)
def test_all_that_is_missing_is_listed_at_once(name: str, faults: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        resolve_target(f"user_engine.adapter:{name}")
    listed = caught.value.rule.partition("missing or wrong here: ")[2]
    assert [part.partition(":")[0].partition("(")[0] for part in listed.split("; ")] == faults


def test_folder_that_is_searched_already_keeps_its_place(tmp_path: Path) -> None:
    before = list(sys.path)
    with importable(Path(before[0])):
        assert sys.path == before
    assert sys.path == before


def test_search_path_is_put_back_on_errors(tmp_path: Path) -> None:
    before = list(sys.path)
    with pytest.raises(InputError), importable(tmp_path / "more"):
        resolve_target("user_engine.absent:Target")
    assert sys.path == before


@pytest.mark.parametrize(
    ("named", "meant"),
    [
        ("engine.py:main", "did you mean engine:main?"),
        ("./engine.py:main", "did you mean engine:main?"),
        ("pkg/engine.py:Runner.step", "did you mean pkg.engine:Runner.step?"),
        ("engine.py", "did you mean engine:function?"),
        ("/a/engine.py:main", "did you mean engine:main, in the folder /a?"),
        ("engine.main", "did you mean engine:main?"),
    ],
)
def test_a_file_in_the_place_of_a_module_is_told_what_was_meant(named: str, meant: str) -> None:
    for resolve in (resolve_target, lambda name: resolve_program("TARGET", name)):
        with pytest.raises(InputError) as caught:
            resolve(named)
        assert meant in caught.value.remedy


@pytest.mark.parametrize("named", ["no_such_module:x", "no_such.module:x", "a b:c", "", "engine"])
def test_nothing_is_guessed_of_other_names(named: str) -> None:
    with pytest.raises(InputError) as caught:
        resolve_program("TARGET", named)
    assert "did you mean" not in caught.value.remedy
