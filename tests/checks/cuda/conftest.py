"""The trap for real CUDA, over the virtual device: what torch would warn of, a test says."""

import contextlib
import itertools

import pytest
import torch

from mrv2.checks.cuda.sync_trap import cuda_sync_trap
from mrv2.checks.sync.waits import WaitKind
from mrv2.checks.virtual import stacks, streams, tensor, virtual_device

#: What torch does not warn of, wherever it happens.
SILENT = frozenset({WaitKind.EVENT, WaitKind.DEVICE, WaitKind.FREE_DEVICE, WaitKind.FREE_HOST, WaitKind.QUEUE})


class Virtual:
    """Answers for a virtual device what ``CudaDevice`` answers for a real one."""

    tensors = (torch.Tensor, tensor.DeviceTensor)
    events = (streams.GenericEvent,)
    streams = (streams.GenericStream,)

    def __init__(self, runtime):
        self._runtime = runtime
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


@contextlib.contextmanager
def virtual_trap(settings=None, *, silent=(), schedule="late"):
    """A trap over a virtual device that warns as torch does.

    Args:
        settings: of the hot paths.
        silent: kinds of wait, beyond those of SILENT, of which torch does not warn here.
        schedule: of the device.
    """
    with virtual_device(schedule) as opened:
        runtime = opened.runtime
        device = Virtual(runtime)
        with cuda_sync_trap(settings, device=device) as trap:

            def warn(cause):
                if device.mode and cause.kind not in SILENT and cause.kind not in silent:
                    trap.warnings._hear("called a synchronizing CUDA operation")

            # What warns is torch, and no part of the program.
            stacks._know(warn.__code__, stacks._HIDE)
            runtime.wait_guard = warn
            try:
                yield trap
            finally:
                runtime.wait_guard = None


@pytest.fixture
def trapped():
    return virtual_trap
