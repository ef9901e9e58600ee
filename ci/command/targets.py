"""Finds the object that ``--target`` names, and says what it lacks if it is no target."""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePath
from types import ModuleType
from typing import cast

from mrv2.ci.report.problem import InputError, four_parts
from mrv2.fuzz.targets.named import OWN_TARGETS
from mrv2.fuzz.targets.protocols import Feature, Knob, RunnerTarget


@contextmanager
def importable(folder: Path) -> Iterator[None]:
    """Let modules of ``folder`` be imported for a while; last in the search order, so that they shadow nothing."""
    entry = str(folder)
    added = entry not in sys.path
    if added:
        sys.path.append(entry)
    try:
        yield
    finally:
        if added and entry in sys.path:
            sys.path.remove(entry)


def resolve_target(reference: str, named_by: str = "--target") -> RunnerTarget:
    """The target of a name: one of ours, or ``package.module:object``; a class is instantiated.

    Args:
        reference: the name.
        named_by: what it comes from, for errors: an option, an argument or a file.

    Raises:
        InputError: the name has another form, cannot be imported, or names something that is no target.
    """
    path, subject = OWN_TARGETS.get(reference, reference), f"{named_by} {reference!r}"
    if not _is_name(path):
        raise InputError(
            subject,
            f"a target is one of {', '.join(OWN_TARGETS)}, or package.module:object",
            "the part before the colon is imported, the part after it looked up there",
            f"for example my_engine.adapter:Target{or_meant(reference)}",
        )
    found = _instance(subject, _named(subject, path))
    _check(subject, found)
    return cast(RunnerTarget, found)


def module_of_target(reference: str) -> str:
    """The module that a target's name begins with."""
    return OWN_TARGETS.get(reference, reference).partition(":")[0]


def resolve_program(subject: str, reference: str) -> Callable[[], object]:
    """The function that ``package.module:function`` names; it is called without arguments.

    Args:
        subject: what names it, for errors, e.g. ``"TARGET 'demo:program'"``.
        reference: the name.

    Raises:
        InputError: the name has another form, cannot be imported, or names something that cannot be called.
    """
    if not _is_name(reference):
        raise InputError(
            subject,
            "a program is package.module:function",
            "the part before the colon is imported, the part after it looked up there and called",
            f"for example my_engine.programs:decode{or_meant(reference)}",
        )
    found = _named(subject, reference)
    if not callable(found) or isinstance(found, type):
        raise InputError(
            subject,
            "a program is a function without arguments",
            "it is called, once for each run",
            "def program(): ..., which says device='cuda' and returns what it computed",
        )
    return found


def resolve_object(subject: str, reference: str) -> object:
    """The object that ``package.module:object`` names.

    Args:
        subject: what names it, for errors.
        reference: the name.

    Raises:
        InputError: the name has another form, or cannot be imported.
    """
    if not _is_name(reference):
        raise InputError(
            subject,
            "it is package.module:object",
            "the part before the colon is imported, the part after it looked up there",
            f"for example my_engine.adapter:sampler{or_meant(reference)}",
        )
    return _named(subject, reference)


def is_target(subject: str, reference: str) -> bool:
    """Whether a name is a target's, and not a program's; one that names nothing is neither.

    Raises:
        InputError: it has the form of a name, and names nothing.
    """
    return _is_name(reference) and hasattr(_named(subject, reference), "build")


def _is_name(path: str) -> bool:
    module, colon, attributes = path.partition(":")
    return bool(colon) and all(part.isidentifier() for part in (*module.split("."), *attributes.split(".")))


def or_meant(reference: str) -> str:
    """What was meant by a name that is a file's, or has a dot in the place of the colon; else nothing."""
    module, colon, attribute = reference.partition(":")
    file = PurePath(module)
    if file.suffix == ".py":
        folder = f", in the folder {file.parent}" if file.is_absolute() else ""
        parts = [file.stem] if folder else [part for part in file.with_suffix("").parts if part != ".."]
        return f"; did you mean {'.'.join(parts)}:{attribute or 'function'}{folder}?"
    outer, dot, inner = module.rpartition(".")
    if not colon and dot and _is_name(f"{outer}:{inner}"):
        return f"; did you mean {outer}:{inner}?"
    return ""


def _named(subject: str, path: str) -> object:
    """The object that ``package.module:object`` names."""
    return _look_up(subject, _import(subject, path), path.partition(":")[2])


def _import(subject: str, path: str) -> ModuleType:
    """Import the module of a name; whatever its code raises is reported as the module's failure."""
    name = path.partition(":")[0]
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        raise InputError(
            subject,
            f"the module {name} must be importable, and raised {type(error).__name__}: {error}",
            "what is named is a Python object, and it lives in that module",
            f"run python -c 'import {name}' in the same folder and environment until it works{or_meant(path)}",
        ) from error


def _look_up(subject: str, module: ModuleType, attributes: str) -> object:
    """Follow the dotted name inside the module."""
    found: object = module
    for name in attributes.split("."):
        if not hasattr(found, name):
            public = [entry for entry in dir(found) if not entry.startswith("_")]
            close = difflib.get_close_matches(name, public, n=3) or _likely(found, public)
            raise InputError(
                subject,
                f"{name} must exist in {module.__name__}",
                "it was imported, and has no attribute of that name",
                f"one of its names: {', '.join(close) or 'it has none'}",
            )
        found = getattr(found, name)
    return found


def _likely(found: object, names: list[str]) -> list[str]:
    """Names to propose when none is close: targets and functions before the rest, the first dozen."""
    ranked = sorted(names, key=lambda name: not hasattr(getattr(found, name, None), "build"))
    return ranked[:12] + ([f"... {len(ranked) - 12} more"] if len(ranked) > 12 else [])


def _instance(subject: str, found: object) -> object:
    """Make an instance if the name is a class."""
    if not isinstance(found, type):
        return found
    try:
        return found()
    except (Exception, SystemExit) as error:
        if four_parts(error):
            raise
        raise InputError(
            subject,
            f"{found.__name__}() must make a target without arguments; it raised {type(error).__name__}: {error}",
            "a class named on the command line gets no arguments",
            "name an instance instead, made in the module with the arguments it needs",
        ) from error


def _check(subject: str, found: object) -> None:
    """Look at each member that the protocol asks for, and name all that are wrong at once."""
    faults = []
    if not isinstance(getattr(found, "name", None), str) or not getattr(found, "name", ""):
        faults.append("name: a non-empty str")
    features = getattr(found, "features", None)
    if not isinstance(features, set | frozenset) or not all(isinstance(entry, Feature) for entry in features):
        faults.append("features: a frozenset of mrv2.fuzz.targets.protocols.Feature")
    knobs = getattr(found, "knobs", None)
    if not isinstance(knobs, Mapping) or not all(isinstance(entry, Knob) for entry in knobs.values()):
        faults.append("knobs: a mapping of str to mrv2.fuzz.targets.protocols.Knob, may be empty")
    if not callable(getattr(found, "build", None)):
        faults.append("build(config): a method that returns a runner")
    if faults:
        raise InputError(
            f"{subject}, of type {type(found).__name__}",
            f"a target has name, features, knobs and build; missing or wrong here: {'; '.join(faults)}",
            "the stages use these four and nothing else of the target",
            "fulfil mrv2.fuzz.targets.protocols.RunnerTarget",
        )
