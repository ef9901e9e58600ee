"""The watch: waits in hot paths that nobody allowed, and only these."""

import sys
import textwrap
import threading

import pytest

from mrv2.checks.findings import Verdict
from mrv2.checks.hot_path import HotPathError, allow_sync, hot_path
from mrv2.checks.semantics import Direction
from mrv2.checks.sync.settings import Settings, read_settings, settings_from
from mrv2.checks.sync.waits import Certainty, Wait
from mrv2.checks.sync.watch import Watch
from mrv2.checks.virtual.stacks import program_stack

ENGINE = """
    from functools import lru_cache

    class Base:
        def inherited(self, wait):
            wait()

    class Runner(Base):
        @property
        def tokens(self):
            return self._wait()

        @staticmethod
        def static(wait):
            wait()

        @classmethod
        def made(cls, wait):
            wait()

        def execute(self, wait):
            self.collect(wait)

        def collect(self, wait):
            wait()

        def many(self):
            yield 1

    class Slotted:
        __slots__ = ()

        def step(self, wait):
            wait()

    def step(wait):
        wait()

    @lru_cache
    def cached(wait):
        wait()

    def __getattr__(name):
        if name == "lazy":
            return step
        raise AttributeError(name)

    number, slotted = 3, Slotted()
"""


@pytest.fixture
def engine(tmp_path, monkeypatch):
    (tmp_path / "watched_engine.py").write_text(textwrap.dedent(ENGINE))
    (tmp_path / "watched_user.py").write_text("from watched_engine import step as advance\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import watched_engine
    import watched_user

    yield watched_engine, watched_user
    for name in ("watched_engine", "watched_user"):
        sys.modules.pop(name, None)


def item(watch, code="MRV101", **facts):
    """What a front end does: tell of a wait of the calling thread."""
    return lambda: watch.waited(Wait("Tensor.item", code, program_stack(32), "keep it on the device", **facts))


def settings(*hot_paths, **rest):
    return Settings(tuple(f"watched_engine:{name}" for name in hot_paths), **rest)


def allow(**entry):
    return settings_from({"allow": [{"code": "MRV101", "reason": "reads one flag", **entry}]}).allowances


def test_a_wait_in_a_hot_path_is_one_finding_that_says_where(engine):
    with Watch(settings("Runner.execute")) as watch:
        for _ in range(3):
            engine[0].Runner().execute(item(watch, direction=Direction.DOWNLOAD, size=4, step=7))
    (finding,) = watch.findings
    assert (finding.code, finding.verdict, finding.step) == ("MRV101", Verdict.VIOLATION, 7)
    assert finding.title == "Tensor.item waits for the device in hot path watched_engine:Runner.execute"
    assert finding.evidence["times"] == 3
    assert finding.evidence["bytes"] == 4 and finding.evidence["direction"] == "device to host"
    assert [site.function for site in finding.where][1:3] == ["Runner.collect", "Runner.execute"]
    assert finding.remedy == "keep it on the device"


def test_a_wait_outside_of_hot_paths_is_none_of_our_business(engine):
    with Watch(settings("Runner.execute")) as watch:
        engine[0].step(item(watch))
        engine[0].Runner().collect(item(watch))
    assert watch.findings == []


def test_a_wait_of_another_thread_is_not_in_the_hot_path(engine):
    def elsewhere(watch):
        thread = threading.Thread(target=item(watch))
        thread.start()
        thread.join()

    with Watch(settings("step")) as watch:
        engine[0].step(lambda: elsewhere(watch))
    assert watch.entries == {"watched_engine:step": 1}
    assert watch.findings == []


@pytest.mark.parametrize("name", ["step", "Runner.static", "Runner.made", "Runner.inherited", "Runner.execute"])
def test_functions_and_methods_of_every_kind_become_hot_paths_and_themselves_again(engine, name):
    owner, attribute = (engine[0].Runner, name.split(".")[1]) if "." in name else (engine[0], name)
    before = dict(vars(owner))
    with Watch(settings(name)) as watch:
        call = getattr(owner() if isinstance(owner, type) else owner, attribute)
        call(item(watch))
    assert len(watch.findings) == 1
    assert dict(vars(owner)) == before


def test_a_cached_function_keeps_its_cache_and_a_name_given_only_when_asked_for_is_found(engine):
    module, _ = engine
    with Watch(settings("cached", "lazy")) as watch:
        module.cached(lambda: None)
        module.cached.cache_clear()
        module.lazy(lambda: None)
    watch.require_entered()
    assert "lazy" not in vars(module)


def test_an_allowance_for_the_static_search_is_no_business_of_a_run(engine):
    allowed = {"site": "watched_engine:step", "code": "MRV131", "reason": "the ring is deep enough"}
    with Watch(settings_from({"hot_paths": ["watched_engine:step"], "allow": [allowed]})) as watch:
        engine[0].step(lambda: None)
    assert watch.unused() == []


def test_properties_become_hot_paths(engine):
    runner = engine[0].Runner()
    with Watch(settings("Runner.tokens")) as watch:
        runner._wait = item(watch)
        assert runner.tokens is None
    assert len(watch.findings) == 1
    assert watch.entries == {"watched_engine:Runner.tokens": 1}


def test_a_function_that_was_imported_by_name_is_a_hot_path_there_too(engine):
    before = engine[1].advance
    with Watch(settings("step")) as watch:
        engine[1].advance(item(watch))
    assert len(watch.findings) == 1
    assert engine[1].advance is before is engine[0].step


def test_an_inherited_method_is_hot_in_the_named_class_only(engine):
    with Watch(settings("Runner.inherited")) as watch:
        engine[0].Base().inherited(item(watch))
    assert watch.findings == []
    assert "inherited" not in vars(engine[0].Runner)


def test_warm_up_is_not_judged(engine):
    with Watch(settings("step", warmup_calls=2)) as watch:
        for _ in range(2):
            engine[0].step(item(watch))
        assert watch.findings == []
        engine[0].step(item(watch))
    assert len(watch.findings) == 1


def test_an_allowed_wait_is_no_finding_wherever_it_is_allowed(engine):
    for site in ("Runner.collect", "Runner.execute"):
        allowances = allow(site=f"watched_engine:{site}")
        with Watch(settings("Runner.execute", allowances=allowances)) as watch:
            engine[0].Runner().execute(item(watch))
        assert watch.findings == [] and watch.unused() == []


def test_an_allowance_covers_its_code_and_place_only(engine):
    allowances = allow(site="watched_engine:Runner.collect")
    with Watch(settings("Runner.execute", "step", allowances=allowances)) as watch:
        engine[0].Runner().execute(item(watch, code="MRV104"))
        engine[0].step(item(watch))
    assert sorted(finding.code for finding in watch.findings) == ["MRV101", "MRV104"]
    assert [finding.code for finding in watch.unused()] == ["MRV122"]


def test_more_than_the_budget_in_one_entry_is_a_finding(engine):
    allowances = allow(site="watched_engine:step", budget=1, owner="engine")
    with Watch(settings("step", allowances=allowances)) as watch:
        for _ in range(3):  # once in each entry
            engine[0].step(item(watch))
        assert watch.findings == []
        engine[0].step(lambda: [item(watch)() for _ in range(3)])
    (finding,) = watch.findings
    assert (finding.code, finding.evidence["times beyond the budget"], finding.evidence["budget"]) == ("MRV121", 2, 1)
    assert finding.evidence["owner"] == "engine"


def test_allowances_in_code_count_and_expire(engine):
    def collect(watch, times):
        with allow_sync("MRV101", "finish check", budget=1):
            for _ in range(times):
                item(watch)()

    with Watch(settings("step")) as watch:
        engine[0].step(lambda: collect(watch, 1))
        assert watch.findings == [] and watch.unused() == []
        engine[0].step(lambda: collect(watch, 2))
        engine[0].step(item(watch))
    assert sorted(finding.code for finding in watch.findings) == ["MRV101", "MRV121"]


def test_an_allowance_in_code_that_nothing_needed_is_told(engine):
    def collect():
        with allow_sync("MRV101", "finish check"):
            pass

    with Watch(settings("step")) as watch:
        engine[0].step(collect)
    (finding,) = watch.unused()
    assert finding.code == "MRV122" and finding.verdict is Verdict.SUSPECT
    assert finding.evidence["reason"] == "finish check"


def test_a_wait_that_depends_is_suspect():
    with Watch() as watch, hot_path("upload"):
        item(watch, code="MRV102", certainty=Certainty.DEPENDS)()
    assert [finding.verdict for finding in watch.findings] == [Verdict.SUSPECT]


def test_a_hot_path_that_was_never_entered_is_an_error_that_names_it(engine):
    with Watch(settings("step", "Runner.execute", warmup_calls=1)) as watch:
        engine[0].step(lambda: None)
    with pytest.raises(HotPathError, match=r"step \(1 of 1 warm-up calls\), .*Runner\.execute \(never entered\)"):
        watch.require_entered()


def test_a_run_without_any_hot_path_is_an_error_and_one_with_a_hot_path_in_code_is_none():
    with Watch() as watch:
        pass
    with pytest.raises(HotPathError, match="never judged: none is named, and none was entered"):
        watch.require_entered()
    with watch, hot_path("decode"):
        pass
    watch.require_entered()


def test_hot_paths_that_were_entered_are_no_error(engine):
    with Watch(settings("step")) as watch:
        engine[0].step(lambda: None)
    watch.require_entered()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("watched_engine:Runner.exeute", "did you mean execute"),
        ("watched_engine:Runer.execute", "did you mean Runner"),
        ("watched_egine:step", "ModuleNotFoundError"),
        ("watched_engine", "must have the form"),
        ("watched_engine:number", "written in Python"),
        ("watched_engine:Runner.many", "generator"),
        ("watched_engine:slotted.step", "module or a class"),
    ],
)
def test_names_that_name_nothing_are_errors_and_leave_nothing_behind(engine, name, words):
    before = dict(vars(engine[0]))
    with pytest.raises(HotPathError, match=words), Watch(Settings(("watched_engine:step", name))):
        pass
    assert dict(vars(engine[0])) == before
    with Watch(settings("step")):  # nobody watches any more
        pass


