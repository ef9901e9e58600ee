"""Functions that Triton calls by name (``tt.extern_elementwise``): CUDA's libdevice, by means of the C library.

Exact ones (rounding, classification, bits, conversions, remainders, square roots) agree with CUDA to the last bit, but
that a GPU takes float32 denormals for zero in most of them. The others are within an ulp or two of the true value, here
as there, but their last bits are not always the same.
"""

from __future__ import annotations

from ..ir import Operation
from .program import Program
from .registry import expression
from .scalars import c_type

#: The C library has them under the same name, with an ``f`` for float32; by their number of arguments.
_SAME_NAME = {
    1: (
        "acos", "acosh", "asin", "asinh", "atan", "atanh", "cbrt", "ceil", "cos", "cosh", "erf", "erfc", "exp",
        "exp10", "exp2", "expm1", "fabs", "floor", "j0", "j1", "lgamma", "log", "log10", "log1p", "log2", "logb",
        "nearbyint", "rint", "round", "sin", "sinh", "sqrt", "tan", "tanh", "tgamma", "trunc", "y0", "y1",
    ),
    2: (
        "atan2", "copysign", "fdim", "fmod", "hypot", "jn", "ldexp", "nextafter", "pow", "remainder", "scalbn",
        "yn",
    ),
    3: ("fma",),
}  # fmt: skip
_ARITY = {name: count for count, names in _SAME_NAME.items() for name in names}

#: By float32 and float64; ``@`` is the ``f`` of the C library's float32 functions.
_BY_PRECISION = {
    "rsqrt": "(1 / sqrt@({0}))",
    "rcbrt": "(1 / cbrt@({0}))",
    "rhypot": "(1 / hypot@({0}, {1}))",
    "norm3d": "sqrt@({0} * {0} + {1} * {1} + {2} * {2})",
    "rnorm3d": "(1 / sqrt@({0} * {0} + {1} * {1} + {2} * {2}))",
    "norm4d": "sqrt@({0} * {0} + {1} * {1} + {2} * {2} + {3} * {3})",
    "rnorm4d": "(1 / sqrt@({0} * {0} + {1} * {1} + {2} * {2} + {3} * {3}))",
    "normcdf": "(erfc@({0} * -0x1.6a09e667f3bcdp-1) / 2)",
    "sinpi": "sin@(fmod@({0}, 2) * 0x1.921fb54442d18p+1)",
    "cospi": "cos@(fmod@({0}, 2) * 0x1.921fb54442d18p+1)",
    "powi": "pow@({0}, {1})",
    "ilogb": "ilogb@({0})",
    "llrint": "llrint@({0})",
    "llround": "llround@({0})",
}

