"""The script of both runners' figures, run small on the CPU: the figures are there, and belong to what they say."""

import json

from mrv2.checks import triton_cpu
from mrv2.ci.gpu import runner_speed
from mrv2.ci.gpu.runner_speed import TURNS, WORKLOADS, main, small


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
