"""The call graph and the flow of values: programs with one fault somewhere, and their twins without it."""

import pytest

HEAD = """
import functools, threading
import contextlib
import numpy as np
import torch
from dataclasses import dataclass
"""

#: name -> program whose function ``fault`` gets a device tensor and waits for it, reached from ``Runner.step``
REACHED = {
    "method": """
class Runner:
    def step(self, x):
        self.collect(torch.zeros(3, device="cuda"))
    def collect(self, x):
        return x.item()
""",
    "alias of a function": """
def collect(x):
    return x.item()
gather = collect
class Runner:
    def step(self):
        take = gather
        take(torch.zeros(3, device="cuda"))
""",
    "inherited method": """
class Base:
    def collect(self, x):
        return x.item()
class Runner(Base):
    def step(self):
        self.collect(torch.zeros(3, device="cuda"))
""",
    "override in a subclass": """
class Runner:
    def step(self):
        self.collect(torch.zeros(3, device="cuda"))
    def collect(self, x):
        return x
class Special(Runner):
    def collect(self, x):
        return x.item()
""",
    "super": """
class Base:
    def step(self):
        x = torch.zeros(3, device="cuda")
        return x.item()
class Runner(Base):
    def step(self):
        return super().step()
""",
    "partial": """
def collect(n, x):
    return x.item()
class Runner:
    def step(self):
        take = functools.partial(collect, 3)
        take(torch.zeros(3, device="cuda"))
""",
    "callback handed on": """
def apply(function, x):
    return function(x)
class Runner:
    def step(self):
        apply(self.collect, torch.zeros(3, device="cuda"))
    def collect(self, x):
        return x.item()
""",
    "callback of something unknown": """
from elsewhere import visit
class Runner:
    def step(self):
        self.x = torch.zeros(3, device="cuda")
        visit(self.collect)
    def collect(self):
        return self.x.item()
""",
    "property": """
class Runner:
    @property
    def last(self):
        return torch.zeros(3, device="cuda").item()
    def step(self):
        return self.last
""",
    "local function": """
class Runner:
    def step(self):
        x = torch.zeros(3, device="cuda")
        def collect():
            return x.item()
        collect()
""",
    "lambda and map": """
class Runner:
    def step(self):
        return list(map(lambda x: x.item(), [torch.zeros(3, device="cuda")]))
""",
    "async": """
class Runner:
    async def step(self):
        x = await self.make()
        async with contextlib.AsyncExitStack():
            x.item()
    async def make(self):
        return torch.zeros(3, device="cuda")
""",
    "comprehension": """
class Runner:
    def step(self):
        xs = [torch.zeros(3, device="cuda") for _ in range(3)]
        return {i: x.item() for i, x in enumerate(xs)}
""",
    "context manager": """
class Runner:
    @contextlib.contextmanager
    def waiting(self):
        yield torch.zeros(3, device="cuda")
    def step(self):
        with self.waiting() as x:
            x.item()
""",
    "enter of a class": """
class Region:
    def __enter__(self):
        torch.zeros(3, device="cuda").item()
class Runner:
    def step(self):
        with Region():
            pass
""",
    "walrus": """
class Runner:
    def step(self):
        if (x := torch.zeros(3, device="cuda")) is not None:
            x.item()
""",
    "match": """
class Runner:
    def step(self, kind: str):
        match kind:
            case "a":
                x = torch.zeros(3, device="cuda")
            case _:
                x = torch.ones(3, device="cuda")
        x.item()
""",
    "attribute of a dataclass": """
@dataclass
class Batch:
    rows: torch.Tensor
    size: int
class Runner:
    def step(self):
        self.collect(Batch(torch.zeros(3, device="cuda"), 3))
    def collect(self, batch: Batch):
        return batch.rows.item()
""",
    "attribute of an attribute": """
class Buffer:
    def __init__(self, n: int, device: torch.device):
        self.gpu = torch.zeros(n, device=device)
        self.cpu = torch.zeros(n)
class Runner:
    def __init__(self, device: torch.device):
        self.buffer = Buffer(3, device)
    def step(self):
        return self.buffer.gpu.item()
""",
    "output of a model": """
class Runner:
    def __init__(self):
        self.model = torch.nn.Linear(3, 3)
    def step(self, x):
        return self.model(x).argmax().item()
""",
    "own layer": """
class Net(torch.nn.Module):
    def forward(self, x):
        return x.item()
class Runner:
    def __init__(self):
        self.net = Net()
    def step(self):
        self.net(torch.zeros(3, device="cuda"))
""",
    "registered buffer": """
class Runner(torch.nn.Module):
    def __init__(self):
        self.register_buffer("scale", torch.zeros(3, device="cuda"))
        self.scale = torch.zeros(3, device="cuda")
    def step(self):
        return self.scale.item()
""",
    "container": """
class Runner:
    def __init__(self):
        self.waiting = []
    def step(self):
        self.waiting.append(torch.zeros(3, device="cuda"))
        for x in self.waiting:
            x.item()
""",
    "annotated parameter of unknown place": """
class Runner:
    def step(self, x: torch.Tensor):
        return x.item()
""",
    "generator": """
class Runner:
    def rows(self):
        yield from [torch.zeros(3, device="cuda")]
    def step(self):
        return [x.item() for x in self.rows()]
""",
    "loop carries a value": """
class Runner:
    def step(self):
        x = None
        for _ in range(3):
            if x is not None:
                x.item()
            x = torch.zeros(3, device="cuda")
""",
    "augmented": """
class Runner:
    def step(self, n: int):
        n += torch.zeros(3, device="cuda")
        return n.item()
""",
}

