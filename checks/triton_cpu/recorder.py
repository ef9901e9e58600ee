"""The C side of a launch: the structure that it fills, with buffers that each thread uses again."""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Callable, Sequence
from ctypes import string_at
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..hooks.kernel_log import grid_index
from .emit.source import AccessSite
from .ir import Scalar, Tensor, Type
from .log import RECORD, STRAY, LaunchResult, Stop, Stopped
from .support import support

#: Buffers larger than this are given back after a launch.
_KEEP = 16 << 20

#: What ``device_print`` shows; bfloat16 numbers are widened, fp8 numbers and pointers shown as their bits.
_PRINTED = {
    "i1": np.bool_, "i8": np.int8, "i16": np.int16, "i32": np.int32, "i64": np.int64, "index": np.int64,
    "ui8": np.uint8, "ui16": np.uint16, "ui32": np.uint32, "ui64": np.uint64, "f16": np.float16, "bf16": np.uint16,
    "f32": np.float32, "f64": np.float64,
}  # fmt: skip
_PRINT = ctypes.CFUNCTYPE(None, ctypes.c_int32, ctypes.c_int32, ctypes.c_void_p)


class Launch(ctypes.Structure):
    """``Launch`` of launch.h."""

    _fields_ = (
        ("records", ctypes.c_void_p),
        ("record_count", ctypes.c_int64),
        ("record_capacity", ctypes.c_int64),
        ("stored", ctypes.c_void_p),
        ("stored_count", ctypes.c_int64),
        ("stored_capacity", ctypes.c_int64),
        ("strays", ctypes.c_void_p),
        ("stray_count", ctypes.c_int64),
        ("stray_capacity", ctypes.c_int64),
        ("blocks", ctypes.c_char_p),
        ("block_count", ctypes.c_int64),
        ("near_low", ctypes.c_uint64),
        ("near_high", ctypes.c_uint64),
        ("scratch", ctypes.c_void_p),
        ("scratch_capacity", ctypes.c_int64),
        ("loops", ctypes.c_void_p),
        ("runtime", ctypes.c_void_p),
        ("fills", ctypes.c_char_p),
        ("print", ctypes.c_void_p),
        ("log_limit", ctypes.c_int64),
        ("fuel", ctypes.c_int64),
        ("fuel_left", ctypes.c_int64),
        ("nan_count", ctypes.c_int64),
        ("nan_site", ctypes.c_int32),
        ("stopped", ctypes.c_int32),
        ("stop_site", ctypes.c_int32),
        ("program", ctypes.c_int32),
    )


#: What tells what happened. The fields are read at once: one by one takes longer than a small launch.
_OUTCOME = (
    "records", "record_count", "record_capacity", "stored", "stored_count", "stored_capacity", "strays", "stray_count",
    "scratch_capacity", "nan_count", "nan_site", "stopped", "stop_site", "program",
)  # fmt: skip


def _reader(fields: Sequence[str]) -> Any:
    """A function that reads these fields of a ``Launch``, in their order in memory."""
    layout = ""
    for name, kind in Launch._fields_:
        size = ctypes.sizeof(kind)
        layout += ("i" if size == 4 else "Q" if kind is ctypes.c_void_p else "q") if name in fields else f"{size}x"
    return struct.Struct(f"={layout}").unpack_from


_outcome = _reader(_OUTCOME)


