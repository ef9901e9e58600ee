"""What threads hand over to each other, judged by a worker that waits for the device for the main thread."""

import _thread
import asyncio
import concurrent.futures
import queue
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from mrv2.checks.events import OperationKind
from mrv2.checks.hooks import threads

# Ways to hand over, each made anew: (what the worker calls, what the main thread calls)


def by_queue(kind=queue.Queue):
    channel = kind()
    return lambda: channel.put(1), channel.get


def by_simple_queue():
    return by_queue(queue.SimpleQueue)


def by_lifo_queue():
    return by_queue(queue.LifoQueue)


def by_priority_queue():
    return by_queue(queue.PriorityQueue)


def by_nowait():
    channel = queue.SimpleQueue()

    def get():
        while True:
            try:
                return channel.get_nowait()
            except queue.Empty:
                pass

    return lambda: channel.put_nowait(None), get


def by_queue_of_a_subclass():
    class Unique(queue.Queue):
        def _init(self, maxsize):
            self.queue = set()

        def _put(self, item):
            self.queue.add(item)

        def _get(self):
            return self.queue.pop()

    return by_queue(Unique)


def by_joined_queue():
    channel = queue.Queue()
    channel.put(1)

    def work():
        channel.get()
        channel.task_done()

    return work, channel.join


def by_place_in_a_bounded_queue():
    channel = queue.Queue(maxsize=1)
    channel.put(1)
    return channel.get, lambda: channel.put(2)


def by_event():
    event = threading.Event()
    return event.set, event.wait


def by_polled_event():
    event = threading.Event()

    def poll():
        while not event.is_set():
            pass

    return event.set, poll


def by_condition(lock=None, *, predicate=True):
    condition, done = threading.Condition(lock), []

    def notify():
        with condition:
            done.append(1)
            condition.notify_all()

    def wait():
        with condition:
            if predicate:
                condition.wait_for(lambda: done)
            else:
                while not done:
                    condition.wait()

    return notify, wait


def by_condition_and_loop():
    return by_condition(predicate=False)


def by_condition_on_an_untracked_lock():
    """The waiter is there before the notification, which is what then orders the two."""
    condition, waiting = threading.Condition(_thread.allocate_lock()), _thread.allocate_lock()
    waiting.acquire()

    def notify():
        waiting.acquire()
        with condition:
            condition.notify()

    def wait():
        with condition:
            waiting.release()
            condition.wait()

    return notify, wait


def by_lock():
    lock, done = threading.Lock(), []

    def work():
        with lock:
            done.append(1)

    def poll():
        while True:
            with lock:
                if done:
                    return

    return work, poll


def by_reentrant_lock():
    lock, done = threading.RLock(), []

    def work():
        with lock, lock:
            done.append(1)

    def poll():
        while True:
            with lock, lock:
                if done:
                    return

    return work, poll


def by_lock_of_two_threads():
    lock = threading.Lock()
    lock.acquire()
    return lock.release, lock.acquire


def by_semaphore(kind=threading.Semaphore):
    semaphore = kind(1)
    semaphore.acquire()
    return semaphore.release, semaphore.acquire


def by_bounded_semaphore():
    return by_semaphore(threading.BoundedSemaphore)


def by_semaphore_as_a_context():
    semaphore = threading.Semaphore(0)
    return semaphore.release, semaphore.__enter__


def by_barrier():
    barrier = threading.Barrier(2)
    return barrier.wait, barrier.wait


def by_second_round_of_a_barrier():
    barrier = threading.Barrier(2)

    def twice():
        barrier.wait()
        barrier.wait()

    return twice, twice


def by_future():
    future = concurrent.futures.Future()
    return lambda: future.set_result(1), future.result


def by_exception_of_a_future():
    future = concurrent.futures.Future()
    return lambda: future.set_exception(KeyError()), future.exception


def by_waiting_for_futures():
    future = concurrent.futures.Future()
    return lambda: future.set_result(1), lambda: concurrent.futures.wait([future])


def by_futures_as_completed():
    future = concurrent.futures.Future()
    return lambda: future.set_result(1), lambda: next(concurrent.futures.as_completed([future]))


def by_polled_future():
    future = concurrent.futures.Future()

    def poll():
        while not future.done():
            pass

    return lambda: future.set_result(1), poll


