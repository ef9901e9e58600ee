"""Functions by name, ``package.module:Class.method``, and how they become hot paths from outside."""

from __future__ import annotations

import difflib
import importlib
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType, ModuleType
from typing import Any

from ..hooks.patching import Patches
from ..hot_path import HotPathError, in_hot_path, through


@dataclass(frozen=True)
class Named:
    """What a name names.

    Attributes:
        name: as it was written.
        owner: the module or class that it was looked up in.
        attribute: its name there.
        function: the function itself, without descriptor or decorator.
    """

    name: str
    owner: Any
    attribute: str
    function: Callable[..., Any]

    def holds(self, file: str, line: int) -> bool:
        """Whether a line of a file is in the body of the function."""
        code = self.function.__code__
        return file == code.co_filename and code.co_firstlineno <= line <= _last_line(code)


def find(name: str, what: str = "name") -> Named:
    """Import and look up what a name names.

    Args:
        name: ``package.module:Class.method``.
        what: what the name is for, as errors call it.

    Raises:
        HotPathError: it has another form, cannot be imported, does not exist or is no Python function.
    """
    subject = f"{what} {name!r}"
    module_name, colon, path = name.partition(":")
    if not colon or not all(part.isidentifier() for part in (*module_name.split("."), *path.split("."))):
        raise HotPathError(
            subject,
            "it must have the form package.module:function or package.module:Class.method",
            "the part before the colon is imported, the part after it looked up there",
            "for example my_engine.runner:Runner.execute",
        )
    owner: Any = _module(subject, module_name)
    *classes, attribute = path.split(".")
    for part in classes:
        owner = _attribute(subject, owner, part)
    function = inspect.unwrap(_plain(_attribute(subject, owner, attribute)))
    if not hasattr(owner, "__dict__"):
        raise HotPathError(
            subject,
            f"what stands before {attribute} must be a module or a class",
            f"an object of class {type(owner).__name__} has no attributes that could be replaced",
            f"the class: {type(owner).__module__}:{type(owner).__qualname__}.{attribute}",
        )
    if not isinstance(getattr(function, "__code__", None), CodeType):
        raise HotPathError(
            subject,
            "it must be a function written in Python",
            f"a {type(function).__name__} has no body that could be a hot path",
            "the Python function that calls it",
        )
    return Named(name, owner, attribute, function)


def make_hot(named: Named, patches: Patches) -> None:
    """Let calls of a function be entries of a hot path, until the patches are undone.

    Raises:
        HotPathError: it is a generator.
    """
    replace_function(named, lambda function: in_hot_path(named.name, function), patches)


def replace_function(named: Named, wrap: Callable[[Any], Any], patches: Patches) -> None:
    """Put a wrapper in the place of a function, until the patches are undone.

    Modules that imported the function by name get the wrapper too.
    """
    holder = _holder(named)
    raw = vars(holder)[named.attribute] if named.attribute in vars(holder) else getattr(named.owner, named.attribute)
    replacement = through(raw, wrap)
    patches.set(named.owner, named.attribute, replacement)
    if isinstance(named.owner, ModuleType):
        for module in list(sys.modules.values()):
            for alias, value in list(vars(module).items()) if isinstance(module, ModuleType) else ():
                if value is raw and not (module is named.owner and alias == named.attribute):
                    patches.set(module, alias, replacement)


def _module(subject: str, module_name: str) -> ModuleType:
    try:
        return importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        raise HotPathError(
            subject,
            f"the module {module_name} must be importable, and raised {type(error).__name__}: {error}",
            "the function lives in that module",
            f"run python -c 'import {module_name}' in the same folder and environment until it works",
        ) from error


def _attribute(subject: str, owner: Any, attribute: str) -> Any:
    found = inspect.getattr_static(owner, attribute, None)
    if found is None and isinstance(owner, ModuleType):
        found = getattr(owner, attribute, None)  # a module may give some names only when they are asked for
    if found is None:
        public = [entry for entry in dir(owner) if not entry.startswith("__")]
        close = difflib.get_close_matches(attribute, public, n=3)
        raise HotPathError(
            subject,
            f"{attribute} must exist in {getattr(owner, '__qualname__', owner.__name__)}",
            "what does not exist is never entered, so nothing would be checked",
            f"did you mean {' or '.join(close)}?" if close else "one of the names that it has",
        )
    return found


def _plain(value: Any) -> Any:
    """The function behind a static method, class method or property."""
    if isinstance(value, property):
        return value.fget
    return value.__func__ if isinstance(value, staticmethod | classmethod) else value


def _holder(named: Named) -> Any:
    """The class of the inheritance line that defines the attribute, or the module."""
    line = named.owner.__mro__ if isinstance(named.owner, type) else (named.owner,)
    return next((holder for holder in line if named.attribute in vars(holder)), named.owner)


def _last_line(code: CodeType) -> int:
    """The last line of a function, those of functions within it included."""
    own = [line for _, _, line in code.co_lines() if line is not None]
    inner = [_last_line(constant) for constant in code.co_consts if isinstance(constant, CodeType)]
    return max((*own, *inner), default=code.co_firstlineno)