def test_settings_come_from_the_project_file(tmp_path):
    path = tmp_path / "pyproject.toml"
    path.write_text(
        textwrap.dedent(
            """
            [tool.mrv2]
            hot_paths = ["a.b:c"]
            warmup_calls = 3
            [[tool.mrv2.allow]]
            site = "a.b:d"
            code = "MRV104"
            reason = "waits for the last step"
            budget = 2
            """
        )
    )
    found = read_settings(path)
    assert found.hot_paths == ("a.b:c",) and found.warmup_calls == 3
    (allowance,) = found.allowances
    assert (allowance.site, allowance.code, allowance.budget) == ("a.b:d", "MRV104", 2)
    path.write_text("[project]\nname = 'x'\n")
    assert read_settings(path) == Settings()


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"hot_path": []}, "hot_paths"),
        ({"hot_paths": "a:b"}, "wrong form"),
        ({"hot_paths": [1]}, "wrong form"),
        ({"warmup_calls": -1}, "whole number"),
        ({"warmup_calls": True}, "whole number"),
        ({"allow": {"site": "a:b"}}, "wrong form"),
        ({"allow": [{"code": "MRV101", "reason": "x"}]}, "allow.site"),
        ({"allow": [{"site": "a:b", "reason": "x"}]}, "allow.code"),
        ({"allow": [{"site": "a:b", "code": "MRV101"}]}, "reason"),
        ({"allow": [{"site": "a:b", "code": "MRV101", "reason": "x", "bugdet": 1}]}, "budget"),
        ([], "table"),
    ],
)
def test_tables_that_mean_nothing_are_errors(table, words):
    with pytest.raises(HotPathError, match=words):
        settings_from(table)


@pytest.mark.parametrize("text", ["[tool.mrv2", "\ufeff\x00"])
def test_files_that_cannot_be_read_are_errors(tmp_path, text):
    path = tmp_path / "pyproject.toml"
    with pytest.raises(HotPathError, match="readable TOML"):
        read_settings(path)
    path.write_text(text)
    with pytest.raises(HotPathError, match="readable TOML"):
        read_settings(path)
