"""An Nsight Systems export: a database made by hand after the documented tables, since no Nsight is at hand."""

import sqlite3

import pytest

from mrv2.checks.errors import CheckError
from mrv2.checks.timeline.analysis import analyse
from mrv2.checks.timeline.phases import Part

from .synthetic import HOST, THREAD, Recording, decode

GLOBAL_THREAD = (HOST << 24) | THREAD
TABLES = """
CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE ENUM_CUDA_MEM_KIND (id INTEGER NOT NULL PRIMARY KEY, name TEXT, label TEXT);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
  contextId INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER,
  demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL, gridX INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
  contextId INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, bytes INTEGER NOT NULL,
  copyKind INTEGER NOT NULL, srcKind INTEGER, dstKind INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER,
  globalTid INTEGER, correlationId INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER, callchainId INTEGER);
CREATE TABLE CUDA_CALLCHAINS (id INTEGER, symbol INTEGER NOT NULL, module INTEGER, stackDepth INTEGER NOT NULL);
CREATE TABLE NVTX_EVENTS (start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, text TEXT, textId INTEGER,
  globalTid INTEGER);
"""


class Export:
    """Writes the events of a recording into the tables."""

    def __init__(self, path):
        self.database = sqlite3.connect(path)
        self.database.executescript(TABLES)
        self.strings = {}
        kinds = [(0, "CUDA_MEMOPR_MEMORY_KIND_PAGEABLE", "Pageable"), (1, "CUDA_MEMOPR_MEMORY_KIND_PINNED", "Pinned")]
        self.rows("ENUM_CUDA_MEM_KIND", kinds)
        self.rows(
            "CUDA_CALLCHAINS", [(5, self.string("collect"), 0, 1), (5, self.string("cudaEventSynchronize"), 0, 0)]
        )

    def string(self, text):
        if text not in self.strings:
            self.strings[text] = len(self.strings) + 1
            self.rows("StringIds", [(self.strings[text], text)])
        return self.strings[text]

    def rows(self, table, rows):
        for row in rows:
            self.database.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", row)

    def add(self, event):
        start = round(event["ts"] * 1000)
        end, said, name = start + round(event["dur"] * 1000), event["args"], event["name"]
        process = HOST << 24
        if event["cat"] == "user_annotation":
            inline = (name, None) if "step" in name else (None, self.string(name))
            self.rows("NVTX_EVENTS", [(start, end, 59, *inline, GLOBAL_THREAD)])
        elif event["cat"] == "cuda_runtime":
            chain = 5 if "Synchronize" in name else None
            number = self.string(f"{name}_v3020")
            row = (start, end, 0, GLOBAL_THREAD, said["correlation"], number, 0, chain)
            self.rows("CUPTI_ACTIVITY_KIND_RUNTIME", [row])
        elif event["cat"] == "kernel":
            number = self.string(name)
            row = (start, end, 0, 1, said["stream"], said["correlation"], process, number, number, 1)
            self.rows("CUPTI_ACTIVITY_KIND_KERNEL", [row])
        else:
            memory = 0 if "Pageable" in name else 1
            kinds = (1, memory, 2) if "HtoD" in name else (2, 2, memory)
            row = (start, end, 0, 1, said["stream"], said["correlation"], process, said["bytes"], *kinds)
            self.rows("CUPTI_ACTIVITY_KIND_MEMCPY", [row])


def export(path, events, then=""):
    made = Export(path)
    for event in events:
        made.add(event)
    made.database.executescript(then)
    made.database.commit()
    made.database.close()
    return path


@pytest.fixture
def events():
    recording = decode(Recording())
    recording.copy("up", 1070, 1185, 5, 100, "Pageable")
    return recording.events


def test_it_says_what_the_trace_of_the_same_run_says(tmp_path, events):
    analysis = analyse(export(tmp_path / "report.sqlite", events))
    assert analysis.timeline.source.format == "Nsight Systems export"
    assert (len(analysis.steps.steps), analysis.steps.found_by) == (4, "ranges mrv2.step")
    second = analysis.times[1]
    assert {part: time / 1000 for part, time in second.host.items()} == {
        Part.SCHEDULER: 50, Part.STAGING: 50, Part.INPUT_PREP: 40, Part.FORWARD: 160, Part.SAMPLER: 50,
        Part.DOWNLOAD: 50, Part.WAIT: 100, Part.OTHER: 500,
    }  # fmt: skip
    assert {part: time / 1000 for part, time in second.device.items()} == {
        Part.STAGING: 10, Part.INPUT_PREP: 30, Part.FORWARD: 598, Part.SAMPLER: 30, Part.DOWNLOAD: 10,
    }  # fmt: skip
    assert (second.launches, second.uploads, second.upload_bytes) == (4, 1, 4096)
    assert [(group.what, group.num_bytes) for group in analysis.pageable] == [("pageable upload", 100)]


