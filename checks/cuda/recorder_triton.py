"""Launches of Triton kernels on a real device: which bytes each reads and writes, told before it is launched.

What a kernel touches follows in most cases from its arguments alone. Then the kernel, compiled for the CPU, is run once
over empty memory in the place of the device's: its data means nothing, its addresses are exact. The same launch again,
with the same numbers and the same places in its blocks, needs no second run.

Where data decides (a gather, a loop with a length from memory), the whole tensor is taken to be touched *possibly*, in
the way that the kernel's code can: a race of such an access is a SUSPECT. So it is for kernels that the CPU compiler
does not know. Addresses that a kernel loads from memory lead to nobody knows what: such kernels are counted, and their
effects can be declared.
"""

from __future__ import annotations

import functools
import math
import mmap
from collections.abc import Callable, Iterable, Mapping, Sequence
from ctypes import addressof, c_char
from dataclasses import dataclass
from types import NoneType
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor
from triton.runtime.jit import JITFunction

from ..events import ByteRange, OperationKind, Stack
from ..hooks.patching import Patches
from ..triton_cpu.addresses import guided_by_data
from ..triton_cpu.effects import Effects, effects_of
from ..triton_cpu.errors import Unsupported
from ..triton_cpu.launcher import CompiledKernel, pack_blocks, read
from ..triton_cpu.memory import pointers
from ..triton_cpu.prepared import prepared
from ..triton_cpu.variants import Call, extents
from ..virtual.queues import Queue, Work
from ..virtual.stacks import program_stack
from .recorder_memory import Block, extent

if TYPE_CHECKING:
    from .recorder_runtime import CudaRuntime

#: Says what a kernel reads and writes, of its arguments by name: tensors, however it reaches them.
Declared: TypeAlias = Callable[[Mapping[str, Any]], tuple[Iterable[Tensor], Iterable[Tensor]]]

#: Launches with more programs are not run over empty memory.
MAX_PROGRAMS = 1 << 16
#: Bytes that the notes of such a run may take.
_LOG_LIMIT = 256 << 20
#: Launches remembered before the table starts anew.
_MAX_LAUNCHES = 1 << 14
_PAGE = mmap.PAGESIZE
_NOTHING = Effects()
_ANYTHING = Effects(reads=True, writes=True)

#: Of one launch: the place of a block among those of its arguments, a range relative to the block, and whether it is
#: written.
_Relative: TypeAlias = tuple[tuple[int, int, int, bool], ...]


#: What a launch touches, and the blocks that this holds for as long as none of them is freed.
_Told: TypeAlias = tuple[Work, Sequence[Block]]
#: Types of arguments whose values say all that there is to know of them.
_PLAIN = frozenset({int, bool, str, NoneType})


@dataclass(frozen=True)
class _Variant:
    """What is known of one variant of a kernel.

    Attributes:
        kinds: types of what is passed at run time, in Triton's words.
        effects: of each of those.
        guided: of each, whether data decides which of its bytes are touched.
        elsewhere: whether it reaches memory that no argument names.
        code: for the CPU, if it can be compiled.
    """

    kinds: tuple[str, ...]
    effects: tuple[Effects, ...]
    guided: tuple[bool, ...]
    elsewhere: bool
    code: CompiledKernel | None


