"""The virtual asynchronous device; see ``virtual_device``."""

from .custom import register_op
from .device import VirtualDevice, uva_view, virtual_device
from .errors import StaleObjectError, UnsupportedOperationError, VirtualDeviceError

__all__ = [
    "StaleObjectError",
    "UnsupportedOperationError",
    "VirtualDevice",
    "VirtualDeviceError",
    "register_op",
    "uva_view",
    "virtual_device",
]
