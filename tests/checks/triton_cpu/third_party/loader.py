"""Imports single modules of packages that are not installed, with everything else of these packages left out.

A module of vLLM or sglang imports half of its package, which imports CUDA extensions. What a kernel needs is little, so
a module loaded here gets a stand-in for every other module of its package unless that is on a list. Stand-ins answer
anything: a name asked of them is another stand-in, a decorator that does nothing, false, or no base class.
"""

from __future__ import annotations

import contextlib
import enum
import importlib
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

#: Modules that are executed when another one asks for them, besides those that are asked for by name.
GENUINE = frozenset(
    {
        "flag_gems.ops.topk",
        "flag_gems.utils.limits",
        "flag_gems.utils.random_utils",
        "flag_gems.utils.triton_lang_extension",
        "flag_gems.utils.triton_lang_helper",
        "liger_kernel.ops.utils",
        "vllm.triton_utils",
        "vllm.utils.math_utils",
        "vllm.v1.attention.ops.triton_attention_helpers",
        "vllm.v1.worker.gpu.buffer_utils",
        "vllm.v1.watermarking.prfs.philox",
        "vllm.v1.worker.gpu.sample.gumbel",
        "vllm.v1.worker.gpu.sample.watermark",
    }
)


class Anything:
    """A value of a stand-in."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """As a decorator it returns what it decorates."""
        return args[0] if len(args) == 1 and callable(args[0]) and not kwargs else Anything()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *error: object) -> None:
        """As a context manager it does nothing."""

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        return ()

    def __bool__(self) -> bool:
        return False

    def __getitem__(self, key: object) -> Any:
        return Anything()

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __or__(self, other: object) -> Any:
        return Anything()

    __ror__ = __or__

    def __ge__(self, other: object) -> bool:
        return False

    __gt__ = __le__ = __lt__ = __ge__


class _Quantization(enum.IntEnum):
    """How vLLM's KV cache is quantised."""

    NONE = 0
    FP8_PER_TENSOR = 1
    INT8_PER_TOKEN_HEAD = 2
    FP8_PER_TOKEN_HEAD = 3
    INT4_PER_TOKEN_HEAD = 4


class _Platform(Anything):
    """The platform that vLLM runs on."""

    device_type = "cpu"

    def fp8_dtype(self) -> torch.dtype:
        return torch.float8_e4m3fn


#: What some stand-ins answer to some names.
ANSWERS: Mapping[str, Mapping[str, object]] = {
    "vllm.triton_utils.importing": {"HAS_TRITON": True},
    "sglang.srt.utils": {"is_cuda": lambda: False, "is_hip": lambda: False, "is_cpu": lambda: False},
    "vllm.platforms": {"current_platform": _Platform()},
    "vllm.v1.attention.backends.utils": {"PAD_SLOT_ID": -1},
    "vllm.model_executor.layers.quantization.utils.quant_utils": {"get_fp8_min_max": lambda: (-448.0, 448.0)},
    "vllm.v1.kv_cache_interface": {"KVQuantMode": _Quantization},
    "vllm.utils.torch_utils": {"async_tensor_h2d": torch.tensor},
    "liger_kernel.utils": {"infer_device": lambda: "npu", "infer_device_arch": lambda: "any"},
}


class _StandIn(ModuleType):
    """A module of a package that is not executed."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if f"{self.__name__}.{name}" in GENUINE:  # "from package import module" asks the package first
            return importlib.import_module(f"{self.__name__}.{name}")
        return ANSWERS.get(self.__name__, {}).get(name, Anything())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """A name that a package has for a module and for a function in it was imported as the module."""
        return Anything()(*args, **kwargs)


class _Finder(importlib.machinery.SourceFileLoader):
    """Finds the modules below the roots, and nothing else."""

    def __init__(self, folder: Path, roots: Sequence[str]) -> None:
        super().__init__("", "")
        self.genuine = set(GENUINE)
        self._folder, self._roots = folder, tuple(roots)

    def find_spec(self, name: str, path: object, target: object = None) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] not in self._roots:
            return None
        if name in self.genuine:
            return importlib.util.spec_from_file_location(name, self._file(name))
        return importlib.machinery.ModuleSpec(name, _StandInLoader(), is_package=True)

    def _file(self, name: str) -> Path:
        base = self._folder.joinpath(*name.split("."))
        return base / "__init__.py" if base.is_dir() else base.with_suffix(".py")


class _StandInLoader:
    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """A stand-in executes nothing."""


@contextlib.contextmanager
def loading(folder: Path, roots: Sequence[str]) -> Iterator[Callable[[str], ModuleType]]:
    """Within this scope, modules of packages in a folder can be imported; afterwards none of them is left.

    Yields:
        A function that executes the module of a name and returns it.
    """
    finder, saved = _Finder(folder, roots), _taken_out(roots)
    sys.meta_path.insert(0, finder)  # type: ignore[arg-type]

    def load(name: str) -> ModuleType:
        finder.genuine.add(name)
        if isinstance(sys.modules.get(name), _StandIn):  # another module asked for it before
            del sys.modules[name]
        return importlib.import_module(name)

    try:
        yield load
    finally:
        sys.meta_path.remove(finder)  # type: ignore[arg-type]
        _taken_out(roots)
        sys.modules.update(saved)


def _taken_out(roots: Sequence[str]) -> dict[str, ModuleType]:
    names = [name for name in sys.modules if name.partition(".")[0] in roots]
    return {name: sys.modules.pop(name) for name in names}
