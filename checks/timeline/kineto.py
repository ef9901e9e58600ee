"""A Chrome trace, as torch.profiler (Kineto) writes it on CUDA and ROCm, as records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from .json_stream import EventStream
from .records import DeviceKind, DeviceWork, Frame, HostCall, HostRange, Record, copy_kind, is_runtime_call

#: Categories, in lower case; Kineto of torch 1.8 wrote some of them otherwise.
_KERNELS, _COPIES, _FILLS = {"kernel"}, {"gpu_memcpy", "memcpy"}, {"gpu_memset", "memset"}
_CALLS = {"cuda_runtime", "cuda_driver", "hip_runtime", "hip_driver", "runtime", "driver"}
_RANGES, _FRAMES = {"user_annotation"}, {"cpu_op", "operator", "python_function"}
_DIGITS = 3  # of nanoseconds in the trace's unit, which is µs whatever its displayTimeUnit
#: What is larger is no time, no size and no number of a call: profilers keep all of them in 64 bits.
_LARGEST = 1 << 63
_MOST_DIGITS = 20


class KinetoSource:
    """See :class:`~.records.Source`."""

    format = "Chrome trace"

    def __init__(self, path: Path) -> None:
        self.left_out = 0
        self._stream = EventStream(path)
        self._names: dict[str, int] = {}

    @property
    def cut(self) -> str | None:
        """Where the file ends too early."""
        return self._stream.cut

    @property
    def facts(self) -> dict[str, str]:
        """Rank and world size, if it says so."""
        said = self._stream.header.get("distributedInfo")
        known: dict[str, Any] = said if isinstance(said, dict) else {}
        return {name: str(known[name]) for name in ("rank", "world_size") if name in known}

    def records(self) -> Iterator[Record]:
        """All records; pairs of begin and end count as one, at the end.

        Raises:
            CheckError: the file is no trace, or damaged.
        """
        self.left_out = 0
        for event, end in self._complete():
            begin = _nanoseconds(event.get("ts"))
            if end is None and (length := _nanoseconds(event.get("dur"))) is not None and begin is not None:
                end = begin + length
            has_times = begin is not None and end is not None and begin <= end
            record = self._record(event, begin or 0, end or 0)
            if record is not None and has_times:
                yield record
            self.left_out += record is not None and not has_times

    def frames(self) -> Iterator[Frame]:
        """Operators and functions alone, for which nothing else need be understood."""
        for event, end in self._complete():
            if _category(event) in _FRAMES and (begin := _nanoseconds(event.get("ts"))) is not None:
                length = _nanoseconds(event.get("dur"))
                end = begin + length if end is None and length is not None else end
                if end is not None and begin <= end:
                    thread = self._identity(event.get("pid")), self._identity(event.get("tid"))
                    yield Frame(begin, end, *thread, str(event.get("name", "")))

    def _complete(self) -> Iterator[tuple[dict[str, Any], int | None]]:
        """Events with a begin and an end, the latter in ns where it is that of an event of its own."""
        begun: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for event in self._stream.events():
            phase = event.get("ph")
            if phase == "X":
                yield event, None
            elif phase in ("B", "E"):
                open_events = begun.setdefault((str(event.get("pid")), str(event.get("tid"))), [])
                if phase == "B":
                    open_events.append(event)
                elif open_events:
                    end = _nanoseconds(event.get("ts"))
                    yield open_events.pop(), -_LARGEST if end is None else end

    def _record(self, event: Mapping[str, Any], begin: int, end: int) -> Record | None:
        name, category = str(event.get("name", "")), _category(event)
        said = event.get("args")
        arguments: Mapping[str, Any] = said if isinstance(said, dict) else {}
        if category in _KERNELS or category in _COPIES or category in _FILLS:
            return self._device_work(begin, end, name, category, arguments, event)
        process, thread = self._identity(event.get("pid")), self._identity(event.get("tid"))
        if category in _CALLS or (category not in _FRAMES and is_runtime_call(name)):
            return HostCall(begin, end, process, thread, name, _whole(arguments.get("correlation")))
        if category in _RANGES:
            return HostRange(begin, end, process, thread, name)
        return Frame(begin, end, process, thread, name) if category in _FRAMES else None

    def _device_work(
        self, begin: int, end: int, name: str, category: str, arguments: Mapping[str, Any], event: Mapping[str, Any]
    ) -> DeviceWork:
        device = self._identity(arguments.get("device", event.get("pid")))
        stream, correlation = self._identity(arguments.get("stream", event.get("tid"))), arguments.get("correlation")
        kind, pageable = DeviceKind.KERNEL, None
        if category in _COPIES:
            kind, pageable = copy_kind(name)
        elif category in _FILLS:
            kind = DeviceKind.FILL
        size = max(_whole(arguments.get("bytes")), 0)
        return DeviceWork(begin, end, device, stream, kind, name, _whole(correlation), size, pageable)

    def _identity(self, value: object) -> int:
        """A number for whatever names a process, thread, device or stream."""
        if type(value) is int and -_LARGEST < value < _LARGEST:
            return value
        number = None if isinstance(value, bool) else _integer(value)
        return self._names.setdefault(str(value), -1 - len(self._names)) if number is None else number


def _category(event: Mapping[str, Any]) -> str:
    return str(event.get("cat", "")).lower()


def _nanoseconds(value: object) -> int | None:
    """A time in µs, whole or with a fraction as text, which is exact; None if it is none."""
    if isinstance(value, str) and value[-4:-3] == "." and value[:-4].isdecimal() and value[-3:].isdecimal():
        time: int | None = int(value[:-4] + value[-3:])  # as profilers write nearly all of them, several times as fast
    elif isinstance(value, int):
        time = None if isinstance(value, bool) else value * 10**_DIGITS
    else:
        number = _decimal(str(value))
        time = None if number is None else round(number.scaleb(_DIGITS))
    return time if time is not None and abs(time) < _LARGEST else None


def _whole(value: object) -> int:
    """A whole number, also as text or with a fraction of zero; 0 if it is none."""
    return _integer(value) or 0


def _integer(value: object) -> int | None:
    """The same; None if it is none."""
    if not isinstance(value, int):
        number = _decimal(value) if isinstance(value, str) else None
        value = None if number is None or number % 1 else int(number)
    return value if isinstance(value, int) and abs(value) < _LARGEST else None


def _decimal(text: str) -> Decimal | None:
    """A finite number of no more digits than 64 bits have; None if it is none."""
    try:
        number = Decimal(text)
    except InvalidOperation:
        return None
    return number if number.is_finite() and number.adjusted() < _MOST_DIGITS else None
