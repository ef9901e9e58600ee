"""Which platform is judged: a CUDA device. Code for others is left out, by what it asks and by what it is called."""

from __future__ import annotations

import ast

from .symbols import dotted_name
from .values import Value, constant

#: Functions that ask which platform this is. The search judges what happens on a CUDA device.
_ON_CUDA = {
    "is_cpu": False, "is_npu": False, "is_xpu": False, "is_hpu": False, "is_tpu": False, "is_mps": False,
    "is_musa": False, "is_cuda": True, "is_cuda_alike": True, "is_host_cpu_arm64": False, "is_neuron": False,
    "is_out_of_tree": False, "is_hip": False, "is_rocm": False, "is_mps_available": False,
}  # fmt: skip

#: Words in names of modules and classes that are for other platforms.
OTHERS = frozenset({"cpu", "mlx", "npu", "xpu", "hpu", "tpu", "mps", "musa", "mindspore", "rocm", "hip"})


def platform_answer(node: ast.expr) -> Value | None:
    """What ``is_cpu()`` and its like answer; ``None`` for any other expression."""
    if not isinstance(node, ast.Call) or node.args:
        return None
    name = (dotted_name(node.func) or "").rpartition(".")[2]
    return constant(_ON_CUDA[name]) if name in _ON_CUDA else None
