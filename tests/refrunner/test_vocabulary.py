"""What each token writes: of byte-level and of SentencePiece vocabularies, and of no others."""

import json

import pytest

from mrv2.refrunner.errors import CheckpointError
from mrv2.refrunner.models.tokenizer import ByteTokenizer, byte_tokenizer_json
from mrv2.refrunner.models.vocabulary import byte_symbols, vocabulary_of

tokenizers = pytest.importorskip("tokenizers")
PIECES = ["<unk>", "<s>", "<0x0A>", "<0xFF>", "\u2581the", "re", "\u00e9", "\u2581"]


def vocabulary(content):
    return vocabulary_of(tokenizers.Tokenizer.from_str(json.dumps(content)))


def sentence_piece(decoder, added=()):
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {
        "version": "1.0",
        "added_tokens": [{"id": place, "content": name, "special": True, **special} for place, name in added],
        "pre_tokenizer": None,
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
        "post_processor": None,
        "decoder": decoder,
        "model": {
            "type": "BPE", "vocab": {piece: place for place, piece in enumerate(PIECES)}, "merges": [],
            "unk_token": "<unk>",
        },
    }  # fmt: skip


def test_every_byte_has_a_symbol_of_its_own():
    assert sorted(byte_symbols().values()) == list(range(256))
    assert byte_symbols()["a"] == ord("a") and byte_symbols()["\u0120"] == ord(" ")


def test_a_byte_level_vocabulary_writes_its_bytes():
    found, own = vocabulary(byte_tokenizer_json()), ByteTokenizer().vocabulary()
    assert (found.tokens, found.special) == (own.tokens, own.special)
    assert found.encode("a \u00e9") == own.encode("a \u00e9") == list("a \u00e9".encode())


def test_an_added_token_writes_its_name_unless_it_is_special():
    content = byte_tokenizer_json()
    kinds = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    content["added_tokens"] = [
        {"id": 256, "content": "<end>", "special": True, **kinds},
        {"id": 257, "content": "\u0120 x", "special": False, **kinds},
    ]
    found = vocabulary(content)
    assert found.special == (256,)
    assert found.tokens[257] == "\u0120 x".encode()


@pytest.mark.parametrize(
    "decoder",
    [
        {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "never", "split": False},
        {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}, {"type": "ByteFallback"},
                {"type": "Fuse"},
            ],
        },
    ],
    ids=["Metaspace", "ByteFallback"],
)  # fmt: skip
def test_pieces_write_spaces_and_single_bytes(decoder):
    found = vocabulary(sentence_piece(decoder, added=[(0, "<unk>"), (1, "<s>")]))
    assert found.special == (0, 1)
    assert found.tokens[2:] == (b"\n", b"\xff", b" the", b"re", "\u00e9".encode(), b" ")


@pytest.mark.parametrize("decoder", [None, {"type": "WordPiece", "prefix": "##", "cleanup": True}])
def test_what_another_decoder_writes_is_not_guessed(decoder):
    with pytest.raises(CheckpointError, match="byte-level and SentencePiece"):
        vocabulary(sentence_piece(decoder))