SILENT = {
    "another function": """
class Runner:
    def step(self):
        pass
    def report(self):
        return torch.zeros(3, device="cuda").item()
""",
    "tensor of the host in, tensor of the host out": """
class Runner:
    def step(self):
        self.collect(torch.zeros(3))
    def collect(self, x: torch.Tensor):
        return x.item()
""",
    "name that says host": """
class Runner:
    def step(self, lens_cpu: torch.Tensor):
        return lens_cpu.tolist()
""",
    "alias of an array": """
class Runner:
    def __init__(self):
        self.cpu = torch.zeros(3, pin_memory=True)
        self.np = self.cpu.numpy()
    def step(self):
        return self.np.tolist(), self.cpu.tolist()
""",
    "thread": """
class Runner:
    def step(self):
        threading.Thread(target=self.collect, args=(torch.zeros(3, device="cuda"),)).start()
    def collect(self, x):
        return x.item()
""",
    "default that is off": """
class Runner:
    def step(self):
        self.collect(torch.zeros(3, device="cuda"))
    def collect(self, x, check=False):
        if check:
            x.item()
""",
    "super without the fault": """
class Base:
    def step(self):
        return 3
class Runner(Base):
    def step(self):
        return super().step()
    def other(self):
        torch.cuda.synchronize()
""",
    "kernel": """
import triton
@triton.jit
def kernel(x):
    if x.item():
        pass
class Runner:
    def step(self):
        kernel[(1,)](torch.zeros(3, device="cuda"))
""",
    "the same name elsewhere": """
class Other:
    def collect(self):
        torch.cuda.synchronize()
class Mine:
    def collect(self):
        return 1
class Runner:
    def __init__(self):
        self.mine = Mine()
    def step(self):
        return self.mine.collect()
""",
    "a name says host, but not whether it is pinned": """
class Runner:
    def step(self, ids_cpu: torch.Tensor):
        return ids_cpu.to("cuda", non_blocking=True)
""",
    "pinned where that is possible": """
class Runner:
    def step(self, pin: bool):
        ids = torch.zeros(3)
        if pin:
            ids = ids.pin_memory()
        return ids.to("cuda", non_blocking=True)
""",
    "flag of another platform": """
from elsewhere import is_hip
_is_hip = is_hip()
class Runner:
    def step(self):
        if _is_hip:
            torch.cuda.synchronize()
""",
    "compiled code": """
class Runner:
    @torch.compile
    def step(self):
        x = torch.zeros(3, device="cuda")
        x[0] = 1.0
""",
    "a number or a tensor": """
class Runner:
    def step(self, flag: bool):
        x = torch.zeros(3, device="cuda").sum() if flag else 3
        if x > 2:
            return x
""",
    "None or a tensor of many elements": """
class Runner:
    def __init__(self, device: torch.device):
        self.states = torch.zeros(3, device=device)
    def step(self):
        if self.states:
            return 1
""",
    "a parameter that says it is a number": """
class Runner:
    def __init__(self, device: torch.device):
        self.states = torch.zeros(3, device=device)
    def step(self):
        self.take(self.states)
    def take(self, n: int):
        return list(range(n))
""",
    "branch of another platform": """
class Runner:
    def step(self, given: torch.Tensor, x: torch.Tensor):
        if given.device.type == "cpu":
            return x.item()
""",
    "override of another platform": """
class Runner:
    def step(self):
        self.collect()
    def collect(self):
        return 1
class CPURunner(Runner):
    def collect(self):
        torch.cuda.synchronize()
""",
    "exclusive uses of staging memory": """
class Runner:
    def __init__(self):
        self.staging = torch.zeros(3, pin_memory=True)
        self.x = torch.zeros(3, device="cuda")
        self.done = torch.cuda.Event()
    def step(self, flag: bool):
        while not self.done.query():
            pass
        if flag:
            self.send()
        else:
            self.send()
    def send(self):
        self.staging[0] = 1
        self.x.copy_(self.staging, non_blocking=True)
""",
    "copy that is waited for elsewhere": """
class Runner:
    def step(self):
        x = torch.zeros(3, device="cuda").to("cpu", non_blocking=True)
        return x
""",
}


