"""The small runner as a target."""

from collections.abc import Mapping

from async_engine.engine import Engine

from mrv2.fuzz.targets.protocols import Feature, Knob
from mrv2.refrunner.api import StepOutput


class Handle:
    """Tokens of one step, by request."""

    def __init__(self, pending, drawing):
        self._pending, self._drawing = pending, drawing

    def result(self):
        tokens = self._pending.result()
        drawn = {name: (tokens[row],) for name, row in self._drawing.items()}
        return StepOutput(drawn, dict.fromkeys(drawn, (0.0,)))


class Runner:
    """Keeps which request has which row; everything else is on the device."""

    def __init__(self, engine):
        self._engine = engine
        self._rows = {}
        self._left = {}
        if engine.device.type == "cuda":
            engine.idle()

    def execute(self, step):
        for name in (*step.finished, *step.preempted):
            del self._rows[name]
        entering, values, drawing = ([0] * self._engine.rows for _ in range(3))
        for request in step.new:
            row = min(set(range(self._engine.rows)) - set(self._rows.values()))
            self._rows[request.request_id] = row
            entering[row], values[row] = 1, sum(request.token_ids)
            self._left[request.request_id] = len(request.token_ids) - request.num_computed_tokens
        drawn = {}
        for name, count in step.scheduled.items():
            self._left[name] -= count
            if self._left[name] <= 0:
                self._left[name] = 1
                drawn[name] = self._rows[name]
                drawing[drawn[name]] = 1
        return Handle(self._engine.step(entering, values, drawing), drawn)

    def invariants(self):
        return []

    def close(self):
        pass


class Target:
    name = "async engine"
    features = frozenset({Feature.CHUNKED_PREFILL, Feature.PREEMPTION, Feature.ABORT})
    knobs: Mapping[str, Knob] = {}
    hot_paths = ("async_engine.engine:Engine.step",)

    def build(self, config):
        return Runner(Engine(config["max_num_reqs"], 256, config["device"]))
