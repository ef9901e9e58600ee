"""Executors and event loops: what they hand over from the submitter to the worker and back."""

import _thread
import asyncio
import concurrent.futures
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest


def in_a_thread(work):
    thread = threading.Thread(target=work)
    thread.start()
    return thread


class TestExecutors:
    def test_result(self, scene):
        with ThreadPoolExecutor(1) as pool:
            pool.submit(scene.wait).result()
            scene.touch()
        assert scene.device.codes == []

    def test_submitting_hands_over(self, scene):
        with ThreadPoolExecutor(1) as pool:
            pool.submit(int).result()  # the worker is there before
            scene.wait()
            scene.touch()
            pool.submit(scene.touch, write=False).result()
        assert scene.device.codes == []

    def test_without_looking_at_the_result(self, scene):
        waited = _thread.allocate_lock()
        waited.acquire()
        with ThreadPoolExecutor(1) as pool:
            pool.submit(lambda: (scene.wait(), waited.release()))
            waited.acquire()
            scene.touch()
        assert scene.device.codes == ["MRV201"]

    def test_map(self, scene):
        with ThreadPoolExecutor(2) as pool:
            assert list(pool.map(lambda _: scene.wait(), range(3))) == [None] * 3
            scene.touch()
        assert scene.device.codes == []

    def test_shutdown(self, scene):
        with ThreadPoolExecutor(1) as pool:
            pool.submit(scene.wait)
        scene.touch()
        assert scene.device.codes == []

    def test_callback_of_another_thread(self, scene):
        """Whoever adds the callback to a finished future takes over, and so does the callback."""
        future = concurrent.futures.Future()
        thread = in_a_thread(lambda: (scene.wait(), future.set_result(1)))
        finished = _thread.allocate_lock()
        finished.acquire()
        concurrent.futures.wait([future])
        future.add_done_callback(lambda _: (scene.touch(), finished.release()))
        finished.acquire()
        thread.join()
        assert scene.device.codes == []

    def test_exception_in_the_worker(self, scene):
        def fail():
            scene.wait()
            raise KeyError("worker")

        with ThreadPoolExecutor(1) as pool:
            with pytest.raises(KeyError):
                pool.submit(fail).result()
            scene.touch()
        assert scene.device.codes == []


class TestAsyncio:
    def test_to_thread(self, scene):
        async def main():
            await asyncio.to_thread(scene.wait)
            scene.touch()

        asyncio.run(main())
        assert scene.device.codes == []

    def test_to_thread_and_back(self, scene):
        async def main():
            await asyncio.to_thread(int)
            scene.wait()
            scene.touch()
            await asyncio.to_thread(scene.touch, write=False)

        asyncio.run(main())
        assert scene.device.codes == []

    def test_not_awaited_yet(self, scene):
        gate, waited = _thread.allocate_lock(), _thread.allocate_lock()
        gate.acquire()
        waited.acquire()

        def work():
            gate.acquire()
            scene.wait()
            waited.release()

        async def main():
            task = asyncio.get_running_loop().run_in_executor(None, work)
            gate.release()
            waited.acquire()
            scene.touch()
            await task

        asyncio.run(main())
        assert scene.device.codes == ["MRV201"]

    def test_call_soon_threadsafe(self, scene):
        async def main():
            arrived = asyncio.Event()
            loop = asyncio.get_running_loop()
            thread = in_a_thread(lambda: (scene.wait(), loop.call_soon_threadsafe(arrived.set)))
            await arrived.wait()
            scene.touch()
            thread.join()

        asyncio.run(main())
        assert scene.device.codes == []
