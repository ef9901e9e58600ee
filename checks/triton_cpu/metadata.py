"""What is known about a built variant, as JSON: all of ``Source`` but its text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..findings import JSON, Site
from .emit.source import AccessKind, AccessSite, Source
from .ir import Descriptor, Pointer, Scalar, Tensor, Type


def facts_of(source: Source) -> dict[str, JSON]:
    """A source as JSON."""
    return {
        "parameters": [_type_out(kind) for kind in source.parameters],
        "sites": [_site_out(site) for site in source.sites],
        "scratch": source.scratch,
        "loops": [list(loop) for loop in source.loops],
        "from_memory": source.from_memory,
    }


def source_of(facts: Mapping[str, Any]) -> Source:
    """A source from its JSON, without the text."""
    return Source(
        text="",
        parameters=tuple(_type_in(kind) for kind in facts["parameters"]),
        sites=tuple(_site_in(site) for site in facts["sites"]),
        scratch=facts["scratch"],
        loops=tuple((name, element) for name, element in facts["loops"]),
        from_memory=facts["from_memory"],
    )


def _type_out(kind: Type) -> JSON:
    if isinstance(kind, Scalar):
        return kind.name
    if isinstance(kind, Pointer):
        return {"pointee": _type_out(kind.pointee)}
    if isinstance(kind, Descriptor):
        return {"block": _type_out(kind.block)}
    return {"shape": list(kind.shape), "element": _type_out(kind.element)}


def _type_in(facts: Any) -> Any:
    if isinstance(facts, str):
        return Scalar(facts)
    if "pointee" in facts:
        return Pointer(_type_in(facts["pointee"]))
    if "block" in facts:
        return Descriptor(_type_in(facts["block"]))
    return Tensor(tuple(facts["shape"]), _type_in(facts["element"]))


def _site_out(site: AccessSite) -> JSON:
    return {
        "location": [[place.file, place.line, place.function] for place in site.location],
        "kind": None if site.kind is None else int(site.kind),
        "size": site.size,
        "acquires": site.acquires,
        "releases": site.releases,
        "message": site.message,
        "values": [_type_out(kind) for kind in site.values],
        "hexadecimal": site.hexadecimal,
        "undefined": site.undefined,
    }


def _site_in(facts: Mapping[str, Any]) -> AccessSite:
    return AccessSite(
        location=tuple(Site(*place) for place in facts["location"]),
        kind=None if facts["kind"] is None else AccessKind(facts["kind"]),
        size=facts["size"],
        acquires=facts["acquires"],
        releases=facts["releases"],
        message=facts["message"],
        values=tuple(_type_in(kind) for kind in facts["values"]),
        hexadecimal=facts["hexadecimal"],
        undefined=facts["undefined"],
    )