class Launches:
    """Tells of launches.

    Args:
        runtime: the recorder.
        declared: by the name of a kernel, what says which tensors it touches beyond its arguments.
    """

    def __init__(self, runtime: CudaRuntime, declared: Mapping[str, Declared]) -> None:
        self._runtime = runtime
        self._declared = declared
        self._variants: dict[tuple[Any, ...], _Variant] = {}
        self._launches: dict[tuple[Any, ...], _Relative | None] = {}
        self._told: dict[tuple[Any, ...] | None, _Told] = {}
        self._quick: dict[tuple[Any, ...], _Told] = {}
        self._alive: list[Any] = []  # kernels, so that no identity is used twice

    def launch(
        self, kernel: Any, args: tuple[Any, ...], grid: Any, kwargs: dict[str, Any], run: Callable[[], Any]
    ) -> Any:
        """Tell of a launch, and then do it."""
        if not self._runtime.active:
            return run()
        with torch._C.DisableTorchFunction():
            key = _quick_key(kernel, grid, args, kwargs)
        told = None if key is None else self._quick.get(key)
        if key is None or told is None or any(block.freed for block in told[1]):
            return self._launch(kernel, args, grid, kwargs, run, key)
        stack = program_stack()
        queue = self._runtime.current_queue()
        if queue.capture is None:
            self._runtime.tell(queue, told[0], stack)
        return self._run(queue, told[0], stack, run)

    def _launch(
        self, kernel: Any, args: tuple[Any, ...], grid: Any, kwargs: dict[str, Any], run: Callable[[], Any],
        key: tuple[Any, ...] | None,
    ) -> Any:  # fmt: skip
        """The same for one that is not known."""
        runtime = self._runtime
        known = prepared(kernel)
        with torch._C.DisableTorchFunction():
            call = known.bind(args, kwargs)
        values = dict(zip(kernel.arg_names, call.values, strict=True))
        size = extents(grid(dict(values)) if callable(grid) else grid)
        if not math.prod(size):
            return run()
        stack = program_stack()
        with runtime.lock:
            tensors = [
                item for name, value in values.items() if name not in known.constexprs for item in pointers(value)
            ]
            for tensor in tensors:
                if isinstance(tensor, Tensor):
                    runtime.memory.seen(tensor, stack)
            work, blocks = self._work(kernel, call, size, tensors)
            if key is not None and blocks is not None and kernel.__name__ not in self._declared:
                _remember(self._quick, key, (work, blocks))
            work = self._declare(kernel.__name__, values, work)
            queue = runtime.current_queue()
            if queue.capture is None:
                runtime.tell(queue, work, stack)
        return self._run(queue, work, stack, run)

    def _run(self, queue: Queue, work: Work, stack: Stack, run: Callable[[], Any]) -> Any:
        runtime = self._runtime
        capture, here = queue.capture, runtime.here
        if capture is None:
            runtime.pace_before(stack)
        outer, here.inside = here.inside, work.name
        try:
            result = run()
        finally:
            here.inside = outer
        if capture is None:
            runtime.pace_after()
            runtime.sink.flush_if_long()
        elif not capture.lost:
            with runtime.lock:
                capture.add(queue, work)
        return result

    def _declare(self, name: str, values: Mapping[str, Any], work: Work) -> Work:
        """With what the user says of the kernel."""
        declared = self._declared.get(name)
        if declared is None:
            return work
        reads, writes = declared(values)
        return Work(
            work.name, work.kind, None, [*work.reads, *map(_range_of, reads)], [*work.writes, *map(_range_of, writes)],
            work.possible_reads, work.possible_writes, True, False, False,
        )  # fmt: skip

    # What a launch touches

    def _work(
        self, kernel: Any, call: Call, size: tuple[int, int, int], tensors: Sequence[Any]
    ) -> tuple[Work, Sequence[Block] | None]:
        """What a launch touches; and the blocks for which the same holds of the same launch again, if it does."""
        variant = self._variant(kernel, call)
        name = f"triton:{kernel.__name__}"
        elsewhere = variant.elsewhere and kernel.__name__ not in self._declared
        if elsewhere:
            self._runtime.unseen[name] += 1
        key = None if _is_opaque(call.words) else (id(kernel), call.key, size, *call.words)
        told = self._told.get(key)
        if told is None or any(block.freed for block in told[1]):
            work, blocks = self._new_work(variant, name, call, size, tensors)
            if key is None or blocks is None:
                return work, None
            told = work, blocks
            _remember(self._told, key, told)
        return told[0], None if elsewhere else told[1]

    def _new_work(
        self, variant: _Variant, name: str, call: Call, size: tuple[int, int, int], tensors: Sequence[Any]
    ) -> tuple[Work, Sequence[Block] | None]:
        spans = {tensor.data_ptr(): _range_of(tensor) for tensor in tensors if isinstance(tensor, Tensor)}
        places = [
            (index, word) for index, (kind, word) in enumerate(zip(variant.kinds, call.words, strict=True))
            if kind.startswith("*") and type(word) is int
        ]  # fmt: skip
        blocks = [self._runtime.find_block(word) for _, word in places]
        exact = self._exact(variant, call, size, places, blocks)
        work = Work(name, OperationKind.KERNEL, None, [], [], [], [], True, False, False)
        vague = {
            id(block)
            for (index, _), block in zip(places, blocks, strict=True)
            if exact is None or variant.guided[index]
        }
        _add_exact(work, exact or (), _distinct(blocks), vague)
        for (index, word), block in zip(places, blocks, strict=True):
            if id(block) in vague and word in spans:
                _add_possible(work, variant.effects[index], spans[word])
        return work, None if vague else _distinct(blocks)

    def _variant(self, kernel: Any, call: Call) -> _Variant:
        key = (id(kernel), *call.key)
        found = self._variants.get(key)
        if found is None:
            found = self._variants[key] = _examine(kernel, call)
            self._alive.append(kernel)
        return found

    def _exact(
        self, variant: _Variant, call: Call, size: tuple[int, int, int], places: list[tuple[int, int]],
        blocks: list[Block | None],
    ) -> _Relative | None:  # fmt: skip
        """The bytes that a launch touches, by a run over empty memory; None if that tells nothing."""
        if variant.code is None or math.prod(size) > MAX_PROGRAMS or None in blocks or _is_opaque(call.words):
            return None
        if all(variant.guided[index] for index, _ in places):
            return None
        known = _distinct(blocks)
        numbers = {id(block): number for number, block in enumerate(known)}
        words = list(call.words)
        for (index, word), block in zip(places, blocks, strict=True):
            assert block is not None
            words[index] = (numbers[id(block)], word - block.base)
        sizes = tuple(block.size for block in known)
        key = (id(variant.code), size, sizes, tuple(map(_hashable, words)))
        if key not in self._launches:
            _remember(self._launches, key, _rehearse(variant.code, words, size, sizes))
        return self._launches[key]


