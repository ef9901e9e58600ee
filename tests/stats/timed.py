"""A sampler that takes time by a clock of its own."""

import numpy as np


class Clock:
    """Shows the time that a sampler has taken."""

    def __init__(self) -> None:
        self.now = 0.0
        self.longest = 0.0

    def __call__(self) -> float:
        return self.now

    def spend(self, seconds: float) -> None:
        self.now += seconds
        self.longest = max(self.longest, seconds)


class Timed:
    """A sampler whose calls take time: so much each, and so much for each draw or row; words are for nothing."""

    name = "timed"
    keyed = True

    def __init__(self, sampler: object, clock: Clock, call: float, draw: float) -> None:
        self._sampler, self._clock, self._call, self._draw = sampler, clock, call, draw

    def __getattr__(self, name):
        found = getattr(self._sampler, name)
        if not callable(found):
            return found

        def timed(*arguments):
            last = arguments[-1]
            count = last if isinstance(last, int) else max(len(part) for part in arguments[:4] if np.ndim(part))
            self._clock.spend(self._call + self._draw * count * (name not in ("words", "noise")))
            return found(*arguments)

        return timed


class Compiling(Timed):
    """Its first calls of each kind take long, as if a kernel were compiled for them; all others are quick.

    A kind is what a compiler would specialise on: the method, the width of the rows, and the number of draws.
    """

    def __init__(self, sampler: object, clock: Clock, slow_calls: int, draw: float) -> None:
        super().__init__(sampler, clock, 1e-4, draw)
        self._slow_calls, self._calls = slow_calls, {}

    def __getattr__(self, name):
        found = super().__getattr__(name)
        if name not in ("sample", "count"):
            return found

        def compiled(logits, *arguments):
            last = arguments[-1]
            kind = name, logits.shape[-1], last if isinstance(last, int) else len(last)
            self._calls[kind] = self._calls.get(kind, 0) + 1
            self._clock.spend(0.2 * (self._calls[kind] <= self._slow_calls))
            return found(logits, *arguments)

        return compiled


def timed(sampler, call=1e-3, draw=1e-3):
    clock = Clock()
    return Timed(sampler, clock, call, draw), clock
