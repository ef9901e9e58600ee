"""Triton kernels compiled for the CPU, every access checked and logged."""

from .cache import NothingKept
from .enable import Session, enabled
from .errors import DeviceAssertion, NotRunnable, OutOfFuel, ProgramError, Unsupported
from .fallback import InterpretedKernel

__all__ = [
    "DeviceAssertion",
    "InterpretedKernel",
    "NotRunnable",
    "NothingKept",
    "OutOfFuel",
    "ProgramError",
    "Session",
    "Unsupported",
    "enabled",
]
