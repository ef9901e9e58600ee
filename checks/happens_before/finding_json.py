"""A finding as JSON, and back."""

from __future__ import annotations

from typing import Any

from ..findings import JSON, Finding, Site, Soundness, Verdict

_PLACES = ("where", "other", "allocation")


def finding_to_json(finding: Finding) -> dict[str, JSON]:
    """All fields of a finding, as plain values."""
    return {
        "code": finding.code,
        "verdict": finding.verdict.value,
        "soundness": finding.soundness.value,
        "title": finding.title,
        **{name: [[site.file, site.line, site.function] for site in getattr(finding, name)] for name in _PLACES},
        "evidence": dict(finding.evidence),
        "remedy": finding.remedy,
        "step": finding.step,
        "replay": finding.replay,
    }


def finding_from_json(value: Any) -> Finding:
    """The finding again.

    Raises:
        ValueError: it is not what ``finding_to_json`` writes.
    """
    try:
        places = {name: tuple(site_from_json(site) for site in value[name]) for name in _PLACES}
        return Finding(
            code=_text(value["code"]),
            verdict=Verdict(value["verdict"]),
            soundness=Soundness(value["soundness"]),
            title=_text(value["title"]),
            evidence=dict(value["evidence"]),
            remedy=_text(value["remedy"]),
            step=None if value["step"] is None else int(value["step"]),
            replay=None if value["replay"] is None else _text(value["replay"]),
            **places,
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"not a finding: {error}") from None


def site_from_json(value: Any) -> Site:
    """``[file, line, function]`` as a site.

    Raises:
        ValueError: it is something else.
    """
    if not isinstance(value, list) or [type(part) for part in value] != [str, int, str]:
        raise ValueError(f"{value!r} is not [file, line, function]")
    return Site(*value)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not text")
    return value
