"""The script that times the filters and the likeliest tokens on a GPU: its checks, and its tables on the CPU."""

from dataclasses import replace
from unittest import mock

import pytest
import torch

from mrv2.checks import triton_cpu
from mrv2.ci.gpu import filter_speed
from mrv2.ci.gpu.filter_speed import CASES, Batch, kept_rightly, report, reported_rightly
from mrv2.refrunner.sampling.logprobs import row_statistics

V = 600


@pytest.fixture(scope="module", autouse=True)
def _compiled():
    with triton_cpu.enabled():
        yield


@pytest.fixture(scope="module")
def logits():
    return torch.randn(8, V, generator=torch.Generator().manual_seed(0))


def test_nothing_differs_on_the_cpu():
    found = filter_speed.differences("cpu", 8, V)
    assert len(found) == 6 * (2 * len(CASES) + 2)
    assert {name: number for name, number in found.items() if number} == {}


@pytest.mark.parametrize("name", CASES)
def test_wrong_thresholds_are_noticed(logits, name):
    _, _, processed = Batch(CASES[name], 8, V, "cpu").compared(logits)
    settings = CASES[name].settings
    assert kept_rightly(processed, settings).all()
    kept = torch.sort(processed.logits, dim=1, descending=True).values
    floats = filter_speed._as_logits(processed.thresholds)[:, None]
    number = (kept >= floats).sum(1)
    rows = torch.arange(8)
    for one_more_or_less in (kept[rows, number], kept[rows, number - 2]):
        wrong = replace(processed, thresholds=ordered(one_more_or_less))
        assert not kept_rightly(wrong, settings).any()


def ordered(values):
    bits = values.view(torch.int32)
    return torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@pytest.mark.parametrize("name", CASES)
def test_torch_draws_what_the_filters_keep(logits, name):
    _, _, processed = Batch(CASES[name], 8, V, "cpu").compared(logits)
    torch.manual_seed(0)
    for _ in range(20):
        drawn = processed.logits.gather(1, CASES[name].baseline(logits)[:, None])[:, 0]
        assert (drawn >= filter_speed._as_logits(processed.thresholds)).all()


def test_wrong_reports_are_noticed(logits):
    found = report(logits, row_statistics(logits), 5)
    assert reported_rightly(logits, found).all()
    other = found.token_ids.clone()
    other[:, 4] = logits.argmin(1)
    assert not reported_rightly(logits, replace(found, token_ids=other)).any()
    assert not reported_rightly(logits, replace(found, values=found.values + 1e-3)).any()
    assert not reported_rightly(logits, replace(found, ranks=found.ranks + 1)).any()


def test_each_time_is_of_the_launches_that_it_names(logits):
    launch = triton_cpu.Session.launch

    def launches(calls):
        with mock.patch.object(triton_cpu.Session, "launch", autospec=True, side_effect=launch) as observed:
            for call in calls:
                call()
        return observed.call_count / len(calls)

    tensors = [logits, -logits]
    filters = filter_speed.filter_lines(tensors, "normal", launches)
    reports = filter_speed.report_lines(tensors, launches)
    assert [line.pop("filters") for line in filters] == list(CASES)
    assert {line.pop("logits") for line in filters} == {"normal"}
    # Six more where there is top-p.
    assert filters == [
        {"drawn": 4 + more, "thresholds known": 2 + more, "processed": 1, "torch": 0} for more in (0, 0, 6, 6)
    ]
    assert [line.pop("likeliest") for line in reports] == [5, 20]
    torch_alone = {"torch topk": 0, "torch log_softmax, topk": 0}
    assert reports == [{"reported": 3, "likeliest found": 2, **torch_alone}] * 2


def test_what_torch_cannot_do_in_a_graph_is_told(logits):
    def refuses(_):
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    told = filter_speed.by_torch(torch.sin, [logits], refuses)
    assert told == "not captured: operation not permitted when stream is capturing"


def test_a_machine_without_a_gpu_is_refused(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert filter_speed.main([str(tmp_path / "figures")]) == 2
    assert "CUDA" in capsys.readouterr().err and not any(tmp_path.iterdir())
