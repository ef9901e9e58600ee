"""Llama checkpoints and the forward pass of the reference runner."""

from .checkpoint import Checkpoint, find_smollm2, load_checkpoint
from .config import LlamaConfig
from .llama import Attend, LlamaModel
from .tiny import TINY_CONFIG, tiny_checkpoint, write_tiny_checkpoint
from .tokenizer import Tokenizer, load_tokenizer

__all__ = [
    "TINY_CONFIG",
    "Attend",
    "Checkpoint",
    "LlamaConfig",
    "LlamaModel",
    "Tokenizer",
    "find_smollm2",
    "load_checkpoint",
    "load_tokenizer",
    "tiny_checkpoint",
    "write_tiny_checkpoint",
]
