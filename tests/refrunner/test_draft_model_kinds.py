"""Draft models by name: the two kinds are not taken for each other, and what is wrong with a name is said."""

from dataclasses import replace

import pytest

from mrv2.refrunner.config import RunnerConfig
from mrv2.refrunner.errors import CheckpointError, ConfigurationError
from mrv2.refrunner.models.checkpoint import load_checkpoint
from mrv2.refrunner.models.llama import LlamaModel
from mrv2.refrunner.models.self_drafts import load_draft
from mrv2.refrunner.models.weights import FUSE
from mrv2.refrunner.speculation.proposers import load_draft_model

TINY = load_checkpoint("tiny")


def load(speculation, draft):
    config = RunnerConfig(max_model_len=64, speculation=speculation)
    return load_draft_model(config, LlamaModel(TINY.config, TINY.tensors), draft)


@pytest.mark.parametrize(("speculation", "fits", "other"), [("draft", "draft", "eagle"), ("eagle", "eagle", "draft")])
def test_a_head_and_a_model_of_its_own_are_not_taken_for_each_other(speculation, fits, other):
    assert load(speculation, load_checkpoint(f"tiny-{fits}")) is not None
    with pytest.raises(ConfigurationError, match=FUSE) as caught:
        load(speculation, load_checkpoint(f"tiny-{other}"))
    assert f"tiny-{other}" in caught.value.subject
    assert f"speculation={other!r}" in caught.value.remedy


@pytest.mark.parametrize("head", [False, True])
def test_layers_of_the_target_by_number(head):
    assert load_draft("self:1", TINY, head=head).config.num_layers == 1
    for count in ("0", "3", "x", "-1", ""):
        with pytest.raises(CheckpointError, match="from 1 to 2") as caught:
            load_draft(f"self:{count}", TINY, head=head)
        assert caught.value.subject == f"draft model 'self:{count}'"


def test_a_draft_model_reaches_as_far_as_the_sequences_of_the_runner():
    """Published heads are often for fewer positions than their target, and a runner may be for fewer, too."""
    head = load_checkpoint("tiny-eagle")
    enough, short = (replace(head, config=replace(head.config, max_position_embeddings=size)) for size in (64, 63))
    assert load("eagle", enough) is not None
    with pytest.raises(ConfigurationError, match="63 positions") as caught:
        load("eagle", short)
    assert "max_model_len=64" in caught.value.rule and caught.value.remedy.startswith("max_model_len=63")