WAYS = [
    by_queue, by_simple_queue, by_lifo_queue, by_priority_queue, by_nowait, by_queue_of_a_subclass, by_joined_queue,
    by_place_in_a_bounded_queue, by_event, by_polled_event, by_condition, by_condition_and_loop,
    by_condition_on_an_untracked_lock, by_lock, by_reentrant_lock, by_lock_of_two_threads, by_semaphore,
    by_bounded_semaphore, by_semaphore_as_a_context, by_barrier, by_second_round_of_a_barrier, by_future,
    by_exception_of_a_future, by_waiting_for_futures, by_futures_as_completed, by_polled_future,
]  # fmt: skip


def in_a_thread(work):
    thread = threading.Thread(target=work)
    thread.start()
    return thread


@pytest.mark.parametrize("way", WAYS)
def test_waits_and_hands_over(scene, way):
    send, receive = way()
    thread = in_a_thread(lambda: (scene.wait(), send()))
    receive()
    scene.touch()
    thread.join()
    assert scene.device.codes == []


@pytest.mark.parametrize("way", WAYS)
def test_hands_over_too_early(scene, way):
    """The same calls in the wrong order: what orders the two must come after the wait."""
    send, receive = way()
    waited = _thread.allocate_lock()
    waited.acquire()
    thread = in_a_thread(lambda: (send(), scene.wait(), waited.release()))
    receive()
    waited.acquire()
    scene.touch()
    thread.join()
    assert scene.device.codes == ["MRV201"]


def test_what_is_not_seen_hands_nothing_over(scene):
    lock = _thread.allocate_lock()
    lock.acquire()
    thread = in_a_thread(lambda: (scene.wait(), lock.release()))
    lock.acquire()
    scene.touch()
    thread.join()
    assert scene.device.codes == ["MRV201"]


