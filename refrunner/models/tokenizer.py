"""Text to token ids and back, with the tokenizer that belongs to a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ..errors import CheckpointError
from .faults import located, optional_module, parsing
from .hugging_face import check_regular_file
from .vocabulary import Vocabulary, byte_symbols, vocabulary_of
from .weights import Checkpoint

TOKENIZER_FILE = "tokenizer.json"


class Tokenizer(Protocol):
    """Translates between text and the token ids of one model."""

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Tokens that end a text; may be empty."""
        ...

    def encode(self, text: str) -> list[int]:
        """Return the token ids of ``text``, with the special tokens that the model's own files ask for, no others."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of ``token_ids``, special tokens written out; bytes that are no UTF-8 become U+FFFD."""
        ...

    def vocabulary(self) -> Vocabulary:
        """Return what each token writes."""
        ...


def load_tokenizer(checkpoint: Checkpoint) -> Tokenizer:
    """Return the tokenizer stored with ``checkpoint``; for the tiny model, one token per byte.

    Raises:
        CheckpointError: the tokenizer is missing or damaged, belongs to another model, or needs a package that is
            not installed.
    """
    eos, path = checkpoint.config.eos_token_ids, checkpoint.path
    if path is None:
        return ByteTokenizer(eos)
    with located(str(path)):
        tokenizer: Tokenizer
        if checkpoint.format == "gguf":
            tokenizer, size = _from_gguf(path, eos)
        else:
            tokenizer, size = _from_folder(path, eos)
        if size > checkpoint.config.vocab_size:
            raise CheckpointError(
                f"tokenizer with {size} tokens",
                f"the model has embeddings for only {checkpoint.config.vocab_size}",
                "an id beyond the last embedding is an illegal access on a GPU",
                "the tokenizer that was published with these weights",
            )
    return tokenizer


@dataclass(frozen=True)
class ByteTokenizer:
    """One token per byte of UTF-8; needs no file and no package."""

    eos_token_ids: tuple[int, ...] = ()

    def encode(self, text: str) -> list[int]:
        """Return the UTF-8 bytes of ``text``."""
        return list(text.encode("utf-8"))

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text whose UTF-8 bytes are ``token_ids``, each 0 to 255."""
        return bytes(token_ids).decode("utf-8", errors="replace")

    def vocabulary(self) -> Vocabulary:
        """Return one byte per token."""
        return Vocabulary(tuple(bytes([byte]) for byte in range(256)), (), self.encode)


@dataclass(frozen=True)
class _FileTokenizer:
    """A tokenizer of the library ``tokenizers``."""

    library_tokenizer: Any
    eos_token_ids: tuple[int, ...]

    def encode(self, text: str) -> list[int]:
        return list(self.library_tokenizer.encode(text).ids)

    def decode(self, token_ids: Sequence[int]) -> str:
        return str(self.library_tokenizer.decode(list(token_ids), skip_special_tokens=False))

    def vocabulary(self) -> Vocabulary:
        return vocabulary_of(self.library_tokenizer)


def byte_tokenizer_json() -> dict[str, Any]:
    """Return the content of a ``tokenizer.json`` that does what ``ByteTokenizer`` does."""
    symbols = {byte: symbol for symbol, byte in byte_symbols().items()}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": {symbols[byte]: byte for byte in range(256)}, "merges": []},
    }


def _from_folder(folder: Path, eos: tuple[int, ...]) -> tuple[Tokenizer, int]:
    library = optional_module("tokenizers", "reading tokenizer.json")
    check_regular_file(folder / TOKENIZER_FILE)
    with parsing(f"file {TOKENIZER_FILE!r}"):
        tokenizer = library.Tokenizer.from_file(str(folder / TOKENIZER_FILE))
    return _FileTokenizer(tokenizer, eos), int(tokenizer.get_vocab_size())


def _from_gguf(file: Path, eos: tuple[int, ...]) -> tuple[Tokenizer, int]:
    optional_module("gguf", "reading the tokenizer of a GGUF file")
    library = optional_module("transformers", "reading the tokenizer of a GGUF file")
    with parsing("tokenizer in GGUF"):
        loaded = library.AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name, local_files_only=True)
        tokenizer = loaded.backend_tokenizer
    return _FileTokenizer(tokenizer, eos), int(tokenizer.get_vocab_size())
