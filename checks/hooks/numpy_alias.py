"""The numpy array that stands for tracked memory: every read and write through it is told, to the byte.

``Tensor.numpy()`` of tracked memory returns a :class:`TrackedArray` instead of a plain array. Taking a view, a shape or
``may_share_memory`` is no access; views go on being tracked, and whatever is a copy is a plain array. An access is told
before it happens, so that the device may make progress in between, as it does on a real machine.

Not seen is what reaches the memory without numpy: a ``memoryview``, ``struct.pack_into``, ``ctypes``, C code that takes
the buffer. Unseen reads are missed; unseen writes to the source of an upload are found by :mod:`.snapshots`. What an
ordinary array takes over is seen by :mod:`.assignments`. Iteration over a one-dimensional array is told as one read of
all of it, when it begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..events import ByteRange
from . import masks, numpy_functions
from . import numpy_namespace as namespace
from .byte_ranges import Array, array_ranges, element_addresses, lane_ranges, selected_ranges
from .patching import Patches
from .runtime import HostRuntime
from .tracking import Tracked, plain, tracked_in, untensored


def wrap(array: Array, runtime: HostRuntime) -> TrackedArray:
    """The tracked face of an array over tracked memory."""
    tracked: TrackedArray = array.view(TrackedArray)
    tracked._runtime = runtime
    return tracked


class TrackedArray(Tracked):
    """A numpy array over tracked memory; see the module."""

    # Indexing

    def __getitem__(self, key: Any) -> Any:
        if type(key) is slice or (_is_basic(key) and not _is_element(key, self.ndim)):
            return super().__getitem__(key)
        key = _read_key(key)
        if masks.follows_from(key, plain(self)):
            self.tell(array_ranges(plain(self)), "ndarray.__getitem__", write=False, certain=False)
        else:
            self.tell(_ranges_of_key(self, key), "ndarray.__getitem__", write=False)
        return plain(self)[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        value = untensored(value)
        for source in tracked_in(value):
            source.tell_all("ndarray.__setitem__")
        key = _read_key(key)
        self.tell(_ranges_of_key(self, key), "ndarray.__setitem__", write=True)
        plain(self)[key] = plain(value)

    def __iter__(self) -> Iterator[Any]:
        if self.ndim != 1:
            return super().__iter__()
        self.tell_all("ndarray.__iter__")
        return iter(plain(self))

    # Functions of numpy

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        outputs = kwargs.get("out") or ()
        name = f"numpy.{ufunc.__name__}"
        where = plain(kwargs.get("where", True))
        for source in tracked_in([*map(untensored, inputs), kwargs.get("where")]):
            if not any(source is output for output in outputs) and not (method == "at" and source is inputs[0]):
                source.tell(_masked_ranges(source, where), name, write=False)
        if method == "at" and isinstance(inputs[0], TrackedArray):
            inputs[0].tell(_ranges_of_key(inputs[0], plain(inputs[1])), name, write=True)
        for output in tracked_in(list(outputs)):
            output.tell(_masked_ranges(output, where), name, write=True)
        result = getattr(ufunc, method)(*plain(list(inputs)), **plain(kwargs))
        masks.computed(result, map(plain, tracked_in(list(inputs))))
        return _originals(result, outputs)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return numpy_functions.call(func, args, kwargs)

    # Methods that give a view if they can, and a copy if not

    def reshape(self, *shape: Any, **options: Any) -> Any:
        """See ``numpy.ndarray.reshape``."""
        return self._view_or_copy("reshape", shape, options)

    def ravel(self, order: Any = "C") -> Any:
        """See ``numpy.ndarray.ravel``."""
        return self._view_or_copy("ravel", (order,), {})

    def _view_or_copy(self, name: str, args: Sequence[Any], options: Mapping[str, Any]) -> Any:
        result = getattr(plain(self), name)(*args, **options)
        if not np.may_share_memory(result, plain(self)):
            self.tell_all(f"ndarray.{name}")
        return self.again(result)

    def view(self, *args: Any, **kwargs: Any) -> Any:
        """See ``numpy.ndarray.view``; asked for a plain array, it gives a tracked one all the same."""
        result = super().view(*args, **kwargs)
        return self.again(result) if type(result) is np.ndarray else result

    # Methods that touch some elements only

    def item(self, *args: Any) -> Any:
        """See ``numpy.ndarray.item``."""
        addresses = element_addresses(plain(self)).item(*args)
        self.tell([(addresses, addresses + self.itemsize)], "ndarray.item", write=False)
        return plain(self).item(*args)

    def take(self, *args: Any, **kwargs: Any) -> Any:
        """See ``numpy.ndarray.take``."""
        return numpy_functions.call(np.take, (self, *args), kwargs)

    def compress(self, condition: Any, *args: Any, **kwargs: Any) -> Any:
        """See ``numpy.ndarray.compress``."""
        return numpy_functions.call(np.compress, (condition, self, *args), kwargs)

    def put(self, *args: Any, **kwargs: Any) -> None:
        """See ``numpy.ndarray.put``."""
        numpy_functions.call(np.put, (self, *args), kwargs)

    def byteswap(self, inplace: bool = False) -> Any:
        """See ``numpy.ndarray.byteswap``."""
        self.tell_all("ndarray.byteswap", write=inplace)
        return _originals(plain(self).byteswap(inplace), (self,) if inplace else ())

    @property
    def flat(self) -> Any:
        """See ``numpy.ndarray.flat``."""
        return _TrackedFlat(self)

    @flat.setter
    def flat(self, value: Any) -> None:
        self.flat[:] = value

    @property
    def real(self) -> Any:
        """See ``numpy.ndarray.real``."""
        return super().real

    @real.setter
    def real(self, value: Any) -> None:
        self.real[...] = value

    @property
    def imag(self) -> Any:
        """See ``numpy.ndarray.imag``."""
        return super().imag

    @imag.setter
    def imag(self, value: Any) -> None:
        self.imag[...] = value

    # Copies are plain

    def __reduce_ex__(self, protocol: Any) -> Any:
        self.tell_all("ndarray.__reduce_ex__")
        return plain(self).__reduce_ex__(protocol)

    def __deepcopy__(self, memo: Any) -> Any:
        return self.copy()


_READING = (
    "tolist tobytes tofile dump dumps copy astype flatten sum prod mean std var min max argmin argmax any all cumsum "
    "cumprod round clip dot trace nonzero searchsorted argsort argpartition choose repeat conj conjugate "
    "ptp __int__ __float__ __bool__ __complex__ __index__ __repr__ __str__ __format__ __copy__ __contains__"
)
_WRITING = "fill sort partition setfield itemset"


def _method(name: str, *, write: bool) -> Callable[..., Any]:
    def method(self: TrackedArray, *args: Any, **kwargs: Any) -> Any:
        output = kwargs.get("out")
        for source in tracked_in([*args, *(value for key, value in kwargs.items() if key != "out")]):
            source.tell_all(f"ndarray.{name}")
        self.tell_all(f"ndarray.{name}", write=write)
        for target in tracked_in(output):
            target.tell_all(f"ndarray.{name}", write=True)
        result = getattr(plain(self), name)(*plain(list(args)), **plain(kwargs))
        return _originals(result, () if output is None else (output,))

    method.__name__ = name
    method.__doc__ = f"See ``numpy.ndarray.{name}``."
    return method


for _names, _write in ((_READING, False), (_WRITING, True)):
    for _name in _names.split():
        if hasattr(np.ndarray, _name):
            setattr(TrackedArray, _name, _method(_name, write=_write))


class _TrackedFlat:
    """What ``flat`` of a tracked array gives: numpy's own iterator, with every access told."""

    def __init__(self, array: TrackedArray) -> None:
        self._array = array
        self._flat = plain(array).flat
        self.base = array

    def __getattr__(self, name: str) -> Any:
        return getattr(self._flat, name)

    def __len__(self) -> int:
        return len(self._flat)

    def __iter__(self) -> Iterator[Any]:
        self._array.tell_all("ndarray.flat")
        return iter(plain(self._array).flat)

    def __next__(self) -> Any:
        if self._flat.index == 0:
            self._array.tell_all("ndarray.flat")
        return next(self._flat)

    def __getitem__(self, key: Any) -> Any:
        self._array.tell(self._ranges(key), "ndarray.flat", write=False)
        return self._flat[plain(key)]

    def __setitem__(self, key: Any, value: Any) -> None:
        for source in tracked_in(value):
            source.tell_all("ndarray.flat")
        self._array.tell(self._ranges(key), "ndarray.flat", write=True)
        self._flat[plain(key)] = plain(value)

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        self._array.tell_all("ndarray.flat")
        return np.array(self._flat)

    def _ranges(self, key: Any) -> list[ByteRange]:
        addresses = np.atleast_1d(element_addresses(plain(self._array)).flat[plain(key)])
        return lane_ranges(addresses, self._array.itemsize)


