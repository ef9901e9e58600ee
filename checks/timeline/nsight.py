"""An Nsight Systems export (``nsys export --type sqlite``), as records.

Written after the documented schema of the export (Nsight Systems User Guide, "SQLite Schema Reference"); the tests use
a file made by hand after it, since no machine of this project has Nsight Systems.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from ..errors import CheckError
from .records import DeviceKind, DeviceWork, Frame, HostCall, HostRange, Record

MAGIC = b"SQLite format 3\x00"
KERNELS, COPIES = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY"
FILLS, CALLS = "CUPTI_ACTIVITY_KIND_MEMSET", "CUPTI_ACTIVITY_KIND_RUNTIME"
GRAPHS, RANGES = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE", "NVTX_EVENTS"
STRINGS, CHAINS = "StringIds", "CUDA_CALLCHAINS"
MEMORY = "ENUM_CUDA_MEM_KIND"  # older exports have no such table
#: Kinds of copies, and of memory where the export has no table that names them; both as the guide lists them.
_WAYS = {1: DeviceKind.UPLOAD, 2: DeviceKind.DOWNLOAD}
_PAGEABLE, _PINNED = 0, 1
_WORK = ("start", "end", "deviceId", "streamId")
#: Columns of text; all others that are read hold whole numbers.
_TEXT = ("text", "value", "label")
#: Ranges of NVTX: push and pop, start and end.
_RANGE_TYPES = (59, 60)
#: A global thread id holds the process in the three bytes above those of the thread.
_BYTES = 1 << 24


class NsightSource:
    """See :class:`~.records.Source`."""

    format = "Nsight Systems export"

    def __init__(self, path: Path) -> None:
        self.cut: str | None = None
        self.left_out = 0
        self.facts: dict[str, str] = {}
        self._path = path

    def records(self) -> Iterator[Record]:
        """All records, table by table.

        Raises:
            CheckError: the file is damaged, or no export of Nsight Systems.
        """
        count = 0
        try:
            with closing(sqlite3.connect(f"{self._path.resolve().as_uri()}?mode=ro", uri=True)) as database:
                # Half a letter in a name is no reason to read nothing.
                database.text_factory = partial(str, encoding="utf-8", errors="replace")
                export = _Export(database, self._path)
                for record in export.records():
                    count += 1
                    yield record
                self.left_out = export.left_out
        except (sqlite3.Error, UnicodeDecodeError) as error:  # the second one while it words the first one
            raise CheckError(
                f"trace {self._path}",
                f"it must be a whole database: {error}, {count} records from its beginning",
                "tables that cannot be read may hold what would change the answer",
                "the file anew: nsys export --type sqlite REPORT.nsys-rep",
            ) from error

    def frames(self) -> Iterator[Frame]:
        """None: an export has call stacks of its own."""
        return iter(())


class _Export:
    """One open database."""

    def __init__(self, database: sqlite3.Connection, path: Path) -> None:
        self.left_out = 0
        self._database = database
        self._path = path
        tables = {str(name) for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        self._tables = tables & {KERNELS, COPIES, FILLS, CALLS, GRAPHS, RANGES, STRINGS, CHAINS, MEMORY}
        if STRINGS not in tables:
            raise CheckError(
                f"trace {path}",
                f"an export of Nsight Systems has a table {STRINGS}; this database has "
                f"{', '.join(sorted(tables)[:5]) or 'none'}",
                "names of kernels and calls are in it",
                "a file of: nsys export --type sqlite REPORT.nsys-rep",
            )
        self._strings = {row["id"]: row["value"] or "?" for row in self._select(STRINGS, ("id",), ("value",))}
        labels = self._select(MEMORY, ("id",), ("label",))
        self._memory = {row["id"]: row["label"].lower() for row in labels if row["label"]}

    def records(self) -> Iterator[Record]:
        """Device work, calls, ranges."""
        yield from self._kernels()
        yield from self._copies()
        yield from self._plain(FILLS, DeviceKind.FILL, "memset")
        yield from self._plain(GRAPHS, DeviceKind.KERNEL, "graph")
        yield from self._calls()
        yield from self._ranges()

    def _select(
        self, table: str, needed: Sequence[str], wanted: Sequence[str] = (), empty: Sequence[str] = ()
    ) -> Iterator[dict[str, Any]]:
        """Rows as dictionaries; a wanted column that there is not is None. What ends before it begins is passed over.

        Args:
            table: none if there is no such table.
            needed: columns that must be there, with a value, if they are not among ``empty``.
            wanted: other columns to read.
            empty: needed columns without a value in some rows.

        Raises:
            CheckError: a needed one is missing, or a value is of another type.
        """
        if table not in self._tables:
            return
        there = {str(row[1]) for row in self._database.execute(f"PRAGMA table_info({table})")}
        missing = [name for name in needed if name not in there]
        if missing:
            raise self._unknown_schema(table, f"it must have the column {missing[0]}")
        columns = [*needed, *(name for name in wanted if name in there)]
        query = f"SELECT {', '.join(columns)} FROM {table}"  # noqa: S608 - names of ours, not of the file
        for values in self._database.execute(query):
            row = {**dict.fromkeys(wanted), **dict(zip(columns, values, strict=True))}
            for name, value in row.items():
                absent = value is None and (name in wanted or name in empty)
                if not absent and not isinstance(value, str if name in _TEXT else int):
                    kind = "text" if name in _TEXT else "a whole number"
                    raise self._unknown_schema(table, f"{name} is {kind} in each row, and is {value!r:.40}")
            if row.get("end") is None or row["end"] >= row["start"]:
                yield row
            else:
                self.left_out += 1

    def _unknown_schema(self, table: str, rule: str) -> CheckError:
        return CheckError(
            f"trace {self._path}, table {table}",
            rule,
            "the schema of this export is not one that is known here",
            "an export of another version of Nsight Systems, or the trace of torch.profiler",
        )

    def _kernels(self) -> Iterator[DeviceWork]:
        for row in self._select(KERNELS, _WORK, ("correlationId", "globalPid", "demangledName", "shortName")):
            name = self._strings.get(row["demangledName"] or row["shortName"] or -1, "kernel")
            yield self._work(row, DeviceKind.KERNEL, name)

    def _copies(self) -> Iterator[DeviceWork]:
        for row in self._select(
            COPIES, (*_WORK, "copyKind"), ("correlationId", "globalPid", "bytes", "srcKind", "dstKind")
        ):
            kind = _WAYS.get(row["copyKind"], DeviceKind.COPY)
            side = row["srcKind"] if kind is DeviceKind.UPLOAD else row["dstKind"]
            pageable = None if kind is DeviceKind.COPY else self._is_pageable(side)
            memory = {True: " (pageable)", False: " (pinned)", None: ""}[pageable]
            yield self._work(row, kind, f"memcpy {kind}{memory}", max(row["bytes"] or 0, 0), pageable)

    def _is_pageable(self, memory: int | None) -> bool | None:
        """By the label if the export names its kinds of memory, by its number otherwise."""
        if memory is None:
            return None
        if memory in self._memory:
            label = self._memory[memory]
            return True if "pageable" in label else False if "pinned" in label else None
        return {_PAGEABLE: True, _PINNED: False}.get(memory) if not self._memory else None

    def _plain(self, table: str, kind: DeviceKind, name: str) -> Iterator[DeviceWork]:
        for row in self._select(table, _WORK, ("correlationId", "globalPid", "bytes")):
            yield self._work(row, kind, name, max(row["bytes"] or 0, 0))

    @staticmethod
    def _work(
        row: dict[str, Any], kind: DeviceKind, name: str, size: int = 0, pageable: bool | None = None
    ) -> DeviceWork:
        correlation, process = int(row["correlationId"] or 0), row["globalPid"]
        return DeviceWork(
            row["start"], row["end"], row["deviceId"], row["streamId"], kind, name, correlation, size, pageable,
            None if process is None else _thread(process)[0],
        )  # fmt: skip

    def _calls(self) -> Iterator[HostCall]:
        chains = self._chains()
        needed = "start", "end", "globalTid", "correlationId", "nameId"
        for row in self._select(CALLS, needed, ("callchainId",), empty=("globalTid", "correlationId")):
            process, thread = _thread(row["globalTid"])
            name = self._strings.get(row["nameId"], "call")
            yield HostCall(
                row["start"], row["end"], process, thread, name, int(row["correlationId"] or 0),
                chains.get(row["callchainId"] or -1, ()),
            )  # fmt: skip

    def _chains(self) -> dict[int, tuple[str, ...]]:
        """Call stacks by their number, innermost first."""
        frames: dict[int, list[tuple[int, str]]] = {}
        for row in self._select(CHAINS, ("id", "symbol", "stackDepth")):
            frames.setdefault(row["id"], []).append((row["stackDepth"], self._strings.get(row["symbol"], "?")))
        return {number: tuple(name for _, name in sorted(chain)) for number, chain in frames.items()}

    def _ranges(self) -> Iterator[HostRange]:
        for row in self._select(
            RANGES, ("start", "end", "globalTid", "eventType"), ("text", "textId"), empty=("end", "globalTid")
        ):
            if row["eventType"] in _RANGE_TYPES and row["end"] is not None:
                process, thread = _thread(row["globalTid"])
                name = row["text"] if row["text"] is not None else self._strings.get(row["textId"] or -1, "range")
                yield HostRange(row["start"], row["end"], process, thread, name)


def _thread(number: int | None) -> tuple[int, int]:
    """Process and thread of a global thread id."""
    return ((number or 0) // _BYTES) % _BYTES, (number or 0) % _BYTES
