"""Triton kernels compiled for the CPU, every access checked and logged."""

from .enable import Session, enabled
from .errors import DeviceAssertion, OutOfFuel, ProgramError, Unsupported
from .fallback import InterpretedKernel

__all__ = ["DeviceAssertion", "InterpretedKernel", "OutOfFuel", "ProgramError", "Session", "Unsupported", "enabled"]
