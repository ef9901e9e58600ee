"""The C compiler of the machine: which one, with which flags, and what it says when it fails.

Nothing goes through a shell: a compiler is a list of words.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .errors import CompileError, NoCompiler

RUNTIME = Path(__file__).parent / "runtime"

#: What the results depend on. Signed integers wrap around, as on a GPU; no multiplication is fused with an addition and
#: no sum is reordered, as in numpy; memory has no types; and no function sets ``errno``, so the compiler may inline.
_MEANING = ("-fwrapv", "-ffp-contract=off", "-fno-strict-aliasing", "-fno-math-errno")
_GCC = ("-fexcess-precision=standard", "-fvect-cost-model=dynamic")
#: Of what gcc's -O2 adds to -O1, two options speed kernels up; the rest makes a build half as long again. With less
#: work on registers, and without three parts of -O1, a build is a quarter shorter, and kernels are as fast.
_LEVEL = ("-O2",)
_LEVEL_OF_GCC = (
    "-O1", "-ftree-vectorize", "-ftree-vrp",
    "-fira-region=one", "-fno-tree-slp-vectorize", "-fno-tree-dominator-opts", "-fno-tree-ccp",
)  # fmt: skip
_OUTPUT = ("-shared", "-fPIC", "-w", "-x", "c", "-", "-lm")
#: The process has loaded the C library; not to look for it saves the time of a small kernel.
_OUTPUT_OF_GCC = (*_OUTPUT, "-nostdlib", "-lgcc")
#: A first call of ziglang builds its own C library.
_TIMEOUT = 300.0


@dataclass(frozen=True)
class Compiler:
    """A C compiler.

    Attributes:
        command: the words that start it.
        portable: whether it only knows the instructions that every machine of this kind has.
    """

    command: tuple[str, ...]
    portable: bool = False

    @property
    def flags(self) -> tuple[str, ...]:
        """How every kernel is compiled."""
        machine = () if self.portable else ("-march=native",)
        level, only_gcc = (_LEVEL_OF_GCC, _GCC) if self._is_gcc() else (_LEVEL, ())
        return (*level, *machine, *_MEANING, *only_gcc)

    def _is_gcc(self) -> bool:
        """gcc must be told more than others.

        It keeps no more bits of a half-precision number than there are, and uses vector instructions also in loops
        whose length is not a multiple of theirs, which halves the time of a softmax.
        """
        return any("gcc" in Path(file).name for file in _files(self.command))

    def identity(self) -> str:
        """Tells this compiler, its flags and, if they matter, the instructions of this machine from others.

        Starts no process: that would cost more than many a kernel.
        """
        facts = [*self.command, *self.flags, *map(_file_identity, _files(self.command))]
        return _digest(*facts, *(() if self.portable else (_instructions(),)))

    def build(self, text: str, name: str, target: Path) -> None:
        """Compile C to a shared object.

        Args:
            text: the whole file; it may include the headers of ``runtime``.
            name: whose it is, for the error.
            target: the file to write.

        Raises:
            CompileError: with the first lines that the compiler said.
        """
        output = _OUTPUT_OF_GCC if self._is_gcc() else _OUTPUT
        command = [*self.command, *self.flags, f"-I{RUNTIME}", "-o", str(target), *output]
        try:
            done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=_TIMEOUT, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise CompileError(name, f"{self.command[0]} did not run: {error}") from error
        if done.returncode:
            said = " | ".join([line for line in done.stderr.splitlines() if "error" in line][:3])
            raise CompileError(name, f"{self.command[0]} ended with {done.returncode}: {said or done.stderr[:300]}")
        if not target.is_file():
            raise CompileError(name, f"{self.command[0]} said that it built it, but wrote no file")


def find_compiler(environment: Mapping[str, str] | None = None) -> Compiler:
    """The compiler of ``CC``, else gcc, clang, or that of the ziglang package.

    Raises:
        NoCompiler: there is none, or the one that ``CC`` names is not there.
    """
    given = (os.environ if environment is None else environment).get("CC", "").strip()
    if given:
        return _named(_words(given))
    for name in ("gcc", "clang"):
        if shutil.which(name):
            return Compiler((name,))
    if importlib.util.find_spec("ziglang"):
        return Compiler((sys.executable, "-m", "ziglang", "cc"), portable=True)
    raise NoCompiler("a machine without a C compiler")


def _words(command: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(command))
    except ValueError as error:
        raise NoCompiler(f"CC={command}, which is no command ({error})") from error


def _named(command: tuple[str, ...]) -> Compiler:
    if shutil.which(command[0]) is None:
        raise NoCompiler(f"CC={shlex.join(command)}, which names no executable file")
    return Compiler(command, portable=_is_zig(command))


def _is_zig(command: tuple[str, ...]) -> bool:
    return "ziglang" in command or Path(command[0]).name == "zig"


def _files(command: tuple[str, ...]) -> list[str]:
    """The programs among the words, of which there may be several: ``ccache gcc``; the ``cc`` of zig is none."""
    package = importlib.util.find_spec("ziglang") if "ziglang" in command else None
    origin = None if package is None else package.origin
    words = command[:1] if _is_zig(command) else command
    return [os.path.realpath(file) for file in (*map(shutil.which, words), origin) if file]


@functools.cache
def _file_identity(file: str) -> str:
    facts = Path(file).stat()
    return f"{file}:{facts.st_size}:{facts.st_mtime_ns}"


@functools.cache
def _instructions() -> str:
    """What ``-march=native`` depends on."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    words = ("model name", "vendor_id", "cpu family", "model", "stepping", "flags", "Features", "CPU part")
    return _digest(*sorted({line for line in lines if line.split("\t")[0].split(":")[0].strip() in words}))


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
