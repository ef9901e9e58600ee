"""Operators whose result's size, or whose accesses, depend on values: the same findings in every schedule.

Each row is a piece of a program that works on raced data: ``host``, a pinned tensor that a download may not have
filled, with ``alias``, its numpy array; or ``x``, a device tensor that another stream may not have written.
"""

import textwrap

import numpy as np
import pytest
import torch

from mrv2.checks.virtual import virtual_device

SIZE = 16
SCHEDULES = ("late", "early", "random:0", "random:1", "pct:0", "starve:0", "starve:1")

ON_HOST = """
alias[alias > 0]
m = alias > 0; alias[m]
m = alias > 0; alias[m].sum()
np.compress(alias > 0, alias)
np.extract(alias > 0, alias)
alias[np.flatnonzero(alias > 0)]
np.take(alias, np.flatnonzero(alias > 0))
np.nonzero(alias)
np.argwhere(alias)
np.unique(alias)
np.where(alias > 0, alias, 0)
np.sum(alias, where=alias > 0)
np.add(alias, 1, where=alias > 0)
np.repeat(alias, np.nan_to_num(np.maximum(alias, 0)).astype(int) % 4)
np.putmask(alias, alias > 0, 0)
alias[alias > 0] = 0
alias[:int(alias[0] > 0)].sum()
[value for value in alias if value > 0]
host[host > 0]
host.nonzero()
host.masked_select(host > 0)
host.unique()
host[host.nonzero()[:, 0]]
host.masked_fill_(host > 0, 0.0)
torch.repeat_interleave(host, host.nan_to_num().long().clamp(0, 3))
host[:int(host[0].item() > 0)].sum()
[host[i].item() for i in range(SIZE) if host[i].item() > 0]
""".strip().splitlines()

#: Of these, the lines that follow one another are told apart: none may depend on the values of an earlier one.
ON_HOST_LINES = ["m = alias > 0\nalias[m]", "m = alias > 0\nnp.compress(m, alias)", "m = host > 0\nhost[m]"]

ON_DEVICE = """
x[x > 0]
m = x > 0; x[m]
y = x[x > 0]; y + 1; y.sum()
y = x[x > 0]; y.cpu()
x.nonzero()
x.nonzero().sum()
torch.argwhere(x)
torch.where(x > 0)
x.masked_select(x > 0)
torch.masked_select(x, x > 0).add_(1)
x.unique()
x.unique(return_counts=True)
torch.unique_consecutive(x)
torch.bincount(x.long().clamp(0, 3))
torch.repeat_interleave(x, x.long().clamp(0, 3))
torch.repeat_interleave(x.long().clamp(0, 3))
torch.nonzero_static(x, size=4)
torch.equal(x, x)
x[x.long().clamp(0, 3)]
x[x > 0] = 0
x[x > 0] = x.new_zeros(())
x.index_put_((x > 0,), torch.tensor(1.0, device='cuda'))
x[x.nonzero()[:, 0]]
x.tolist()
x[0].item()
torch.zeros(SIZE, device='cuda')[:int(x[0].item())].sum()
torch.empty(int(x[0].item()), device='cuda').fill_(1.0)
torch.arange(x[0].item(), device='cuda')
""".strip().splitlines()


def findings(rows, schedule, *, device, ordered=False):
    names = {"np": np, "torch": torch, "SIZE": SIZE}
    text = textwrap.indent(rows, "    ")
    exec(compile(f"def program(host, alias, x):\n{text}", "user_program.py", "exec"), names)
    with virtual_device(schedule) as vd:
        host, x = torch.zeros(SIZE, pin_memory=True), torch.zeros(SIZE, device="cuda")
        alias, source, side = host.numpy(), torch.full((SIZE,), 3.0, device="cuda"), torch.cuda.Stream()
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            (x if device else host).copy_(source, non_blocking=True)
        if ordered:
            side.synchronize()
        names["program"](host, alias, x)
        torch.cuda.synchronize()
    return vd.findings


def said(found):
    """What findings say, without how often and of how many bytes: counts follow the values."""
    return sorted((f.code, f.verdict.value, f.title, f.where, f.other, f.allocation) for f in found)


pytestmark = pytest.mark.filterwarnings("ignore")
ROWS = [*((row, False) for row in [*ON_HOST, *ON_HOST_LINES]), *((row, True) for row in ON_DEVICE)]


@pytest.mark.parametrize(("rows", "device"), ROWS)
def test_the_same_in_every_schedule(rows, device):
    found = {schedule: said(findings(rows, schedule, device=device)) for schedule in SCHEDULES}
    assert {finding[0] for finding in found["late"]} == {"MRV204" if device else "MRV203"}
    assert all(other == found["late"] for other in found.values())


@pytest.mark.parametrize(("rows", "device"), ROWS)
def test_nothing_in_order(rows, device):
    assert all(findings(rows, schedule, device=device, ordered=True) == [] for schedule in ("late", "early"))


def test_one_line_is_one_finding():
    for schedule in SCHEDULES:
        (finding,) = findings("alias[alias > 0]", schedule, device=False)
        assert (finding.verdict.value, finding.evidence["occurrences"]) == ("violation", 1)


def test_elements_that_a_mask_leaves_out_are_not_read():
    """A mask that has nothing to do with the memory selects exactly."""
    for schedule in SCHEDULES:
        with virtual_device(schedule) as vd:
            host, source = torch.zeros(SIZE, pin_memory=True), torch.ones(8, device="cuda")
            host[8:].copy_(source, non_blocking=True)
            host.numpy()[np.arange(SIZE) < 8]
        assert vd.findings == []


@pytest.mark.parametrize("rows", ["n = int(x[0].item())\nx[:n].add_(1)", "y = x[x > 0]\nx[:len(y)].add_(1)"])
def test_what_raced_values_lead_to_comes_on_top_of_their_own_race(rows):
    """A slice as long as a raced value says touches nothing in one schedule: what follows from a race may differ."""
    first = {finding[:3] for finding in said(findings(rows.splitlines()[0], "late", device=True))}
    found = [{finding[:3] for finding in said(findings(rows, schedule, device=True))} for schedule in SCHEDULES]
    assert all(first <= titles for titles in found)
    assert any(first < titles for titles in found)
