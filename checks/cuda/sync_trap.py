"""The sync trap on real CUDA: each wait of the host in a hot path, told to a watch.

with cuda_sync_trap(read_settings(Path("pyproject.toml"))) as trap:
run_the_program()
trap.findings
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from ..codes import CODES
from ..errors import CheckError
from ..findings import Finding, Site, Verdict
from ..hot_path import current_entry, open_entries
from ..libraries import portable
from ..semantics import PAGEABLE_STAGING_LIMIT
from ..sync.called import name_of, outermost
from ..sync.rules import ASKED_FOR, operation_of, rule_of, wait_of
from ..sync.settings import Settings
from ..sync.waits import Cause, Certainty, WaitKind
from ..sync.watch import Watch
from ..virtual.stacks import library_frames, whole_stack
from .call_sites import called_at, operator_of, outside
from .copies import LONG_NS, PinnedAddresses, bytes_of
from .device import CudaDevice, Device
from .kinds import cause_of
from .order_patches import OrderPatches, Thread
from .patches import CallPatches
from .progress import Progress
from .sync_warnings import SyncWarnings
from .table import CALLS, Call, Way


class CudaTrap:
    """Watches the hot paths of a program on CUDA while it is open; made by :func:`cuda_sync_trap`.

    Attributes:
        watch: has the findings of waits.
        progress: what the host knows to be over.
        step: of the runner; every wait from now on carries its number.
    """

    def __init__(self, settings: Settings | None, device: Device) -> None:
        self._device = device
        self._thread = Thread()
        self._patches = CallPatches()
        self._scope = contextlib.ExitStack()
        self._lock = threading.Lock()
        self._pinned = PinnedAddresses()
        self._captures: dict[tuple[object, ...], Finding] = {}
        self.step: int | None = None
        self.watch = _Watch(settings, self)
        self.progress = Progress(device)
        self.warnings = SyncWarnings(self._noticed, device.get_sync_mode, device.set_sync_mode)

    @property
    def findings(self) -> list[Finding]:
        """Waits in hot paths, and those in captures there."""
        with self._lock:
            captures = list(self._captures.values())
        return [*self.watch.findings, *captures]

    def open(self) -> None:
        """Wrap the calls of torch that the table names, and let torch warn of all others."""
        for call in CALLS:
            self._wrap(call)
        OrderPatches(self._patches, self._device, self.progress, self._thread, self._tell, self._pinned).apply()
        self._patches.method(torch.cuda.CUDAGraph, "replay", partial(self._launching, name="CUDAGraph.replay"))
        self._patch_triton()
        self._patches.install()
        self.warnings.arm()

    def close(self) -> None:
        """Leave everything as it was before."""
        try:
            self.warnings.disarm()
        finally:
            self._scope.close()
            self._patches.undo()

    # Waits

    def _noticed(self) -> None:
        """Torch warns, in the thread and inside of the call that waits."""
        doing = self._thread.doing
        self.progress.stream_passed()
        if doing.warned is not None:
            doing.warned += 1
        elif current_entry() is not None:
            frames = library_frames()
            asking = outside(frames)  # a recorder calls operators of its own accord
            operator = next((found for frame in asking if (found := operator_of(frame)) is not None), None)
            called = outermost(frames[1:]) or name_of(operator) or called_at(asking[-1] if asking else None)
            self._tell(cause_of(called, operator), called)

    def _tell(self, cause: Cause, called: str | None) -> None:
        """A call in a hot path waits."""
        entry = current_entry()
        if entry is None:
            return
        stack = whole_stack(entry.code)
        if self._device.capturing():
            self._refused_in_capture(cause, called, stack)
        else:
            self.watch.waited(wait_of(cause, called, stack, self.step))

    def _refused_in_capture(self, cause: Cause, called: str | None, stack: tuple[tuple[str, int, str], ...]) -> None:
        called = None if cause.kind in ASKED_FOR else called
        name = operation_of(cause, called, rule_of(cause, called))
        finding = Finding(
            code="MRV502",
            verdict=Verdict.VIOLATION,
            soundness=CODES["MRV502"].soundness,
            title=f"{name} makes the host wait during a graph capture",
            where=tuple(Site(*frame) for frame in stack),
            evidence={"call": name},
            remedy="move it out of the capture, or use pinned memory and non_blocking=True",
            step=self.step,
        )
        with self._lock:
            self._captures.setdefault((name, stack[:1]), portable(finding))

    # Calls

    def _wrap(self, call: Call) -> None:
        wraps: dict[Way, Callable[..., Callable[..., Any]]] = {
            Way.GUARDED: self._guarded,
            Way.MOVES: partial(self._judging, quick=True),
            Way.JUDGED: self._judging,
            Way.COPIES: self._copying,
            Way.INDEXES: self._indexing,
        }
        for owner in self._owners(call):
            wrap = partial(wraps[call.way], call=call)
            if isinstance(owner, type):
                self._patches.method(owner, call.attribute, wrap)
            else:
                self._patches.function(owner, call.attribute, wrap)

    def _owners(self, call: Call) -> tuple[Any, ...]:
        """Where a call is found: a kind of tensor may have its own."""
        if call.owner is not torch.Tensor:
            return (call.owner,)
        return tuple(kind for kind in self._device.tensors if kind is torch.Tensor or call.attribute in vars(kind))

    def _guarded(self, original: Any, call: Call) -> Callable[..., Any]:
        """A call that waits only if torch warns of it."""
        thread, is_free = self._thread, call.is_free

        def guarded(*args: Any, **kwargs: Any) -> Any:
            if is_free(args) or not open_entries():  # in this order, for what traces a program cannot ask the second
                return original(*args, **kwargs)
            doing = thread.doing
            if doing.warned is not None:
                return original(*args, **kwargs)
            doing.warned, result = 0, None
            try:
                result = original(*args, **kwargs)
            finally:
                warned, doing.warned = doing.warned, None
                if warned:
                    self._judged(call, warned, args, kwargs, result, 0)
            return result

        return guarded

    def _indexing(self, original: Any, call: Call) -> Callable[..., Any]:
        """The same for indexing, of which there is more than of anything else."""
        guarded, is_free = self._guarded(original, call), call.is_free

        def indexing(*args: Any) -> Any:
            if type(args[1]) is int and len(args) == 2:
                return original(*args)
            return original(*args) if not open_entries() or is_free(args) else guarded(*args)

        return indexing

    def _judging(self, original: Any, call: Call, *, quick: bool = False) -> Callable[..., Any]:
        """A call that may wait though torch does not warn.

        Args:
            original: the call.
            call: what is known of it.
            quick: whether it surely did not wait if its first argument is small, it was short, and nobody warned.
        """
        thread, is_free, now = self._thread, call.is_free, self._device.now_ns

        def judging(*args: Any, **kwargs: Any) -> Any:
            if is_free(args) or not open_entries():
                return original(*args, **kwargs)
            doing = thread.doing
            if doing.warned is not None:
                return original(*args, **kwargs)
            doing.warned, begin = 0, now()
            try:
                result = original(*args, **kwargs)
            except BaseException:
                warned, doing.warned = doing.warned, None
                if warned:
                    self._judged(call, warned, args, kwargs, None, 0)
                raise
            took, warned, doing.warned = now() - begin, doing.warned, None
            if quick and not warned and took <= LONG_NS and bytes_of(args[0]) <= PAGEABLE_STAGING_LIMIT:
                return result
            if not self._judged(call, warned, args, kwargs, result, took) and took > LONG_NS and not call.allocates:
                self._took_long(call.name, begin)
            return result

        return judging

    def _copying(self, original: Any, call: Call) -> Callable[..., Any]:
        """The same for ``copy_``, which every step makes: what surely does not wait is passed on at little cost."""
        thread, now, judging = self._thread, self._device.now_ns, self._judging(original, call)
        pinned, known, strided = self._pinned, self._pinned.known, torch.strided

        def copying(target: Any, src: Any, non_blocking: bool = False) -> Any:
            to_device = target.is_cuda
            if not open_entries() or getattr(src, "is_cuda", to_device) is to_device:
                return original(target, src, non_blocking)
            doing = thread.doing
            if doing.warned is not None or not non_blocking or src.layout is not strided:
                return judging(target, src, non_blocking)
            if src.nbytes > PAGEABLE_STAGING_LIMIT or not (
                to_device or (target.is_contiguous() and (target.data_ptr() in known or pinned.holds(target)))
            ):
                return judging(target, src, non_blocking)
            begin = now()
            result = original(target, src, non_blocking)
            took = now() - begin
            if took > LONG_NS and not self._judged(call, 0, (target, src), {}, result, took):
                self._took_long(call.name, begin)
            return result

        return copying

    def _launching(self, original: Any, name: str) -> Callable[..., Any]:
        """A call that gives the device work, and waits if the launch queue is full."""
        now = self._device.now_ns

        def launching(*args: Any, **kwargs: Any) -> Any:
            if not open_entries():
                return original(*args, **kwargs)
            begin = now()
            result = original(*args, **kwargs)
            if now() - begin > LONG_NS:
                self._took_long(name, begin)
            return result

        return launching

    def _judged(self, call: Call, warned: int | None, args: Any, kwargs: Any, result: Any, took: int) -> bool:
        """Judge a call that is over, and tell of it if it waited."""
        cause = call.judge(warned or 0, args, kwargs, result, took)
        if cause is None and warned:
            cause = Cause(WaitKind.INSIDE, call.name)
        if cause is None or (cause.certainty is Certainty.DEPENDS and not self._device.busy()):
            return False
        self._tell(cause, outermost(library_frames()[1:]) or call.name)
        return True

    def _took_long(self, name: str, begin: int) -> None:
        """A launch kept the host, for no reason that is known, while the device was busy: behind a full queue."""
        if self._thread.doing.loaded < begin and not self._device.capturing() and self._device.busy():
            self._tell(Cause(WaitKind.QUEUE, name, certainty=Certainty.DEPENDS), None)

    # Kernels of Triton

    def _patch_triton(self) -> None:
        """By hooks of its own, which see none of a launch's arguments: to pass those on costs more than all else."""
        try:
            from triton import knobs
        except ImportError:
            return
        hooks = knobs.runtime
        for chain, heard in (
            (hooks.kernel_load_start_hook, self._loads),
            (hooks.launch_enter_hook, self._launches()),
            (hooks.launch_exit_hook, self._launched()),
        ):
            chain.add(heard)
            self._scope.callback(chain.remove, heard)

    def _launches(self) -> Callable[[object], None]:
        thread, now = self._thread, self._device.now_ns

        def launches(metadata: object) -> None:
            thread.doing.launched = now() if open_entries() else 0

        return launches

    def _launched(self) -> Callable[[object], None]:
        thread, now = self._thread, self._device.now_ns

        def launched(metadata: object) -> None:
            begin = thread.doing.launched
            if begin and now() - begin > LONG_NS:
                self._took_long("a launch of a Triton kernel", begin)

        return launched

    def _loads(self, module: Any, function: Any, name: str, metadata: Any, key: str) -> None:
        """Triton is about to load a kernel."""
        self._thread.doing.loaded = self._device.now_ns()
        if open_entries():
            self._tell(Cause(WaitKind.MODULE, f"the first launch of {name}"), None)