# Keys


def _is_basic(key: Any) -> bool:
    """Whether an index gives a view or one element; a bool is a mask, and a string names a field."""
    parts = key if type(key) is tuple else (key,)
    return all(
        part is None or part is Ellipsis or (isinstance(part, (int, slice, np.integer, str)) and type(part) is not bool)
        for part in parts
    )


def _is_element(key: Any, dimensions: int) -> bool:
    """Whether a basic index names one element, so that using it is a read."""
    parts = key if type(key) is tuple else (key,)
    return len(parts) == dimensions and all(isinstance(part, (int, np.integer)) for part in parts)


def _ranges_of_key(array: Tracked, key: Any) -> list[ByteRange]:
    """The bytes that an index denotes."""
    if not _is_basic(key):
        return selected_ranges(plain(array), key)
    parts = key if type(key) is tuple else (key,)
    if not any(part is Ellipsis or isinstance(part, str) for part in parts):
        parts = (*parts, Ellipsis)  # one element becomes an array without dimensions instead of a number
    return array_ranges(plain(array)[parts if len(parts) != 1 else parts[0]])


def _read_key(key: Any) -> Any:
    for part in tracked_in(key):
        part.tell_all("ndarray.__getitem__")
    return plain(key)


def _masked_ranges(array: Tracked, where: Any) -> list[ByteRange]:
    """The bytes of an operand of a ufunc, without the elements that ``where`` leaves out."""
    if where is not True and np.shape(where) == array.shape:
        return selected_ranges(plain(array), where)
    return array_ranges(plain(array))


