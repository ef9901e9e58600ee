"""What stands in for ``torch.cuda`` and ``torch.accelerator`` while a virtual device is open."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ..events import OperationKind
from ..semantics import CaptureCall
from . import refused
from .generators import Generator
from .graphs import CUDAGraph, graph
from .memory import TOTAL_MEMORY
from .streams import Event, GenericEvent, GenericStream, Stream, queue_of
from .tensor import DEVICE, needs_device

if TYPE_CHECKING:
    from .runtime import Runtime


@dataclass(frozen=True)
class DeviceProperties:
    """``torch.cuda.get_device_properties()``: a Hopper device, so that programs take their usual paths."""

    name: str = "virtual device"
    major: int = 9
    minor: int = 0
    total_memory: int = TOTAL_MEMORY
    multi_processor_count: int = 132
    warp_size: int = 32
    max_threads_per_multi_processor: int = 2048
    shared_memory_per_block: int = 48 << 10
    shared_memory_per_block_optin: int = 227 << 10
    shared_memory_per_multiprocessor: int = 228 << 10
    regs_per_multiprocessor: int = 65536
    L2_cache_size: int = 50 << 20
    is_integrated: int = 0
    is_multi_gpu_board: int = 0
    gcnArchName: str = ""  # noqa: N815 - torch's name


class CudaApi:
    """The functions, bound to one device."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def cuda(self) -> dict[str, Any]:
        """Name -> replacement for ``torch.cuda``."""
        runtime, memory = self._runtime, self._runtime.memory
        return {
            "Stream": Stream,
            "Event": Event,
            "stream": self._stream_context,
            "StreamContext": self._stream_context,
            "current_stream": lambda device=None: runtime.current_stream(),
            "default_stream": lambda device=None: runtime.streams.handle(runtime.streams.default),
            "set_stream": self._set_stream,
            "get_stream_from_external": lambda data_ptr, device=None: Stream(device, stream_ptr=data_ptr),
            "synchronize": lambda device=None: runtime.order.synchronize_device(),
            "empty_cache": lambda: memory.empty_cache("torch.cuda.empty_cache"),
            "ipc_collect": lambda: None,
            "memory_allocated": lambda device=None: memory.allocated,
            "max_memory_allocated": lambda device=None: memory.peak,
            "memory_reserved": lambda device=None: memory.reserved,
            "max_memory_reserved": lambda device=None: max(memory.peak, memory.reserved),
            "reset_peak_memory_stats": lambda device=None: memory.reset_peak(),
            "reset_max_memory_allocated": lambda device=None: memory.reset_peak(),
            "memory_stats": lambda device=None: self._memory_stats(),
            "mem_get_info": lambda device=None: (TOTAL_MEMORY - memory.reserved, TOTAL_MEMORY),
            "_sleep": self._sleep,
            "CUDAGraph": CUDAGraph,
            "graph": graph,
            "graph_pool_handle": lambda: (0, 1),
            "is_current_stream_capturing": lambda: runtime.current_queue().capture is not None,
            "set_per_process_memory_fraction": self._set_fraction,
            "get_per_process_memory_fraction": lambda device=None: memory.capacity / TOTAL_MEMORY,
            "memory_summary": lambda device=None, abbreviated=False: self._memory_summary(),
            **self._random(),
            **_IDENTITY,
            **refused.functions(),
        }

    def accelerator(self) -> dict[str, Any]:
        """Name -> replacement for ``torch.accelerator``."""
        runtime, memory = self._runtime, self._runtime.memory
        return {
            "is_available": lambda: True,
            "device_count": lambda: 1,
            "current_accelerator": lambda check_available=False: DEVICE.__class__("cuda"),
            "current_device_index": lambda: 0,
            "current_device_idx": lambda: 0,
            "set_device_index": lambda device: None,
            "set_device_idx": lambda device: None,
            "current_stream": lambda device=None: _generic(runtime.current_stream()),
            "set_stream": self._set_stream,
            "synchronize": lambda device=None: runtime.order.synchronize_device("torch.accelerator.synchronize"),
            "device_index": lambda device: contextlib.nullcontext(),
            "empty_cache": lambda: memory.empty_cache("torch.accelerator.empty_cache"),
            "empty_host_cache": lambda: memory.empty_host_cache("torch.accelerator.empty_host_cache"),
            "memory_allocated": lambda device=None: memory.allocated,
            "max_memory_allocated": lambda device=None: memory.peak,
            "memory_reserved": lambda device=None: memory.reserved,
            "max_memory_reserved": lambda device=None: max(memory.peak, memory.reserved),
            "reset_peak_memory_stats": lambda device=None: memory.reset_peak(),
            "memory_stats": lambda device=None: self._memory_stats(),
            "get_memory_info": lambda device=None: (TOTAL_MEMORY - memory.reserved, TOTAL_MEMORY),
        }

    def _set_stream(self, stream: GenericStream) -> None:
        self._runtime.set_current_queue(queue_of(stream))

    @contextlib.contextmanager
    def _stream_context(self, stream: GenericStream | None) -> Iterator[None]:
        outer = self._runtime.current_queue()
        if stream is not None:
            self._runtime.set_current_queue(queue_of(stream))
        try:
            yield
        finally:
            self._runtime.set_current_queue(outer)

    def _random(self) -> dict[str, Any]:
        generator = self._runtime.generators.default
        return {
            "default_generators": (generator,),
            "manual_seed": self._manual_seed,
            "manual_seed_all": self._manual_seed,
            "seed": generator.seed,
            "seed_all": generator.seed,
            "initial_seed": generator.initial_seed,
            "get_rng_state": lambda device="cuda": generator.get_state(),
            "get_rng_state_all": lambda: [generator.get_state()],
            "set_rng_state": lambda new_state, device="cuda": generator.set_state(new_state),
            "set_rng_state_all": lambda new_states: generator.set_state(new_states[0]),
            "_get_generator": lambda device: generator,
        }

    def _manual_seed(self, seed: int) -> None:
        """Seed the default generator; a capture has fixed its seed and refuses another one, but goes on."""
        generator = self._runtime.generators.default
        capture = self._runtime.current_queue().capture
        if capture is not None and generator.initial_seed() != int(seed):
            capture.meets(CaptureCall.NEW_SEED)
            raise RuntimeError("Cannot call CUDAGeneratorImpl::set_current_seed during CUDA graph capture")
        generator.manual_seed(seed)

    def _memory_stats(self) -> Mapping[str, int]:
        memory = self._runtime.memory
        values = {"current": memory.allocated, "peak": memory.peak}
        kinds = ("allocated_bytes", "reserved_bytes", "active_bytes")
        return {f"{kind}.all.{name}": value for kind in kinds for name, value in values.items()}

    def _memory_summary(self) -> str:
        return "\n".join(f"{name:32} {value:>16} bytes" for name, value in self._memory_stats().items())

    def _set_fraction(self, fraction: float, device: Any = None) -> None:
        if not isinstance(fraction, float):
            raise TypeError("Invalid type for fraction argument, must be `float`")
        if not 0 <= fraction <= 1:
            raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
        self._runtime.memory.capacity = int(fraction * TOTAL_MEMORY)

    def _sleep(self, cycles: int) -> None:
        self._runtime.enqueue("torch.cuda._sleep", OperationKind.KERNEL, None)


