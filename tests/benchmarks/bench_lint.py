"""How long ``mrv2 lint`` takes: a package of 1,000 files, all of them on the hot path, and packages that are given.

    python tests/benchmarks/bench_lint.py                      # the package that it makes
    python tests/benchmarks/bench_lint.py PATH pkg.mod:Root    # another one

The bar is 60 s for 1,000 files on two cores.
"""

import sys
import tempfile
import time
from pathlib import Path

from mrv2.checks.lint import lint

FILES = 1000
#: A module as engines have them: a class with buffers, a step that computes, calls its neighbours, and waits once.
MODULE = """
import torch
import numpy as np
from dataclasses import dataclass
from .m{left} import Stage{left}
from .m{right} import Stage{right}


@dataclass
class Batch{n}:
    rows: torch.Tensor
    rows_cpu: torch.Tensor
    names: list[str]


class Stage{n}:
    def __init__(self, size: int, device: torch.device):
        self.device = device
        self.size = size
        self.table = torch.zeros(size, device=device)
        self.staging = torch.zeros(size, pin_memory=True)
        self.host = np.zeros(size)
        self.left = Stage{left}(size, device) if size else None
        self.right = Stage{right}(size, device) if size else None

    def prepare(self, names: list[str]) -> Batch{n}:
        for index, name in enumerate(names):
            self.host[index] = len(name)
        rows = torch.from_numpy(self.host).to(self.device, non_blocking=True)
        return Batch{n}(rows, self.staging, names)

    def compute(self, batch: Batch{n}) -> torch.Tensor:
        scores = self.table * batch.rows
        chosen = torch.where(scores > 0, scores, torch.zeros_like(scores))
        if batch.rows_cpu[0] > 3:
            chosen = chosen.softmax(dim=-1)
        values, indices = chosen.topk(4)
        return values if len(batch.names) > 2 else indices

    def step(self, names: list[str]):
        batch = self.prepare([name for name in names if name])
        result = self.compute(batch)
        total = result.sum().item()
        if self.left is not None:
            self.left.step(names)
        if self.right is not None:
            self.right.step(names)
        return {{name: total for name in names}}
"""


def made(folder: Path) -> tuple[Path, str]:
    """A package of 1,000 modules, each of which calls two others."""
    package = folder / "engine"
    package.mkdir()
    (package / "__init__.py").write_text("")
    for n in range(FILES):
        (package / f"m{n}.py").write_text(MODULE.format(n=n, left=(2 * n + 1) % FILES, right=(2 * n + 2) % FILES))
    return package, "engine.m0:Stage0.step"


def measure(path: Path, roots: list[str], everything: bool = False) -> None:
    began = time.process_time(), time.perf_counter()
    result = lint([path], roots, everything)
    cpu, wall = time.process_time() - began[0], time.perf_counter() - began[1]
    how = "every function a root" if everything else f"{len(roots)} root(s)"
    files = f"{result.files} files + {result.context_files} for their types"
    looked = f"{len(result.reached)} functions reached, {result.contexts} contexts, {len(result.findings)} findings"
    print(f"{path.name}, {how}: {files}, {looked}: {cpu:.1f} s of one core, {wall:.1f} s")


def main() -> None:
    if len(sys.argv) > 1:
        measure(Path(sys.argv[1]), sys.argv[2:])
        return
    with tempfile.TemporaryDirectory() as folder:
        package, root = made(Path(folder))
        measure(package, [root])
        measure(package, [], everything=True)


if __name__ == "__main__":
    main()