class _Watch(Watch):
    """Tells the trap of threads that enter and leave hot paths."""

    def __init__(self, settings: Settings | None, trap: CudaTrap) -> None:
        super().__init__(settings)
        self._trap = trap

    def entered(self, name: str) -> int:
        """See :class:`Watch`."""
        self._trap.warnings.begin()
        return super().entered(name)

    def left(self, name: str) -> None:
        """See :class:`Watch`."""
        self._trap.warnings.end()


@contextlib.contextmanager
def cuda_sync_trap(settings: Settings | None = None, *, device: Device | None = None) -> Iterator[CudaTrap]:
    """Watch the hot paths of what runs on CUDA meanwhile.

    Torch's debug mode for synchronisation is ``warn`` while this is open, and what it was before afterwards.

    Args:
        settings: hot paths and allowances named from outside; those in code need none.
        device: what is watched; the CUDA devices of this machine by default.

    Raises:
        CheckError: there is no CUDA device.
        HotPathError: a name in the settings names nothing.
        NativeWarningsError: this build of torch hides waits of C++ operators.
    """
    if device is None:
        require_cuda("cuda_sync_trap")
        device = CudaDevice()
    trap = CudaTrap(settings, device)
    with trap.watch, contextlib.closing(trap):
        trap.open()
        yield trap


def require_cuda(subject: str) -> None:
    """Make sure that there is a CUDA device, and that torch has begun to use it.

    Raises:
        CheckError: there is none.
    """
    if not torch.cuda.is_available():
        raise CheckError(
            subject,
            "there must be a CUDA device, and torch.cuda.is_available() is False",
            "what waits for a device can be measured only where there is one",
            "a machine with a GPU and a CUDA build of torch; without one the virtual device does the same: "
            "mrv2.checks.sync.virtual.sync_trap, or mrv2 verify --stage sync",
        )
    torch.cuda.init()
