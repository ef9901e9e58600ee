"""One number a row; the next token follows from it."""

import torch

from async_engine.ring import Ring, pinned


class Engine:
    """Rows of numbers on the device.

    Args:
        rows: how many.
        vocab_size: tokens are below it.
        device: ``"cuda"`` or ``"cpu"``.
    """

    def __init__(self, rows: int, vocab_size: int, device: str) -> None:
        self.rows, self.vocab_size, self.device = rows, vocab_size, torch.device(device)
        self.numbers = torch.zeros(rows, dtype=torch.int64, device=self.device)
        self.ring = Ring(3 * rows, self.device)
        self.copies = torch.cuda.Stream() if self.device.type == "cuda" else None
        self.scratch = torch.zeros(rows, dtype=torch.int64, device=self.device)

    def step(self, entering: list[int], values: list[int], drawing: list[int]) -> "Pending":
        """Rows where ``entering`` is 1 begin with a value; those where ``drawing`` is 1 draw a token."""
        sent = self.ring.send([*entering, *values, *drawing])
        enter, value, draw = sent[: self.rows], sent[self.rows : 2 * self.rows], sent[2 * self.rows :]
        self.numbers.copy_(torch.where(enter == 1, value, self.numbers))
        tokens = (self.numbers * 31 + 7) % self.vocab_size
        self.numbers.copy_(torch.where(draw == 1, self.numbers + tokens + 1, self.numbers))
        return self.download(tokens)

    def download(self, tokens: torch.Tensor) -> "Pending":
        """Copy tokens to the host beside further steps."""
        if self.copies is None:
            return Pending(tokens, None)
        host = pinned(self.rows, self.device)
        self.copies.wait_stream(torch.cuda.current_stream())
        tokens.record_stream(self.copies)
        done = torch.cuda.Event()
        with torch.cuda.stream(self.copies):
            host.copy_(tokens, non_blocking=True)
            done.record()
        return Pending(host, done)

    def idle(self) -> None:
        """Two streams that touch memory which nobody else does: an order that nothing needs."""
        self.copies.wait_stream(torch.cuda.current_stream())
        self.scratch.record_stream(self.copies)
        with torch.cuda.stream(self.copies):
            self.scratch.add_(1)
        torch.cuda.current_stream().wait_stream(self.copies)

    def never(self) -> None:
        """Nobody calls it."""
        torch.cuda.synchronize()


class Pending:
    """Tokens on their way."""

    def __init__(self, host: torch.Tensor, done: torch.cuda.Event | None) -> None:
        self.host, self.done = host, done

    def result(self) -> list[int]:
        """Wait for them."""
        if self.done is not None:
            self.done.synchronize()
            length = len(self.host)
            assert length
        return self.host.tolist()
