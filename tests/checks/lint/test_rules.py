"""Each rule: bodies of a step that break it, and bodies like them that do not."""

import pytest

BREAKS = {
    "MRV101": [
        "x.item()",
        "(x + 1).tolist()",
        "x.cpu()",
        "x.to('cpu')",
        "x.to(device='cpu')",
        "self.logits.max().item()",
        "float(x[0])",
        "int(x.sum())",
        "bool(x.any())",
        "range(x.max())",
        "f'{x}'",
        "'{}'.format(x)",
        "'%s' % x",
        "print(x)",
        "if x.sum() > 3: pass",
        "while x.any(): break",
        "assert (x > 0).all()",
        "y = 1 if x.any() else 2",
        "y = not x.any()",
        "y = x.any() and size",
        "y = 0 < x.sum() < 3",
        "y = [v for v in range(3) if x[v] > 0]",
        "if size > 3 and x.any(): pass",
        "host[: x.sum()]",
        "self.names[x.argmax()]",
        "max([x[0], x[1]])",
        "all(x)",
        "torch.equal(x, x)",
        "torch.tensor([x[0], x[1]])",
        "x.sum() in (1, 2)",
        "match x.sum():\n    case 0: pass",
        "if (y := x.sum()) > 3: pass",
        "torch.zeros(4, device='cuda').numpy()",
    ],
    "MRV102": [
        "torch.tensor([1, 2], device='cuda')",
        "torch.tensor([1, 2], device=self.device)",
        "torch.as_tensor(self.array, device=self.device)",
        "torch.tensor(self.names, device=x.device)",
        "x.new_tensor([1.0])",
        "host.to(self.device)",
        "host.cuda()",
        "pinned.to('cuda')",
        "x.copy_(host)",
        "x.copy_(pinned)",
        "host.to(self.device, non_blocking=True)",
        "x.copy_(host, non_blocking=True)",
        "x.copy_(torch.from_numpy(self.array), non_blocking=True)",
        "x[3] = 2.0",
        "x[index] = 1.0",
        "x[:3] = host[:3]",
        "y = x[[1, 2]]",
        "y = x[self.array]",
        "y = x[host]",
    ],
    "MRV103": ["host.copy_(x)", "pinned.copy_(x)", "host.copy_(x, non_blocking=True)", "host[0] = x[0]"],
    "MRV104": [
        "torch.cuda.synchronize()",
        "torch.accelerator.synchronize()",
        "torch.cuda.current_stream().synchronize()",
        "self.side.synchronize()",
        "self.event.synchronize()",
        "wait = torch.cuda.synchronize\nwait()",
    ],
    "MRV105": [
        "x.nonzero()",
        "torch.nonzero(x)",
        "torch.where(x > 0)",
        "torch.masked_select(x, x > 0)",
        "x.unique()",
        "torch.bincount(index)",
        "x[x > 0]",
        "x[self.flags]",
        "x[~self.flags & (x > 1)]",
        "x[self.flags] = x[0]",
        "index.repeat_interleave(index)",
        "torch.nn.functional.one_hot(index)",
    ],
    "MRV106": ["torch.cuda.empty_cache()", "torch.accelerator.empty_cache()"],
    "MRV109": ["torch.linalg.inv(x)", "torch.isin(x, index)"],
    "MRV130": [
        "y = x + 1\nwith torch.cuda.stream(self.side):\n    z = y * 2",
        "with torch.cuda.stream(self.side):\n    z = x * 2\nw = z + 1",
        "side = torch.cuda.Stream()\ny = x + 1\nwith torch.cuda.stream(side):\n    z = torch.relu(y)",
        "self.side.wait_stream(torch.cuda.current_stream())\ny = x + 1\nwith torch.cuda.stream(self.side): z = y * 2",
    ],
    "MRV131": [
        "self.pinned[0] = size\nx.copy_(self.pinned, non_blocking=True)",
        "self.pinned.fill_(size)\ny = self.pinned.to('cuda', non_blocking=True)",
        "view = self.pinned[:3]\nview.numpy()[0] = size\nx.copy_(self.pinned, non_blocking=True)",
        "self.event.query\nself.pinned[0] = size\nx.copy_(self.pinned, non_blocking=True)",
    ],
}

