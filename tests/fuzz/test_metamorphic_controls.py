"""Changes that may change no token do change one where the runner has a fault: for each kind of change, one planted.

``test_feature_sets`` shows that the sound runner passes them all. Here the oracle is not asked: a fault shows as a
difference between two runs of the same faulty runner. Each mutant compiles what it changes and runs three times; the
suite shows two of them, ``MRV2_METAMORPHIC=1`` all.
"""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from mrv2.fuzz.feature_sets.differential import CPU, run_workload
from mrv2.fuzz.feature_sets.factors import FeatureSet, feature_sets
from mrv2.fuzz.feature_sets.metamorphic import CHANGES, differences
from mrv2.fuzz.feature_sets.traces import workload_of
from mrv2.fuzz.mutants.catalogue import MUTATIONS
from mrv2.fuzz.mutants.source import Mutation
from mrv2.fuzz.mutants.targets import mutant

PLAIN = {"prompt_tokens": "staged", "staged_writes": "copied", "prefix_caching": False, "graph_mode": "eager"}
BUSY = {
    "temperature": "random",
    "filters": "none",
    "penalties": "none",
    "constraints": "none",
    "prompt_logprobs": "none",
}
#: Reports on a prompt need it in the token table, so one change needs them and another one their absence. What is not
#: copied must not be poison, which would end the run and not change a token.
SETTINGS = {"prompt reports in small chunks": {"prompt_logprobs": "two"}, "prefixes found": {"poison": False}}
#: It must not show any of these faults, or it would be no other kind of change.
UNRELATED = "no poison"

BY_NAME = {mutation.name: mutation for mutation in MUTATIONS}
CONTROLS = {
    "backwards": Mutation(
        "noise_of_the_place",
        "input_batch.py",
        "sample_positions=self._positions_of_logits(count, views, parts),",
        "sample_positions=self._positions_of_logits(count, views, parts)"
        " + torch.arange(count, device=rows.device).int(),",
        "the noise depends on the place in the batch",
    ),
    "a request at a time": Mutation(
        "parameters_of_the_first",
        "sampling/sampler.py",
        "            logits, rows, positions, self.tables.temperature,",
        "            logits, rows[:1].repeat(len(rows)), positions, self.tables.temperature,",
        "temperature and seed are those of the first request in the batch",
    ),
    "padding": Mutation(
        "last_lane_of_the_padded_batch",
        "input_batch.py",
        "self._logit_arrays(rows, query_start_loc[1 : len(rows) + 1],",
        "self._logit_arrays(rows, np.append(query_start_loc[1 : len(rows)], shape.num_tokens),",
        "the last request is sampled at the last lane, padding or not",
    ),
    "prompt reports in small chunks": Mutation(
        "reports_of_the_first_chunk",
        "sampling/prompt_logprobs.py",
        "lanes = hidden[start : min(start + self._chunk, count)]",
        "lanes = hidden[: min(start + self._chunk, count) - start]",
        "every chunk of a prompt is reported on as if it were the first",
    ),
    "prefixes found": Mutation(
        "copies_forgotten",
        "model_runner.py",
        "        self._upkeep.copied(step.block_copies)\n",
        "",
        "a block that goes on inside another one is not copied",
    ),
    "small chunks": BY_NAME["chunk_counts_as_decode"],
    "preempted in between": BY_NAME["last_sampled_not_set_on_resume"],
    "prompts read in place": Mutation(
        "prompts_put_backwards",
        "prompt_rows.py",
        "self.memory.numpy()[row, : len(tokens)] = tokens",
        "self.memory.numpy()[row, : len(tokens)] = tokens[::-1]",
        "a prompt that is read in place is there the other way round",
    ),
    "piecewise graphs": Mutation(
        "every_piece_is_the_first_layer",
        "graphs/captured.py",
        "attend(piece.layer, *piece.inputs)",
        "attend(0, *piece.inputs)",
        "between the pieces of a graph, attention is always the first layer's",
    ),
    "full graphs": Mutation(
        "graph_returns_lanes_backwards",
        "graphs/captured.py",
        "        self._graph.replay()\n        return self._hidden\n",
        "        self._graph.replay()\n        return self._hidden.flip(0)\n",
        "the hidden states of a full graph are in another order",
    ),
}
RUN = tuple(CONTROLS) if os.environ.get("MRV2_METAMORPHIC") else ("padding", "preempted in between")


def case(name):
    """A feature set, and a workload in which nobody is preempted, so that those who are differ."""
    features = FeatureSet(4, {**feature_sets()[4].values, **PLAIN, **BUSY, **SETTINGS.get(name, {})})
    drawn = workload_of(features, 6)
    return features, replace(drawn, requests=tuple(replace(request, preempt_after=()) for request in drawn.requests))


@pytest.mark.parametrize("name", RUN)
def test_a_fault_of_this_kind_is_found_by_this_change(name):
    change, other, (features, workload) = CHANGES[name], CHANGES[UNRELATED], case(name)
    environment = "late" if change.device_only else CPU
    with mutant(CONTROLS[name]) as target:
        base, changed, unrelated = (
            run_workload(target, features, environment, each)
            for each in (workload, change.apply(workload), other.apply(workload))
        )
    for outcome in (base, changed, unrelated):
        assert outcome.requests == len(workload.requests)  # nothing crashed
    assert list(differences(base, changed, change))
    assert list(differences(base, unrelated, other)) == []


def test_the_page_names_every_change_and_every_fault():
    page = (Path(__file__).parents[1] / "refrunner" / "INVARIANTS.md").read_text(encoding="utf-8")
    lines = page.partition("| what may change |")[2].splitlines()
    for name in CHANGES:
        assert sum(f"`{name}`" in line for line in lines) == 1, name
    for name, mutation in CONTROLS.items():
        assert [f"`{mutation.name}`" in line for line in lines if f"`{name}`" in line] == [True], name
