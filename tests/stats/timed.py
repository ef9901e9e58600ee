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


def timed(sampler, call=1e-3, draw=1e-3):
    clock = Clock()
    return Timed(sampler, clock, call, draw), clock
