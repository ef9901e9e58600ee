"""The audit on a GPU: its script, and on a GPU what it must reach."""

import json

import pytest
import torch

from mrv2.checks import triton_cpu
from mrv2.ci.gpu import sampler_audit
from mrv2.fuzz.targets.reference_sampler import ReferenceSampler
from mrv2.stats.planted.clean import CleanSampler


def test_speed_is_that_of_counted_draws():
    assert sampler_audit.speed(CleanSampler(), draws=1000, vocab_size=500) > 0


def test_speed_of_the_kernels_counts_whole_batches():
    with triton_cpu.enabled():
        assert sampler_audit.kernel_speed(draws=100, vocab_size=300, device="cpu") > 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="here it would run")
def test_without_a_gpu_it_says_so(tmp_path, capsys):
    assert sampler_audit.main([str(tmp_path)]) == 2
    assert "on a machine with CUDA" in capsys.readouterr().err


@pytest.mark.gpu
def test_draws_and_counts_stay_on_the_device(record_property):
    speed = sampler_audit.speed(ReferenceSampler(device="cuda"))
    record_property("sampler_draws_per_second", json.dumps(speed))
    assert speed > 0
