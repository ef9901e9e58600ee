"""Settings of the runner, checked before anything is allocated."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import torch

from .compatibility import check_compatible
from .errors import ConfigurationError

SUPPORTED_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
NULL_BLOCK = 0
# The null block, and one to hand out.
SMALLEST_POOL = 2
ATTENTION_BACKENDS = ("torch", "triton")
CHOICES = {
    "scheduling": ("fcfs", "priority"),
    "prompt_tokens": ("staged", "uva"),
    "staged_writes": ("copied", "in_place"),
    "speculation": ("none", "ngram", "draft", "eagle"),
    "verification": ("equal", "token", "block"),
}
GRAPH_MODES = ("eager", "piecewise", "full")
LOGPROBS_MODES = ("raw_logprobs", "processed_logprobs", "raw_logits", "processed_logits")
# Every captured graph keeps memory of its own and takes time at startup.
MOST_GRAPHS = 64
# Kernels are compiled for the number of drafts, and hold those of a request in one block.
MOST_DRAFTS = 1024
SIMPLE_TYPES: dict[str, type] = {"int": int, "str": str, "bool": bool}


@dataclass(frozen=True)
class RunnerConfig:
    """Capacities and switches of a runner.

    Attributes:
        max_num_reqs: rows of the state table, that is, live requests at once.
        max_num_batched_tokens: tokens in one step at most.
        max_model_len: longest sequence, prompt and generated tokens together.
        block_size: tokens per KV block.
        num_kv_blocks: KV blocks in the pool, the null block (block 0, never handed out) included.
        device: ``"cpu"`` or ``"cuda"`` (with an index, if wanted).
        dtype: of weights, activations and KV cache; logits are always float32.
        attention: ``"torch"``, the reference, one request after another; or ``"triton"``, two launches a layer, and
            then norms, rotary embedding and gates are Triton kernels too, one launch each.
        pad_to: pad the batch to a multiple of this many tokens and requests, as captured graphs need; padding
            never changes output. Where a graph runs, its own size counts instead.
        graph_mode: ``"eager"``, every launch from the host; ``"piecewise"``, graphs of everything but attention, for
            any batch up to the largest size; or ``"full"``, graphs of the whole forward pass, for batches in which
            every request decodes one token. What no graph admits runs eagerly. The sampler is never in a graph.
        graph_sizes: lanes of the graphs, a tuple of sizes; ``()`` means powers of two up to what ``graph_mode`` can
            meet. Only with graphs.
        memory_fraction: 0 leaves ``num_kv_blocks`` as given. Above 0 it is replaced by as many blocks as fit into this
            share of the device's memory beside weights and activations, which a profiling run measures.
        logprobs_mode: what a reported log-probability is: ``"raw_logprobs"``, of the model's own distribution;
            ``"processed_logprobs"``, of the one that tokens are drawn from, after penalties, temperature and filters;
            ``"raw_logits"`` and ``"processed_logits"``, the logits instead of their log-softmax. Tokens of a prompt are
            not drawn from anything: theirs are of the model's own.
        prompt_logprobs_chunk: tokens of a prompt whose logits are in memory at once when their log-probabilities are
            asked for.
        force_sampler_stages: run every stage of the sampler for every request; for verification only, since it must
            change nothing.
        steps_in_flight: steps that the engine enqueues before it takes the oldest output. With 1 the device waits for
            the host after every step; from 2 on the host prepares one step while the device runs another.
        prefix_caching: keep the keys and values of requests that ended, and reuse them where another request starts
            with the same tokens. Never changes output beyond the rounding of another chunking.
        zero_new_blocks: fill a KV block with zeros before a request gets it for keys and values of its own.
        prompt_tokens: ``"staged"`` copies the tokens of a new request to the device with the step's upload; ``"uva"``
            writes them to pinned host memory, where the gather kernel reads them in place.
        staged_writes: ``"copied"``, in the step's one upload; or ``"in_place"``, read from the pinned slot by the
            kernel that scatters them.
        grammars: requests may carry a grammar: memory for masks is allocated, and the library that reads grammars must
            be installed.
        speculation: ``"none"``, or who proposes drafts of the next tokens, which the model verifies all at once:
            ``"ngram"``, what followed the latest tokens when they last occurred in the request; ``"draft"``, a model of
            its own; or ``"eagle"``, a head on the target's hidden states.
        num_drafts: drafts for each request and step, 1024 at most; without speculation only the default is taken.
        verification: ``"equal"``, drafts are the likeliest tokens, and accepted if the target draws the same; or drafts
            are drawn with the request's temperature and accepted by rejection sampling, ``"token"``, one by one, or
            ``"block"``, together, which accepts more. Another than ``"equal"`` only with speculation.
        scheduling: ``"fcfs"``, in order of arrival, or ``"priority"``, in order of the requests' priorities.
        poison: fill freed rows, unused KV blocks, padding lanes and fresh device memory with values that would show in
            the output if anything read them; for verification only.

    Raises:
        ConfigurationError: a value is out of range, or two values do not fit together.
    """

    max_num_reqs: int = 16
    max_num_batched_tokens: int = 256
    max_model_len: int = 1024
    block_size: int = 16
    num_kv_blocks: int = 129
    device: str = "cpu"
    dtype: str = "float32"
    attention: str = "torch"
    pad_to: int = 1
    graph_mode: str = "eager"
    graph_sizes: tuple[int, ...] = ()
    memory_fraction: float = 0.0
    logprobs_mode: str = "raw_logprobs"
    prompt_logprobs_chunk: int = 1024
    force_sampler_stages: bool = False
    steps_in_flight: int = 2
    prefix_caching: bool = False
    zero_new_blocks: bool = False
    prompt_tokens: str = "staged"
    staged_writes: str = "copied"
    grammars: bool = False
    speculation: str = "none"
    num_drafts: int = 3
    verification: str = "equal"
    scheduling: str = "fcfs"
    poison: bool = False

    def __post_init__(self) -> None:
        for field in fields(self):
            self._check_type(field.name, str(field.type))
        self._check_dtype()
        self._check_device()
        self._check_attention()
        self._check_choices()
        self._check_graphs()
        self._check_memory_fraction()
        self._check_logprobs_mode()
        self._check_pool()
        self._check_drafts()
        self._check_unread()
        check_compatible({field.name: getattr(self, field.name) for field in fields(self)})

    @property
    def max_blocks_per_request(self) -> int:
        """Columns of a block table."""
        return -(-self.max_model_len // self.block_size)

    @property
    def drafts(self) -> int:
        """Most drafts of a request in a step; 0 without speculation."""
        return self.num_drafts if self.speculation != "none" else 0

    @property
    def lookahead(self) -> int:
        """Positions behind a step's last one that a draft model computes in it; they need slots."""
        return self.drafts if self.speculation in ("draft", "eagle") else 0

    @property
    def draws_drafts(self) -> bool:
        """Whether drafts are random, so that each needs the distribution that it was drawn from."""
        return self.drafts > 0 and self.verification != "equal"

    @property
    def max_logits(self) -> int:
        """Most rows of logits that a step samples from."""
        return min(self.max_num_reqs * (1 + self.drafts), max(self.max_num_batched_tokens, self.max_num_reqs))

    @property
    def torch_dtype(self) -> torch.dtype:
        """``dtype`` as torch spells it."""
        return SUPPORTED_DTYPES[self.dtype]

    @property
    def largest_graph(self) -> int:
        """Lanes of the largest batch that a graph of this mode may meet."""
        return self.max_logits if self.graph_mode == "full" else self.max_num_batched_tokens

    def _check_type(self, name: str, type_name: str) -> None:
        value = getattr(self, name)
        if type_name not in SIMPLE_TYPES:
            return  # has a check of its own
        expected = SIMPLE_TYPES[type_name]
        right_type = isinstance(value, expected) and (expected is bool or not isinstance(value, bool))
        if not right_type or (expected is int and value < 1):
            wanted = "a whole number of at least 1" if expected is int else f"a {type_name}"
            raise ConfigurationError(
                f"RunnerConfig.{name}={value!r}",
                f"it must be {wanted}",
                "tables and buffers are allocated from it once, at start",
                f"{name}={type(self).__dataclass_fields__[name].default!r}, the default, or another such value",
            )

    def _check_dtype(self) -> None:
        if self.dtype not in SUPPORTED_DTYPES:
            raise ConfigurationError(
                f"RunnerConfig.dtype={self.dtype!r}",
                "the runner computes in " + ", ".join(SUPPORTED_DTYPES),
                "attention and normalisation are written for floating point; other types need their own kernels",
                "dtype='float32'",
            )

    def _check_device(self) -> None:
        try:
            kind = torch.device(self.device).type
        except RuntimeError:
            kind = ""
        if kind not in ("cpu", "cuda"):
            raise ConfigurationError(
                f"RunnerConfig.device={self.device!r}",
                "the runner knows the devices cpu and cuda",
                "its kernels are compiled by Triton for CUDA, or interpreted on the CPU",
                "device='cpu' or device='cuda'",
            )
        if kind == "cuda" and not torch.cuda.is_available():
            raise ConfigurationError(
                f"RunnerConfig.device={self.device!r}",
                "this process sees no CUDA device",
                "torch was built without CUDA, or the driver is missing",
                "device='cpu', which runs the same code with kernels that are compiled for it, or interpreted",
            )

    def _check_attention(self) -> None:
        if self.attention not in ATTENTION_BACKENDS:
            raise ConfigurationError(
                f"RunnerConfig.attention={self.attention!r}",
                f"it must be one of {', '.join(map(repr, ATTENTION_BACKENDS))}",
                "another backend would be a silent replacement for the one that was asked for",
                "attention='torch', the reference, or attention='triton', which launches two kernels a layer",
            )

    def _check_choices(self) -> None:
        for name, allowed in CHOICES.items():
            value = getattr(self, name)
            if value not in allowed:
                raise ConfigurationError(
                    f"RunnerConfig.{name}={value!r}",
                    f"it must be one of {', '.join(map(repr, allowed))}",
                    "another way would be a silent replacement for the one that was asked for",
                    f"{name}={allowed[0]!r}, the default, or {name}={allowed[1]!r}",
                )

    def _check_graphs(self) -> None:
        if self.graph_mode not in GRAPH_MODES:
            raise ConfigurationError(
                f"RunnerConfig.graph_mode={self.graph_mode!r}",
                f"it must be one of {', '.join(map(repr, GRAPH_MODES))}",
                "another mode would be a silent replacement for the one that was asked for",
                "graph_mode='eager', 'piecewise' or 'full'",
            )
        sizes = self.graph_sizes
        whole = isinstance(sizes, tuple) and all(isinstance(size, int) and size is not True for size in sizes)
        if not whole or list(sizes) != sorted(set(sizes)) or not all(1 <= size <= self.largest_graph for size in sizes):
            raise ConfigurationError(
                f"RunnerConfig.graph_sizes={sizes!r}",
                f"it must be a tuple of different whole numbers from 1 to {self.largest_graph}, in ascending order",
                "the smallest graph that holds a batch is taken, and no batch is larger than that",
                "graph_sizes=() for powers of two, or sizes such as (1, 2, 4)",
            )
        if len(sizes) > MOST_GRAPHS:
            raise ConfigurationError(
                f"RunnerConfig.graph_sizes with {len(sizes)} sizes",
                f"at most {MOST_GRAPHS} graphs are captured",
                "each one keeps memory of its own and takes time at startup",
                "fewer sizes; a batch is padded to the next one",
            )

    def _check_memory_fraction(self) -> None:
        share = self.memory_fraction
        number = isinstance(share, int | float) and not isinstance(share, bool)
        if not number or not math.isfinite(share) or not 0 <= share <= 1:
            raise ConfigurationError(
                f"RunnerConfig.memory_fraction={share!r}",
                "it must be a number from 0 to 1",
                "it is a share of the device's memory",
                "memory_fraction=0.9, or 0 to say num_kv_blocks yourself",
            )

    def _check_logprobs_mode(self) -> None:
        if self.logprobs_mode not in LOGPROBS_MODES:
            raise ConfigurationError(
                f"RunnerConfig.logprobs_mode={self.logprobs_mode!r}",
                f"it must be one of {', '.join(map(repr, LOGPROBS_MODES))}",
                "a number that is reported means what was asked for, or nothing",
                "logprobs_mode='raw_logprobs', of the model's own distribution",
            )

    def _check_drafts(self) -> None:
        if self.num_drafts > MOST_DRAFTS:
            raise ConfigurationError(
                f"RunnerConfig.num_drafts={self.num_drafts}",
                f"at most {MOST_DRAFTS} drafts are proposed for a request",
                "kernels hold them in one block; beyond it they do not compile, and the first draw would break off",
                "num_drafts=3, the default; with each further draft it is less likely that all before are accepted",
            )

    def _check_unread(self) -> None:
        """Refuse what nothing would read: the runner would not be the one that was asked for."""
        index = torch.device(self.device).index
        if self.device.startswith("cpu") and index:
            raise ConfigurationError(
                f"RunnerConfig.device={self.device!r}",
                "there is one CPU device, with index 0 or none",
                "torch ignores another index, so two runners on 'cpu:0' and 'cpu:1' would share their processor",
                "device='cpu'; torch.set_num_threads says how many cores it takes",
            )
        if self.graph_sizes and self.graph_mode == "eager":
            raise ConfigurationError(
                f"RunnerConfig.graph_sizes={self.graph_sizes!r} with graph_mode='eager'",
                "sizes of graphs come with graphs",
                "without them nothing is captured, and the sizes would be ignored",
                "graph_mode='full' or 'piecewise', or graph_sizes=()",
            )
        if self.verification != "equal" and self.speculation == "none":
            raise ConfigurationError(
                f"RunnerConfig.verification={self.verification!r} with speculation='none'",
                "a way to verify drafts comes with drafts",
                "without them nothing is verified, and the setting would be ignored",
                "speculation='draft' or 'eagle', or verification='equal'",
            )
        if self.num_drafts != type(self).num_drafts and self.speculation == "none":
            raise ConfigurationError(
                f"RunnerConfig.num_drafts={self.num_drafts} with speculation='none'",
                "a number of drafts comes with somebody who proposes them",
                "without drafts the number would be ignored",
                "speculation='ngram', 'draft' or 'eagle', or no num_drafts",
            )

    def _check_pool(self) -> None:
        if self.num_kv_blocks < SMALLEST_POOL:
            raise ConfigurationError(
                f"RunnerConfig.num_kv_blocks={self.num_kv_blocks}",
                "the pool needs at least two blocks",
                "block 0 is the null block and is never handed out, so no request could ever run",
                f"num_kv_blocks={self.max_blocks_per_request + 1}, enough for one request of max_model_len",
            )
