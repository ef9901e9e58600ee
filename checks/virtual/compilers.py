"""Compilers and tracers of torch: refused, since what they make would run past the device and its checks.

A compiled function is refused where it is called. With ``torch.compiler.set_stance("force_eager")`` it runs as it is
written, and is checked like any other code.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, NoReturn

import torch

from .errors import UnsupportedOperationError
from .streams import is_active

_original = torch.compile


def refuse(what: str) -> NoReturn:
    """Say that something cannot be compiled or traced.

    Raises:
        UnsupportedOperationError: always.
    """
    raise UnsupportedOperationError(
        what,
        "compilers and tracers are not modelled by the virtual device",
        "compiled code runs at once, past every stream, and nothing of it would be checked",
        'torch.compiler.set_stance("force_eager") in tests, so that the program runs as it is written',
    )


def functions() -> list[tuple[Any, dict[str, Callable[..., Any]]]]:
    """What stands in for compilers and tracers while a device is open: module, name -> replacement."""
    found: list[tuple[Any, dict[str, Callable[..., Any]]]] = [
        (torch, {"compile": _compile}),
        (torch.export, {"export": _refuser("torch.export.export")}),
        (torch.jit, {"trace": _refuser("torch.jit.trace"), "trace_module": _refuser("torch.jit.trace_module")}),
    ]
    tracer = sys.modules.get("torch.fx.experimental.proxy_tensor")
    if tracer is not None:
        found.append((tracer, {"make_fx": _refuser("make_fx")}))
    return found


def stance() -> tuple[Any, str, Any] | None:
    """What refuses functions that were compiled before the device: object, name, value; None if there can be none."""
    frames: Any = sys.modules.get("torch._dynamo.eval_frame")
    if frames is None:
        return None
    original = frames._callback_from_stance

    def callback_from_stance(callback: Any) -> Any:
        wanted = original(callback)
        return wanted if wanted in (None, False) else _refuse_frame

    return frames, "_callback_from_stance", callback_from_stance


def _refuse_frame(frame: Any, *_: Any) -> NoReturn:
    refuse(f"compiled function {frame.f_code.co_name}")


def _refuser(name: str) -> Callable[..., Any]:
    def refused(*_: Any, **__: Any) -> NoReturn:
        refuse(name)

    return refused


def _runs_eagerly() -> bool:
    frames: Any = sys.modules.get("torch._dynamo.eval_frame")
    return frames is not None and frames._stance.stance == "force_eager"


def _compile(model: Any = None, *, disable: bool = False, **options: Any) -> Any:
    """``torch.compile``: it compiles when it is called, and not before the device is gone."""
    if model is None:
        return functools.partial(_compile, disable=disable, **options)
    if disable or (isinstance(model, torch.nn.Module) and _runs_eagerly()):
        return _original(model, disable=disable, **options)
    if isinstance(model, torch.nn.Module):
        refuse(f"torch.compile of module {type(model).__name__}")
    compiled: list[Any] = []

    @functools.wraps(model)
    def compiled_later(*args: Any, **kwargs: Any) -> Any:
        if is_active():
            if not _runs_eagerly():
                refuse(f"compiled function {getattr(model, '__qualname__', model)}")
            return model(*args, **kwargs)
        if not compiled:
            compiled.append(_original(model, **options))
        return compiled[0](*args, **kwargs)

    return compiled_later
