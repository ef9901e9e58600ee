"""Fetches the one file of vLLM that ``test_vllm_sampler.py`` audits.

    python tests/fuzz/fetch_vllm.py FOLDER
    MRV2_VLLM=FOLDER pytest tests/fuzz/test_vllm_sampler.py

pip downloads the wheel (336 MB) at one exact version and compares its SHA-256; nothing is installed and nothing of it
is executed here. Only the sampler's file is kept.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

VERSION = "0.33.0"
SHA256 = "4b6bdec4ab269990bf70d45a3c1e94c3760a27064513760193b26d6f0da883aa"
MEMBER = "vllm/v1/worker/gpu/sample/gumbel.py"
_WHEEL = ("--python-version=3.12", "--implementation=cp", "--abi=abi3", "--platform=manylinux_2_28_x86_64")
_MOST_BYTES = 1 << 20


def main(folder: Path) -> None:
    """Download, verify, and write the file below the folder."""
    with tempfile.TemporaryDirectory() as downloads:
        requirement = Path(downloads) / "requirement.txt"
        requirement.write_text(f"vllm=={VERSION} --hash=sha256:{SHA256}\n")
        options = ("--quiet", "--no-deps", "--only-binary=:all:", "--require-hashes", *_WHEEL)
        command = [sys.executable, "-m", "pip", "download", *options, "--requirement", str(requirement)]
        subprocess.run([*command, "--dest", downloads], check=True)
        (wheel,) = Path(downloads).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as source:
            content = source.read(_MOST_BYTES)
    target = folder / MEMBER
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(f"usage: {sys.argv[0]} FOLDER")
    main(Path(sys.argv[1]))
