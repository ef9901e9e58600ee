"""What the program called when it had to wait, by the name under which torch's manual has it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import PurePath
from types import FrameType, FunctionType
from typing import Any

import torch

from ..libraries import TOOLKIT, folder_of

#: Classes of the virtual device, and those of torch that they stand for.
_STAND_INS = {"DeviceTensor": "Tensor", "DeviceStorage": "UntypedStorage"}
#: What a call through ``torch.ops`` goes through.
_OPERATOR_CALLS = "_ops.py"
#: Builtin modules of torch, and where the manual has their functions.
_PUBLIC = {"torch._C._nn": "torch.nn.functional", "torch._C._linalg": "torch.linalg", "torch._C._fft": "torch.fft"}


def name_of(function: Any) -> str | None:
    """The name of a function of torch: ``"Tensor.item"``, ``"torch.unique"``, ``"my_kernels::rotary"``.

    Args:
        function: as a torch-function mode gets it; None stands for no function.
    """
    if function is None:
        return None
    if isinstance(function, torch._ops.OpOverload):
        return function._schema.name
    if isinstance(function, torch._ops.OpOverloadPacket):
        return function._qualified_op_name
    if isinstance(function, FunctionType):
        return _python_name(function.__module__, function.__qualname__)
    name = str(getattr(function, "__name__", ""))
    owner = getattr(function, "__objclass__", None)
    if owner is not None:
        return f"Tensor.{name}" if issubclass(torch.Tensor, owner) else f"{owner.__name__}.{name}"
    module = _PUBLIC.get(str(getattr(function, "__module__", None)), "torch")
    return f"{module}.{name.removeprefix(module.rpartition('.')[2] + '_')}" if name else None


def outermost(frames: Sequence[FrameType]) -> str | None:
    """The public function of torch that the program called, if it is written in Python; None if it called torch's C++.

    Args:
        frames: between the program and the wait, the outermost first.
    """
    for frame in frames:
        code = frame.f_code
        kind, _, method = code.co_qualname.partition(".")
        if kind in _STAND_INS and code.co_filename.startswith(TOOLKIT):
            return f"{_STAND_INS[kind]}.{method}"
        if code.co_filename.startswith(folder_of("torch")):
            if PurePath(code.co_filename).name == _OPERATOR_CALLS:
                return None
            name = _python_name(str(frame.f_globals.get("__name__")), code.co_qualname)
            if name is not None:
                return name
    return None


def _python_name(module: str, qualified: str) -> str | None:
    """None for what is not meant to be called by a program, or only passes a call on."""
    short = qualified.rpartition(".")[2]
    special = short.startswith("__") and short.endswith("__") and short != "__call__"
    if "<" in qualified or module == "torch.overrides" or (short.startswith("_") and not special):
        return None
    if qualified.startswith(("Tensor.", "TensorBase.")):
        return f"Tensor.{short}"
    if "." not in qualified:
        parts = module.split(".")
        packages = [".".join(parts[:count]) for count in range(1, len(parts) + 1)]
        module = next((package for package in packages if hasattr(sys.modules.get(package), short)), module)
    return f"{module}.{qualified}"
