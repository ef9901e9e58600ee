"""The hooks together, on the virtual device, in every schedule."""

import pickle
import queue
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from mrv2.checks.virtual import virtual_device

SCHEDULES = ("late", "early", "random:1", "starve:0")


@triton.jit
def double_all(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    lane = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + lane, tl.load(x_ptr + lane, mask=lane < n) * 2, mask=lane < n)


@pytest.fixture(params=SCHEDULES)
def device(request):
    with virtual_device(request.param) as virtual:
        yield virtual


def codes(device):
    return [finding.code for finding in device.findings]


class TestKernels:
    def test_host_writes_what_a_kernel_reads_in_place(self, device):
        source, out = torch.ones(8, pin_memory=True), torch.zeros(8, device="cuda")
        double_all[(2,)](source, out, 8, BLOCK=4)
        source.numpy()[2] = 5.0
        torch.cuda.synchronize()  # what a kernel touches is known when it has run
        assert codes(device) == ["MRV202"]

    def test_host_writes_beside_what_a_kernel_reads_in_place(self, device):
        source, out = torch.ones(8, pin_memory=True), torch.zeros(8, device="cuda")
        double_all[(1,)](source, out, 3, BLOCK=4)
        source.numpy()[3:] = 5.0
        torch.cuda.synchronize()
        source.numpy()[:] = 5.0
        assert out.tolist() == [2.0] * 3 + [0.0] * 5
        assert codes(device) == []

    def test_side_stream_writes_what_a_kernel_reads(self, device):
        x, out = torch.ones(16, device="cuda"), torch.zeros(8, device="cuda")
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        double_all[(2,)](x, out, 8, BLOCK=4)
        with torch.cuda.stream(side):
            x[8:].fill_(3.0)
        torch.cuda.synchronize()
        assert codes(device) == []
        double_all[(2,)](x, out, 8, BLOCK=4)
        with torch.cuda.stream(side):
            x[5:].fill_(3.0)
        torch.cuda.synchronize()
        assert codes(device) == ["MRV204"]

    def test_captured_and_replayed(self, device):
        x, out = torch.ones(4, device="cuda"), torch.zeros(4, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            double_all[(1,)](x, out, 4, BLOCK=4)
        for value in (1.0, 2.0):
            x.fill_(value)
            graph.replay()
            assert out.tolist() == [2 * value] * 4
        assert codes(device) == []

    def test_pageable_memory_is_refused(self, device):
        with pytest.raises(ValueError, match="cpu tensor"):
            double_all[(1,)](torch.ones(4), torch.zeros(4, device="cuda"), 4, BLOCK=4)


def _download():
    return torch.ones(4, device="cuda").to("cpu", non_blocking=True)


class TestArrays:
    @pytest.mark.parametrize(
        "read",
        [
            lambda tensor: tensor.numpy()[0], lambda tensor: np.asarray(tensor)[0],
            lambda tensor: np.array(tensor, copy=True),
            lambda tensor: tensor[1:].numpy().sum(), lambda tensor: torch.tensor(tensor.numpy()),
            lambda tensor: np.copyto(torch.ones(4, pin_memory=True).numpy(), tensor),
            lambda tensor: np.multiply.outer(torch.ones(4, pin_memory=True).numpy(), tensor.numpy()),
            lambda tensor: torch.from_numpy(tensor.numpy()).sum(), lambda tensor: pickle.dumps(tensor.numpy()),
            lambda tensor: torch.frombuffer(memoryview(tensor.numpy()), dtype=torch.float32)[1:].add_(1),
        ],
    )  # fmt: skip
    def test_reads_before_the_download_is_over(self, device, read):
        tensor = _download()
        read(tensor)
        assert codes(device) == ["MRV203"]

    def test_looking_is_no_read(self, device):
        tensor = _download()
        alias = tensor.numpy()
        alias[1:].shape, np.asarray(tensor), torch.from_numpy(alias).shape, torch.as_tensor(alias), alias.T
        torch.cuda.synchronize()
        assert alias.tolist() == [1.0] * 4
        assert codes(device) == []


class TestThreads:
    def test_a_worker_waits_and_hands_over(self, device):
        sent, received = queue.Queue(), queue.Queue()

        def work():
            for number in range(3):
                result, event = sent.get()
                event.synchronize()
                received.put(result.tolist() == [2.0 * number] * 4)

        worker = threading.Thread(target=work)
        worker.start()
        source, target = torch.zeros(4, pin_memory=True), torch.zeros(4, device="cuda")
        for number in range(3):
            source.numpy()[:] = number
            target.copy_(source, non_blocking=True)
            out = torch.empty(4, device="cuda")
            double_all[(1,)](target, out, 4, BLOCK=4)
            event, result = torch.cuda.Event(), out.to("cpu", non_blocking=True)
            event.record()
            sent.put((result, event))
            assert received.get()
        worker.join()
        assert codes(device) == []

    def test_the_main_thread_does_not_wait_for_the_worker(self, device):
        source, target = torch.zeros(4, pin_memory=True), torch.zeros(4, device="cuda")
        target.copy_(source, non_blocking=True)
        event = torch.cuda.Event()
        event.record()
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(event.synchronize)
            source.numpy()[:] = 1.0
            waiting.result()
            source.numpy()[:] = 2.0
        assert codes(device) == ["MRV201"]

    def test_kernels_launched_in_a_thread(self, device):
        x, out = torch.ones(4, device="cuda"), torch.zeros(4, device="cuda")
        with ThreadPoolExecutor(1) as pool:
            pool.submit(double_all[(1,)], x, out, 4, BLOCK=4).result()
        assert out.tolist() == [2.0] * 4
        assert codes(device) == []
