"""The static search as a whole: files in, findings out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import CheckError
from ..findings import Finding
from ..sync.settings import Settings, read_settings
from .allowances import Allowances, Judged
from .roots import Root, all_roots, decorated_roots, named_roots
from .rules import staging_finding
from .search import Search
from .sources import Source, Sources
from .staging import Effects, rewritten
from .symbols import Symbols


@dataclass(frozen=True)
class Result:
    """What a search found.

    Attributes:
        findings: those that nothing allows, with unused allowances; by place.
        allowed: those that an allowance accepts, with its reason.
        roots: identities of the functions that it started from.
        reached: identities of the functions that it came to.
        files: number of files judged.
        context_files: number of other files that were read for what they say of types.
        broken: files that cannot be parsed, with the reason; nothing in them was judged.
        contexts: number of functions looked at, each once for each combination of argument values.
        cut: functions that a hot path calls, but too deeply below its root to be looked at.
        places: where each file that a finding names is; findings name files the same on every machine.
    """

    findings: tuple[Finding, ...]
    allowed: tuple[tuple[Finding, str], ...]
    roots: tuple[str, ...]
    reached: tuple[str, ...]
    files: int
    context_files: int
    broken: dict[str, str]
    contexts: int
    cut: tuple[str, ...]
    places: dict[str, Path]


def lint(paths: Sequence[Path], roots: Sequence[str] = (), everything: bool = False) -> Result:
    """Search files for what makes the host wait on a hot path, and for staging memory and streams without an order.

    Args:
        paths: files and folders to judge.
        roots: hot paths besides those of the project's pyproject and the decorator.
        everything: take every function as a root.

    Raises:
        CheckError: a path, a root or an allowance cannot be used, or there is no root.
    """
    sources = Sources()
    for path in paths:
        sources.add(path)
    file = project_file(paths[0])
    settings = read_settings(file) if file is not None else Settings()
    judged = [source for name in list(sources.judged) if (source := sources.module(name)) is not None]
    search = Search(sources)
    for source in judged:
        search.symbols.table(source)
    chosen = _roots(search.symbols, judged, settings.hot_paths, roots, everything)
    allowances = Allowances(judged, settings.allowances)
    effects = search.run(chosen)
    told = allowances.judge(search.observations.values(), _staging(sources, effects))
    return _result(sources, search, chosen, told, allowances)


def project_file(path: Path) -> Path | None:
    """The nearest pyproject.toml above a file or folder."""
    path = path.resolve()
    files = (folder / "pyproject.toml" for folder in (path, *path.parents))
    return next((file for file in files if file.is_file()), None)


def _roots(
    symbols: Symbols, judged: Sequence[Source], configured: Sequence[str], names: Sequence[str], everything: bool
) -> list[Root]:
    """Every function, or those that are named or marked.

    Raises:
        CheckError: there is none.
    """
    if everything:
        return all_roots(symbols, judged)
    found = named_roots(symbols, judged, names, "--root")
    found += named_roots(symbols, judged, configured, "[tool.mrv2] hot_paths")
    found += decorated_roots(symbols, judged)
    if not found:
        raise CheckError(
            "the hot path",
            "at least one function must be named as a root",
            "only what a hot path calls may not wait; in the rest of a program a wait is no fault",
            '--root package.module:Class.method, hot_paths = ["..."] in [tool.mrv2] of pyproject.toml, '
            "the decorator hot_path, or --all to judge every function",
        )
    return list(dict.fromkeys(found))


def _staging(sources: Sources, effects: Sequence[Effects]) -> Iterator[tuple[Finding, str, int]]:
    """MRV131, once for each place that writes."""
    for copied, written in rewritten(effects):
        source, other = sources.module(written.module), sources.module(copied.module)
        if source is not None and other is not None and source.judged:
            yield staging_finding(copied, written, source.label, other.label), written.module, written.line


def _result(sources: Sources, search: Search, roots: Sequence[Root], told: Judged, allowances: Allowances) -> Result:
    findings = sorted([*told.open, *allowances.unused()], key=_place)
    context = sum(not source.judged for source in sources.parsed())
    return Result(
        findings=tuple(findings),
        allowed=tuple(told.allowed),
        roots=tuple(function.identity for function, _ in roots),
        reached=tuple(sorted(search.reached)),
        files=len(sources.judged),
        context_files=context,
        broken=dict(sources.broken),
        contexts=search.contexts,
        cut=tuple(sorted(search.cut - set(search.reached))),
        places={source.label: source.path for source in sources.parsed()},
    )


def _place(finding: Finding) -> tuple[str, int, str, str]:
    site = finding.where[0]
    return site.file, site.line, finding.code, finding.title
