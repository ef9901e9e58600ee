"""Grammars from files, for ``mrv2 generate``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mrv2.ci.report.problem import InputError
from mrv2.refrunner.api import Grammar

JsonSchemaOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Generate JSON that this JSON schema allows.", show_default=False)
]
GrammarOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Generate a text of this GBNF or Lark grammar.", show_default=False)
]


def read_grammar(json_schema: Path | None, grammar: Path | None) -> Grammar | None:
    """The grammar that the options name; None if they name none.

    Raises:
        InputError: they name two, or a file that cannot be read as text.
    """
    if json_schema is not None and grammar is not None:
        raise InputError(
            "--json-schema with --grammar",
            "a text has one grammar",
            "whether it should satisfy both or either of them, nobody has said",
            "one of the two options",
        )
    if json_schema is not None:
        return Grammar("json_schema", _text(json_schema, "--json-schema"))
    return None if grammar is None else Grammar("ebnf", _text(grammar, "--grammar"))


def _text(file: Path, option: str) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"{option} {str(file)!r}",
            f"it must be a readable file of UTF-8 text ({type(error).__name__})",
            "the grammar is what it holds",
            "the path of such a file",
        ) from error
