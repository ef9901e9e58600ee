"""Fetches the packages whose Triton kernels ``test_third_party_kernels.py`` runs.

    python tests/checks/triton_cpu/third_party/fetch.py FOLDER
    MRV2_THIRD_PARTY_KERNELS=FOLDER pytest tests/checks/triton_cpu/test_third_party_kernels.py

pip downloads each wheel at one exact version and compares its SHA-256; nothing is installed, and no code of a package
is executed here. Only the packages' Python files are kept. The test does execute parts of them: the modules that hold
the kernels.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

#: Written last: with it, FOLDER is complete.
MANIFEST = "manifest.json"

_MOST_FILES = 10_000
_MOST_BYTES_OF_A_FILE = 4 << 20
_MOST_BYTES = 256 << 20

#: What the wheels say they run on. Only their Python files are used, so that says nothing about this machine.
_WHEEL = ("--python-version=3.12", "--implementation=cp", "--abi=cp312", "--abi=none")
_PLATFORMS = ("--platform=manylinux_2_24_x86_64", "--platform=manylinux_2_34_x86_64")


@dataclass(frozen=True)
class Package:
    """One wheel: the name and version of the distribution, its SHA-256, and the import package that it holds."""

    name: str
    version: str
    sha256: str
    module: str


PACKAGES = (
    # vLLM built for TPUs: the same Python files, kernels for GPUs included, without hundreds of MB of CUDA binaries.
    Package("vllm-tpu", "0.32.0", "d054efff911887584511b4583787cd79e1fecba261c719b44e49b06051e2d067", "vllm"),
    Package("sglang", "0.5.23", "8d257a319395b322bb1be327d05e5528859358153c8563b04c0a4a3c8af164b6", "sglang"),
    Package(
        "liger-kernel", "0.8.5", "60789cd576af073ab9b192b570d2597fd0cdad489cd62fb44fb16256d43754c9", "liger_kernel"
    ),
    Package("flag-gems", "5.0.2", "d7c5a6121bf2d3f7daddde43bfa7cae739de6cb5b294dcfe7ae6173045c35552", "flag_gems"),
)


def main(folder: Path) -> None:
    """Download, verify and unpack all packages into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for package in PACKAGES:
        with tempfile.TemporaryDirectory() as downloads:
            count = _unpack(_download(package, Path(downloads)), package, folder)
        sys.stdout.write(f"{package.name} {package.version}: {count} Python files\n")
    (folder / MANIFEST).write_text(json.dumps(expected_manifest(), indent=1))


def expected_manifest() -> dict[str, str]:
    """What a complete folder's manifest says: the version of each distribution."""
    return {package.name: package.version for package in PACKAGES}


def _download(package: Package, folder: Path) -> Path:
    requirement = folder / "requirement.txt"
    requirement.write_text(f"{package.name}=={package.version} --hash=sha256:{package.sha256}\n")
    options = ("--quiet", "--no-deps", "--only-binary=:all:", "--require-hashes", *_WHEEL, *_PLATFORMS)
    command = [sys.executable, "-m", "pip", "download", *options, "--requirement", str(requirement)]
    subprocess.run([*command, "--dest", str(folder)], check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def _unpack(wheel: Path, package: Package, folder: Path) -> int:
    """Write the Python files of the import package; returns how many.

    Raises:
        ValueError: the archive is larger than any of these packages should be, or a path in it leaves the folder.
    """
    with zipfile.ZipFile(wheel) as archive:
        members = [member for member in archive.infolist() if _wanted(member, package)]
        too_large = [member.filename for member in members if member.file_size > _MOST_BYTES_OF_A_FILE]
        if too_large or len(members) > _MOST_FILES or sum(member.file_size for member in members) > _MOST_BYTES:
            raise ValueError(f"{wheel.name} holds more than expected: {len(members)} files, too large: {too_large}")
        for member in members:
            _write(folder, member, archive)
    return len(members)


def _wanted(member: zipfile.ZipInfo, package: Package) -> bool:
    path = PurePosixPath(member.filename)
    return path.parts[0] == package.module and path.suffix == ".py" and not member.is_dir()


def _write(folder: Path, member: zipfile.ZipInfo, archive: zipfile.ZipFile) -> None:
    """Write one file as a plain file, whatever kind of entry it is; a link's content would be its target's path."""
    target = folder / member.filename
    if not target.resolve().is_relative_to(folder.resolve()):
        raise ValueError(f"{member.filename!r} leads out of the folder")
    target.parent.mkdir(parents=True, exist_ok=True)
    with archive.open(member) as source:
        content = source.read(_MOST_BYTES_OF_A_FILE + 1)  # the size in the directory may be a lie
    if len(content) != member.file_size:
        raise ValueError(f"{member.filename!r} is not of the size that the archive's directory tells")
    target.write_bytes(content)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(f"usage: {sys.argv[0]} FOLDER")
    main(Path(sys.argv[1]))
