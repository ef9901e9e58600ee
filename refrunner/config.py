"""Settings of the runner, checked before anything is allocated."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch

from .errors import ConfigurationError

SUPPORTED_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
NULL_BLOCK = 0
ATTENTION_BACKENDS = ("torch", "triton")


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
        attention: ``"torch"``, the reference, one request after another; or ``"triton"``, two launches a layer.
        pad_to: pad the batch to a multiple of this many tokens and requests, as captured graphs need; padding
            never changes output.
        poison: fill freed rows, unused KV blocks and padding lanes with values that would show in the output if
            anything read them; for verification only.

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
    poison: bool = False

    def __post_init__(self) -> None:
        for field in fields(self):
            self._check_type(field.name, str(field.type))
        self._check_dtype()
        self._check_device()
        self._check_attention()
        self._check_pool()

    @property
    def max_blocks_per_request(self) -> int:
        """Columns of a block table."""
        return -(-self.max_model_len // self.block_size)

    @property
    def torch_dtype(self) -> torch.dtype:
        """``dtype`` as torch spells it."""
        return SUPPORTED_DTYPES[self.dtype]

    def _check_type(self, name: str, type_name: str) -> None:
        value = getattr(self, name)
        expected = {"int": int, "str": str, "bool": bool}[type_name]
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
                "device='cpu', which runs the same code with interpreted kernels",
            )

    def _check_attention(self) -> None:
        if self.attention not in ATTENTION_BACKENDS:
            raise ConfigurationError(
                f"RunnerConfig.attention={self.attention!r}",
                f"it must be one of {', '.join(map(repr, ATTENTION_BACKENDS))}",
                "another backend would be a silent replacement for the one that was asked for",
                "attention='torch', the reference, or attention='triton', which launches two kernels a layer",
            )

    def _check_pool(self) -> None:
        if self.num_kv_blocks < 2:
            raise ConfigurationError(
                f"RunnerConfig.num_kv_blocks={self.num_kv_blocks}",
                "the pool needs at least two blocks",
                "block 0 is the null block and is never handed out, so no request could ever run",
                f"num_kv_blocks={self.max_blocks_per_request + 1}, enough for one request of max_model_len",
            )