class Recorder:
    """The buffers of one thread; a result is a copy of what is in them.

    Args:
        release: frees the buffers of a structure.

    Attributes:
        address: of the structure in C.
    """

    def __init__(self, release: Callable[[int], None]) -> None:
        self._release = release
        self._launch = Launch()
        self.address = ctypes.addressof(self._launch)
        self._print = _PRINT(self._printed)
        self._launch.print = ctypes.cast(self._print, ctypes.c_void_p).value
        self._sites: Sequence[AccessSite] = ()
        self._grid = (1, 1, 1)
        self._raised: BaseException | None = None

    def __del__(self) -> None:
        self._release(self.address)

    def begin(
        self,
        sites: Sequence[AccessSite],
        grid: tuple[int, int, int],
        blocks: bytes,
        loops: int | None,
        fuel: int,
        fills: bytes,
        log_limit: int,
    ) -> None:
        """Make ready for a launch."""
        self._sites, self._grid = sites, grid
        launch = self._launch
        launch.record_count = launch.stored_count = launch.stray_count = launch.nan_count = 0
        launch.near_low = launch.near_high = 0
        launch.blocks = blocks
        launch.block_count = len(blocks) // 16
        launch.loops = loops
        launch.fuel = fuel
        launch.log_limit = log_limit
        launch.nan_site = -1
        launch.stopped = 0
        launch.fills = fills

    def take(self, kernel: str, kinds: bytes) -> LaunchResult:
        """What the launch did.

        Raises:
            BaseException: what a print raised, Ctrl-C for one; it has ended the launch.
        """
        raised, self._raised = self._raised, None
        if raised is not None:
            raise raised
        (
            records, record_count, record_room, stored, stored_count, stored_room, strays, stray_count,
            scratch_room, nan_count, nan_site, stopped, stop_site, program,
        ) = _outcome(self._launch)  # fmt: skip
        kept = stopped not in (Stop.LOG_FULL, Stop.OUT_OF_MEMORY)  # no room for a copy
        result = LaunchResult(
            kernel,
            self._sites,
            kinds,
            self._grid,
            string_at(records, record_count * RECORD.itemsize) if kept and record_count else b"",
            string_at(stored, stored_count) if kept and stored_count else b"",
            string_at(strays, stray_count * STRAY.itemsize) if stray_count else b"",
            nan_count,
            nan_site,
            Stopped(Stop(stopped), stop_site, program) if stopped else None,
        )
        if record_room * RECORD.itemsize + stored_room + scratch_room > _KEEP:
            self._release(self.address)
        return result

    def _printed(self, site: int, place: int, lanes: int) -> None:
        """One value of a ``device_print``; no error gets through C to the caller, so it is kept and raised later."""
        try:
            if self._raised is None:
                self._print_value(site, place, lanes)
        except BaseException as error:  # noqa: BLE001 - Ctrl-C, too
            self._raised = error
            self._stop()

    def _stop(self) -> None:
        """End the launch, as ``stop`` of launch.h does."""
        launch = self._launch
        launch.fuel_left = launch.block_count = launch.near_low = launch.near_high = 0
        launch.stopped = Stop.PRINT_FAILED

    def _print_value(self, site: int, place: int, lanes: int) -> None:
        """As Triton's interpreter prints it."""
        found = self._sites[site]
        index = grid_index(self._launch.program, self._grid)
        prefix = f" {found.message}" if found.message else ""
        shown = f" {_shown(_array(found.values[place], lanes), found.hexadecimal)}" if found.values else ""
        print(f"{index}{prefix}{shown}")


_thread = threading.local()


def recorder() -> Recorder:
    """The one of this thread."""
    found: Recorder | None = getattr(_thread, "recorder", None)
    if found is None:
        found = _thread.recorder = Recorder(support().release)
    return found


def _array(kind: Type, lanes: int) -> NDArray[Any]:
    """The lanes of a value; a scalar has one."""
    shape = kind.shape if isinstance(kind, Tensor) else (1,)
    element = kind.element if isinstance(kind, Tensor) else kind
    name = element.name if isinstance(element, Scalar) else ""
    dtype = np.dtype(_PRINTED.get(name, np.uint8 if name.startswith("f8") else np.uint64))
    count = int(np.prod(shape))
    values = np.frombuffer(string_at(lanes, count * dtype.itemsize), dtype).reshape(shape)
    return (values.astype(np.uint32) << 16).view(np.float32) if name == "bf16" else values


def _shown(values: NDArray[Any], hexadecimal: bool) -> str:
    return np.array2string(values, formatter={"all": _hexadecimal}) if hexadecimal else str(values)


def _hexadecimal(number: Any) -> str:
    """As on a GPU, which shows the bits of negative numbers; floats as Python shows them."""
    if isinstance(number, np.floating):
        return float(number).hex()
    width = number.dtype.itemsize * 2
    return f"0x{int(number) & (1 << 4 * width) - 1:0{width}x}"
