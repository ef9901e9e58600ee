"""Compares a built wheel and source distribution with the tree: ``compare_archives.py FOLDER``."""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("checks", "ci", "fuzz", "refrunner", "stats")
RUNTIME = ("triton_cpu/runtime/*.c", "triton_cpu/runtime/*.h")
DATA = ("py.typed", "templates/*.yml", "report/schema/*.json", "*.safetensors", *RUNTIME)
SHIPPED = ("**/*.py", *DATA)


def wheel_problems(wheel: Path) -> list[str]:
    """The wheel holds all sources of the five rooms, their data files, its metadata, and nothing else."""
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    shipped = [path for room in ROOMS for pattern in SHIPPED for path in (ROOT / room).glob(pattern)]
    return differences(wheel.name, packed, {f"mrv2/{path.relative_to(ROOT)}" for path in shipped})


def sdist_problems(sdist: Path) -> list[str]:
    """The source distribution holds every tracked file, the metadata that setuptools writes, and nothing else."""
    with tarfile.open(sdist) as archive:
        packed = {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}
    packed = {name for name in packed if name not in {"PKG-INFO", "setup.cfg"} and ".egg-info/" not in name}
    listing = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return differences(sdist.name, packed, set(listing.splitlines()) - {".gitignore"})


def differences(archive: str, packed: set[str], wanted: set[str]) -> list[str]:
    """Both directions of the comparison, one line a file."""
    missing = [f"{archive} lacks {name}" for name in sorted(wanted - packed)]
    return missing + [f"{archive} has {name}, which does not belong there" for name in sorted(packed - wanted)]


def main(folder: Path) -> int:
    """Print the differences; the exit code tells whether there are any."""
    (wheel,) = folder.glob("*.whl")
    (sdist,) = folder.glob("*.tar.gz")
    problems = wheel_problems(wheel) + sdist_problems(sdist)
    print("\n".join(problems) or f"{wheel.name} and {sdist.name} hold what the tree holds")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