def _generic(stream: Stream) -> Any:
    return GenericStream._of(stream._runtime, stream.queue)


def _check_ordinal(device: Any) -> None:
    needs_device(torch.device("cuda", device) if isinstance(device, int) and device >= 0 else None)


class _DeviceContext:
    """``torch.cuda.device``."""

    def __init__(self, device: Any = None) -> None:
        _check_ordinal(device)
        self.idx = 0
        self.prev_idx = 0

    def __enter__(self) -> None:
        """Nothing to switch: there is one device."""

    def __exit__(self, *_: object) -> None:
        pass


_PROPERTIES = DeviceProperties()
_IDENTITY: dict[str, Any] = {
    "is_available": lambda: True,
    "is_initialized": lambda: True,
    "init": lambda: None,
    "_lazy_init": lambda: None,
    "_lazy_call": lambda function, **_: function(),
    "_is_in_bad_fork": lambda: False,
    "device_count": lambda: 1,
    "current_device": lambda: 0,
    "set_device": _check_ordinal,
    "device": _DeviceContext,
    "device_of": _DeviceContext,
    "_exchange_device": lambda device: 0,
    "_maybe_exchange_device": lambda device: 0,
    "get_device_name": lambda device=None: _PROPERTIES.name,
    "get_device_properties": lambda device=None: _PROPERTIES,
    "get_device_capability": lambda device=None: (_PROPERTIES.major, _PROPERTIES.minor),
    "get_arch_list": lambda: ["sm_90"],
    "is_bf16_supported": lambda including_emulation=True: True,
    "is_tf32_supported": lambda: True,
    "can_device_access_peer": lambda device, peer: False,
}

NVTX: dict[str, Any] = {
    "range_push": lambda msg: 0,
    "range_pop": lambda: 0,
    "range_start": lambda msg: 0,
    "range_end": lambda range_id: None,
    "mark": lambda msg: None,
    "range": lambda msg, *args, **kwargs: contextlib.nullcontext(),
}


def autocast() -> dict[str, Any]:
    """Name -> replacement for ``torch``: autocast for CUDA is that of the CPU, whose kernels do the work.

    So the operators that are cast are those of the CPU's lists, which are shorter.
    """
    names = ("is_autocast_enabled", "set_autocast_enabled", "get_autocast_dtype", "set_autocast_dtype")
    return {name: _redirected(getattr(torch, name)) for name in names}


def _redirected(function: Any) -> Any:
    def redirected(*args: Any) -> Any:
        device = args[0] if args and isinstance(args[0], str) else None
        rest = args if device is None else args[1:]
        return function("cpu" if device in (None, "cuda") else device, *rest)

    return redirected


GENERIC: dict[str, Any] = {"Stream": GenericStream, "Event": GenericEvent, "Generator": Generator}