@pytest.mark.parametrize("name", REACHED)
def test_the_fault_is_reached(search, name: str) -> None:
    findings = search(HEAD + REACHED[name], "engine:Runner.step").findings
    assert [finding.code for finding in findings] == ["MRV101"]


@pytest.mark.parametrize("name", SILENT)
def test_no_fault_is_reached(search, name: str) -> None:
    assert search(HEAD + SILENT[name], "engine:Runner.step").findings == ()


def test_the_way_from_the_root_is_told(search) -> None:
    (finding,) = search(HEAD + REACHED["method"], "engine:Runner.step").findings
    assert finding.where[0].function == "Runner.collect"
    assert [step.partition(",")[0] for step in finding.evidence["chain"]] == [
        "engine:Runner.step",
        "engine:Runner.collect",
    ]


def test_what_lies_behind_a_branch_is_only_suspected(search) -> None:
    program = """
import torch
def step(flag: bool):
    if flag:
        torch.cuda.synchronize()
    torch.cuda.synchronize()
"""
    findings = search(program, "engine:step").findings
    assert [finding.verdict.value for finding in findings] == ["suspect", "violation"]


def test_a_tensor_of_unknown_place_is_possible_only(search) -> None:
    (finding,) = search(HEAD + REACHED["annotated parameter of unknown place"], "engine:Runner.step").findings
    assert finding.evidence["confidence"] == "possible"


def test_functions_that_call_each_other_end(search) -> None:
    program = """
def ping(x, depth):
    return pong([x], depth)
def pong(x, depth):
    return ping((x, x), depth)
"""
    assert search(program, "engine:ping").reached == ("engine:ping", "engine:pong")


def test_calls_that_are_too_deep_are_told(search) -> None:
    chain = "\n".join(f"def f{n}(x):\n    return f{n + 1}(x)\n" for n in range(80))
    result = search(chain + "\ndef f80(x):\n    return x\n", "engine:f0")
    assert len(result.cut) == 1
    assert result.cut[0] not in result.reached