class TestThreads:
    def test_start(self, scene):
        scene.wait()
        scene.touch()
        in_a_thread(lambda: scene.touch(write=False)).join()
        assert scene.device.codes == []

    def test_after_the_start(self, scene):
        scene.wait()
        gate = _thread.allocate_lock()
        gate.acquire()
        thread = in_a_thread(lambda: (gate.acquire(), scene.touch(write=False)))
        scene.touch()
        gate.release()
        thread.join()
        assert scene.device.codes == ["MRV208"]

    def test_join(self, scene):
        in_a_thread(scene.wait).join()
        scene.touch()
        assert scene.device.codes == []

    def test_join_that_times_out(self, scene):
        gate, waited = _thread.allocate_lock(), _thread.allocate_lock()
        gate.acquire()
        waited.acquire()
        thread = in_a_thread(lambda: (scene.wait(), waited.release(), gate.acquire()))
        waited.acquire()
        thread.join(timeout=0)
        scene.touch()
        gate.release()
        thread.join()
        assert scene.device.codes == ["MRV201"]

    def test_seeing_that_it_is_over(self, scene):
        thread = in_a_thread(scene.wait)
        while thread.is_alive():
            pass
        scene.touch()
        assert scene.device.codes == []

    def test_timer(self, scene):
        timer = threading.Timer(0, scene.wait)
        timer.start()
        timer.join()
        scene.touch()
        assert scene.device.codes == []

    def test_subclass_with_a_run_of_its_own(self, scene):
        class Worker(threading.Thread):
            def run(self):
                scene.wait()

        worker = Worker()
        worker.start()
        worker.join()
        scene.touch()
        assert scene.device.codes == []
        assert "run" not in vars(worker)

    def test_each_has_a_lane_that_ends(self, threaded):
        lanes = []
        workers = [in_a_thread(lambda: lanes.append(threaded.host_lane())) for _ in range(3)]
        for worker in workers:
            worker.join()
        assert len({*lanes, threaded.host_lane()}) == 4
        assert sorted(threaded.judge.ended) == sorted(lanes)

    def test_one_that_fails(self, scene):
        failures = []
        hook, threading.excepthook = threading.excepthook, lambda failure: failures.append(failure.exc_type)
        try:
            in_a_thread(lambda: (scene.wait(), 1 // 0)).join()
        finally:
            threading.excepthook = hook
        scene.touch()
        assert failures == [ZeroDivisionError]
        assert scene.device.codes == []
        assert len(scene.device.judge.ended) == 1

    def test_cannot_start_twice(self, threaded):
        thread = in_a_thread(lambda: None)
        thread.join()
        with pytest.raises(RuntimeError):
            thread.start()
        assert "run" not in vars(thread)

    def test_one_that_an_operation_starts_is_no_thread_of_the_program(self, threaded):
        seen = []

        def run():
            thread = in_a_thread(lambda: seen.append(threaded.known_host_lane()))
            thread.join()

        threaded.enqueue("operation", OperationKind.KERNEL, run)
        threaded.synchronize()
        assert threaded.codes == []
        assert seen == [None]
        assert threaded.judge.ended == []


class TestQueues:
    def test_an_item_carries_what_came_before_it_only(self, scene):
        channel, second = queue.Queue(), _thread.allocate_lock()
        second.acquire()
        thread = in_a_thread(lambda: (channel.put("first"), scene.wait(), channel.put("second"), second.release()))
        assert channel.get() == "first"
        second.acquire()
        scene.touch()
        thread.join()
        assert scene.device.codes == ["MRV201"]

    def test_a_full_queue_sends_nothing(self, threaded):
        channel = queue.Queue(maxsize=1)
        channel.put("only")
        with pytest.raises(queue.Full):
            channel.put_nowait("other")
        assert channel.get() == "only"
        channel.put("other")
        assert channel.get() == "other"

    def test_items_from_before_the_hooks(self, device):
        channel = queue.Queue()
        channel.put("early")
        undo = threads.install(device)
        assert channel.get() == "early"
        undo()


class TestInstalling:
    OWNERS = (
        threading, queue, concurrent.futures, concurrent.futures._base, threading.Thread, threading.Event,
        threading.Condition, threading.Semaphore, threading.BoundedSemaphore, threading.Barrier, queue.Queue,
        concurrent.futures.Future, ThreadPoolExecutor, asyncio.base_events.BaseEventLoop,
    )  # fmt: skip

    def test_nothing_is_left_behind(self, device):
        before = [dict(vars(owner)) for owner in self.OWNERS]
        undo = threads.install(device)
        assert [dict(vars(owner)) for owner in self.OWNERS] != before
        undo()
        assert [dict(vars(owner)) for owner in self.OWNERS] == before

    def test_what_was_made_goes_on_working(self, device):
        undo = threads.install(device)
        made = [way() for way in WAYS]
        undo()
        operations = len(device.judge.names)
        for send, receive in made:
            thread = in_a_thread(send)
            receive()
            thread.join()
        assert len(device.judge.names) == operations
        assert device.judge.ended == []

    def test_a_thread_that_outlives_the_device(self, device):
        undo = threads.install(device)
        gate = _thread.allocate_lock()
        gate.acquire()
        thread = in_a_thread(gate.acquire)
        undo()
        gate.release()
        thread.join()
        assert device.codes == []

    def test_locks_inside_of_queues_and_futures_are_plain(self, threaded):
        channel, event, future = queue.Queue(), threading.Event(), concurrent.futures.Future()
        assert type(channel.mutex) is type(event._cond._lock) is type(_thread.allocate_lock())
        assert type(future._condition._lock) is type(_thread.RLock())

    def test_tracked_locks_are_locks(self, threaded):
        lock, reentrant = threading.Lock(), threading.RLock()
        assert not lock.locked()
        assert lock.acquire(blocking=False)
        assert not lock.acquire(timeout=0)
        lock.release()
        with pytest.raises(RuntimeError):
            lock.release()
        with pytest.raises(RuntimeError):
            reentrant.release()
        tried = []
        with reentrant, reentrant:
            in_a_thread(lambda: tried.append(reentrant.acquire(blocking=False))).join()
        assert tried == [False]
        assert reentrant.acquire(blocking=False)
        reentrant.release()
        assert isinstance(lock, threading.Lock)
        assert "lock" in repr(lock)

    def test_a_broken_barrier(self, threaded):
        barrier = threading.Barrier(2)
        with pytest.raises(threading.BrokenBarrierError):
            barrier.wait(timeout=0)
        barrier.reset()
        thread = in_a_thread(barrier.wait)
        barrier.wait()
        thread.join()
