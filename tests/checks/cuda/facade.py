"""A real device as the race recorder sees it, played by the virtual one: the same calls, the same callbacks.

The virtual device does the work and judges for itself; on top of it runs the recorder, with all of its own parts. What
torch's C++ would tell on a GPU (``torch.cuda._gpu_trace``) is told here by the virtual device's own methods.
"""

import contextlib
import itertools

import torch
from torch.cuda import _gpu_trace as trace

from mrv2.checks.cuda import recorder_graphs, recorder_order, recorder_patches, recorder_triton
from mrv2.checks.cuda.recorder import recording
from mrv2.checks.cuda.recorder_operators import address_of_stream
from mrv2.checks.hooks import numpy_alias, snapshots, threads
from mrv2.checks.hooks.patching import Patches
from mrv2.checks.virtual import memory, stacks, streams, virtual_device
from mrv2.checks.virtual.copies import Copies, _parse_to
from mrv2.checks.virtual.graphs import Captures
from mrv2.checks.virtual.order import Order
from mrv2.checks.virtual.tensor import DeviceTensor, needs_device
from mrv2.checks.virtual.threads import below_modes

_TO_COPY = torch.ops.aten._to_copy.default


class Backend:
    """The virtual device's answers to what the recorder asks."""

    def __init__(self, runtime):
        self.runtime = runtime
        self.slept = []

    def current_stream(self):
        return self.runtime.current_queue().id

    def memory_of(self, tensor):
        with below_modes():
            if isinstance(tensor, DeviceTensor):
                owner = tensor._face.owner
                if owner is None:  # an empty tensor has no memory
                    return self, 0, 0
                return owner, owner.block.base, owner.block.size
            storage = tensor.untyped_storage()
            return storage, storage.data_ptr(), storage.nbytes()

    def base_of(self, tensor):
        with below_modes():
            if not isinstance(tensor, DeviceTensor):
                return tensor.untyped_storage().data_ptr()
            owner = tensor._face.owner
            return owner.block.base if isinstance(owner, memory.Ownership) else tensor.data_ptr()

    def stream_of_memory(self, address):
        queue = self.runtime.find_block(address).queue
        return None if queue is None else queue.id

    def is_on_device(self, tensor):
        return isinstance(tensor, DeviceTensor)

    def is_pinned(self, tensor):
        return not isinstance(tensor, DeviceTensor) and self.runtime.copies.is_pinned(tensor)

    def sleep(self, cycles):
        self.slept.append(cycles)

    def synchronize(self):
        self.runtime.order.synchronize_device()


class _Ownership(memory.Ownership):
    """The recorder learns of the end of a block from a weak reference."""

    __slots__ = ("__weakref__",)

    @property
    def _cdata(self):
        return id(self)


class _ToCopy:
    """``aten._to_copy`` as the recorder's mode would be given it."""

    def __init__(self):
        self.stock = None

    def __getattr__(self, name):
        return getattr(_TO_COPY, name)

    def __call__(self, *args, **kwargs):
        return self.stock()


_to_copy = _ToCopy()


@contextlib.contextmanager
def on_facade(**options):
    """A recorder over a virtual device; gives both."""
    with for_recorder(), virtual_device() as device, recorder_over(device, **options) as recorder:
        yield recorder, device


@contextlib.contextmanager
def for_recorder():
    """What must be so before a virtual device is opened that plays a real one for a recorder."""
    patches = Patches()
    patches.set(memory, "Ownership", _Ownership)
    patches.set(snapshots, "install", lambda runtime: lambda: None)  # it reads host memory as the program would
    try:
        yield
    finally:
        patches.undo()


@contextlib.contextmanager
def recorder_over(device, effects=None, **options):
    """A recorder over an open virtual device."""
    patches = Patches()
    try:
        backend = Backend(device.runtime)
        _refuse_aloud(patches)
        _tell_of_events(patches)
        _tell_of_waits(patches)
        parts = (
            recorder_order.install, recorder_patches.install, recorder_graphs.install, threads.install,
            numpy_alias.install, lambda runtime: recorder_triton.install(runtime, effects or {}),
        )  # fmt: skip
        with recording(backend, parts=parts, **options) as recorder:
            _show_copies(patches, recorder)
            yield recorder
    finally:
        patches.undo()


