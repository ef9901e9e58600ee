import json
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
from typer.testing import CliRunner, Result

from mrv2.checks.virtual import virtual_device
from mrv2.ci.command.app import app
from mrv2.ci.report.json_report import report_schema
from mrv2.refrunner.models.tiny import write_tiny_checkpoint


def generate(*options: str) -> Result:
    return CliRunner().invoke(app, ["generate", "--model", "tiny", *options])


def test_only_the_text_goes_to_standard_output(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    result = generate("--prompt", "abc", "--max-tokens", "3", "--json", str(path))
    assert result.exit_code == 0
    content = json.loads(path.read_text())
    jsonschema.validate(content, report_schema(), cls=jsonschema.Draft202012Validator)
    metrics = content["metrics"]
    assert result.stdout == f"abc{metrics['text']}\n"
    assert len(metrics["token_ids"]) == len(metrics["logprobs"]) == 3
    assert "3 tokens, finished by length" in result.stderr
    assert content["verdict"] is None


def test_max_model_len_bounds_the_sequence() -> None:
    result = generate("--prompt", "abcd", "--max-tokens", "99", "--max-model-len", "8")
    assert result.exit_code == 0
    assert "4 tokens, finished by length" in result.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_full_output_is_an_error_in_four_parts() -> None:
    program = "from mrv2.ci.command.app import main; main()"
    command = [sys.executable, "-c", program, "generate", "--model", "tiny", "--prompt", "a", "--max-tokens", "1"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*command, "--max-tokens", "1"], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 2
    assert "error: standard output" in done.stderr and "internal" not in done.stderr


def test_seed_repeats_a_draw() -> None:
    options = ("--prompt", "abc", "--max-tokens", "4", "--temperature", "1", "--seed", "5")
    first = generate(*options)
    assert first.exit_code == 0
    assert "seed 5" in first.stderr
    assert generate(*options).stdout == first.stdout


def test_sampling_parameters_reach_the_sampler(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    options = ("--prompt", "abc", "--max-tokens", "4", "--temperature", "1", "--seed", "5", "--json", str(path))
    assert generate(*options, "--top-k", "1", "--logprobs", "2").exit_code == 0
    metrics = json.loads(path.read_text())["metrics"]
    assert [entry["rank"] for entry in metrics["top_logprobs"]] == [1] * 4
    assert [entry["token_ids"][0] for entry in metrics["top_logprobs"]] == metrics["token_ids"]
    assert [len(entry["values"]) for entry in metrics["top_logprobs"]] == [2] * 4
    assert metrics["faults"] == {}


@pytest.fixture(scope="module")
def with_an_end(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The tiny model, with the byte 0 as its end of text: a grammar needs one."""
    pytest.importorskip("llguidance")
    folder = write_tiny_checkpoint(tmp_path_factory.mktemp("model") / "tiny")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "eos_token_id": 0}))
    return str(folder)


@pytest.mark.parametrize(
    ("option", "text", "expected"),
    [
        (
            "--json-schema",
            '{"const": {"a": [true, 12]}, "x-guidance": {"whitespace_flexible": false}}',
            '{"a":[true,12]}',
        ),
        ("--grammar", 'root ::= "x" tail\ntail ::= "yz" | "yz"', "xyz"),
        ("--grammar", 'start: "x" /yz/', "xyz"),
    ],
)
def test_a_grammar_decides_what_is_generated(
    with_an_end: str, tmp_path: Path, option: str, text: str, expected: str
) -> None:
    file = tmp_path / "grammar"
    file.write_text(text)
    result = generate("--model", with_an_end, "--prompt", "abc", option, str(file), "--max-tokens", "40")
    assert (result.exit_code, result.stdout) == (0, f"abc{expected}\n")
    assert "finished by stop" in result.stderr


def test_what_is_no_grammar_is_an_error_in_four_parts(with_an_end: str, tmp_path: Path) -> None:
    schema, grammar, missing = tmp_path / "schema", tmp_path / "grammar", tmp_path / "missing"
    schema.write_text('{"type": "nothing"}')
    grammar.write_bytes(b"\xff")
    for options, subject in {
        ("--json-schema", str(schema)): "SamplingParams.grammar",
        ("--grammar", str(grammar)): "--grammar",
        ("--grammar", str(missing)): "--grammar",
        ("--grammar", str(grammar), "--json-schema", str(schema)): "--json-schema with --grammar",
    }.items():
        result = generate("--model", with_an_end, "--prompt", "abc", *options)
        assert result.exit_code == 2
        assert f"error: {subject}" in result.stderr


def test_a_stream_is_the_same_text() -> None:
    options = ("--prompt", "abc", "--max-tokens", "5", "--temperature", "1", "--seed", "5")
    assert generate(*options, "--stream").stdout == generate(*options).stdout


def test_graphs_on_the_virtual_device() -> None:
    options = ("--prompt", "abc", "--max-tokens", "4", "--attention", "triton")
    with virtual_device():
        captured = generate(*options, "--device", "cuda", "--graph-mode", "full")
    assert captured.exit_code == 0
    assert captured.stdout == generate(*options).stdout


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (("--prompt", "abc", "--temperature", "nan"), "SamplingParams.temperature=nan"),
        (("--prompt", "abc", "--temperature", "-1"), "SamplingParams.temperature=-1.0"),
        (("--prompt", "abc", "--temperature", "inf"), "SamplingParams.temperature=inf"),
        (("--prompt", "abc", "--top-k", "-1"), "SamplingParams.top_k=-1"),
        (("--prompt", "abc", "--top-p", "0"), "SamplingParams.top_p=0.0"),
        (("--prompt", "abc", "--min-p", "1.5"), "SamplingParams.min_p=1.5"),
        (("--prompt", "abc", "--repetition-penalty", "0"), "SamplingParams.repetition_penalty=0.0"),
        (("--prompt", "abc", "--presence-penalty", "nan"), "SamplingParams.presence_penalty=nan"),
        (("--prompt", "abc", "--graph-mode", "full"), "graph_mode='full' with device='cpu'"),
        (("--prompt", "abc", "--attention", "flash"), "RunnerConfig.attention='flash'"),
        (("--prompt", "abc", "--max-tokens", "0"), "SamplingParams.max_tokens=0"),
        (("--prompt", "abc", "--max-tokens", "-5"), "SamplingParams.max_tokens=-5"),
        (("--prompt", "abc", "--seed", str(2**64)), "SamplingParams.seed"),
        (("--prompt", ""), "prompt"),
        (("--prompt", "a\udc80b"), r"prompt 'a\udc80b'"),
        (("--prompt", "abc", "--json", "x" * 300), "--json xxx"),
        (("--prompt", "a" * 5000), "prompt"),
        (("--prompt", "abc", "--model", "no/such/folder"), "no/such/folder"),
        (("--prompt", "abc", "--json", "absent/out.json"), "--json absent/out.json"),
    ],
)
def test_bad_values_are_refused_in_four_parts(options: tuple[str, ...], word: str) -> None:
    result = generate(*options)
    assert result.exit_code == 2
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert word in lines[0]
    assert [line.split()[0] for line in lines] == ["error:", "rule", "why", "instead"]


@pytest.mark.parametrize(
    "options", [(), ("--prompt", "a", "--temperature", "hot"), ("--prompt", "a", "--max-tokens", "1.5")]
)
def test_usage_errors_exit_with_two(options: tuple[str, ...]) -> None:
    assert generate(*options).exit_code == 2


def test_ascii_output_escapes_what_it_lacks() -> None:
    program = "from mrv2.ci.command.app import main; main()"
    arguments = ["generate", "--model", "tiny", "--prompt", "naïve", "--max-tokens", "1"]
    done = subprocess.run(
        [sys.executable, "-X", "utf8=0", "-c", program, *arguments],
        capture_output=True,
        check=False,
        env={"PATH": "/usr/bin:/bin", "PYTHONIOENCODING": "ascii"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(b"na\\xefve")


def test_a_number_of_drafts_without_anybody_who_proposes_them_is_refused() -> None:
    result = generate("--prompt", "abc", "--num-drafts", "5")
    assert result.exit_code == 2
    assert "--num-drafts 5 without --speculation" in result.stderr


def test_a_way_to_verify_without_drafts_is_refused() -> None:
    result = generate("--prompt", "abc", "--verification", "block")
    assert result.exit_code == 2
    assert "verification='block' with speculation='none'" in result.stderr
