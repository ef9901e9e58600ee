"""What a campaign does, as the driver tells its workers."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from mrv2.checks.errors import CheckError
from mrv2.checks.virtual.schedules import Schedule
from mrv2.fuzz.machine import NEEDED, PROMISED
from mrv2.fuzz.script import MODEL
from mrv2.fuzz.strategies import schedules
from mrv2.fuzz.targets.protocols import RunnerTarget

from .coverage import SAMPLING, SCHEDULES


@dataclass(frozen=True)
class Options:
    """What every worker of a campaign has in common.

    Attributes:
        target: name on the command line.
        seed: of everything.
        models: that the runner is tested with.
        features: that cases may have, see ``coverage.features_of``; None allows all.
        schedule: ``"cpu"``, a kind of ``coverage.SCHEDULES``, or the text of a schedule; None draws any.
        cases: after so many a worker ends; None goes on until it is told to stop.
        cases_a_round: of one call of Hypothesis, but for those that climb towards rare states, see ``worker``.
        rules: events of a case at most.
        examples: where Hypothesis keeps its examples, see ``corpus``; empty for the campaign's folder.
        first_round: number of a worker's first round; equal seeds, workers and rounds draw equal cases.
        life: how often the worker died before; each life draws other cases, or it would die of the same one again.
    """

    target: str
    seed: int = 0
    models: tuple[str, ...] = (MODEL,)
    features: tuple[str, ...] | None = None
    schedule: str | None = None
    cases: int | None = None
    cases_a_round: int = 10
    rules: int = 30
    examples: str = ""
    first_round: int = 0
    life: int = 0

    def as_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Options:
        """The inverse of ``as_json``."""
        values = json.loads(text)
        features = values.pop("features")
        models = tuple(values.pop("models"))
        return cls(**values, models=models, features=None if features is None else tuple(features))

    def schedules(self) -> SearchStrategy[Schedule | None]:
        """The schedules that cases have.

        Raises:
            VirtualDeviceError: the text is no schedule.
        """
        chosen = self.schedule
        if chosen is None:
            return schedules()
        if chosen == "cpu":
            return st.none()
        if chosen in SCHEDULES:
            return schedules().filter(lambda schedule: schedule is not None and schedule.base.startswith(chosen))
        return st.just(Schedule.parse(chosen))


def check_features(features: tuple[str, ...] | None, target: RunnerTarget) -> None:
    """Refuse a target that cannot serve what every case asks for, and names of features that nothing has.

    Raises:
        CheckError: the target lacks something, or one of the names is unknown.
    """
    missing = [feature.value for feature in NEEDED if feature not in target.features]
    if missing:
        raise CheckError(
            f"target {target.name!r}",
            f"what is fuzzed needs {', '.join(feature.value for feature in NEEDED)}; its features lack "
            f"{', '.join(missing)}",
            "what it never promised would be reported as its fault",
            "the missing ones, in the target's features, once the runner does them",
        )
    drawn = (*SAMPLING, "continues", "updates")
    served = [name for name in drawn if name not in PROMISED or PROMISED[name] in target.features]
    known = (*served, *sorted(target.knobs))
    unknown = [name for name in features or () if name not in known]
    if unknown:
        raise CheckError(
            f"--features {unknown[0]}",
            f"a feature is one of {', '.join(known)}",
            "a campaign that cannot draw what was asked for would pass without having tried it",
            "names of this list with commas between them, or none",
        )
    _check_needs(features or (), target)


def _check_needs(features: tuple[str, ...], target: RunnerTarget) -> None:
    """Refuse a knob without what it needs: it would never be turned.

    Raises:
        CheckError: another one is not among the features.
    """
    for name in set(features) & set(target.knobs):
        needs = target.knobs[name].needs
        lacking = [
            other
            for other, values in needs.items()
            if other not in features and other in target.knobs and target.knobs[other].values[0] not in values
        ]
        if lacking:
            raise CheckError(
                f"--features {name}",
                f"it means something only where {lacking[0]} is turned, too",
                "a campaign that cannot draw what was asked for would pass without having tried it",
                f"--features {name},{lacking[0]}",
            )
