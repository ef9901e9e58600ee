"""``python -m mrv2.fuzz.feature_sets.record LINES RECORD COMMIT VERSIONS``: what the matrix showed, to be kept.

A record has what was run, at which commit and with which versions, and of each run the counts; no tokens, and of each
feature set its values once.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from mrv2.checks.findings import JSON

COLUMNS = (
    "set", "environment", "steps", "requests", "tokens", "near ties", "reports", "largest logprob error over its bound",
    "preempted", "resumed", "aborted", "chunked", "updates", "prefixes found", "blocks copied", "failures",
)  # fmt: skip


def record_of(lines: Iterable[Mapping[str, JSON]], commit: str, versions: str) -> dict[str, JSON]:
    """The record of a matrix.

    Args:
        lines: of the file that ``python -m mrv2.fuzz.feature_sets`` has written, all for one number of steps.
        commit: of the tree that ran.
        versions: of Python and the libraries.

    Raises:
        ValueError: the lines are of several numbers of steps.
    """
    ordered = sorted(lines, key=lambda line: (line["set"], line["environment"]))
    asked = {line["asked"] for line in ordered}
    if len(asked) != 1:
        raise ValueError(f"a record is of one number of steps, and these lines are of {sorted(map(str, asked))}")
    values = {str(line["set"]): line["values"] for line in ordered}
    return {
        "asked": asked.pop(),
        "commit": commit,
        "versions": versions,
        "columns": COLUMNS,
        "runs": [[line[name] for name in COLUMNS] for line in ordered],
        "factors": list(next(iter(values.values()))),  # type: ignore[arg-type]
        "sets": {number: list(chosen.values()) for number, chosen in values.items()},  # type: ignore[union-attr]
    }


def main(arguments: list[str]) -> None:
    """Read the lines, write the record."""
    lines, record, commit, versions = arguments
    content = [json.loads(line) for line in Path(lines).read_text(encoding="utf-8").splitlines()]
    text = json.dumps(record_of(content, commit, versions))
    # A line for each run and each set, so that a difference between two records can be read.
    Path(record).write_text(text.replace("[[", "[\n[").replace("], ", "],\n") + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