class Allocator:
    """The virtual device's answers to what bounds on memory ask; it calls back as torch does."""

    obstacle = None

    def __init__(self, runtime):
        self._memory, self._given = runtime.memory, 0
        self._memory.limit, self._memory.when_over = -1, self._allocated

    def figures(self):
        self._memory.settle()
        return self._memory.allocated, self._given

    def _allocated(self, size):
        self._given += size
        trace.MemoryAllocationCallbacks.fire_callbacks(0)


# What calls back is torch, and no part of the program.
stacks._know(Allocator._allocated.__code__, stacks._HIDE)


def _refuse_aloud(patches):
    """A wait in a capture is refused by CUDA after torch has called back."""
    refuse_wait = Captures.refuse_wait

    def refused(self, name, **options):
        if self.current is not None:
            trace.StreamSynchronizationCallbacks.fire_callbacks(self.current.queues[0].id)
        refuse_wait(self, name, **options)

    patches.set(Captures, "refuse_wait", refused)


_names = itertools.count(1)


def _handle(event):
    if not hasattr(event, "_handle"):
        event._handle = next(_names)
    return event._handle


def _number(stream):
    return streams.active_runtime().current_queue().id if stream is None else stream.queue.id


def _tell_of_events(patches):
    """Let the virtual device's events call back as torch's C++ does."""
    event = streams.GenericEvent
    record, wait, synchronize = event.record, event.wait, event.synchronize

    def recorded(self, stream=None):
        record(self, stream)
        trace.EventRecordCallbacks.fire_callbacks(_handle(self), _number(stream))

    def waited(self, stream=None):
        wait(self, stream)
        if self._record is not None:
            trace.EventWaitCallbacks.fire_callbacks(_handle(self), _number(stream))

    def synchronized(self):
        synchronize(self)
        if self._record is not None:
            trace.EventSynchronizationCallbacks.fire_callbacks(_handle(self))

    patches.update(event, {"record": recorded, "wait": waited, "synchronize": synchronized})
    patches.set(event, "cuda_event", property(_handle))


def _tell_of_waits(patches):
    """The same for waits of streams, and of the host for streams and the device."""
    wait_stream = streams.GenericStream.wait_stream
    wait_for_queue, synchronize_device = Order._wait_for_queue, Order.synchronize_device

    def waited_for_stream(self, other):
        wait_stream(self, other)
        name = next(_names)
        trace.EventRecordCallbacks.fire_callbacks(name, other.queue.id)
        trace.EventWaitCallbacks.fire_callbacks(name, self.queue.id)
        trace.EventDeletionCallbacks.fire_callbacks(name)

    def waited_for_queue(self, queue, name, kind):
        trace.StreamSynchronizationCallbacks.fire_callbacks(queue.id)
        wait_for_queue(self, queue, name, kind)

    def device_synchronized(self, *args):
        trace.DeviceSynchronizationCallbacks.fire_callbacks()
        synchronize_device(self, *args)

    patches.set(streams.GenericStream, "wait_stream", waited_for_stream)
    patches.update(Order, {"_wait_for_queue": waited_for_queue, "synchronize_device": device_synchronized})


def _show_copies(patches, recorder):
    """``Tensor.to`` between the sides is an operator to the mode of a real device, not to that of the virtual one."""
    stock_record = DeviceTensor.record_stream
    stock, mode = Copies.to, recorder.runtime.thread_mode()
    runtime = recorder.runtime
    handler = mode._handlers[id(_TO_COPY)]

    def to(self, tensor, args, kwargs):
        target, _, non_blocking, *_ = _parse_to(args, kwargs)
        there = isinstance(tensor, DeviceTensor) if target is None else needs_device(target)
        if isinstance(tensor, DeviceTensor) == there or not runtime.active:
            return stock(self, tensor, args, kwargs)
        _to_copy.stock = lambda: stock(self, tensor, args, kwargs)
        with below_modes():
            return handler(_to_copy, (tensor,), {"device": target, "non_blocking": non_blocking})

    def record_stream(self, stream):
        if runtime.active:
            block = runtime.find_block(self.data_ptr())
            block.record(runtime.queue_of(address_of_stream(stream)))
        stock_record(self, stream)

    patches.set(Copies, "to", to)
    patches.set(DeviceTensor, "record_stream", record_stream)
