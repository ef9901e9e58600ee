"""Random numbers that do not depend on the schedule.

A CUDA generator hands each operation its seed and offset when the operation is enqueued; so does this one, and the
deferred kernel draws from those, whenever it runs. A captured operation gets fresh ones at each replay.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor

from .errors import StaleObjectError
from .tensor import DEVICE

if TYPE_CHECKING:
    from .runtime import Runtime

_MASK = (1 << 64) - 1
#: What torch seeds a generator with that nobody seeded.
DEFAULT_SEED = 67280421310721

_CpuGenerator = torch._C.Generator


class DeviceGenerator(_CpuGenerator):
    """``torch.Generator(device="cuda")``: a seed and an offset.

    It is a CPU generator to C++, which passes it on to the operator; there it is found again by its address.
    """

    device = property(lambda self: DEVICE)

    def __init__(self, device: Any = None) -> None:
        self._seed = DEFAULT_SEED
        self._offset = 0

    def manual_seed(self, seed: int) -> DeviceGenerator:
        """Start the sequence of a seed."""
        self._seed = int(seed) & _MASK
        self._offset = 0
        return self

    def initial_seed(self) -> int:
        """The seed of the sequence."""
        return self._seed

    def seed(self) -> int:
        """Start the default sequence: runs are repeatable, so nothing is drawn from the system."""
        self.manual_seed(DEFAULT_SEED)
        return self._seed

    def get_offset(self) -> int:
        """How many operations have drawn since it was seeded."""
        return self._offset

    def set_offset(self, offset: int) -> DeviceGenerator:
        """Continue after as many draws."""
        self._offset = int(offset)
        return self

    def get_state(self) -> Tensor:
        """Seed and offset, as 16 bytes."""
        packed = self._seed.to_bytes(8, "little") + self._offset.to_bytes(8, "little")
        return torch.frombuffer(bytearray(packed), dtype=torch.uint8)

    def set_state(self, new_state: Tensor) -> DeviceGenerator:
        """Continue from a state."""
        packed = bytes(new_state.tolist())
        self._seed = int.from_bytes(packed[:8], "little")
        self._offset = int.from_bytes(packed[8:16], "little")
        return self

    def clone_state(self) -> DeviceGenerator:
        """Another generator at the same place of the same sequence."""
        return DeviceGenerator().set_state(self.get_state())

    graphsafe_get_state = clone_state

    def graphsafe_set_state(self, state: Any) -> DeviceGenerator:
        """Continue from another generator's place."""
        return self.set_state(state.get_state())

    def next_seed(self) -> int:
        """A seed for the next operation: a hash of seed and offset (Steele et al., 2014, "Fast splittable PRNGs")."""
        self._offset += 1
        value = (self._seed + self._offset * 0x9E3779B97F4A7C15) & _MASK
        value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
        return value ^ (value >> 31)


class _ClosedType(type(_CpuGenerator)):  # type: ignore[misc]
    def mro(cls) -> list[type]:
        """No longer torch's kind: C++ would take it for a generator of the CPU, and draw."""
        return [cls, object]


class GeneratorOfClosedDevice(_CpuGenerator, metaclass=_ClosedType):
    """What a generator becomes when its device is gone; torch refuses it, and so does whatever it is asked."""

    def __getattr__(self, name: str) -> NoReturn:
        raise StaleObjectError("random generator")


class _GeneratorType(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _CpuGenerator)


class Generator(metaclass=_GeneratorType):
    """``torch.Generator``: the device's kind for ``device="cuda"``, torch's own for the rest."""

    def __new__(cls, device: Any = "cpu") -> Any:
        """See ``torch.Generator``."""
        if torch.device(device).type == "cuda":
            from .streams import active_runtime

            return active_runtime("a generator").generators.make()
        return _CpuGenerator(device)


class Generators:
    """The generators of one device.

    Attributes:
        default: the one that operations draw from if they name none.
        broken: a capture failed, and no later one has succeeded; torch's generator refuses to draw until then.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._made: weakref.WeakValueDictionary[int, DeviceGenerator] = weakref.WeakValueDictionary()
        self.default = self.make()
        self.broken = False

    def make(self) -> DeviceGenerator:
        """A new generator, known to this device."""
        generator = DeviceGenerator()
        self._made[_address(generator)] = generator
        return generator

    def close(self) -> None:
        """The device is gone, and with it the generators that the program may still hold."""
        for generator in list(self._made.values()):
            generator.__class__ = GeneratorOfClosedDevice  # type: ignore[assignment]

    def seeded(self, run: Callable[[], object], generator: Any) -> Callable[[], Callable[[], object]]:
        """Makes the work of one launch: a kernel with its seed fixed.

        Raises:
            RuntimeError: the generator is of another device.
        """
        source = self.default if generator is None else self._made.get(_address(generator))
        if source is None:
            raise RuntimeError("Expected a 'cuda' device type for generator but found 'cpu'")

        def prepare() -> Callable[[], object]:
            if self.broken:
                raise RuntimeError("Offset increment outside graph capture encountered unexpectedly.")
            return _with_seed(run, source.next_seed())

        return prepare


def _address(generator: Any) -> Any:
    """What tells a C++ generator from others, whichever Python object it comes back as."""
    return generator._cdata


def _with_seed(run: Callable[[], object], seed: int) -> Callable[[], object]:
    """The kernel with the process's CPU generator set to a seed, and restored afterwards."""

    def run_seeded() -> None:
        generator = torch.default_generator
        state = generator.get_state()
        generator.manual_seed(seed)
        try:
            run()
        finally:
            generator.set_state(state)

    return run_seeded
