"""The script of both runners' figures, run small on the CPU: the figures are there, and belong to what they say."""

import json

import pytest

from mrv2.checks import triton_cpu
from mrv2.ci.bench.device_time import DeviceTime
from mrv2.ci.gpu import runner_speed
from mrv2.ci.gpu.runner_speed import TURNS, WORKLOADS, idle_share, main, small, steady_microseconds


def test_every_workload_has_a_smaller_twin():
    for workload in WORKLOADS.values():
        assert len(workload.shortened) <= len(workload.trace)
        assert all(one.prompt <= 40 and one.output <= 6 for one in small(workload.trace))


def test_the_script_compares_both_runners(tmp_path, monkeypatch, capsys):
    name = "decode, 32 requests"
    monkeypatch.setattr(runner_speed, "WORKLOADS", {name: WORKLOADS[name]})
    path = tmp_path / "figures.json"
    with triton_cpu.enabled():
        assert main(str(path), "--tiny") == 0
    figures = json.loads(path.read_text())
    told = figures["workloads"][name]
    assert told["same tokens"] == told["requests"] == 10
    assert figures["fallbacks"] == [] and figures["settings"]["graph_mode"] == "eager"
    for side in ("v2", "v1"):
        assert len(told[side]) == TURNS.count(side)
        for one in told[side]:
            host = one["host microseconds a step"]
            own = sum(time for part, time in host.items() if part not in ("mrv2.wait", "without waits"))
            assert abs(host["without waits"] - own) < 1e-6
            assert one["tokens a second"] > 0 and "device, profiled" not in one
    assert f"{name}: 10 of 10 requests with the same tokens" in capsys.readouterr().out


def test_the_idle_share_without_the_profiler_is_what_its_work_leaves_of_a_step():
    device = DeviceTime(10, 5000.0, 2900.0, 2000.0, 900.0, {}, 60, 10, 640, 10)  # 3000 µs are work or short gaps
    assert idle_share(device, 400.0) == pytest.approx(0.25)
    assert idle_share(device, 299.0) == 0.0


def test_the_first_steps_and_the_last_ones_are_no_steady_ones():
    slow, steady = [0, 9_000_000, 18_000_000], [20_000_000 + 1_000_000 * index for index in range(11)]
    assert steady_microseconds([*slow, *steady, 60_000_000, 90_000_000]) == 1000.0
    assert steady_microseconds([0, 2_000_000, 4_000_000]) == 2000.0
