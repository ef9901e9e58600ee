"""What a campaign found: one file for each kind of failure, which is enough to repeat it on another machine."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mrv2.checks.errors import CheckError
from mrv2.checks.findings import JSON
from mrv2.checks.virtual.replay import environment
from mrv2.fuzz.case import Failure
from mrv2.fuzz.paste import as_test
from mrv2.fuzz.script import Script, script_as_json, script_from_json

from .durable import write_durably
from .observed import Observed

VERSION = 1
_TEXTS = ("target", "signature", "text", "cause")
_OBSERVED = "observed"
_FIELDS = {*_TEXTS, _OBSERVED, "finding", "distance", "script", "original", "minimised", "environment", "test"}


@dataclass(frozen=True)
class FoundCase:
    """A script that goes wrong.

    Attributes:
        target: name on the command line.
        signature: of the first failure; equal ones are one finding.
        text: what was seen in ``script``.
        script: the smallest one known.
        original: the first one.
        distance: of the first failure from its cause, see :class:`~mrv2.fuzz.case.Failure`.
        cause: signature of the failure in ``script``, which may be nearer to the cause.
        minimised: whether ``script`` is as small as Hypothesis made it, and not only the first one.
        environment: versions that it was found with.
        observed: what ``script`` showed, if it came to its end.
    """

    target: str
    signature: str
    text: str
    script: Script
    original: Script
    distance: int
    cause: str
    minimised: bool = False
    environment: Mapping[str, str] = field(default_factory=environment)
    observed: Observed | None = None

    @property
    def file_name(self) -> str:
        """Made of the signature, so that all workers mean the same file."""
        return f"{hashlib.sha256(self.signature.encode()).hexdigest()[:16]}.json"

    def as_json(self) -> dict[str, JSON]:
        """As the file has it; ``test`` is for people and is not read back."""
        return {
            "finding": VERSION,
            "target": self.target,
            "signature": self.signature,
            "text": self.text,
            "distance": self.distance,
            "cause": self.cause,
            "minimised": self.minimised,
            "script": script_as_json(self.script),
            "original": script_as_json(self.original),
            "environment": dict(self.environment),
            _OBSERVED: None if self.observed is None else self.observed.as_json(),
            "test": as_test(self.target, self.script, [Failure(self.cause, self.text, self.distance)]),
        }


def read_found_case(path: Path) -> FoundCase:
    """Read a finding; nothing in it is run.

    Raises:
        CheckError: it cannot be read or is malformed.
    """
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if set(content) != _FIELDS or content["finding"] != VERSION:
            raise ValueError(f'its fields are {", ".join(sorted(_FIELDS))}, and "finding" is {VERSION}')
        versions = content["environment"]
        if not all(isinstance(text, str) for text in (*map(content.get, _TEXTS), *versions, *versions.values())):
            raise ValueError(f"{', '.join(_TEXTS)} and versions are texts")
        return FoundCase(
            **{name: content[name] for name in _TEXTS},
            script=script_from_json(content["script"]),
            original=script_from_json(content["original"]),
            distance=int(content["distance"]),
            minimised=content["minimised"] is True,
            environment=versions,
            observed=None if content[_OBSERVED] is None else Observed.from_json(content[_OBSERVED]),
        )
    except OSError as error:
        raise _malformed(path, f"it must be readable: {error.strerror}") from error
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise _malformed(path, f"it must be a finding of mrv2 fuzz: {str(error)[:200]}") from error


def _malformed(path: Path, rule: str) -> CheckError:
    return CheckError(
        f"finding {path}", rule, "a case that was guessed at is no repetition", "a file that mrv2 fuzz wrote, unchanged"
    )


class FindingStore:
    """The findings of a campaign in a folder; several processes may use it at once.

    Args:
        folder: is made if need be.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def all(self) -> list[FoundCase]:
        """All findings, in the order of their files' names."""
        return [read_found_case(path) for path in sorted(self._folder.glob("[0-9a-f]*.json"))]

    def add(self, found: FoundCase) -> bool:
        """Keep a finding on the disk; a smaller script replaces a larger one, and the first original stays.

        Returns:
            whether it is new.

        Raises:
            OSError: the file system refuses; what was there before is still there.
        """
        path = self._folder / found.file_name
        if not path.exists():
            write_durably(path, found.as_json())
            return True
        known = read_found_case(path)
        if found.minimised and (not known.minimised or _size(found.script) < _size(known.script)):
            write_durably(path, replace(found, original=known.original).as_json())
        return False


def _size(script: Script) -> tuple[int, int, int]:
    return len(script.events), script.num_deviations, len(json.dumps(script_as_json(script)))
