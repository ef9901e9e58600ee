"""Memory of the analyzer: a fraction of the file, however large. The long form has hundreds of megabytes::

MRV2_TRACE_MEGABYTES=300 pytest tests/checks/timeline/test_large_traces.py
"""

import json
import os
import tracemalloc

from mrv2.checks.timeline.analysis import analyse

from .synthetic import Recording, decode, event

MEGABYTES = int(os.environ.get("MRV2_TRACE_MEGABYTES", "2"))
#: Of the file's size, and what any file takes; read at once, the short one would take 20 MiB.
SHARE, BASE = 1 / 3, 6 << 20
#: Operators and Python functions around each piece of device work, as profilers write them.
FRAMES = 12


def large(path, size):
    """Steps with what surrounds them in a trace with stacks, up to a size; returns how many there are."""
    steps = 0
    with path.open("w") as file:
        file.write('{"schemaVersion": 1, "traceEvents": [\n')
        while file.tell() < size:
            recording = Recording()
            recording.correlation = steps * 100
            for one in decode(recording, 1).events:
                one["ts"] += steps * 1000.0
                for depth in range(FRAMES if one["cat"] != "user_annotation" else 0):
                    name = f"engine/layer_{depth}.py({depth}): forward of a module with a long name"
                    frame = event("python_function", name, one["ts"] - 1 + depth / FRAMES, 2, **{"Python id": steps})
                    file.write(json.dumps(frame) + ",\n")
                file.write(json.dumps(one) + ",\n")
            steps += 1
        file.write("{}]}\n")
    return steps


def test_memory_is_a_fraction_of_the_file(tmp_path):
    path = tmp_path / "large.json"
    steps = large(path, MEGABYTES << 20)
    tracemalloc.start()
    try:
        analysis = analyse(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(analysis.steps.steps) == steps
    assert analysis.timeline.num_frames >= steps * 13 * FRAMES
    assert peak < SHARE * path.stat().st_size + BASE
