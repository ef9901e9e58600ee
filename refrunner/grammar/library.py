"""llguidance, the library that reads grammars, behind the few calls that are needed of it."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

from ..errors import ConfigurationError
from ..models.vocabulary import Vocabulary

PACKAGE = "llguidance"


def load_library() -> ModuleType:
    """Import the library at the moment it is needed.

    Raises:
        ConfigurationError: it is not installed.
    """
    try:
        return importlib.import_module(PACKAGE)
    except ImportError as error:
        raise ConfigurationError(
            f"package {PACKAGE!r}",
            "it must be installed for RunnerConfig.grammars=True",
            "it reads schemas, expressions and grammars and says which tokens may come next; the runner works without "
            "it, so it is not among the required packages",
            "pip install 'mrv2[grammar]'",
        ) from error


class TokenBytes:
    """A vocabulary in the form that the library asks for: the attributes are its names.

    One token is added behind the model's: the *end*, which the library allows where the text is complete.
    """

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary, vocab_size: int) -> None:
        self.eos_token_id = vocab_size
        self.tokens = [*vocabulary.tokens, *[b""] * (vocab_size - len(vocabulary.tokens)), b"<end>"]
        self.special_token_ids = [*vocabulary.special, vocab_size]
        self._encode = vocabulary.encode

    def __call__(self, text: str) -> list[int]:
        """Tokens of a text that the grammar leaves no choice about; of the ways to write it, this one is allowed."""
        return self._encode(text)


def library_tokenizer(library: ModuleType, vocabulary: Vocabulary, vocab_size: int) -> Any:
    """The library's own form of a vocabulary; takes about 6 microseconds a token.

    Args:
        vocab_size: V, width of the model's logits; ids from the end of the vocabulary up to it write nothing.
    """
    return library.LLTokenizer(TokenBytes(vocabulary, vocab_size))


def library_grammar(library: ModuleType, kind: str, text: str) -> str:
    """A grammar in the library's own notation.

    Raises:
        ValueError: the text is no such grammar; what this lets pass, making a matcher finds.
    """
    grammar: str = library.grammar_from(kind, text)
    return grammar
