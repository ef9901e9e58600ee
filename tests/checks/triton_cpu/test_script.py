"""``python -m mrv2.checks.triton_cpu script.py``."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from mrv2.checks.triton_cpu.__main__ import main

HEAD = """
import sys
import torch
import triton
import triton.language as tl

@triton.jit
def number(out_ptr):
    tl.store(out_ptr + tl.program_id(0), tl.program_id(0))

@triton.jit
def last(out_ptr):
    tl.store(out_ptr, tl.program_id(0))
"""


@pytest.fixture
def script(tmp_path):
    def write(body: str) -> str:
        file = tmp_path / "script.py"
        file.write_text(HEAD + body)
        return str(file)

    return write


def test_a_script_runs_as_main_with_its_own_words(script, capsys):
    file = script(
        "out = torch.zeros(3, dtype=torch.int32)\nnumber[(3,)](out)\nprint(__name__, sys.argv[1:], out.tolist())\n"
    )
    before = sys.argv, list(sys.path)
    assert main([file, "one", "--two"]) == 0
    assert capsys.readouterr().out == "__main__ ['one', '--two'] [0, 1, 2]\n"
    assert (sys.argv, sys.path) == before


def test_modules_beside_the_script_are_found(script, tmp_path, capsys):
    (tmp_path / "neighbour_of_script.py").write_text("WORD = 'here'\n")
    assert main([script("import neighbour_of_script\nprint(neighbour_of_script.WORD)\n")]) == 0
    assert capsys.readouterr().out == "here\n"


@pytest.mark.parametrize(
    ("ending", "code"),
    [("sys.exit(7)", 7), ("sys.exit()", 0), ("sys.exit('words')", 1), ("1 / 0", 1), ("raise KeyboardInterrupt", 130)],
)
def test_the_exit_code_is_the_scripts(script, capsys, ending, code):
    assert main([script(ending)]) == code
    said = capsys.readouterr().err
    assert ("ZeroDivisionError" in said) == (ending == "1 / 0")
    assert "runpy" not in said


def test_findings_are_said_as_everywhere_with_the_reason_and_fail_the_run(script, capsys):
    file = script("last[(2,)](torch.zeros(1, dtype=torch.int32))\n")
    assert main([file]) == 1
    said = capsys.readouterr().err
    assert "MRV211 last: one program writes what another writes" in said
    assert "script.py:13 in last" in said
    for line in ("  place      ", "  remedy     ", "  rule       ", "  why        ", "first: program=[0, 0, 0]"):
        assert line in said


def test_a_scripts_own_failure_comes_before_findings(script):
    assert main([script("last[(2,)](torch.zeros(1, dtype=torch.int32))\nsys.exit(9)\n")]) == 9


def test_without_checks(script):
    assert main(["--no-check", script("last[(2,)](torch.zeros(1, dtype=torch.int32))\n")]) == 0


@pytest.mark.parametrize(("order", "expected"), [("forward", 4), ("reverse", 0)])
def test_order(script, capsys, order, expected):
    body = "out = torch.zeros(1, dtype=torch.int32)\nlast[(5,)](out)\nprint(out.item())\n"
    main(["--order", order, script(body)])
    assert capsys.readouterr().out == f"{expected}\n"


def test_masked_lanes(script, capsys):
    body = (
        "@triton.jit\ndef masked(out_ptr):\n    tl.store(out_ptr, tl.load(out_ptr, mask=tl.program_id(0) > 0))\n"
        "out = torch.zeros(1, dtype=torch.int32)\nmasked[(1,)](out)\nprint(hex(out.item()))\n"
    )
    assert main(["--masked-lanes", "0x7f", script(body)]) == 0
    assert capsys.readouterr().out == "0x7f7f7f7f\n"


def test_a_kernel_that_fails_says_so_in_four_parts(script, capsys):
    body = (
        "@triton.jit\ndef fails(x):\n    tl.device_assert(tl.load(x) > 0, 'not positive')\n"
        "fails[(1,)](torch.zeros(1), debug=True)\n"
    )
    assert main([script(body)]) == 1
    said = capsys.readouterr().err
    assert said.count("device_assert: not positive") == 1
    assert "  instead: " in said


REFUSED = """
from triton.language.extra.cuda import libdevice

@triton.jit
def refused(out_ptr):
    tl.store(out_ptr, libdevice.cyl_bessel_i0(tl.load(out_ptr)))

def launches():
    refused[(1,)](torch.zeros(1))

launches()
"""


def test_what_is_refused_is_said_once_with_the_programs_own_lines(script, capsys):
    assert main([script(REFUSED)]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert [line.rpartition(", in ")[2] for line in lines if line.startswith("  File ")] == ["<module>", "launches"]
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-4].startswith("NotRunnable: kernel refused, which uses a function of a library")
    assert [line.partition(":")[0] for line in lines[-3:]] == ["  rule", "  why", "  instead"]


def test_a_cache_that_others_could_fill_is_refused_the_same_way(script, capsys, tmp_path, monkeypatch):
    folder = tmp_path / "cache" / "triton_cpu"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    monkeypatch.setenv("MRV2_CACHE_DIR", str(folder.parent))
    assert main([script("number[(1,)](torch.zeros(1, dtype=torch.int32))\n")]) == 1
    said = capsys.readouterr().err
    assert said.count("writable by others") == 1 and said.count("Traceback") == 1
    assert "UnsafeCache: cache folder" in said and "build.py" not in said


def test_a_cache_that_takes_no_files_is_said_once(script, tmp_path):
    (tmp_path / "file").write_text("")
    file = script("out = torch.zeros(3, dtype=torch.int32)\nnumber[(3,)](out)\nlast[(1,)](out)\n")
    environment = {**os.environ, "MRV2_CACHE_DIR": str(tmp_path / "file" / "cache")}
    command = [sys.executable, "-m", "mrv2.checks.triton_cpu", file]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0
    assert done.stderr.count("takes no files") == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--order", "sideways", "x.py"], "not forward, reverse, or a number"),
        (["--masked-lanes", "256", "x.py"], "not a byte, 0 to 255"),
        (["--masked-lanes", "zero", "x.py"], "no number"),
        ([], "required: script\n"),
    ],
)
def test_wrong_words(words, message, capsys):
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


def test_a_script_that_is_not_there(capsys):
    assert main(["nosuch.py"]) == 2
    assert "nosuch.py" in capsys.readouterr().err


def test_the_command_itself(script):
    file = script("number[(3,)](torch.zeros(3, dtype=torch.int32))\nsys.exit(5)\n")
    command = [sys.executable, "-m", "mrv2.checks.triton_cpu", file]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (5, "")
