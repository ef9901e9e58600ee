"""Which settings do not go together: a table, walked at startup and by a test.

Nothing is replaced in silence. A pair in this table is refused by name, before anything is allocated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .errors import ConfigurationError


@dataclass(frozen=True)
class Setting:
    """A field of the configuration with some of its values.

    Attributes:
        field: name in ``RunnerConfig``; of ``device`` only the kind counts, ``"cuda:1"`` is ``"cuda"``.
        values: any of these; none given means any value above zero.
    """

    field: str
    values: tuple[object, ...] = ()

    @property
    def shown(self) -> str:
        """It, as the README says it."""
        return f"`{self.field}`: " + (", ".join(f"`{value}`" for value in self.values) or "on")

    def holds(self, settings: Mapping[str, object]) -> bool:
        """Whether the configuration says so."""
        value = settings[self.field]
        if self.field == "device":
            value = str(value).partition(":")[0]
        return value in self.values if self.values else bool(value)


@dataclass(frozen=True)
class Pair:
    """Two settings that exclude each other.

    Attributes:
        first: what the error names first; usually the one to change.
        second: the other one.
        reason: why.
        remedy: what to write instead.
    """

    first: Setting
    second: Setting
    reason: str
    remedy: str


GRAPHS = Setting("graph_mode", ("piecewise", "full"))
ON_CPU = Setting("device", ("cpu",))
REFERENCE_ATTENTION = Setting("attention", ("torch",))

PAIRS = (
    Pair(
        GRAPHS,
        ON_CPU,
        "a graph records the launches of a CUDA stream, and the CPU has none to record",
        "graph_mode='eager', or device='cuda'",
    ),
    Pair(
        Setting("graph_mode", ("full",)),
        REFERENCE_ATTENTION,
        "the reference attention reads lengths from lists on the host, and a graph would repeat those of its capture",
        "attention='triton', or graph_mode='piecewise', which leaves attention out of its graphs",
    ),
    Pair(
        Setting("memory_fraction"),
        ON_CPU,
        "the CPU's memory belongs to the whole machine, and nobody can say which share of it is free for long",
        "num_kv_blocks as a number, and memory_fraction=0",
    ),
    Pair(
        Setting("memory_fraction"),
        REFERENCE_ATTENTION,
        "what the reference attention needs grows with the sequences, so a trial with short ones says too little",
        "attention='triton', or num_kv_blocks as a number and memory_fraction=0",
    ),
    Pair(
        Setting("speculation", ("ngram", "draft", "eagle")),
        Setting("prompt_tokens", ("uva",)),
        "proposers read tokens of the sequence again, and those of a prompt in host memory would cross the bus each "
        "time",
        "prompt_tokens='staged'",
    ),
    Pair(
        Setting("verification", ("token", "block")),
        Setting("speculation", ("ngram",)),
        "what followed earlier tokens is no draw, and has no distribution that a draw could be judged by",
        "verification='equal', or a draft model",
    ),
    Pair(
        Setting("zero_new_blocks"),
        Setting("poison"),
        "both say what a block holds when a request gets it, and zeros would hide what poison is to show",
        "one of the two",
    ),
)


def as_markdown() -> str:
    """The table as the README shows it."""
    rows = [f"| {pair.first.shown} | {pair.second.shown} | {pair.reason} |" for pair in PAIRS]
    return "\n".join(["| this | with this | why not |", "|---|---|---|", *rows])


def check_compatible(settings: Mapping[str, object]) -> None:
    """Refuse two settings that do not go together.

    Args:
        settings: every field of the configuration by name.

    Raises:
        ConfigurationError: two of them are a pair of the table.
    """
    for pair in PAIRS:
        if pair.first.holds(settings) and pair.second.holds(settings):
            first, second = (f"{side.field}={settings[side.field]!r}" for side in (pair.first, pair.second))
            raise ConfigurationError(
                f"RunnerConfig.{first} with {second}", "these two do not go together", pair.reason, pair.remedy
            )