def _originals(result: Any, outputs: Iterable[Any]) -> Any:
    """The result, with the caller's own output arrays in the place of their plain faces."""
    given = [output for output in outputs if output is not None]
    if isinstance(result, tuple):
        return tuple(_originals(item, given) for item in result)
    for output in given:
        if isinstance(result, np.ndarray) and isinstance(output, Tracked) and _same(result, output):
            return output
    return result


def _same(one: Array, other: Array) -> bool:
    return one.ctypes.data == other.ctypes.data and one.shape == other.shape and one.strides == other.strides


# What makes an array of another object


_CONVERSIONS = (
    "array", "asarray", "asanyarray", "ascontiguousarray", "asfortranarray", "require", "frombuffer", "from_dlpack",
)  # fmt: skip


def install(runtime: HostRuntime) -> Callable[[], None]:
    """Track what ``Tensor.numpy()`` and numpy's own conversions give out of tracked memory; returns the undo.

    ``numpy.asarray`` drops subclasses, and ``numpy.frombuffer`` never knew of them, so these functions are replaced in
    numpy's namespace; a name bound before, by ``from numpy import asarray``, gives untracked aliases. A second
    installation on one device changes nothing.
    """
    if runtime.wrap_array is not None:
        return lambda: None
    patches = Patches()
    patches.set(runtime, "wrap_array", lambda array: wrap(array, runtime))
    patches.update(np, {name: _conversion(getattr(np, name), runtime) for name in _CONVERSIONS})
    patches.update(np, namespace.replacements())
    return patches.undo


def _conversion(stock: Callable[..., Any], runtime: HostRuntime) -> Callable[..., Any]:
    def convert(*args: Any, **kwargs: Any) -> Any:
        if args and stock is not np.from_dlpack:
            args = (untensored(args[0]), *args[1:])  # what the tensor itself would give, but tracked
        result = stock(*args, **kwargs)
        if not runtime.active or not isinstance(result, np.ndarray):
            return result
        if result.base is None:
            _tell_copied(args[0] if args else None, f"numpy.{stock.__name__}")
        elif type(result) is np.ndarray and result.size and runtime.find_block(result.ctypes.data) is not None:
            return wrap(result, runtime)
        return result

    convert.__name__ = stock.__name__
    convert.__doc__ = stock.__doc__
    return convert


def _tell_copied(source: Any, name: str) -> None:
    """An array was made from a copy of this: of one array, or of several."""
    if isinstance(source, Tracked):
        source.tell_all(name)
    elif isinstance(source, (list, tuple)) and source and isinstance(source[0], Tracked):
        for row in tracked_in(source):
            row.tell_all(name)
