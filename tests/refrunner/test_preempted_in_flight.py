"""Outputs in flight of a preempted request are dropped, drafts among them, and what is drawn again is the same.

The faults planted here are every way to get that wrong that the scheduler's code has: each line of it, left out.
"""

import functools
import importlib

import pytest

from mrv2.checks import triton_cpu
from mrv2.fuzz.mutants import mutated_package
from mrv2.fuzz.mutants.preemption import PREEMPTION
from mrv2.fuzz.targets.reference import ReferenceTarget
from mrv2.refrunner.api import Grammar, SamplingParams

CAPACITIES = {
    "max_num_reqs": 3, "max_num_batched_tokens": 32, "max_model_len": 96, "block_size": 4, "num_kv_blocks": 80,
    "attention": "triton", "num_drafts": 3, "steps_in_flight": 3,
}  # fmt: skip
PROPOSERS = {
    "none": {"speculation": "none"},
    "ngram": {"speculation": "ngram"},
    "draft": {"speculation": "draft", "draft_model": "tiny-draft"},
    "eagle": {"speculation": "eagle", "draft_model": "tiny-eagle"},
}
STOP = 0
TOKENS = 20


def requests(grammar):
    """Requests that repeat themselves, so that n-grams are right now and then; one with a grammar, if wanted."""
    few = [(3, 5, 9), (40, 41, 42), (7, 8, 11)]
    asked = {
        f"r{index}": SamplingParams(temperature, 17 + index, TOKENS, allowed_token_ids=tokens, frequency_penalty=0.1)
        for index, (tokens, temperature) in enumerate(zip(few, (0.0, 0.8, 0.8), strict=True))
    }
    if grammar:
        text = Grammar("regex", "(north ){2,5}[a-f]{2,6}")
        asked["r2"] = SamplingParams(0.8, 19, TOKENS, stop_token_ids=(STOP,), grammar=text)
    return {name: ([*tokens, *tokens, *tokens[:2]], asked[name]) for name, tokens in zip(asked, few, strict=True)}


class Run:
    """A scheduler and a runner with several steps in flight."""

    def __init__(self, scheduler, settings, grammar):
        scheduled = {**CAPACITIES, **settings, "grammars": grammar}
        scheduled.pop("draft_model", None)
        if scheduled["speculation"] == "none":
            del scheduled["num_drafts"]
        models = {"model": "tiny", "draft_model": settings.get("draft_model", "")}
        self.runner = ReferenceTarget().build({**scheduled, **models})
        config = self.runner._runner.config
        self.scheduler, self.flying, self.depth = scheduler(config), [], config.steps_in_flight
        self.met = 0
        for name, (prompt, sampling) in requests(grammar).items():
            self.scheduler.add(name, prompt, sampling)

    def advance(self):
        if self.scheduler.has_work:
            self.flying.append(self.runner.execute(self.scheduler.schedule()))
        if len(self.flying) >= self.depth or not self.scheduler.has_work:
            self.scheduler.update(self.flying.pop(0).result())

    def preempt(self, name):
        """Preempt a request that has drafts in flight, or does not speculate; says whether it was."""
        request = self.scheduler.requests[name]
        drafting = self.scheduler._config.drafts > 0
        ready = request.unverified > 0 or (not drafting and request.in_flight > 0)
        met = ready and self.scheduler.preempt(name)
        self.met += met
        return met

    def results(self):
        done = {name: (r.output_token_ids, r.finish_reason) for name, r in self.scheduler.requests.items()}
        assert self.runner.invariants() == []
        self.runner.close()
        return done


def drive(scheduler, settings, grammar, every=None):
    """Results of a run to its end, in which requests are preempted in turn, every so many steps, at most 9 times."""
    run, step = Run(scheduler, settings, grammar), 0
    while run.scheduler.has_work or run.flying:
        run.advance()
        step += 1
        if every is not None and step % every == 0 and run.met < 9:
            run.preempt(f"r{(step // every) % 3}")
        assert step < 400, "the run comes to no end"
    return run.results(), run.met


def the_scheduler(package="mrv2.refrunner"):
    return importlib.import_module(f"{package}.scheduler").Scheduler


@functools.cache
def undisturbed(grammar):
    """Results of a run without drafts and without a preemption."""
    return drive(the_scheduler(), PROPOSERS["none"], grammar)[0]


@pytest.mark.parametrize(("proposer", "every"), [("none", 2), ("ngram", 2), ("ngram", 3), ("draft", 2), ("eagle", 3)])
@pytest.mark.parametrize("grammar", [False, True], ids=["plain", "grammar"])
def test_the_tokens_are_those_of_a_run_without_preemption(proposer, grammar, every):
    if grammar:
        pytest.importorskip("llguidance")
    with triton_cpu.enabled() as session:
        expected = undisturbed(grammar)
        tokens, preemptions = drive(the_scheduler(), PROPOSERS[proposer], grammar, every)
    assert session.findings == []
    assert tokens == expected
    assert preemptions >= 2


def shows(scheduler):
    """Whether a scheduler's tokens are others, a step is refused, or the run comes to no end."""
    for proposer, grammar in (("ngram", False), ("ngram", True)):
        for every in (2, 3):
            try:
                tokens, _ = drive(scheduler, PROPOSERS[proposer], grammar, every)
            except Exception:  # noqa: BLE001 - a refused step, a failed assertion: whatever shows
                return True
            if tokens != undisturbed(grammar):
                return True
    return False


@pytest.mark.parametrize("fault", PREEMPTION, ids=lambda fault: fault.name)
def test_each_way_to_get_it_wrong_shows(fault):
    pytest.importorskip("llguidance")
    with triton_cpu.enabled(), mutated_package(fault) as package:
        assert shows(the_scheduler(package))


def test_without_a_fault_nothing_shows():
    pytest.importorskip("llguidance")
    with triton_cpu.enabled():
        assert not shows(the_scheduler())
