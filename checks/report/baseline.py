"""The baseline: a JSON file of findings that are known and accepted, each with a reason and an owner.

    {"schema": 1, "accepted": [{"fingerprint": "0123456789abcdef", "code": "MRV303",
                                "reason": "bfloat16 logits, see ticket 12", "owner": "kernels"}]}

An accepted finding is still listed, but does not fail the run.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..codes import CODES
from ..errors import CheckError
from ..findings import JSON, Finding
from .identity import identity
from .json_files import VERSION, is_version, load_json

_FIELDS = ("fingerprint", "code", "reason", "owner")
_FINGERPRINT = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True)
class Accepted:
    """One accepted finding."""

    fingerprint: str
    code: str
    reason: str
    owner: str


@dataclass(frozen=True)
class Baseline:
    """The accepted findings of a project; empty if no file was given."""

    entries: tuple[Accepted, ...] = ()

    @property
    def reasons(self) -> Mapping[tuple[str, str], str]:
        """Why a finding is accepted, by (fingerprint, code)."""
        return {(entry.fingerprint, entry.code): entry.reason for entry in self.entries}

    def unmatched(self, findings: tuple[Finding, ...]) -> tuple[str, ...]:
        """Fingerprints of entries that match none of the findings: probably repaired, so to be removed."""
        found = {(identity(finding), finding.code) for finding in findings}
        return tuple(entry.fingerprint for entry in self.entries if (entry.fingerprint, entry.code) not in found)


def read_baseline(path: Path, option: str = "--baseline") -> Baseline:
    """Read a baseline file.

    Args:
        path: the file.
        option: that named it, for errors.

    Raises:
        CheckError: it cannot be read, is malformed, accepts a finding twice, or gives no reason for one.
    """
    content = load_json(path, option)
    accepted = content.get("accepted") if isinstance(content, Mapping) else None
    if not isinstance(content, Mapping) or not is_version(content.get("schema")) or not isinstance(accepted, list):
        raise CheckError(
            f"{option} {path}",
            f'a baseline is an object with "schema": {VERSION} and a list "accepted"',
            "what is accepted must be certain, and a file of another shape could accept anything",
            f'{{"schema": {VERSION}, "accepted": [{{"fingerprint": ..., "code": ..., "reason": ..., "owner": ...}}]}}',
        )
    entries = tuple(_entry(f"{option} {path}", index, value) for index, value in enumerate(accepted))
    _refuse_twins(f"{option} {path}", entries)
    return Baseline(entries)


def _entry(file: str, index: int, value: JSON) -> Accepted:
    """Check one entry."""
    fields = dict(value) if isinstance(value, Mapping) else {}
    bad = [name for name in _FIELDS if not isinstance(fields.get(name), str) or not str(fields[name]).strip()]
    unknown = sorted(set(fields) - set(_FIELDS))
    if "fingerprint" not in bad and not _FINGERPRINT.fullmatch(str(fields.get("fingerprint"))):
        bad.append("fingerprint")
    if bad or unknown:
        faults = [f"{name} missing, empty or malformed" for name in bad] + [f"{name} is unknown" for name in unknown]
        raise CheckError(
            f"{file}, entry {index}",
            f"an entry has a fingerprint of 16 hex digits, a code, a reason and an owner, and nothing else "
            f"({', '.join(faults)})",
            "a finding that is accepted without a reason or an owner is one that nobody will ever look at again",
            "fingerprint and code copied from a report written with --json, why it is accepted, and by whom",
        )
    _check_code(file, index, str(fields["code"]))
    return Accepted(*(str(fields[name]) for name in _FIELDS))


def _check_code(file: str, index: int, code: str) -> None:
    if code not in CODES:
        close = difflib.get_close_matches(code, CODES, n=2)
        raise CheckError(
            f"{file}, entry {index}, code {code!r}",
            "the code must be one that a finding can have",
            "an entry with another code accepts nothing, for ever",
            " or ".join(close) if close else "a code that mrv2 explain --list names",
        )


def _refuse_twins(file: str, entries: tuple[Accepted, ...]) -> None:
    """Two entries for one finding would make it unclear which reason counts."""
    seen: set[str] = set()
    for entry in entries:
        if entry.fingerprint in seen:
            raise CheckError(
                f"{file}, fingerprint {entry.fingerprint}",
                "each finding is accepted once",
                "with two entries it is unclear which reason and which owner count",
                "remove one of the two entries",
            )
        seen.add(entry.fingerprint)