KEEPS = [
    # values of the host
    "host.item()",
    "self.array.item()",
    "x.shape[0] > 3",
    "if x.shape[0] > 3: pass",
    "if x is None: pass",
    "if x.dim() == 2 and x.numel(): pass",
    "len(x)",
    "int(size)",
    "f'{x.shape} {x.dtype} {x.device}'",
    "if x.is_cuda: pass",
    "if x.device.type == 'cpu':\n    x.item()",
    "if not x.is_cuda:\n    x.item()",
    "host.max().tolist()",
    "if host.any(): pass",
    "self.names[size]",
    "host[: host.sum()]",
    "if isinstance(given, int):\n    int(given)",
    "max([x[0], x[1]], key=len)",
    "for row in x: pass",
    "y = x.cpu",
    # what stays on the device
    "y = torch.where(x > 0, x, 0.0)",
    "y = x.masked_fill(x > 0, 0.0)",
    "x[x > 0] = 0.0",
    "x[:3] = 0.0",
    "x[...] = 1",
    "x[index] = x[:4]",
    "y = x[index]",
    "y = x[2]",
    "index.repeat_interleave(index, output_size=9)",
    "index.repeat_interleave(2)",
    "torch.nn.functional.one_hot(index, num_classes=4)",
    "torch.nonzero(host)",
    "host[host > 0]",
    "(x == x).all()",
    "torch.zeros(4, device='cuda')",
    "torch.full((4,), 1.0, device='cuda')",
    "torch.empty_like(x)",
    "torch.arange(size, device=self.device)",
    # copies that do not wait
    "x.to('cpu', non_blocking=True)",
    "pinned.to(self.device, non_blocking=True)",
    "x.copy_(pinned, non_blocking=True)",
    "pinned.copy_(x, non_blocking=True)",
    "torch.tensor([1, 2], pin_memory=True).to('cuda', non_blocking=True)",
    "host.pin_memory().to('cuda', non_blocking=True)",
    "host.to('cpu')",
    "host.copy_(host)",
    "x.to(torch.float16)",
    "x.to(x.device)",
    "torch.linalg.inv(host)",
    "torch.linalg.inv_ex(x)",
    # a view of host memory that may be a device tensor
    "y = torch.ops.engine.view_on_device(pinned)\ny.copy_(x)",
    # streams with an order
    "y = x + 1\nself.side.wait_stream(torch.cuda.current_stream())\nwith torch.cuda.stream(self.side):\n    z = y * 2",
    """
main = torch.cuda.current_stream()
y = x + 1
with torch.cuda.stream(self.side):
    self.side.wait_stream(main)
    z = y * 2
main.wait_stream(self.side)
w = z + 1
""",
    "y = x + 1\nself.event.record()\nwith torch.cuda.stream(self.side):\n    self.event.wait()\n    z = y * 2",
    "y = x + 1\nself.side.wait_event(self.event)\nwith torch.cuda.stream(self.side):\n    z = y * 2",
    "y = x + 1\nwith torch.cuda.stream(self.side):\n    n = y.shape[0]",
    "y = x + 1\nwith torch.cuda.stream(torch.cuda.current_stream()):\n    z = y * 2",
    # staging with a poll, a ring, or fresh memory
    "while not self.event.query(): pass\nself.pinned[0] = size\nx.copy_(self.pinned, non_blocking=True)",
    "ring = [self.pinned, self.pinned]\nring[size][0] = 1\nx.copy_(ring[size], non_blocking=True)",
    "fresh = torch.empty(4, pin_memory=True)\nfresh[0] = size\nx.copy_(fresh, non_blocking=True)",
    "self.pinned[0] = size",
    # errors are not the hot path
    "if size > 3:\n    raise ValueError(f'{x}')",
    "try:\n    pass\nexcept ValueError:\n    print(x.item())",
    "if size > 3:\n    y = x.tolist()\n    raise ValueError(y)",
    # another platform
    "if torch.version.is_cpu():\n    x.item()",
]


@pytest.mark.parametrize(("code", "body"), [(code, body) for code, bodies in BREAKS.items() for body in bodies])
def test_a_body_that_breaks_a_rule(codes_of, code: str, body: str) -> None:
    assert code in codes_of(body)


@pytest.mark.parametrize("body", KEEPS)
def test_a_body_that_breaks_none(codes_of, body: str) -> None:
    assert codes_of(body) == []