def test_call_stacks_are_those_that_nsight_took(tmp_path, events):
    (group,) = analyse(export(tmp_path / "report.sqlite", events)).waits
    assert (group.name, group.what, group.count) == ("cudaEventSynchronize_v3020", "event", 4)
    assert group.stack == ("cudaEventSynchronize", "collect")


def test_kinds_of_memory_without_their_table(tmp_path, events):
    analysis = analyse(export(tmp_path / "report.sqlite", events, "DROP TABLE ENUM_CUDA_MEM_KIND"))
    assert [(group.what, group.num_bytes) for group in analysis.pageable] == [("pageable upload", 100)]


def test_an_export_without_a_device(tmp_path, events):
    dropped = "".join(f"DROP TABLE CUPTI_ACTIVITY_KIND_{name};" for name in ("KERNEL", "MEMCPY", "RUNTIME"))
    analysis = analyse(export(tmp_path / "report.sqlite", events, dropped))
    assert (analysis.devices, len(analysis.times)) == ((), 4)


def test_another_database_is_refused(tmp_path):
    database = sqlite3.connect(tmp_path / "other.sqlite")
    database.executescript("CREATE TABLE fruit (name TEXT)")
    database.close()
    with pytest.raises(CheckError, match="has a table StringIds; this database has fruit"):
        analyse(tmp_path / "other.sqlite")


def test_another_schema_is_refused_by_its_column(tmp_path, events):
    renamed = "ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL RENAME COLUMN deviceId TO device"
    with pytest.raises(CheckError, match="it must have the column deviceId"):
        analyse(export(tmp_path / "report.sqlite", events, renamed))


def test_a_cut_database_is_refused(tmp_path, events):
    path = export(tmp_path / "report.sqlite", events)
    path.write_bytes(path.read_bytes()[:8192])
    with pytest.raises(CheckError, match="it must be a whole database"):
        analyse(path)


KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"


@pytest.mark.parametrize(
    ("table", "column", "value"),
    [
        (KERNELS, "start", "NULL"),
        (KERNELS, "streamId", "'x'"),
        (KERNELS, "correlationId", "x'00ff'"),
        ("CUPTI_ACTIVITY_KIND_RUNTIME", "end", "1e300"),
        ("NVTX_EVENTS", "globalTid", "'main'"),
        ("NVTX_EVENTS", "text", "x'00ff'"),
        ("CUDA_CALLCHAINS", "stackDepth", "''"),
        ("ENUM_CUDA_MEM_KIND", "id", "'x'"),
        ("StringIds", "id", "NULL"),
    ],
)
def test_a_value_of_another_type_is_refused_with_its_column(tmp_path, events, table, column, value):
    # Columns of a copy are of no declared type, and take anything.
    spoiled = f"CREATE TABLE copy AS SELECT * FROM {table}; DROP TABLE {table}; ALTER TABLE copy RENAME TO {table};"
    analyse(export(tmp_path / "report.sqlite", events, spoiled))
    with pytest.raises(CheckError, match=f"table {table}: {column} is "):
        analyse(export(tmp_path / "other.sqlite", events, f"{spoiled} UPDATE {table} SET {column} = {value}"))


def test_names_that_are_no_text_and_work_that_ends_before_it_begins(tmp_path, events):
    broken = "UPDATE StringIds SET value = CAST(x'41ff' AS TEXT) WHERE value LIKE 'sample%';"
    whole = analyse(export(tmp_path / "whole.sqlite", events))
    analysis = analyse(export(tmp_path / "names.sqlite", events, broken))
    assert "A\ufffd" in {work.name for work in analysis.timeline.work}
    assert [one.host for one in analysis.times] == [one.host for one in whole.times]
    reversed_ = f"UPDATE {KERNELS} SET end = start - 1 WHERE rowid = 1"
    analysis = analyse(export(tmp_path / "reversed.sqlite", events, reversed_))
    assert len(analysis.timeline.work) == len(whole.timeline.work) - 1


def test_a_size_below_zero_is_no_size(tmp_path, events):
    copies = "CUPTI_ACTIVITY_KIND_MEMCPY"
    analysis = analyse(export(tmp_path / "report.sqlite", events, f"UPDATE {copies} SET bytes = -1"))
    assert {work.num_bytes for work in analysis.timeline.work} == {0}
    assert analysis.pageable and all(group.num_bytes == 0 for group in analysis.pageable)
