"""Streams and events, row by row of what was measured on hardware."""

import threading

import pytest
import torch

from mrv2.checks.virtual import VirtualDeviceError, virtual_device

from .conftest import codes


def test_default_and_side_stream_have_no_order(vd):
    x = torch.zeros(4, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        x.add_(1)
    x.mul_(2)
    assert codes(vd) == ["MRV204"]


def test_wait_stream_orders(vd):
    side, x = torch.cuda.Stream(), torch.zeros(4, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        x.add_(1)
    torch.cuda.current_stream().wait_stream(side)
    x.mul_(2)
    assert x.tolist() == [2] * 4 and codes(vd) == []


def test_two_streams_ordered_by_a_third(vd):
    a, b, c = (torch.cuda.Stream() for _ in range(3))
    x = torch.zeros(4, device="cuda")
    a.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(a):
        x.add_(1)
    b.wait_stream(a)
    c.wait_stream(b)
    with torch.cuda.stream(c):
        x.mul_(3)
    c.synchronize()
    assert x.tolist() == [3] * 4 and codes(vd) == []


def test_the_33rd_stream_is_the_first(late):
    streams = [torch.cuda.Stream() for _ in range(33)]
    assert streams[32] == streams[0] and len(set(streams)) == 32
    assert streams[32].stream_id == streams[0].stream_id
    assert torch.cuda.Stream(priority=-1) not in streams


def test_the_two_classes_are_never_equal(late):
    assert torch.accelerator.current_stream() != torch.cuda.current_stream()
    assert torch.accelerator.current_stream().stream_id == torch.cuda.current_stream().stream_id == 0
    assert isinstance(torch.cuda.current_stream(), torch.Stream)
    assert torch.cuda.current_stream() == torch.cuda.default_stream()


def test_current_stream(late):
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        assert torch.cuda.current_stream() == side
        with torch.cuda.stream(None):
            assert torch.cuda.current_stream() == side
    with side:
        assert torch.cuda.current_stream() == side
    torch.cuda.set_stream(side)
    assert torch.cuda.current_stream() == side
    seen = []
    thread = threading.Thread(target=lambda: seen.append(torch.cuda.current_stream().stream_id))
    thread.start()
    thread.join()
    assert seen == [0]


def test_synchronising_one_stream_leaves_the_others(late):
    x, y = torch.zeros(4, device="cuda"), torch.zeros(4, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    for _ in range(5):
        x.add_(1)
    with torch.cuda.stream(side):
        y.add_(1)
    side.synchronize()
    assert side.query() and not torch.cuda.default_stream().query()


def test_sync_operators_wait_for_the_current_stream_only(late):
    x, y = torch.zeros(4, device="cuda"), torch.zeros(4, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(5):
            y.add_(1)
    x.sum().item()
    assert not side.query()


@pytest.fixture(params=["torch.Event", "torch.cuda.Event"])
def make_event(request):
    def make():
        module = torch if request.param == "torch.Event" else torch.cuda
        return module.Event()

    return make


def test_an_unrecorded_event_orders_nothing(vd, make_event):
    event, side = make_event(), torch.cuda.Stream()
    assert event.query() is True
    event.synchronize()
    event.wait(side)
    assert set(codes(vd)) == {"MRV210"}


def test_a_later_record_does_not_bind_an_earlier_wait(vd, make_event):
    event, side, x = make_event(), torch.cuda.Stream(), torch.zeros(4, device="cuda")
    torch.cuda.synchronize()
    event.wait(side)
    event.record()
    x.add_(1)
    with torch.cuda.stream(side):
        x.mul_(2)
    assert sorted(codes(vd)) == ["MRV204", "MRV210"]


def test_a_wait_keeps_its_record_when_the_event_is_recorded_again(late, make_event):
    event = make_event()
    first, second, third = (torch.cuda.Stream() for _ in range(3))
    x, y = torch.zeros(4, device="cuda"), torch.zeros(4, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(first):
        x.add_(1)
        x.add_(1)
        x.add_(1)
    event.record(first)
    event.wait(second)
    with torch.cuda.stream(second):
        y.copy_(x)
    event.record(third)
    assert event.query()
    assert not second.query()
    second.synchronize()
    assert y.cpu().tolist() == [3] * 4
    assert codes(late) == []


def test_a_wait_takes_the_latest_record(vd, make_event):
    event, side, x = make_event(), torch.cuda.Stream(), torch.zeros(4, device="cuda")
    event.record()
    x.add_(1)
    event.record()
    event.wait(side)
    with torch.cuda.stream(side):
        x.add_(1)
    side.synchronize()
    assert x.tolist() == [2] * 4 and codes(vd) == []


def test_synchronize_waits_for_the_record_and_not_for_later_work(late):
    x, event = torch.zeros(4, device="cuda"), torch.cuda.Event()
    x.add_(1)
    event.record()
    for _ in range(5):
        x.add_(1)
    event.synchronize()
    assert event.query() and not torch.cuda.current_stream().query()


def test_a_deleted_event_still_holds_its_waiter(vd):
    side, x, event = torch.cuda.Stream(), torch.zeros(4, device="cuda"), torch.cuda.Event()
    x.add_(1)
    event.record()
    side.wait_event(event)
    del event
    with torch.cuda.stream(side):
        x.mul_(2)
    side.synchronize()
    assert x.tolist() == [2] * 4 and codes(vd) == []


def test_polling_until_true_is_an_order(vd):
    p = torch.zeros(4, pin_memory=True)
    d, event = torch.ones(4, device="cuda"), torch.cuda.Event()
    p.copy_(d, non_blocking=True)
    event.record()
    polls = 0
    while not event.query():
        polls += 1
        assert polls < 1000, "the device makes no progress while the host polls"
    assert p.tolist() == [1] * 4 and codes(vd) == []
    p.copy_(d.add_(1), non_blocking=True)
    while not torch.cuda.current_stream().query():
        polls += 1
        assert polls < 1000, "the device makes no progress while the host polls"
    assert p.tolist() == [2] * 4 and codes(vd) == []


def test_reading_after_one_poll_that_said_no_is_a_race(late):
    p = torch.zeros(4, pin_memory=True)
    d, event = torch.ones(4, device="cuda"), torch.cuda.Event()
    for _ in range(3):
        d.add_(1)
    p.copy_(d, non_blocking=True)
    event.record()
    assert not event.query()
    p.tolist()
    assert codes(late) == ["MRV203"]


def test_elapsed_time_never_waits(late):
    timed = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    x = torch.zeros(4, device="cuda")
    timed[0].record()
    x.add_(1)
    with pytest.raises(RuntimeError):
        timed[0].elapsed_time(timed[1])
    timed[1].record()
    with pytest.raises(RuntimeError, match="not ready"):
        timed[0].elapsed_time(timed[1])
    timed[1].synchronize()
    assert timed[0].elapsed_time(timed[1]) > 0
    untimed = torch.cuda.Event()
    untimed.record()
    untimed.synchronize()
    with pytest.raises(RuntimeError, match="enable_timing"):
        timed[0].elapsed_time(untimed)


def test_an_event_recorded_every_step_binds_each_wait_to_its_own_step(late):
    event, side = torch.cuda.Event(), torch.cuda.Stream()
    x, y = torch.zeros(64, device="cuda"), torch.zeros(64, device="cuda")
    torch.cuda.synchronize()
    for step in range(64):
        x[step : step + 1].fill_(step)
        event.record()
        side.wait_event(event)
        with torch.cuda.stream(side):
            y[step : step + 1].copy_(x[step : step + 1])
    side.synchronize()
    with torch.cuda.stream(side):
        assert y.tolist() == list(range(64))
    assert codes(late) == []


def test_launch_queue_is_bounded(late):
    x = torch.zeros(4, device="cuda")
    torch.cuda.synchronize()
    before = late.runtime.engine.submitted
    for _ in range(1021):
        x.add_(1)
    assert late.runtime.engine.oldest() == before
    x.add_(1)
    assert late.runtime.engine.oldest() == before + 1
    events = [torch.cuda.Event() for _ in range(100)]
    for event in events:
        event.record()
    assert late.runtime.engine.oldest() == before + 1


@pytest.mark.parametrize("schedule", ["late", "random:3", "starve:0"])
def test_a_deep_chain_across_streams_runs(schedule):
    with virtual_device(schedule):
        a, b, x = torch.cuda.Stream(), torch.cuda.Stream(), torch.zeros(4, device="cuda")
        a.wait_stream(torch.cuda.current_stream())
        for _ in range(1500):
            with torch.cuda.stream(a):
                x.add_(1)
            b.wait_stream(a)
            a, b = b, a
        a.synchronize()
        with torch.cuda.stream(a):
            assert x.tolist() == [1500] * 4


def test_streams_and_events_of_an_earlier_device_do_no_harm():
    with virtual_device("late"):
        stream, event = torch.cuda.Stream(), torch.cuda.Event()
        with torch.cuda.stream(stream):
            torch.ones(4, device="cuda").add_(1)
            event.record()
    with virtual_device("late") as device:
        fresh = torch.cuda.Stream()
        assert stream != fresh, "an adopted stream would order work that the program did not order"
        assert event.query()
        event.synchronize()
        x = torch.zeros(4, device="cuda")
        stream.wait_event(event)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            x.add_(1)
            event.record()
        event.synchronize()
        assert x.tolist() == [1] * 4 and codes(device) == []


def test_each_event_carries_the_step(sink):
    with virtual_device("late", sink=sink) as device:
        x = torch.zeros(4, device="cuda")
        device.step(7)
        x.add_(1)
        with device.at_step(8):
            torch.cuda.synchronize()
        x.add_(1)
    steps = [(args[2], kwargs["step"]) for args, kwargs in sink.named("operation")]
    assert ("aten.add_", 7) in steps
    assert [kwargs["step"] for args, kwargs in sink.named("sync")] == [8]


class TestHandlesEntered:
    """A stream handle may be entered by several threads at once, and more than once by each."""

    def test_by_two_threads(self, vd):
        shared, streams = torch.cuda.Stream(), [torch.cuda.Stream() for _ in range(2)]
        first_inside, one_outside, both_inside = threading.Event(), threading.Event(), threading.Barrier(2)
        after = {}

        def work(number):
            with streams[number]:
                if number == 1:
                    first_inside.wait()
                with shared:
                    first_inside.set()
                    both_inside.wait()
                    if number == 1:
                        one_outside.wait()
                        after["inside"] = torch.cuda.current_stream()
                after[number] = torch.cuda.current_stream()
                if number == 0:
                    one_outside.set()
            after[number, "outside"] = torch.cuda.current_stream()

        both = [threading.Thread(target=work, args=(number,)) for number in range(2)]
        for thread in both:
            thread.start()
        for thread in both:
            thread.join()
        assert after["inside"] == shared and [after[0], after[1]] == streams
        assert after[0, "outside"] == after[1, "outside"] == torch.cuda.default_stream() and codes(vd) == []

    def test_again_inside_of_itself(self, late):
        first, second = torch.cuda.Stream(), torch.cuda.Stream()
        with first, second, first:
            with first:
                assert torch.cuda.current_stream() == first
            assert torch.cuda.current_stream() == first
        assert torch.cuda.current_stream() == torch.cuda.default_stream()

    def test_left_where_it_was_not_entered(self, late):
        stream = torch.cuda.Stream()
        with stream:
            thread = threading.Thread(target=stream.__exit__)
            thread.start()
            thread.join()
            assert torch.cuda.current_stream() == stream

    def test_left_on_a_later_device(self):
        with virtual_device("late"):
            stream = torch.cuda.Stream()
            stream.__enter__()
        with virtual_device("late"), torch.cuda.stream(torch.cuda.Stream()) as other:
            current = torch.cuda.current_stream()
            stream.__exit__()
            assert torch.cuda.current_stream() == current != stream and other is None


class TestHandlesByNumber:
    """Streams that are named by a number or a pointer are those that there are, and never new ones."""

    WAYS = {  # noqa: RUF012 - read only
        "ExternalStream": lambda s: torch.cuda.ExternalStream(s.cuda_stream),
        "ExternalStream with a device": lambda s: torch.cuda.ExternalStream(s.cuda_stream, device="cuda:0"),
        "stream_id": lambda s: torch.cuda.Stream(stream_id=s.stream_id, device_index=0, device_type=1),
        "stream_id and device_index": lambda s: torch.cuda.Stream(stream_id=s.stream_id, device_index=0),
        "stream_ptr": lambda s: torch.cuda.Stream(stream_ptr=s.cuda_stream),
        "generic": lambda s: torch.Stream(stream_id=s.stream_id, device_index=s.device_index, device_type=1),
        "generic, by place": lambda s: torch.Stream(s.stream_id, 0, 1),
        "external": lambda s: torch.cuda.get_stream_from_external(s.cuda_stream),
        "external with a device": lambda s: torch.cuda.get_stream_from_external(s.cuda_stream, 0),
    }
    STREAMS = {  # noqa: RUF012 - read only
        # Looked up when a device is open.
        "default": lambda: torch.cuda.default_stream(),  # noqa: PLW0108
        "pool": lambda: torch.cuda.Stream(),  # noqa: PLW0108
        "priority": lambda: torch.cuda.Stream(priority=-1),
    }

    def used_twice(self, way, stream):
        """Work through one handle, and then work that depends on it through another."""
        stream = self.STREAMS[stream]()
        other = self.WAYS[way](stream)
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            data = torch.ones(4, device="cuda")
        with torch.cuda.stream(other):
            data.mul_(2)
        stream.synchronize()
        return data.cpu()

    @pytest.mark.parametrize("stream", STREAMS)
    @pytest.mark.parametrize("way", WAYS)
    def test_it_is_the_same_queue(self, vd, way, stream):
        assert self.used_twice(way, stream).tolist() == [2.0] * 4
        assert vd.findings == []

    @pytest.mark.parametrize("way", WAYS)
    def test_it_is_equal_and_of_the_same_priority(self, late, way):
        stream = torch.cuda.Stream(priority=-2)
        other = self.WAYS[way](stream)
        assert (other.stream_id, other.priority) == (stream.stream_id, -2)
        assert (other == stream) == (not way.startswith("generic"))

    @pytest.mark.parametrize("way", WAYS)
    def test_another_stream_is_another_queue(self, late, way):
        stream, other = torch.cuda.Stream(), torch.cuda.Stream()
        with torch.cuda.stream(stream):
            data = torch.ones(4, device="cuda")
        with torch.cuda.stream(self.WAYS[way](other)):
            data.mul_(2)
        torch.cuda.synchronize()
        assert "MRV204" in [finding.code for finding in late.findings]

    @pytest.mark.parametrize(
        "make",
        [
            lambda: torch.cuda.ExternalStream(0x7F0000001000),
            lambda: torch.cuda.Stream(stream_id=99, device_index=0, device_type=1),
            lambda: torch.cuda.Stream(stream_id=0, device_index=1, device_type=1),
            lambda: torch.Stream(0, 0, 0),
        ],
    )
    def test_a_stream_that_nobody_made_is_refused(self, late, make):
        with pytest.raises(VirtualDeviceError, match="one of the virtual device's streams"):
            make()

    def test_an_argument_that_torch_does_not_know_is_an_error(self, late):
        with pytest.raises(TypeError):
            torch.cuda.Stream(strem_id=0)