def _examine(kernel: Any, call: Call) -> _Variant:
    known = prepared(kernel)
    variant = known.binder.variant(call)
    kinds = tuple(variant.leaves())
    try:
        module = read(variant)
    except Unsupported:
        return _Variant(kinds, (_ANYTHING,) * len(kinds), (True,) * len(kinds), True, None)
    effects = effects_of(module)
    try:
        code = known.kernel(call, audit=True)
    except Unsupported:
        code = None
    return _Variant(kinds, effects.arguments, guided_by_data(module), effects.elsewhere != _NOTHING, code)


def _rehearse(
    code: CompiledKernel, words: Sequence[Any], size: tuple[int, int, int], sizes: tuple[int, ...]
) -> _Relative | None:
    """Run a kernel over empty memory.

    Args:
        code: for the CPU.
        words: what is passed; for an address, the number of its block and the place in it.
        size: of the grid.
        sizes: of the blocks, in bytes.
    """
    offsets, total = [], 0
    for length in sizes:
        offsets.append(total)
        total += -(-length // _PAGE) * _PAGE + _PAGE
    # Pages that nobody writes to cost nothing, however large the device's memory is.
    with mmap.mmap(-1, total, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE) as memory:
        view = c_char.from_buffer(memory)
        bases = [addressof(view) + offset for offset in offsets]
        del view
        passed = [bases[word[0]] + word[1] if type(word) is tuple else word for word in words]
        blocks = pack_blocks((base, base + length) for base, length in zip(bases, sizes, strict=True))
        result = code.launch(code.pack(passed), size, blocks=blocks, log_limit=_LOG_LIMIT)
        if result.error() is not None:
            return None
        return tuple(_relative(result, bases, sizes))


def _relative(result: Any, bases: Sequence[int], sizes: Sequence[int]) -> Iterable[tuple[int, int, int, bool]]:
    for write in (False, True):
        for low, high in result.ranges(write=write):
            for number, (base, length) in enumerate(zip(bases, sizes, strict=True)):
                if base <= low < base + length:
                    yield number, low - base, high - base, write


def _add_exact(work: Work, exact: _Relative, blocks: Sequence[Block], vague: set[int]) -> None:
    for number, low, high, write in exact:
        block = blocks[number]
        if id(block) not in vague:
            (work.writes if write else work.reads).append((block.base + low, block.base + high))  # type: ignore[attr-defined]


def _add_possible(work: Work, effects: Effects, span: ByteRange) -> None:
    if effects.reads:
        work.possible_reads.append(span)  # type: ignore[attr-defined]
    if effects.writes:
        work.possible_writes.append(span)  # type: ignore[attr-defined]


def _distinct(blocks: Iterable[Block | None]) -> list[Block]:
    return list({id(block): block for block in blocks if block is not None}.values())


def _range_of(tensor: Tensor) -> ByteRange:
    low = tensor.data_ptr()
    return low, low + extent(tensor)


def _is_opaque(words: Iterable[Any]) -> bool:
    """Whether something is passed that is neither a number nor an address, such as a tensor descriptor."""
    return any(type(word) not in (int, float, bool) for word in words)


def _quick_key(kernel: Any, grid: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...] | None:
    """What tells a launch from others before its arguments are bound; None if it takes more than numbers and tensors.

    Of a tensor a kernel gets the address and the type, and nothing else.
    """
    if type(grid) is not tuple or any(type(number) is not int for number in grid):
        return None
    key: list[Any] = [id(kernel), grid, *kwargs]
    for value in (*args, *kwargs.values()) if kwargs else args:
        kind = type(value)
        if kind in _PLAIN:
            key += (kind, value)
        elif kind is float:
            key += (kind, value.hex())
        elif isinstance(value, Tensor):
            key += (value.dtype, value.data_ptr())
        else:
            return None
    return tuple(key)


def _remember(table: dict[Any, Any], key: Any, value: Any) -> None:
    """Add to a table that begins anew when it has become long."""
    if len(table) >= _MAX_LAUNCHES:
        table.clear()
    table[key] = value


def _hashable(word: Any) -> Any:
    return (float, word.hex()) if type(word) is float else (type(word), word)


_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)


def install(runtime: CudaRuntime, declared: Mapping[str, Declared]) -> Callable[[], None]:
    """Tell a recorder of the launches of all Triton kernels; returns the undo."""
    patches, launches, stock = Patches(), Launches(runtime, declared), JITFunction.run

    @functools.wraps(stock)
    def run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        if warmup or grid is None:
            return stock(self, *args, grid=grid, warmup=warmup, **kwargs)
        return launches.launch(self, args, grid, kwargs, lambda: stock(self, *args, grid=grid, warmup=warmup, **kwargs))

    patches.set(JITFunction, "run", run)
    return patches.undo
