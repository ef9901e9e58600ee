"""The trap for real CUDA, over the virtual device: what torch would warn of, a test says."""

import contextlib
import itertools
import warnings

import pytest
import torch

from mrv2.checks.cuda.sync_trap import cuda_sync_trap
from mrv2.checks.cuda.sync_warnings import MESSAGE
from mrv2.checks.sync.waits import WaitKind
from mrv2.checks.virtual import stacks, streams, tensor, virtual_device

#: What torch does not warn of, wherever it happens.
SILENT = frozenset({WaitKind.EVENT, WaitKind.DEVICE, WaitKind.FREE_DEVICE, WaitKind.FREE_HOST, WaitKind.QUEUE})


class Virtual:
    """Answers for a virtual device what ``CudaDevice`` answers for a real one."""

    tensors = (torch.Tensor, tensor.DeviceTensor)
    events = (streams.GenericEvent,)
    streams = (streams.GenericStream,)

    def __init__(self, runtime, silent):
        self._runtime, self.silent = runtime, silent
        self.times = itertools.repeat(0)
        self.mode = 0

    def now_ns(self):
        return next(self.times)

    def get_sync_mode(self):
        return self.mode

    def set_sync_mode(self, mode):
        self.mode = mode

    def current_stream(self):
        return 0, self._runtime.current_queue().id

    def key_of(self, stream):
        return 0, stream.queue.id

    def capturing(self):
        return torch.cuda.is_current_stream_capturing()

    def busy(self):
        return True

    def never_recorded(self, event):
        return event._record is None

    def reserved(self):
        return torch.cuda.memory_reserved()

    def host_frees(self):
        return 0

    def warn(self, cause):
        """As torch does, if its mode says so."""
        if self.mode and cause.kind not in self.silent:
            warnings._showwarnmsg(warnings.WarningMessage(UserWarning(MESSAGE), UserWarning, "torch", 1))


# What warns is torch, and no part of the program.
stacks._know(Virtual.warn.__code__, stacks._HIDE)


@contextlib.contextmanager
def virtual_cuda(silent=(), schedule="late"):
    """A virtual device that warns as torch does.

    Args:
        silent: kinds of wait, beyond those of SILENT, of which torch does not warn here.
        schedule: of the device.
    """
    with virtual_device(schedule) as opened:
        device = Virtual(opened.runtime, SILENT | set(silent))
        device.opened = opened
        opened.runtime.wait_guard = device.warn
        try:
            yield device
        finally:
            opened.runtime.wait_guard = None


@contextlib.contextmanager
def virtual_trap(settings=None, **device):
    """The trap over such a device."""
    with virtual_cuda(**device) as opened, cuda_sync_trap(settings, device=opened) as trap:
        yield trap


@pytest.fixture
def open_trap():
    return virtual_trap


@pytest.fixture
def warning_device():
    return virtual_cuda
