"""The virtual asynchronous device; see ``virtual_device``."""

from .device import VirtualDevice, virtual_device
from .errors import StaleObjectError, UnsupportedOperationError, VirtualDeviceError

__all__ = ["StaleObjectError", "UnsupportedOperationError", "VirtualDevice", "VirtualDeviceError", "virtual_device"]
