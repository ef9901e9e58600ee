"""A worker process of ``mrv2 fuzz``: ``python -m mrv2.ci.command.fuzz_worker FOLDER NUMBER``.

Its options and the process of its driver come through standard input, a line each. It ends with 0 when it was told to,
and with a line on standard error when it cannot work.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

CANNOT_WORK = 1


def main() -> int:
    """Work; returns the exit code."""
    # One worker is one core; see ``app.main`` for the second.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    from mrv2.fuzz.campaign.options import Options
    from mrv2.fuzz.campaign.worker import Worker

    from .targets import importable, resolve_target

    options, driver = Options.from_json(sys.stdin.readline()), int(sys.stdin.readline())
    with importable(Path.cwd()):
        try:
            Worker(resolve_target(options.target), options, Path(sys.argv[1]), int(sys.argv[2]), driver).run()
        except Exception as error:  # noqa: BLE001 - whatever it is, the driver must be told, in one line
            print(f"{type(error).__name__}: {' '.join(str(error).split())}", file=sys.stderr)
            return CANNOT_WORK
    return 0


if __name__ == "__main__":
    sys.exit(main())
