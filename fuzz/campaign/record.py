"""What campaigns did, added up, to be kept: ``python -m mrv2.fuzz.campaign.record FOLDER ... --out FILE``.

Folders may come from several machines, and versions are those that the workers ran with. All must be of one target, and
nothing is left out: a folder that cannot be read is an error, and findings are counted.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from mrv2.checks.errors import CheckError
from mrv2.checks.findings import JSON

from .driver import read_options
from .durable import write_durably
from .findings import FindingStore
from .progress import COUNTS, Progress, ProgressReader
from .worker import FINDINGS, WORKERS


def record(folders: Sequence[Path], commit: str) -> dict[str, JSON]:
    """The sums over folders.

    Args:
        commit: that all of them ran at.

    Raises:
        CheckError: a folder is no campaign, or they have different targets.
    """
    options = [read_options(folder) for folder in folders]
    targets = sorted({each.target for each in options})
    if len(targets) != 1:
        raise CheckError(
            f"campaigns {', '.join(map(str, folders))}",
            f"they must have one target, and have {targets}",
            "sums over different programs say nothing about any of them",
            "the folders of one target",
        )
    total = Progress()
    for folder in folders:
        _add(total, ProgressReader(folder / WORKERS).read())
    counts = {name: total.counts[name] for name in COUNTS}
    return {
        "schema": 1,
        "what": "campaigns of mrv2 fuzz, added up",
        "target": targets[0],
        "commit": commit,
        "environments": [json.loads(versions) for versions in sorted(total.environments)],
        "campaigns": len(folders),
        "seeds": sorted({each.seed for each in options}),
        "models": sorted({name for each in options for name in each.models}),
        **counts,
        "damaged_lines": total.damaged,
        "cpu_seconds": round(total.seconds["cpu_seconds"], 1),
        "steps_a_cpu_second": round(counts["steps"] / max(total.seconds["cpu_seconds"], 1e-9), 1),
        "engine_overhead": round(total.overhead, 4),
        "meetings": len(total.meetings),
        "findings": sorted(case.signature for folder in folders for case in FindingStore(folder / FINDINGS).all()),
        "cases_with": dict(sorted(total.traits.items())),
        "happened": dict(sorted(total.states.items())),
    }


def _add(total: Progress, part: Progress) -> None:
    for name in ("counts", "seconds", "traits", "states", "hits"):
        getattr(total, name).update(getattr(part, name))
    total.meetings.update(part.meetings)
    total.environments.update(part.environments)
    total.damaged += part.damaged


def main(arguments: Iterable[str] | None = None) -> int:
    """Write the sums; 0, or 1 if there are findings, or 2 if a folder cannot be read."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--commit", required=True)
    options = parser.parse_args(None if arguments is None else list(arguments))
    try:
        content = record(options.folders, options.commit)
    except CheckError as error:
        print(error, file=sys.stderr)
        return 2
    write_durably(options.out, content)
    print(json.dumps({name: value for name, value in content.items() if name not in ("cases_with", "happened")}))
    return 1 if content["findings"] else 0


if __name__ == "__main__":
    sys.exit(main())
