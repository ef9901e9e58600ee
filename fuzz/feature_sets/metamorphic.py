"""Changes of a workload or of settings that may change no request's tokens.

Most of them change the shape of matrix products or the blocks over which a sum is taken, and with them the rounding of
logits: there tokens are equal, but for near ties, and log-probabilities keep within their bound. The others must give
the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from mrv2.checks.findings import JSON
from mrv2.fuzz.workload import RequestResult, Workload

from .differential import Outcome

#: Characters of a line on reports, which may be on the whole vocabulary.
MOST = 600


@dataclass(frozen=True)
class Change:
    """A change of a workload that may change no tokens.

    Attributes:
        apply: makes the other workload.
        rounds: why log-probabilities may round otherwise; empty where they must be equal to the last bit.
        device_only: whether the plain CPU lacks it.
    """

    apply: Callable[[Workload], Workload]
    rounds: str = ""
    device_only: bool = False


def _settings(**settings: JSON) -> Callable[[Workload], Workload]:
    def apply(workload: Workload) -> Workload:
        return replace(workload, capacities={**workload.capacities, **settings})

    return apply


def _backwards(workload: Workload) -> Workload:
    """Who came last comes first: another order in the batch, other rows, and other neighbours."""
    last = max(request.arrival for request in workload.requests)
    return replace(workload, requests=tuple(replace(item, arrival=last - item.arrival) for item in workload.requests))


def _preempted(*counts: int) -> Callable[[Workload], Workload]:
    def apply(workload: Workload) -> Workload:
        return replace(workload, requests=tuple(replace(item, preempt_after=counts) for item in workload.requests))

    return apply


def _in_flight(steps: int) -> Callable[[Workload], Workload]:
    return lambda workload: replace(workload, steps_in_flight=steps)


_SHAPE = "matrix products have another shape"
_CHUNKS = "the tokens of a prompt are computed in products of another shape"
_BATCH = "other tokens share the products"
_BLOCKS = "attention adds up blocks of another size"

CHANGES: Mapping[str, Change] = MappingProxyType(
    {
        "prompts read in place": Change(_settings(prompt_tokens="uva")),
        "writes read in place": Change(_settings(staged_writes="in_place")),
        "no poison": Change(_settings(poison=False)),
        "new blocks zeroed": Change(_settings(poison=False, zero_new_blocks=True)),
        "every stage of the sampler": Change(_settings(force_sampler_stages=True)),
        "prompt reports in small chunks": Change(_settings(prompt_logprobs_chunk=2)),
        "padding": Change(_settings(pad_to=5), _SHAPE),
        "small chunks": Change(_settings(max_num_batched_tokens=5), _CHUNKS),
        "one chunk": Change(_settings(max_num_batched_tokens=96), _CHUNKS),
        "blocks of another size": Change(_settings(block_size=16), _BLOCKS),
        "a request at a time": Change(_settings(max_num_reqs=1), _BATCH),
        "backwards": Change(_backwards, _BATCH),
        "by priority": Change(_settings(scheduling="priority"), _BATCH),
        "one step in flight": Change(_in_flight(1), _BATCH),
        "three steps in flight": Change(_in_flight(3), _BATCH),
        "never preempted": Change(_preempted(), _CHUNKS),
        "preempted in between": Change(_preempted(0, 2, 3), _CHUNKS),
        "prefixes found": Change(_settings(prefix_caching=True), _CHUNKS),
        "reference attention": Change(_settings(attention="torch"), "attention is computed in another way"),
        "piecewise graphs": Change(_settings(graph_mode="piecewise"), _SHAPE, device_only=True),
        "full graphs": Change(_settings(graph_mode="full"), _SHAPE, device_only=True),
    }
)


def differences(base: Outcome, changed: Outcome, change: Change) -> Iterator[str]:
    """What a change did that it must not, in words: of each request whose answer is another one.

    Args:
        base: without the change; nothing failed.
        changed: with it; likewise, so its own answers are right within their bounds.
    """
    for name, expected in base.results.items():
        observed = changed.results.get(name, RequestResult((), (), None))
        if observed.token_ids != expected.token_ids:
            # Both are right as far as the oracle can tell only where rounding may decide.
            if not (change.rounds and base.tally.near_ties + changed.tally.near_ties):
                yield f"request {name}: tokens {observed.token_ids} instead of {expected.token_ids}"
        elif not change.rounds and observed.logprobs != expected.logprobs:
            yield f"request {name}: log-probabilities {observed.logprobs} instead of {expected.logprobs}"
        elif not change.rounds and _reports(changed, name) != _reports(base, name):
            yield f"request {name}: other reports, {_reports(changed, name)} instead of {_reports(base, name)}"[:MOST]


def _reports(outcome: Outcome, name: str) -> list[object]:
    return [reports.get(name) for reports in outcome.reports]
