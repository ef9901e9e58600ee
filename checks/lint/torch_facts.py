"""What functions and methods of torch give, and which of them make the host wait.

What waits was measured on an H200 (``virtual`` has the same rules as tables); the rest is torch's documentation.
"""

from __future__ import annotations

#: Methods that give the host a value of the device.
PULLS = frozenset({"item", "tolist", "cpu", "numpy", "__bool__", "__int__", "__float__", "__index__"})

#: Attributes that the host knows without asking the device.
HOST_ATTRIBUTES = frozenset(
    {"shape", "ndim", "dtype", "layout", "requires_grad", "is_leaf", "itemsize", "nbytes", "names", "is_sparse"}
)
HOST_METHODS = frozenset(
    {
        "size", "dim", "numel", "nelement", "stride", "storage_offset", "data_ptr", "element_size", "is_contiguous",
        "is_pinned", "get_device", "is_floating_point", "ndimension", "type", "is_shared", "is_complex", "is_set_to",
        "untyped_storage", "storage", "requires_grad_", "record_stream", "__len__", "is_inference", "dim_order",
        "register_hook", "has_names", "is_signed", "is_same_size",
    }
)  # fmt: skip
#: Attributes that are a tensor too.
TENSOR_ATTRIBUTES = frozenset({"T", "mT", "H", "mH", "data", "real", "imag", "grad"})
BUILTIN_FLAGS = frozenset({"is_cuda", "is_cpu", "is_xpu"})

#: Constructors that allocate where ``device=`` says, else on the default device.
FACTORIES = frozenset(
    {
        "empty", "zeros", "ones", "full", "arange", "rand", "randn", "randint", "randperm", "linspace", "logspace",
        "eye", "empty_strided", "scalar_tensor", "tril_indices", "triu_indices", "empty_permuted", "range",
    }
)  # fmt: skip
#: Constructors that copy data of the host to where ``device=`` says.
FROM_HOST = frozenset({"tensor", "as_tensor", "asarray"})
#: Constructors around memory of the host.
ON_HOST = frozenset({"from_numpy", "frombuffer", "from_file"})
LIKE = frozenset(
    {
        "empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "randint_like",
        "new_empty", "new_zeros", "new_ones", "new_full", "new_empty_strided",
    }
)  # fmt: skip

#: The size of the result depends on the data, so the host must wait for it.
SHAPE_FROM_DATA = frozenset(
    {
        "nonzero", "argwhere", "masked_select", "unique", "unique_consecutive", "bincount", "histc",
        "to_sparse", "to_sparse_csr",
    }
)  # fmt: skip
#: The result is a bool or number of the host.
HOST_RESULT = frozenset({"equal", "allclose", "is_nonzero"})
#: The host waits inside: solvers read back whether they succeeded, isin looks for the way that is faster.
WAITS_INSIDE = frozenset({"inv", "inverse", "solve", "cholesky", "isin"})

#: The result's elements are bool.
MASKS = frozenset(
    {
        "eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_not", "logical_xor", "isnan", "isinf",
        "isfinite", "isposinf", "isneginf", "isclose", "bool", "greater", "less", "not_equal", "isin", "less_equal",
        "greater_equal", "all", "any",
    }
)  # fmt: skip
#: Views and copies that leave the elements as they are.
KEEPS_MASK = frozenset(
    {
        "view", "reshape", "flatten", "unsqueeze", "squeeze", "expand", "expand_as", "contiguous", "clone", "detach",
        "t", "transpose", "permute", "narrow", "to", "cuda", "cpu", "pin_memory", "repeat", "view_as", "select", "flip",
        "roll", "bitwise_and", "bitwise_or", "bitwise_not", "copy_", "any", "all", "cat", "stack", "fill_", "zero_",
    }
)  # fmt: skip
#: Views of the same memory; what is written through one is written in the other.
VIEWS = frozenset(
    {
        "view", "reshape", "flatten", "unsqueeze", "squeeze", "expand", "expand_as", "detach", "t", "transpose",
        "permute", "narrow", "view_as", "select", "numpy", "as_strided", "ravel",
    }
)  # fmt: skip
#: Methods that write their tensor, besides those whose name ends in one underscore.
WRITES = frozenset({"copy_", "fill_", "zero_", "__setitem__", "fill", "put"})

#: Functions that give two tensors.
PAIRS = frozenset(
    {"sort", "topk", "kthvalue", "mode", "median", "frexp", "cummax", "cummin", "aminmax", "std_mean", "var_mean"}
)
#: Functions that give several tensors.
MANY = frozenset(
    {
        "split",
        "chunk",
        "unbind",
        "tensor_split",
        "meshgrid",
        "broadcast_tensors",
        "split_with_sizes",
        "hsplit",
        "vsplit",
    }
)
#: Like ``max``: one tensor for all elements, a pair along a dimension.
PAIR_WITH_DIM = frozenset({"max", "min"})

#: Functions by whole name that wait until the device is done.
SYNCHRONIZE = frozenset(
    f"torch.{part}.synchronize" for part in ("cuda", "accelerator", "xpu", "mps", "npu", "hpu", "musa")
)
EMPTY_CACHE = frozenset(f"torch.{part}.empty_cache" for part in ("cuda", "accelerator", "xpu", "mps", "npu", "hpu"))
STREAM_CLASSES = frozenset({"torch.cuda.Stream", "torch.Stream", "torch.xpu.Stream", "torch.cuda.ExternalStream"})
EVENT_CLASSES = frozenset({"torch.cuda.Event", "torch.Event", "torch.xpu.Event"})
#: What gives a stream without a class of that name being called.
STREAM_GETTERS = frozenset(
    {f"torch.{part}.{name}" for part in ("cuda", "accelerator", "xpu") for name in ("current_stream", "default_stream")}
)
STREAM_CONTEXTS = frozenset({"torch.cuda.stream", "torch.accelerator.stream", "torch.xpu.stream"})
#: Classes of torch whose calls run a layer.
LAYERS = "torch.nn."

#: Namespaces of torch whose functions compute: their results are tensors where their arguments are.
COMPUTES = (
    "torch.nn.functional.", "torch.linalg.", "torch.special.", "torch.fft.", "torch.ops.",
    "torch._C._nn.", "torch.compiler.",
)  # fmt: skip
#: Functions of torch that give nothing of the device.
NO_TENSOR = frozenset(
    {
        "device", "is_tensor", "is_floating_point", "numel", "is_grad_enabled", "inference_mode", "no_grad",
        "enable_grad",
        "set_grad_enabled", "manual_seed", "get_default_dtype", "set_default_dtype", "set_default_device", "finfo",
        "iinfo", "compile", "save", "load", "Size", "Generator", "get_rng_state", "set_rng_state", "typename", "jit",
        "get_num_threads", "set_num_threads", "promote_types", "result_type", "can_cast", "_assert_async", "dtype",
    }
)  # fmt: skip
#: Words in ``dtype`` names.
DTYPES = frozenset(
    {
        "float", "float16", "float32", "float64", "bfloat16", "half", "double", "int", "int8", "int16", "int32",
        "int64",
        "long", "short", "uint8", "uint16", "uint32", "uint64", "bool", "float8_e4m3fn", "float8_e5m2", "complex64",
        "float8_e4m3fnuz", "float8_e8m0fnu", "complex128", "float4_e2m1fn_x2",
    }
)  # fmt: skip

#: Reductions, whose result is a single element.
REDUCTIONS = frozenset({"sum", "max", "min", "mean", "prod", "argmax", "argmin", "any", "all", "item", "norm", "numel"})
