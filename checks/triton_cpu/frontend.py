"""Triton's own front end as a library: a kernel and the types of its arguments in, printed TTIR out.

It needs neither a GPU nor a driver: the code generator is asked for an H100's code and stopped before anything depends
on the GPU. Only passes that keep what each operation computes are run: inlining, folding of constants, removal of
common and dead operations, and the lowering of block pointers and tensor descriptors to plain pointers. Nothing is
specialised on values of arguments, so one variant serves all of a type.
"""

from __future__ import annotations

import functools
import traceback
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from triton._C.libtriton import ir, passes
from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import ASTSource, make_backend
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction

from .errors import Unsupported
from .language import compiled_language, jit_function
from .locks import ForkSafeLock
from .said import heard

_TARGET = GPUTarget("cuda", 90, 32)
#: All that Triton knows; no single GPU has all of them.
_FLOAT8 = ("fp8e4b15", "fp8e4b8", "fp8e4nv", "fp8e5", "fp8e5b16")

#: Triton's parser and printer are used by one thread at a time.
_lock = ForkSafeLock()


def ttir(
    kernel: JITFunction[Any] | InterpretedFunction[Any],
    signature: Mapping[str, Any],
    constants: Mapping[str | tuple[int, ...], Any] = MappingProxyType({}),
    options: Mapping[str, Any] = MappingProxyType({}),
) -> str:
    """Compile one variant of a kernel to TTIR with debug locations.

    A tensor descriptor of rank n becomes several arguments: its base; n sizes and n strides as i64; whether it pads
    with NaN as i1; since Triton 3.9 whether it rounds to TF32 as i1; then n sizes as i32 and n strides as i64 again.

    Args:
        kernel: a function decorated with ``triton.jit``; ``TRITON_INTERPRET`` may have been set.
        signature: for each parameter its type as Triton writes it (``"*fp32"``, ``"i32"``,
            ``"tensordesc<fp16[64,64]>"``), a tuple of such, or ``"constexpr"``.
        constants: values of the parameters that are ``"constexpr"``, by name, or by path for those within tuples.
        options: of the launch, as far as they concern the code: ``debug``, which keeps ``device_assert``,
            ``sanitize_overflow``, ``num_warps``, …; others are ignored.

    Raises:
        triton.compiler.errors.CompilationError: Triton refuses the kernel; names the line.
        RejectedModule: MLIR's verifier refuses it; it names the line, and nothing is printed.
        Unsupported: the kernel is written in Gluon, which describes one kind of GPU.
    """
    with _lock, compiled_language():
        function = jit_function(kernel)
        if function.is_gluon():
            raise Unsupported(f"the Gluon kernel {function.__name__}")
        try:
            with heard(function.__name__):
                return _compiled(function, dict(signature), dict(constants), dict(options))
        except Exception as error:
            _forget_module(error)
            raise


def _compiled(
    kernel: JITFunction[Any], signature: dict[str, Any], constants: dict[Any, Any], options: dict[str, Any]
) -> str:
    backend = _backend()
    # Triton 3.9 warns if contraction of floating-point operations is left to it; it happens after TTIR.
    parsed = backend.parse_options({"enable_fp_fusion": True, "supported_fp8_dtypes": _FLOAT8, **options})
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    source = ASTSource(kernel, signature, constants)
    functions = backend.get_codegen_implementation(parsed)
    module = source.make_ir(_TARGET, parsed, functions, backend.get_module_map(), context)
    _run_passes(module, context)
    return str(module.str())


def _run_passes(module: Any, context: Any) -> None:
    manager = ir.pass_manager(context)
    passes.common.add_inliner(manager)
    if hasattr(passes.ttir, "add_rewrite_tensor_pointer"):  # Triton 3.6 and 3.7; later there is nothing to lower
        passes.ttir.add_rewrite_tensor_pointer(manager)
    passes.ttir.add_rewrite_tensor_descriptor_to_pointer(manager)
    passes.common.add_canonicalizer(manager)
    passes.common.add_cse(manager)
    passes.common.add_symbol_dce(manager)
    manager.run(module, "ttir")


@functools.cache
def _backend() -> Any:
    return make_backend(_TARGET)


def _forget_module(error: BaseException | None) -> None:
    """Let go of what an error and its frames hold: parts of a module that must not outlive Triton's compiler."""
    if error is not None:
        traceback.clear_frames(error.__traceback__)
        if isinstance(error, AttributeError):
            error.obj = None
        _forget_module(error.__cause__)
        _forget_module(error.__context__)
