"""The runner, as somebody wrote it: right on an idle GPU, and wrong."""

import torch


class Runner:
    """One row for each request.

    Args:
        rows: how many requests.
        limit: at which a request is finished.
    """

    def __init__(self, rows: int, limit: int) -> None:
        self.limit = limit
        self.sums = torch.zeros(rows, dtype=torch.int64, device="cuda")
        self.output = torch.zeros(rows, dtype=torch.int64, pin_memory=True)
        self.finished = False

    def step(self, numbers: list[int]) -> None:
        """Add one number to each row; must not wait for the GPU."""
        sent = torch.tensor(numbers, pin_memory=True)
        self.sums += sent.to("cuda", non_blocking=True)
        # Waits until the GPU has done everything, in each step.
        self.finished = self.sums.max().item() >= self.limit
        self.output.copy_(self.sums, non_blocking=True)

    def results(self) -> tuple[list[int], bool]:
        """The sums, and whether any has reached the limit."""
        # The copy may still be under way.
        return self.output.tolist(), self.finished
