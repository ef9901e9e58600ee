"""What torch's host allocator waits for on a real device: the facts that the rule of MRV206 rests on."""

import pytest
import torch
import triton
import triton.language as tl

pytestmark = pytest.mark.gpu

#: Long enough that all that a test enqueues behind it is enqueued before it ends.
BUSY_CYCLES = 200_000_000
#: A size that no other test uses, so that the next allocation of it gets the block that was dropped last.
SIZE = 3_000_017


@triton.jit
def read_first(source, target):
    """Copy one element."""
    tl.store(target, tl.load(source))


def copy_last(pinned, target, stream):
    with torch.cuda.stream(stream):
        target.copy_(pinned[-1:], non_blocking=True)


def read_behind_a_drop(copied_on, copied_first):
    """What a kernel reads in place from a pinned block that is dropped, and handed out, while it waits for its turn.

    Args:
        copied_on: stream that copies another element of the block, if any.
        copied_first: whether before the kernel is enqueued, or behind it.
    """
    out, spare = torch.zeros(1, device="cuda"), torch.zeros(1, device="cuda")
    pinned = torch.full((SIZE,), 1.0, pin_memory=True)
    read_first[(1,)](pinned, out)  # loads the kernel, which would wait for the device
    torch.cuda.synchronize()

    if copied_on is not None and copied_first:
        copy_last(pinned, spare, copied_on)
    torch.cuda._sleep(BUSY_CYCLES)
    read_first[(1,)](pinned, out)
    if copied_on is not None and not copied_first:
        copy_last(pinned, spare, copied_on)
    address = pinned.data_ptr()
    del pinned
    others = [torch.full((SIZE,), 9.0, pin_memory=True) for _ in range(3)]
    handed_out = address in [other.data_ptr() for other in others]
    torch.cuda.synchronize()
    return out.item(), handed_out


@pytest.mark.parametrize("copied_first", [True, False])
def test_a_stream_that_copied_is_waited_for_as_far_as_it_was_at_the_drop(copied_first):
    assert read_behind_a_drop(torch.cuda.current_stream(), copied_first) == (1.0, False)


def test_a_kernel_alone_is_not_waited_for():
    assert read_behind_a_drop(None, copied_first=True) == (9.0, True)


def test_another_stream_that_copied_helps_nobody():
    side = torch.cuda.Stream()
    assert read_behind_a_drop(side, copied_first=True) == (9.0, True)


def test_a_runner_that_is_dropped_in_flight_keeps_what_its_kernels_read():
    from mrv2.refrunner.device import Device

    device, out = Device("cuda"), torch.zeros(1, device="cuda")
    pinned = device.pinned_read_in_place(SIZE, torch.float32)
    pinned.fill_(1.0)
    read_first[(1,)](pinned, out)
    torch.cuda.synchronize()
    torch.cuda._sleep(BUSY_CYCLES)
    read_first[(1,)](pinned, out)
    del pinned
    others = [torch.full((SIZE,), 9.0, pin_memory=True) for _ in range(3)]
    torch.cuda.synchronize()
    assert out.item() == 1.0
    del others
