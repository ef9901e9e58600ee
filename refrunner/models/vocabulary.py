"""What each token of a tokenizer writes, in bytes: a grammar is about text, and a mask is about tokens."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import CheckpointError

# How SentencePiece writes a space in its pieces.
SPACE_MARK = "\u2581"


@dataclass(frozen=True)
class Vocabulary:
    """The tokens of a tokenizer.

    Attributes:
        tokens: bytes that each token writes, by id; none for an id without a token.
        special: ids of tokens that stand for no text, though they have a name (end of text, roles of a chat).
        encode: token ids of a text, without any special token.
    """

    tokens: tuple[bytes, ...]
    special: tuple[int, ...]
    encode: Callable[[str], list[int]]


def byte_symbols() -> dict[str, int]:
    """The character that stands for each byte in a byte-level vocabulary.

    A printable Latin-1 byte is written as itself, the others as the characters from U+0100 on, in order.
    """
    visible = [byte for byte in range(256) if 33 <= byte <= 126 or 161 <= byte <= 172 or byte >= 174]
    hidden = [byte for byte in range(256) if byte not in visible]
    return {chr(byte): byte for byte in visible} | {chr(256 + place): byte for place, byte in enumerate(hidden)}


def vocabulary_of(library_tokenizer: Any) -> Vocabulary:
    """The vocabulary of a tokenizer of the library ``tokenizers``.

    Raises:
        CheckpointError: its decoder is of a kind that is not known here.
    """
    special = {token for token, added in library_tokenizer.get_added_tokens_decoder().items() if added.special}
    write = _writer(library_tokenizer)
    added = {added.content for added in library_tokenizer.get_added_tokens_decoder().values()}
    tokens = [b""] * library_tokenizer.get_vocab_size()
    for name, token in library_tokenizer.get_vocab(with_added_tokens=True).items():
        tokens[token] = name.encode() if name in added else write(name)
    return Vocabulary(tuple(tokens), tuple(sorted(special)), lambda text: _encode(library_tokenizer, text))


def _encode(library_tokenizer: Any, text: str) -> list[int]:
    return list(library_tokenizer.encode(text, add_special_tokens=False).ids)


def _writer(library_tokenizer: Any) -> Callable[[str], bytes]:
    """How the name of a token becomes bytes."""
    parts = set(_parts(json.loads(library_tokenizer.to_str())["decoder"]))
    if "ByteLevel" in parts:
        symbols = byte_symbols()
        return lambda name: bytes(symbols[symbol] for symbol in name)
    if {"Metaspace", "ByteFallback"} & parts:
        pieces = {f"<0x{byte:02X}>": bytes([byte]) for byte in range(256)}
        return lambda name: pieces.get(name) or name.replace(SPACE_MARK, " ").encode()
    raise CheckpointError(
        f"tokenizer with a decoder of {', '.join(sorted(parts)) or 'no kind'}",
        "what its tokens write is known for byte-level and SentencePiece vocabularies only",
        "a grammar is about text, so a mask needs the bytes of every token, and guessed ones would let wrong text pass",
        "a tokenizer whose decoder has a ByteLevel, a Metaspace or a ByteFallback part",
    )


def _parts(decoder: Mapping[str, Any] | None) -> Iterator[str]:
    """Kinds of a decoder and of the decoders that it is made of."""
    if decoder is not None:
        yield decoder["type"]
        for part in decoder.get("decoders", ()):
            yield from _parts(part)
