"""Errors of the virtual device: each says what object, which rule, why, and what to write instead."""

from __future__ import annotations

from ..errors import CheckError


class VirtualDeviceError(CheckError, RuntimeError):
    """The virtual device was used in a way that it cannot honour."""


class StaleObjectError(VirtualDeviceError):
    """A tensor or graph of an earlier ``virtual_device`` block was used."""

    def __init__(self, subject: str) -> None:
        super().__init__(
            subject,
            "it may only be used inside the virtual_device block that made it",
            "each block is a device of its own, whose memory is gone when the block ends",
            "create it inside the block, or copy it to the host before the block ends",
        )


class UnsupportedOperationError(VirtualDeviceError):
    """An operation that the virtual device cannot defer."""
