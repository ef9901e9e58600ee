"""The reference runner as a target."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from itertools import accumulate
from operator import attrgetter
from pathlib import PurePath
from types import CodeType, ModuleType
from typing import Any

from mrv2.checks.findings import JSON, Finding, Site, Soundness, Verdict
from mrv2.refrunner.api import Handle, Step

from .protocols import Feature, InputSnapshot, Knob
from .reference_sampler import ReferenceSampler

PRODUCERS = {
    "request_ids": "input_batch:InputBatchBuilder.plan",
    "query_start_loc": "input_batch:InputBatchBuilder.plan",
    "block_tables": "kernels.block_table:prepare_block_tables",
    "seq_lens": "kernels.input_prep:prepare_inputs",
    "positions": "kernels.input_prep:prepare_inputs",
    "slot_mapping": "kernels.block_table:prepare_block_tables",
    "input_ids": "kernels.input_prep:prepare_inputs",
}


#: Who proposes drafts for the tiny models where the configuration names no ``draft_model``.
TINY_DRAFTS: Mapping[JSON, str] = {"draft": "tiny-draft", "eagle": "tiny-eagle"}
#: All who propose; those behind the first have drafts with a distribution.
DRAFTERS = ("ngram", "draft", "eagle")


#: Fields of ``RunnerConfig``, or values of one, that no campaign draws, and why.
NOT_DRAWN: Mapping[str, str] = {
    "device": "the schedule of a case says it: the plain CPU, the virtual device, or a real one in `on_gpu`",
    "steps_in_flight": "of the engine; the script has its own, and drives the runner without an engine",
    "dtype": "the bounds of the oracle are those of float32; `tests/refrunner/test_model_runner.py` and "
    "`test_llama_model.py` have the others",
    "memory_fraction": "replaces the number of blocks by a measured one, which the scheduler of a script cannot know; "
    "an exercise of `mrv2 mutants` has it",
    "logprobs_mode=processed_logprobs": "near the line of a filter a rounding decides what a value is relative to",
    "logprobs_mode=processed_logits": "likewise, for the likeliest tokens; both are tested in "
    "`tests/refrunner/test_logprob_reports.py`",
}  # fmt: skip


class ReferenceTarget:
    """Builds reference runners from one package, the real one or a mutated copy of it.

    Configuration keys: ``model`` (see ``load_checkpoint``) and, for a runner that needs one, ``draft_model`` (see
    ``load_draft``), and the fields of ``RunnerConfig``. A tiny model has a draft model of its own.
    """

    name = "refrunner"
    features = frozenset(Feature)
    knobs: Mapping[str, Knob] = {
        "poison": Knob((False, True), "fill dead memory with values that would show", often=True),
        "pad_to": Knob((1, 4, 8), "pad the batch to a multiple, as captured graphs need"),
        "attention": Knob(("torch", "triton"), "the reference, or paged attention in Triton", often=True),
        "graph_mode": Knob(("eager", "piecewise", "full"), "how much of a step is replayed from graphs"),
        "graph_sizes": Knob(
            ((), (1,), (1, 3)), "lanes of the graphs", needs={"graph_mode": ("piecewise", "full")}, often=True
        ),
        "logprobs_mode": Knob(("raw_logprobs", "raw_logits"), "what a log-probability that is reported is"),
        "prompt_tokens": Knob(
            ("staged", "uva"),
            "prompts copied to the device, or read in pinned memory",
            often=True,
            needs={"speculation": ("none",)},
        ),
        "staged_writes": Knob(("copied", "in_place"), "writes copied to the device, or read in pinned memory"),
        "prefix_caching": Knob((False, True), "reuse the keys and values of equal prefixes"),
        "zero_new_blocks": Knob(
            (False, True), "fill a block with zeros before a request gets it", needs={"poison": (False,)}
        ),
        "prompt_logprobs_chunk": Knob((1024, 3), "tokens of a prompt whose logits are in memory at once"),
        "force_sampler_stages": Knob((False, True), "run every stage of the sampler for every request"),
        "scheduling": Knob(("fcfs", "priority"), "who is served first"),
        "speculation": Knob(("none", *DRAFTERS), "who proposes drafts, which change no token"),
        "num_drafts": Knob((3, 1, 6), "drafts for each request and step", needs={"speculation": DRAFTERS}),
        "verification": Knob(
            ("equal", "token", "block"),
            "how drafts are accepted; by chance, which changes what is drawn, if not equal",
            often=True,
            needs={"speculation": DRAFTERS[1:]},
        ),
        "grammars": Knob((False, True), "memory for masks, so that requests may carry a grammar", often=True),
    }

    #: With layers that see all tokens, and with some that see a window.
    models = ("tiny", "tiny-sliding")

    #: Which function computes each field of a snapshot, as "module:function" inside the package.
    producers: Mapping[str, str] = PRODUCERS

    def __init__(self, package: str = "mrv2.refrunner") -> None:
        self._package = package
        self._checkpoints: dict[str, Any] = {}
        self._drafts: dict[tuple[str, str, str], Any] = {}

    @property
    def hot_paths(self) -> tuple[str, ...]:
        """Executing a step. The one place where the runner waits is ``AsyncOutput.result``, which is not in it."""
        return (f"{self._package}.model_runner:ModelRunner.execute",)

    def draft_model(self, settings: Mapping[str, JSON]) -> str | None:
        """See :class:`DraftingTarget`."""
        named = settings.get("draft_model") or TINY_DRAFTS.get(settings.get("speculation"))
        return str(named) if named and settings.get("speculation") in TINY_DRAFTS else None

    def build(self, config: Mapping[str, JSON]) -> ReferenceRunner:
        """Load the model (once per target) and allocate a runner."""
        reference = str(config["model"])
        settings = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in config.items()
            if name not in ("model", "draft_model")
        }
        runner_config = self._module("config").RunnerConfig(**settings)
        checkpoint = self._checkpoint(reference)
        draft = config.get("draft_model") or (TINY_DRAFTS.get(runner_config.speculation) if "tiny" in reference else "")
        runner = self._runner(
            runner_config, checkpoint, self._draft(str(draft or ""), reference, runner_config.speculation)
        )
        return self._adapter(runner)

    def _runner(self, config: Any, checkpoint: Any, draft: Any) -> Any:
        grammars = self._grammars(config, checkpoint)
        return self._module("model_runner").ModelRunner(config, checkpoint.config, checkpoint.tensors, grammars, draft)

    def _adapter(self, runner: Any) -> ReferenceRunner:
        return ReferenceRunner(runner, self._site)

    def sampler(self) -> ReferenceSampler:
        """The Gumbel sampler without a model."""
        return ReferenceSampler(self._package)

    def _module(self, name: str) -> ModuleType:
        return importlib.import_module(f"{self._package}.{name}")

    def _checkpoint(self, reference: str) -> Any:
        if reference not in self._checkpoints:
            self._checkpoints[reference] = self._module("models.checkpoint").load_checkpoint(reference)
        return self._checkpoints[reference]

    def _draft(self, draft: str, reference: str, speculation: str) -> Any:
        """The model that proposes for another one; None if it has no name."""
        key = (draft, reference, speculation)
        if key not in self._drafts:
            load = self._module("models.self_drafts").load_draft
            self._drafts[key] = load(draft, self._checkpoint(reference), head=speculation == "eagle")
        return self._drafts[key]

    def _grammars(self, config: Any, checkpoint: Any) -> Any:
        """What reads grammars for the model's own vocabulary; None for a runner without them."""
        if not config.grammars:
            return None
        tokenizer = self._module("models.tokenizer").load_tokenizer(checkpoint)
        return self._module("grammar.compiler").GrammarCompiler(tokenizer.vocabulary(), checkpoint.config.vocab_size)

    def _site(self, field: str) -> Site | None:
        if field not in self.producers:
            return None
        module, function = self.producers[field].split(":")
        producer = attrgetter(function)(self._module(module))
        code: CodeType = getattr(producer, "fn", producer).__code__
        # Relative to the package's parent, so that reports of two machines can be compared.
        parts = PurePath(code.co_filename).parts
        place = PurePath(*parts[-1 - module.count(".") - 1 :])
        return Site(str(place), code.co_firstlineno, function)