_BY_NAME = {
    "abs": "({0} < 0 ? -{0} : {0})", "llabs": "({0} < 0 ? -{0} : {0})",
    "isnanf": "({0} != {0})", "isnand": "({0} != {0})",
    "isinff": "(isinf({0}) != 0)", "isinfd": "(isinf({0}) != 0)",
    "finitef": "(isfinite({0}) != 0)", "isfinited": "(isfinite({0}) != 0)",
    "signbitf": "(signbit({0}) != 0)", "signbitd": "(signbit({0}) != 0)",
    "saturatef": "({0} > 0 ? {0} < 1 ? {0} : 1.0f : 0.0f)",
    "clz": "({0} ? __builtin_clz({0}) : 32)", "clzll": "({0} ? __builtin_clzll({0}) : 64)",
    "ffs": "__builtin_ffs({0})", "ffsll": "__builtin_ffsll({0})",
    "popc": "__builtin_popcount({0})", "popcll": "__builtin_popcountll({0})",
    "brev": "reversed_bits((uint32_t){0}, 32)", "brevll": "reversed_bits({0}, 64)",
    "byte_perm": "byte_permutation({0}, {1}, {2})",
    "mulhi": "(((int64_t){0} * {1}) >> 32)", "umulhi": "(((uint64_t)(uint32_t){0} * (uint32_t){1}) >> 32)",
    "mul64hi": "(((__int128){0} * {1}) >> 64)",
    "umul64hi": "(((unsigned __int128)(uint64_t){0} * (uint64_t){1}) >> 64)",
    "mul24": "(({0} << 8 >> 8) * ({1} << 8 >> 8))",
    "umul24": "(((uint32_t){0} & 0xffffff) * ((uint32_t){1} & 0xffffff))",
    "sad": "((uint32_t)({0} > {1} ? {0} - {1} : {1} - {0}) + {2})",
    "usad": "(((uint32_t){0} > (uint32_t){1} ? {0} - {1} : {1} - {0}) + {2})",
    "hadd": "(((int64_t){0} + {1}) >> 1)", "rhadd": "(((int64_t){0} + {1} + 1) >> 1)",
    "uhadd": "(((uint64_t)(uint32_t){0} + (uint32_t){1}) >> 1)",
    "urhadd": "(((uint64_t)(uint32_t){0} + (uint32_t){1} + 1) >> 1)",
    "float_as_int": "bits_of_f32({0})", "float_as_uint": "bits_of_f32({0})",
    "int_as_float": "f32_of_bits({0})", "uint_as_float": "f32_of_bits({0})",
    "double_as_longlong": "bits_of_f64({0})", "longlong_as_double": "f64_of_bits({0})",
    "hiloint2double": "f64_of_halves({0}, {1})",
    "double2hiint": "(bits_of_f64({0}) >> 32)", "double2loint": "bits_of_f64({0})",
    "fadd_rn": "({0} + {1})", "dadd_rn": "({0} + {1})", "fsub_rn": "({0} - {1})", "dsub_rn": "({0} - {1})",
    "fmul_rn": "({0} * {1})", "dmul_rn": "({0} * {1})", "fdiv_rn": "({0} / {1})", "ddiv_rn": "({0} / {1})",
    "frcp_rn": "(1 / {0})", "drcp_rn": "(1 / {0})", "fsqrt_rn": "sqrtf({0})", "dsqrt_rn": "sqrt({0})",
    "fmaf_rn": "fmaf({0}, {1}, {2})", "fma_rn": "fma({0}, {1}, {2})", "frsqrt_rn": "(float)(1 / sqrt({0}))",
    "int2float_rn": "((float){0})", "uint2float_rn": "((float)(uint32_t){0})",
    "ll2float_rn": "((float){0})", "ull2float_rn": "((float)(uint64_t){0})",
    "int2double_rn": "((double){0})", "uint2double_rn": "((double)(uint32_t){0})",
    "ll2double_rn": "((double){0})", "ull2double_rn": "((double)(uint64_t){0})",
    "double2float_rn": "((float){0})",
    "fast_fdividef": "({0} / {1})",
}  # fmt: skip

#: CUDA's approximations, which are less exact than the functions here.
_FAST = {f"fast_{name}f": f"{name}f" for name in ("cos", "exp10", "exp", "log10", "log2", "log", "pow", "sin", "tan")}

_ROUNDINGS = {"rn": "rint", "rz": "trunc", "rd": "floor", "ru": "ceil"}
_INTEGERS = {"int": "s32", "uint": "u32", "ll": "s64", "ull": "u64"}


@expression("tt.extern_elementwise")
def call_by_name(program: Program, operation: Operation, operands: list[str]) -> str:
    """A function of libdevice, ``__nv_…``; any other name is refused."""
    symbol = str(operation.attributes.get("symbol", ""))
    text = _template(symbol.removeprefix("__nv_")) if symbol.startswith("__nv_") else None
    if text is None:
        raise program.unsupported(operation, f"of {symbol}")
    program.unit.headers.add("library.h")
    return f"(({c_type(operation.results[0].element)}){text.format(*operands)})"


def _template(name: str) -> str | None:
    """C expression of a function, its arguments as numbers in braces."""
    if name in _BY_NAME:
        return _BY_NAME[name]
    name = _FAST.get(name, name)
    single = name.endswith("f") and name not in _ARITY and name not in _BY_PRECISION
    plain = name[:-1] if single else name
    if plain in _BY_PRECISION:
        return _BY_PRECISION[plain].replace("@", "f" if single else "")
    if plain in _ARITY:
        return f"{name}({', '.join(f'{{{k}}}' for k in range(_ARITY[plain]))})"
    return _conversion(name)


def _conversion(name: str) -> str | None:
    """``float2int_rz`` and its like."""
    source, _, rest = name.partition("2")
    target, _, rounding = rest.partition("_")
    if source not in ("float", "double") or target not in _INTEGERS or rounding not in _ROUNDINGS:
        return None
    suffix, bits = ("f", "f32") if source == "float" else ("", "f64")
    return f"{bits}_to_{_INTEGERS[target]}({_ROUNDINGS[rounding]}{suffix}({{0}}))"
