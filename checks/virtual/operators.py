"""ATen operators: those on device tensors are told to the sink at once and run later.

A call whose key was met before follows a recipe. Any other is worked out here, and leaves a recipe if it can. Host
operators on tracked memory pass through here as well: they are accesses of the host.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..events import OperationKind
from ..semantics import CAPTURE_CALLS, CaptureCall
from ..sync.waits import WaitKind
from .calls import INDEXING, Call, Ranges, Recipe, Touched, kernel, kernel_aside, kernel_now, outcome_of, ranges_of
from .custom import DeclaredCalls
from .errors import UnsupportedOperationError
from .inference import MAX_STAND_IN, Fresh, NoPlan, Output, Resized, Same, Value, operator_of, plan
from .layouts import Layout, layout_of, tensor_ranges
from .memory_operators import MemoryOperators
from .tensor import DeviceTensor, Face, face_of, needs_device, plain_face, rebind, wrap
from .threads import ABOVE_KERNELS, NoDispatch, NoFunctions, heres
from .waiting import reason_to_wait

if TYPE_CHECKING:
    from .queues import Queue
    from .runtime import Runtime

_aten = torch.ops.aten
#: Recipes remembered before the table starts anew.
MAX_RECIPES = 1 << 16
#: Operators that take sizes as a tensor of the host.
_TAKE_HOST_TENSORS = frozenset({"aten::_pack_padded_sequence_backward"})
_recipes: dict[tuple[Any, ...] | None, Recipe] = {}
#: Of a call of a composite operator that has to be taken apart.
_APART = Recipe((), None)
#: Of a call that returns its argument as it is.
_ITSELF = Recipe((), None)


class Operators:
    """Sends operator calls where their work is done."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._declared = DeclaredCalls(runtime)
        self._memory = MemoryOperators(runtime, self)
        self._special = self._memory.special

    def dispatch(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """One operator call, from either mode; returns what the program gets."""
        operator = operator_of(func)
        if operator.declared:
            return self._declared.run(operator, args, kwargs)
        here = heres.here
        outer, here.below = here.below, True
        try:
            with NoFunctions(), NoDispatch(ABOVE_KERNELS):
                call = Call(operator, args, kwargs)
                recipe = _recipes.get(call.key)
                if recipe is None:
                    if not operator.composite or func in self._special:
                        return self._work_out(call)
                    if operator.perhaps_view and call.on_device and call.key is not None and self._is_view(call):
                        return self._view(call, _recipes.get(call.key))
                elif recipe is not _APART:
                    touched = recipe.touched
                    return self._view(call, recipe) if touched is None else self._follow(call, recipe, touched)
        finally:
            here.below = outer
        return self._decompose(func, args, kwargs)

    def _decompose(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """In inference mode composite operators arrive whole, and some of them look like views but are not."""
        from .install import DispatchMode

        here = heres.here
        outer, here.call = here.call, (func, args, kwargs)
        try:
            with DispatchMode(self._runtime):
                return func.decompose(*args, **kwargs)
        finally:
            here.call = outer

    def _work_out(self, call: Call) -> Any:
        """A call that no recipe covers."""
        operator = call.operator
        on_device = call.on_device
        if operator.factory:
            target = call.kwargs.get("device")
            if target is not None:
                on_device = needs_device(target)
                if target.type == "cpu" and self._meant_for_device(call):
                    on_device, call.key = True, None  # which side it is does not follow from the arguments
        special = self._special.get(operator.func)
        if special is not None:
            return special(call)
        return self.on_device(call) if on_device else self.on_host(call)

    def _meant_for_device(self, call: Call) -> bool:
        """C++ allocates helpers like its argument, which it takes to be on the CPU; the argument knows better.

        Such an allocation names its layout, which a call from Python hardly ever does.
        """
        return self._runtime.inside_device_call(from_cpp="layout" in call.kwargs)

    # Host

    def on_host(self, call: Call) -> Any:
        """Compute now; on tracked memory it is an access of the host."""
        operator = call.operator
        if operator.factory and call.kwargs.get("pin_memory"):
            kwargs = {**call.kwargs, "pin_memory": False}
            made = operator.compute(*call.args, **kwargs)
            return self._runtime.copies.pinned_like(made, fill=not operator.allocates)
        if self._runtime.memory.pinned_blocks and not operator.view and not operator.metadata:
            written = call.written()
            for tensor in call.plain:
                if tensor.layout is torch.strided and self._runtime.find_block(tensor.data_ptr()) is not None:
                    write = any(tensor is other for other in written)
                    self._runtime.host_access(tensor_ranges(tensor), write=write, name=operator.name)
        return operator.compute(*call.args, **call.kwargs)

    # Device

    def on_device(self, call: Call) -> Any:
        """Tell the sink now, compute later."""
        operator = call.operator
        if operator.changes_shape:
            return self._change_shape(call)
        if operator.view:
            return self._view(call, None)
        waits, size = reason_to_wait(call)
        self.check_devices(call)
        self.freeze_host_tensors(call)
        if waits is not None:
            return self._run_now(call, waits, size)
        try:
            outputs = plan(operator, call.args, call.kwargs, call.overlaps)
        except NoPlan:
            return self._run_now(call, None)
        return self._defer(call, outputs)

    def check_devices(self, call: Call) -> None:
        """C++ takes all tensors to be on the CPU, so a mixture must be refused here."""
        if call.operator.metadata or call.operator.schema_name in _TAKE_HOST_TENSORS:
            return
        if call.operator.schema_name in INDEXING:
            if type(call.tensors[0]) is not DeviceTensor:
                raise RuntimeError("indices should be either on cpu or on the same device as the indexed tensor (cpu)")
            return
        if any(type(tensor) is not DeviceTensor and tensor.dim() > 0 for tensor in call.tensors):
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu! "
                f"(when checking arguments of {call.operator.name})"
            )

    def freeze_host_tensors(self, call: Call) -> None:
        """A host tensor among device tensors is read at the call, a 0-dim operand as well as an index."""
        for tensor in call.tensors:
            if type(tensor) is not DeviceTensor:
                if self._runtime.memory.pinned_blocks:
                    self._runtime.host_access(tensor_ranges(tensor), write=False, name=call.operator.name)
                call.replace(tensor, tensor.detach().clone())

    def _is_view(self, call: Call) -> bool:
        """Whether a composite operator returns views in such a call; if not, that is remembered."""
        memory = call.plain[0].untyped_storage()._cdata
        if call.plain[0].numel() > MAX_STAND_IN:
            return False
        result = call.operator.compute(*call.args, **call.kwargs)
        if result is call.plain[0]:
            _keep(call.key, _ITSELF)
            return True
        results = [result] if isinstance(result, Tensor) else result
        found = all(item.untyped_storage()._cdata == memory for item in results)
        if not found:
            _keep(call.key, _APART)
        return found

    def _view(self, call: Call, recipe: Recipe | None) -> Any:
        """Views are metadata: made at once, over the same bytes."""
        if recipe is _ITSELF:
            return call.tensors[0]
        runtime, owner = self._runtime, face_of(call.tensors[0]).owner  # type: ignore[arg-type]
        result = call.operator.compute(*call.args, **call.kwargs)
        one = isinstance(result, Tensor)
        results = (result,) if one else result
        layouts: Any = tuple(map(layout_of, results)) if recipe is None else recipe.outputs
        if recipe is None:
            _remember(call, layouts, None)
        if one:
            return wrap(result, owner, runtime, layouts[0])
        return type(result)([wrap(item, owner, runtime, layout) for item, layout in zip(result, layouts, strict=True)])

    def _change_shape(self, call: Call) -> Any:
        """``squeeze_`` and the like: the tensor gets a new plain face, since pending work needs the old one."""
        tensor = call.tensors[0]
        assert type(tensor) is DeviceTensor
        face = face_of(tensor)
        raw = plain_face(face.raw)
        call.operator.compute(raw, *call.args[1:], **call.kwargs)
        call.operator.compute(tensor, *call.args[1:], **call.kwargs)
        tensor._face = Face(raw, layout_of(raw), face.owner, self._runtime)
        return tensor

    def _defer(self, call: Call, outputs: Sequence[Output]) -> Any:
        if any(isinstance(output, Resized) for output in outputs):
            return self._defer_resized(call, outputs)
        touched = Touched(call)
        simple = tuple(_simple(output) for output in outputs)
        if not call.operator.random:
            _remember(call, simple, touched)
        return self._follow(call, Recipe(simple, touched), touched)

    def _defer_resized(self, call: Call, outputs: Sequence[Output]) -> Any:
        """Some arguments get another shape: the kernel works aside, and the result goes to where they are by then."""
        runtime, operator = self._runtime, call.operator
        if operator.random or any(isinstance(output, Fresh) for output in outputs):
            return self._run_now(call, None)
        moved = {output.index: output.layout for output in outputs if isinstance(output, Resized)}
        touched = Touched(call)
        before = [face_of(call.tensors[index]) for index in moved]  # type: ignore[arg-type]
        reads = ranges_of(call, touched.reads) + ranges_of(call, tuple(moved))
        writes = ranges_of(call, tuple(index for index in touched.writes if index not in moved))
        after = [self._memory.room(face, layout) for face, layout in zip(before, moved.values(), strict=True)]
        for index, face in zip(moved, after, strict=True):
            rebind(call.tensors[index], face)  # type: ignore[arg-type]
            writes += face.ranges
        targets = [face.raw for face in after]

        def finish(copies: list[Tensor], result: Any) -> None:
            for target, values in zip(targets, copies, strict=True):
                target.copy_(values)

        run = kernel_aside(call, [face.raw for face in before], finish)
        runtime.enqueue(operator.name, OperationKind.KERNEL, run, reads, writes)
        return operator.returned([_argument(call, output) for output in outputs])

    def _follow(self, call: Call, recipe: Recipe, touched: Touched) -> Any:
        """Allocate the outputs, enqueue the work, return."""
        operator, runtime = call.operator, self._runtime
        if operator.factory:
            _aim_factory(call)
        with runtime.lock:
            runtime.memory.settle()
            queue = runtime.current_queue()
            results: list[Any] = []
            targets: list[Tensor] = []
            writes = ranges_of(call, touched.writes)
            for output in recipe.outputs:
                if type(output) is Layout:
                    raw, owner = runtime.memory.allocate_device(output, queue)
                    made = wrap(raw, owner, runtime, output)
                    results.append(made)
                    targets.append(raw)
                    writes += made._face.ranges
                elif type(output) is int:
                    results.append(call.tensors[output])
                else:
                    results.append(output)
            if not operator.allocates:
                self._launch(call, touched, queue, targets, writes)
        return operator.returned(results)

    def _launch(self, call: Call, touched: Touched, queue: Queue, targets: list[Tensor], writes: Ranges) -> None:
        operator, runtime = call.operator, self._runtime
        reads = ranges_of(call, touched.reads)
        if not (touched.partly or operator.random):
            run = kernel(call, targets)
            runtime.launch(queue, operator.name, OperationKind.KERNEL, run, reads, writes)
            return
        generator = call.take_generator()
        run = kernel(call, targets)
        runtime.launch(
            queue, operator.name, OperationKind.KERNEL, run, reads, writes, ranges_of(call, touched.some_reads),
            ranges_of(call, touched.some_writes),
            prepare=runtime.generators.seeded(run, generator) if operator.random else None,
        )  # fmt: skip

    def _run_now(self, call: Call, kind: WaitKind | None, size: int | None = None) -> Any:
        """The outputs are known only when it has run: enqueue it and wait for the stream.

        Args:
            call: which.
            kind: why a real device would make the host wait; None if only this one does, which cannot tell the shapes.
            size: of what is uploaded for it, in bytes.
        """
        operator, runtime = call.operator, self._runtime
        queue = runtime.current_queue()
        if call.indexes_from_host():
            runtime.captures.refuse(queue, operator.name, CAPTURE_CALLS[CaptureCall.HOST_INDEX])
        runtime.captures.refuse_wait(operator.name)
        if operator.factory:
            _aim_factory(call)
        touched = Touched(call)
        box: list[Any] = []
        generator = call.take_generator() if operator.random else None
        aside = call.device_writes() if operator.takes_out else ()
        run = self._kernel_aside(call, aside, box) if aside else kernel_now(call, box)
        prepare = runtime.generators.seeded(run, generator) if operator.random else None
        operation = runtime.launch(
            queue, operator.name, OperationKind.KERNEL, run, ranges_of(call, touched.reads),
            ranges_of(call, touched.writes), ranges_of(call, touched.some_reads),
            ranges_of(call, touched.some_writes), prepare=prepare,
        )  # fmt: skip
        runtime.order.wait_for_operation(operation, kind, size)
        result = outcome_of(box)
        if kind is None:
            runtime.without_meta[operator.name] += 1
        if aside:
            copies, result = result
            self._take_shapes(call, aside, copies)
        return self.given_back(call, result)

    def _kernel_aside(self, call: Call, aside: Sequence[int], box: list[Any]) -> Callable[[], None]:
        """Work that may resize what it writes; only values for memory that is large enough are written there."""
        written = [call.plain[index] for index in aside]

        def finish(copies: list[Tensor], result: Any) -> None:
            for target, values in zip(written, copies, strict=True):
                if values.shape == target.shape:
                    target.copy_(values)
            box.append((copies, result))

        run = kernel_aside(call, written, finish)

        def run_or_tell() -> None:
            try:
                run()
            except Exception as error:  # noqa: BLE001 - raised by the caller, who waits for it
                box.append(error)

        return run_or_tell

    def _take_shapes(self, call: Call, aside: Sequence[int], copies: Sequence[Tensor]) -> None:
        """What was resized aside gets room for its values; what was not is what the call returns."""
        for index, values in zip(aside, copies, strict=True):
            tensor = call.tensors[index]
            assert type(tensor) is DeviceTensor
            if values.shape != tensor.shape:
                face = self._memory.room(face_of(tensor), layout_of(values))
                face.raw.copy_(values)
                rebind(tensor, face)
            call.plain[index] = values

    def given_back(self, call: Call, result: Any) -> Any:
        """What a call returns that has run already: its arguments, or device memory with the values computed."""
        if isinstance(result, (list, tuple)):
            return type(result)(self.given_back(call, item) for item in result)
        if not isinstance(result, Tensor):
            return result
        for tensor, raw in zip(call.tensors, call.plain, strict=True):
            if raw is result:
                return tensor
        if result.layout is not torch.strided or result.is_nested or result.is_quantized:
            raise _unlike_memory(call, result)
        made = self.empty(layout_of(result))
        made._face.raw.copy_(result)
        return made

    def empty(self, layout: Layout) -> DeviceTensor:
        """Fresh device memory, owned by the current stream; called below the modes."""
        runtime = self._runtime
        with runtime.lock:
            runtime.memory.settle()
            raw, owner = runtime.memory.allocate_device(layout, runtime.current_queue())
            return wrap(raw, owner, runtime, layout)


def _unlike_memory(call: Call, result: Tensor) -> UnsupportedOperationError:
    kind = "nested" if result.is_nested else "quantized" if result.is_quantized else str(result.layout)
    return UnsupportedOperationError(
        f"{call.operator.name}, which returns a {kind} tensor",
        "tensors of the virtual device are dense",
        "which bytes such a tensor touches is not modelled",
        "a dense tensor with a mask or with indices beside it",
    )


def _argument(call: Call, output: Output) -> Any:
    """An output that is no new tensor."""
    return call.tensors[output.index] if isinstance(output, Same | Resized) else getattr(output, "value", None)


def _simple(output: Output) -> Layout | int | object:
    if isinstance(output, Fresh):
        return output.layout
    return output.value if isinstance(output, Value) else output.index


def _remember(call: Call, outputs: tuple[Any, ...], touched: Touched | None) -> None:
    if call.key is not None:
        _keep(call.key, Recipe(outputs, touched))


def _keep(key: Any, recipe: Recipe) -> None:
    if len(_recipes) >= MAX_RECIPES:
        _recipes.clear()
    _recipes[key] = recipe


def forget_calls() -> None:
    """Forget what calls return: a setting of the process decides it, and has changed."""
    _recipes.clear()


def _aim_factory(call: Call) -> None:
    """What is computed for the device is computed on the host."""
    if call.kwargs.get("pin_memory"):
        raise RuntimeError("Only dense CPU tensors can be pinned")
    call.kwargs = {name: value for name, value in call.kwargs.items() if name not in ("pin_memory", "device")}