class ReferenceRunner:
    """Adapter of one ``ModelRunner``."""

    def __init__(self, runner: Any, site: Callable[[str], Site | None]) -> None:
        self._runner = runner
        self._site = site
        self._blocks_of: dict[str, list[int]] = {}
        self._used_blocks: set[int] = set()
        self._scheduled: tuple[str, ...] = ()

    def execute(self, step: Step) -> Handle:
        """See :class:`Runner`."""
        self._follow_blocks(step)
        self._scheduled = tuple(step.scheduled)
        handle: Handle = self._runner.execute(step)
        return handle

    def invariants(self) -> list[Finding]:
        """Broken bookkeeping rules as findings."""
        return [
            Finding(
                code="MRV306",
                verdict=Verdict.VIOLATION,
                soundness=Soundness.SOUND,
                title=f"bookkeeping invariant {violation.rule} broken",
                evidence={"detail": violation.detail, "request": violation.request_id},
                remedy="follow the row or block through request_states and block_tables",
            )
            for violation in self._runner.invariants()
        ]

    def close(self) -> None:
        """See :class:`Runner`."""
        self._runner.close()

    def snapshot(self) -> InputSnapshot | None:
        """Inputs of the last step, if it built any; synchronises."""
        batch = self._runner.batch
        if batch is None:
            return None
        count, tokens = batch.num_requests, batch.num_tokens
        bounds = batch.query_start_loc[: count + 1].tolist()
        places = self._places(batch.request_ids)
        lanes = list(range(tokens))
        if places != list(range(count)):
            lanes = [lane for place in places for lane in range(bounds[place], bounds[place + 1])]
            sizes = (bounds[place + 1] - bounds[place] for place in places)
            bounds = list(accumulate(sizes, initial=bounds[0]))
        used = [-(-int(length) // self._runner.config.block_size) for length in batch.host_seq_lens[:count]]
        tables = batch.block_table[0, :count].tolist()
        return InputSnapshot(
            request_ids=tuple(batch.request_ids[place] for place in places),
            rows=tuple(batch.rows[places].tolist()),
            query_start_loc=tuple(bounds),
            input_ids=tuple(batch.input_ids[lanes].tolist()),
            positions=tuple(batch.positions[lanes].tolist()),
            slot_mapping=tuple(batch.slot_mapping[0, lanes].tolist()),
            seq_lens=tuple(batch.seq_lens[places].tolist()),
            block_tables=tuple(tuple(tables[place][: used[place]]) for place in places),
            padding_tokens=len(batch.input_ids) - tokens,
            padding_requests=len(batch.seq_lens) - count,
        )

    def _places(self, request_ids: tuple[str, ...]) -> list[int]:
        """Where the requests of the step stand in the batch, whose order the attention backend chooses."""
        if sorted(request_ids) != sorted(self._scheduled):
            return list(range(len(request_ids)))
        return [request_ids.index(name) for name in self._scheduled]

    def poisoned(self) -> dict[str, int]:
        """See :class:`PoisonRunner`."""
        batch, filler = self._runner.batch, self._poison_token()
        live = {block for blocks in self._blocks_of.values() for block in blocks}
        blocks = self._poisoned_blocks()
        return {
            "freed rows": self._poisoned_rows(),
            "freed blocks": len(blocks & self._used_blocks - live),
            "unused blocks": len(blocks - self._used_blocks),
            "padding lanes": int((batch.input_ids[batch.num_tokens :] == filler).sum()) if batch else 0,
        }

    def _poison_token(self) -> int:
        """What poisoned tokens are; no token at all without poison."""
        return int(self._runner._model.config.vocab_size) - 1 if self._runner.config.poison else -1

    def _poisoned_rows(self) -> int:
        states, filler = self._runner._states, self._poison_token()
        return sum(bool((states.token_ids[row] == filler).all()) for row in states.free_rows)

    def _poisoned_blocks(self) -> set[int]:
        """KV blocks that hold nothing but NaN, in every layer."""
        cache = self._runner._attention.cache
        by_block = cache.isnan().unflatten(2, (-1, self._runner.config.block_size)).all(dim=(0, 1, 3, 4, 5))
        return {int(block) for block in by_block.nonzero().flatten()}

    def _follow_blocks(self, step: Step) -> None:
        for name in (*step.finished, *step.preempted, *(request.request_id for request in step.new)):
            self._blocks_of.pop(name, None)
        for name, groups in step.new_blocks.items():
            for blocks in groups:
                self._blocks_of.setdefault(name, []).extend(blocks)
                self._used_blocks.update(blocks)

    def producer(self, field: str) -> Site | None:
        """The kernel that computes a field."""
        return self._site(field)
