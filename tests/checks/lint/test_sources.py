"""Modules: their names, imports between them, files that cannot be parsed, and that nothing is run."""

from pathlib import Path

from mrv2.checks.lint import lint


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


TYPES = "import torch\nclass Buffer:\n    def __init__(self):\n        self.gpu = torch.zeros(3, device='cuda')\n"
USES = """class Runner:
    def __init__(self):
        self.b = Buffer()
    def step(self):
        self.b.gpu.item()
"""


def test_types_of_other_modules_are_read_but_not_judged(tmp_path: Path) -> None:
    waits = TYPES + "    def wait(self):\n        torch.cuda.synchronize()\n"
    calls = USES + "        self.b.wait()\n"
    write(
        tmp_path,
        {
            "e/__init__.py": "",
            "e/types.py": waits,
            "e/w/__init__.py": "",
            "e/w/run.py": "from ..types import Buffer\n" + calls,
        },
    )
    result = lint([tmp_path / "e" / "w"], ["e.w.run:Runner.step"])
    assert [(one.code, one.where[0].file) for one in result.findings] == [("MRV101", "e/w/run.py")]
    assert (result.files, result.context_files) == (2, 1)


def test_packages_without_init_and_reexports(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "e/__init__.py": "",
            "e/api.py": "from e.deep.types import Buffer as Memory\n",
            "e/deep/types.py": TYPES,
            "e/w/run.py": "from e import api\nBuffer = api.Memory\n" + USES,
        },
    )
    assert [one.code for one in lint([tmp_path / "e" / "w"], ["e.w.run:Runner.step"]).findings] == ["MRV101"]


def test_modules_that_import_each_other(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "e/__init__.py": "",
            "e/a.py": "import torch\nfrom e.b import g\nfrom e.b import VALUE as VALUE\ndef f(x):\n    return g(x)\n",
            "e/b.py": "from e.a import f, VALUE\ndef g(x):\n    return f(x) or x.item()\n",
        },
    )
    assert lint([tmp_path / "e"], ["e.a:f"]).reached == ("e.a:f", "e.b:g")


def test_a_file_that_does_not_parse_is_told(tmp_path: Path) -> None:
    write(tmp_path, {"good.py": "def f():\n    pass\n", "bad.py": "def f(:\n"})
    result = lint([tmp_path], everything=True)
    assert list(result.broken) == ["bad.py"]
    assert "SyntaxError" in result.broken["bad.py"]


def test_nothing_is_run(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    write(tmp_path, {"engine.py": f"open({str(marker)!r}, 'w')\ndef f():\n    pass\n"})
    lint([tmp_path], everything=True)
    assert not marker.exists()


def test_a_relative_import_that_leads_out_of_its_package_is_followed_nowhere(tmp_path: Path) -> None:
    body = "def step(self):\n    from ... import nothing\n    from .. import deeper\n    x.cuda().item()\n"
    write(tmp_path, {"e/__init__.py": "", "e/run.py": "import torch\nx = torch.zeros(3)\n" + body})
    result = lint([tmp_path / "e"], everything=True)
    assert [one.code for one in result.findings].count("MRV101") == 1
