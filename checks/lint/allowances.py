"""Allowances: findings that somebody has looked at and accepts, with the reason, beside the code or in pyproject.

    values = ready.tolist()  # mrv2: allow[MRV101] the copy's event was waited for above

A comment holds for the statement on its line, or for the next one if it stands alone.
"""

from __future__ import annotations

import ast
import difflib
import io
import re
import tokenize
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ..codes import CODES as ALL_CODES
from ..errors import CheckError
from ..findings import Finding, Site, Soundness, Verdict
from ..hot_path import Allowance
from .rules import CODES, finding_of
from .search import Observation
from .sources import Source

_COMMENT = re.compile(r"#\s*mrv2:\s*(?P<verb>\w+)\s*(?:\[(?P<codes>[^\]]*)\])?[\s:,-]*(?P<reason>.*)")


@dataclass(eq=False)
class Comment:
    """One inline allowance.

    Attributes:
        source: the module.
        line: of the comment.
        lines: for which it holds.
        codes: what it allows.
        reason: why.
        used: the codes that it allowed something of.
    """

    source: Source
    line: int
    lines: range
    codes: tuple[str, ...]
    reason: str
    used: set[str] = field(default_factory=set)


def comments_of(source: Source) -> list[Comment]:
    """The inline allowances of a module.

    Raises:
        CheckError: one has no reason, or a code that is none.
    """
    if "mrv2:" not in source.text:
        return []
    statements = _statement_lines(source.tree)
    found: list[Comment] = []
    for token in tokenize.generate_tokens(io.StringIO(source.text).readline):
        if token.type == tokenize.COMMENT and (match := _COMMENT.match(token.string)):
            alone = not token.line[: token.start[1]].strip()
            found.append(_comment(source, token.start[0], alone, match, statements))
    return found


def _comment(source: Source, line: int, alone: bool, match: re.Match[str], statements: Sequence[range]) -> Comment:
    where = f"{source.path}, line {line}"
    codes = tuple(code.strip() for code in (match["codes"] or "").split(",") if code.strip())
    if match["verb"] != "allow" or not codes or not match["reason"].strip():
        raise CheckError(
            f"{where}, {match.string.strip()!r}",
            "an allowance names its codes and gives a reason",
            "what is allowed without a reason is never looked at again",
            "# mrv2: allow[MRV101] why the wait is harmless here",
        )
    for code in codes:
        _check_code(where, code)
    return Comment(source, line, _lines_for(line, alone, statements), codes, match["reason"].strip())


def _check_code(where: str, code: str) -> None:
    if code in ALL_CODES:
        return
    close = difflib.get_close_matches(code, ALL_CODES, n=2)
    raise CheckError(
        f"{where}, code {code!r}",
        "the code must be one that a finding can have",
        "an allowance of another code allows nothing, for ever",
        " or ".join(close) if close else "a code that mrv2 explain --list names",
    )


def _lines_for(line: int, alone: bool, statements: Sequence[range]) -> range:
    """The lines of the smallest statement that the comment is in, or of the next one after it."""
    if alone:
        after = [lines for lines in statements if lines.start > line]
        return min(after, key=lambda lines: (lines.start, len(lines)), default=range(line, line + 1))
    around = [lines for lines in statements if line in lines]
    return min(around, key=len, default=range(line, line + 1))


def _statement_lines(tree: ast.Module) -> list[range]:
    """The lines of each statement; of one with a body, only those of its head."""
    found: list[range] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt):
            body = getattr(node, "body", None)
            last = body[0].lineno - 1 if isinstance(body, list) and body else (node.end_lineno or node.lineno)
            found.append(range(node.lineno, max(last, node.lineno) + 1))
    return found


@dataclass
class Judged:
    """Findings after allowances.

    Attributes:
        open: those that nothing allows.
        allowed: those that something allows, with its reason.
    """

    open: list[Finding] = field(default_factory=list)
    allowed: list[tuple[Finding, str]] = field(default_factory=list)


class Allowances:
    """All allowances of a run."""

    def __init__(self, sources: Iterable[Source], entries: Sequence[Allowance]) -> None:
        self._comments: dict[str, list[Comment]] = {source.name: comments_of(source) for source in sources}
        self._entries = entries
        self._used: set[int] = set()

    def judge(self, observations: Iterable[Observation], others: Iterable[tuple[Finding, str, int]]) -> Judged:
        """Sort findings into those that are allowed and those that are not.

        Args:
            observations: what the search found.
            others: findings of other rules, each with its module and line.
        """
        judged = Judged()
        told = [(finding_of(one), one.source.name, _lines(one.node), _on_the_way(one)) for one in observations]
        told += [
            (finding, module, range(line, line + 1), ((module, finding.where[0].function),))
            for finding, module, line in others
        ]
        for finding, module, lines, way in told:
            reason = self._reason(finding, module, lines, way)
            if reason is None:
                judged.open.append(finding)
            else:
                judged.allowed.append((finding, reason))
        return judged

    def _reason(self, finding: Finding, module: str, lines: range, way: Iterable[tuple[str, str]]) -> str | None:
        for comment in self._comments.get(module, ()):
            if finding.code in comment.codes and (lines.start in comment.lines or comment.line in lines):
                comment.used.add(finding.code)
                return comment.reason
        for index, entry in enumerate(self._entries):
            if finding.code == entry.code and any(_is_site(entry.site, *place) for place in way):
                self._used.add(index)
                return entry.reason
        return None

    def unused(self) -> list[Finding]:
        """MRV122 for each allowance of a code of this search that allowed nothing."""
        found: list[Finding] = []
        for comment in (one for ones in self._comments.values() for one in ones):
            file = comment.source.label
            idle = [code for code in comment.codes if code in CODES and code not in comment.used]
            found.extend(_unused(code, file, comment.line, comment.reason) for code in idle)
        for index, entry in enumerate(self._entries):
            if entry.code in CODES and index not in self._used and self._is_looked_at(entry):
                found.append(_unused(entry.code, "pyproject.toml", 0, entry.reason, entry.site))
        return found

    def _is_looked_at(self, entry: Allowance) -> bool:
        """Whether the module of an entry is among the files: else the run says nothing of it."""
        return any(_is_module(entry.site.partition(":")[0], name) for name in self._comments)


def _on_the_way(observation: Observation) -> tuple[tuple[str, str], ...]:
    """Module and name of each function from the root to a finding: what is allowed in one is allowed in its callees."""
    return tuple((function.source.name, function.qualified) for function, _ in observation.chain)


def _lines(node: ast.AST) -> range:
    first = int(getattr(node, "lineno", 0))
    return range(first, int(getattr(node, "end_lineno", None) or first) + 1)


def _is_site(site: str, module: str, function: str) -> bool:
    wanted, _, path = site.partition(":")
    return path == function and _is_module(wanted, module)


def _is_module(wanted: str, have: str) -> bool:
    return have == wanted or wanted.endswith(f".{have}") or have.endswith(f".{wanted}")


def _unused(code: str, file: str, line: int, reason: str, site: str | None = None) -> Finding:
    return Finding(
        code="MRV122",
        verdict=Verdict.SUSPECT,
        soundness=Soundness.MAY,
        title=f"an allowance of {code} allows nothing" + (f" in {site}" if site else ""),
        where=(Site(file, line, site.partition(":")[2] if site else "(comment)"),),
        evidence={"reason": reason},
        remedy="remove it: what it allowed is gone, or the search does not see it any more",
    )
