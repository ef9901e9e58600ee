"""Every operation that the front end of Triton 3.6 to 3.9 can print: its syntax, its attributes, its types."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ..ir import Attribute, Type, Value
from . import typing_rules as typing
from .attributes import FLOAT_PREDICATES, WORDS
from .lexer import Cursor, Fault
from .syntax import Parts, Step, steps_of


class _Required(enum.Enum):
    REQUIRED = enum.auto()


_REQUIRED = _Required.REQUIRED

#: Promises about values and wishes about loops, which any operation may carry; the meaning is the same without them.
HINTS = frozenset(
    {
        *("tt.divisibility", "tt.contiguity", "tt.constancy", "tt.pointer_range"),
        *("tt.num_stages", "tt.loop_unroll_factor", "tt.flatten", "tt.warp_specialize", "tt.disallow_acc_multi_buffer"),
        "llvm.loop_annotation",
    }
)

_AXES = {"x": 0, "y": 1, "z": 2}


@dataclass(frozen=True)
class Rule:
    """What is known of an operation.

    Attributes:
        steps: read its custom syntax, after the name.
        typing: types of operands and results from those that were printed.
        attributes: all that it may have, with their defaults, which are not printed.
        arrange: puts operands into the order of the generic form.
    """

    steps: tuple[Step, ...]
    typing: typing.TypingRule
    attributes: Mapping[str, Attribute | _Required]
    arrange: Callable[[list[Value]], list[Value]]

    def complete(self, name: str, given: Mapping[str, Attribute]) -> dict[str, Attribute]:
        """Attributes by name, with words in the place of numbers that stand for words, and with defaults.

        Raises:
            Fault: an attribute or a word that is not known, or a missing attribute.
        """
        found: dict[str, Attribute] = {}
        for key, value in self.attributes.items():
            chosen = given.get(key, value)
            if isinstance(chosen, _Required):
                raise Fault(f"{name} without {key}")
            found[key] = chosen if key not in given else _worded(name, key, chosen)
        for key, value in given.items():
            if key in HINTS:
                found[key] = value
            elif key not in self.attributes:
                raise Fault(f"{name} with the attribute {key}")
        return found


RULES: dict[str, Rule] = {}

#: What may end a block.
TERMINATORS = frozenset(
    {
        *("tt.return", "scf.yield", "scf.condition", "cf.br", "cf.cond_br"),
        *("tt.reduce.return", "tt.scan.return", "tt.map_elementwise.return"),
    }
)


def read_custom(name: str, text: Cursor, lookup: Callable[[str], Value]) -> tuple[Parts, Sequence[Type]]:
    """Read the custom form of an operation after its name; returns its parts and the types of its results.

    Raises:
        Fault: the syntax is not known, or types do not agree.
    """
    rule, parts = RULES[name], Parts(lookup)
    for step in rule.steps:
        step(text, parts)
    parts.operands = rule.arrange(parts.operands)
    expected, results = rule.typing(parts.types, parts.operands)
    check_types(name, parts.operands, expected)
    parts.attributes = rule.complete(name, _split_policy(parts.attributes))
    return parts, results


def check_types(name: str, operands: Sequence[Value], expected: Sequence[Type]) -> None:
    """Compare operands with the types that the text says they have.

    Raises:
        Fault: they differ.
    """
    if [operand.type for operand in operands] != list(expected):
        raise Fault(f"{name} with operands of types other than it says")


def complete(name: str, given: Mapping[str, Attribute]) -> dict[str, Attribute]:
    """Attributes of an operation printed in the generic form."""
    rule = RULES[name]
    kept = {key: value for key, value in given.items() if key != "operandSegmentSizes" or key in rule.attributes}
    return rule.complete(name, _split_policy(kept))


def segments_of(
    name: str, operands: Sequence[Value], labels: Sequence[str], attributes: Mapping[str, Attribute]
) -> tuple[Sequence[Value], Sequence[tuple[str, tuple[Value, ...]]]]:
    """In the generic form of a branch, its own operands and what it passes to each block.

    Raises:
        Fault: their numbers do not add up.
    """
    if not labels:
        return operands, ()
    sizes = attributes.get("operandSegmentSizes", (0, len(operands)))
    if not isinstance(sizes, tuple) or len(sizes) != 1 + len(labels):
        raise Fault(f"{name} with {len(labels)} successors")
    rest, groups = list(operands), []
    for size in sizes:
        count = size if isinstance(size, int) else 0
        groups.append(tuple(rest[:count]))
        rest = rest[count:]
    return groups[0], list(zip(labels, groups[1:], strict=True))


def _worded(name: str, key: str, value: Attribute) -> Attribute:
    if name == "tt.get_program_id" or name == "tt.get_num_programs":
        value = _AXES.get(value, -1) if isinstance(value, str) else value
        if value not in _AXES.values():
            raise Fault(f"{name} of an unknown axis")
        return value
    words = FLOAT_PREDICATES if name == "arith.cmpf" and key == "predicate" else WORDS.get(key)
    if words is None:
        return value
    word = words.get(value, "") if isinstance(value, int) else value
    if not isinstance(word, str) or word not in words.values():
        raise Fault(f"{name} with {key} = {value}")
    return word


def _split_policy(given: Mapping[str, Attribute]) -> dict[str, Attribute]:
    """Triton 3.9 has one attribute for what were ``cache`` and ``evict``; here they are two always."""
    found = dict(given)
    policy = found.pop("cachePolicy", ())
    names = {"cache_modifier": "cache", "eviction_policy": "evict"}
    for item in policy if isinstance(policy, tuple) else (policy,):
        key, _, word = str(item).partition("=")
        if key not in names:
            raise Fault(f"a cache policy with {item}")
        found[names[key]] = word
    return found


# The table


def _keep(operands: list[Value]) -> list[Value]:
    return operands


def _value_second(operands: list[Value]) -> list[Value]:
    """``%descriptor[%offsets], %value`` in the order of the generic form: descriptor, value, offsets."""
    return [operands[0], operands[-1], *operands[1:-1]]


def _rule(
    names: str,
    description: str,
    rule: typing.TypingRule,
    arrange: Callable[[list[Value]], list[Value]] = _keep,
    **attributes: Attribute | _Required,
) -> None:
    for name in names.split():
        RULES[name] = Rule(steps_of(description), rule, attributes, arrange)


_FLOATS = "arith.addf arith.subf arith.mulf arith.divf arith.remf"
_EXTREMES = "arith.maximumf arith.minimumf arith.maxnumf arith.minnumf"
_rule(f"{_FLOATS} {_EXTREMES}", "% , % fastmath<@fastmath>? {} : T", typing.same, fastmath="none")
_rule("arith.negf", "% fastmath<@fastmath>? {} : T", typing.same, fastmath="none")
_rule(
    "arith.addi arith.subi arith.muli arith.shli",
    "% , % overflow<@overflowFlags>? {} : T",
    typing.same,
    overflowFlags="none",
)
_rule("arith.divsi arith.divui arith.shrsi arith.shrui", "% , % exact! {} : T", typing.same, exact=False)
_rule(
    "arith.remsi arith.remui arith.andi arith.ori arith.xori arith.maxsi arith.maxui arith.minsi arith.minui",
    "% , % {} : T",
    typing.same,
)
_rule("arith.cmpi", "@predicate , % , % {} : T", typing.compare, predicate=_REQUIRED)
_rule(
    "arith.cmpf",
    "@predicate , % , % fastmath<@fastmath>? {} : T",
    typing.compare,
    predicate=_REQUIRED,
    fastmath="none",
)
_rule("arith.select", "% , % , % {} : T*", typing.select)
_rule(
    "arith.extsi arith.fptosi arith.fptoui arith.sitofp",
    "% {} : T to T",
    typing.first_to_rest,
)
_rule("arith.extui arith.uitofp", "% nneg! {} : T to T", typing.first_to_rest, nonNeg=False)
_rule("arith.trunci", "% overflow<@overflowFlags>? {} : T to T", typing.first_to_rest, overflowFlags="none")
_rule("arith.extf arith.truncf", "% fastmath<@fastmath>? {} : T to T", typing.first_to_rest, fastmath="none")

_MATH_OF_ONE = "absf ceil cos erf exp exp2 floor log log2 rsqrt sin sqrt"
_rule(
    " ".join(f"math.{name}" for name in _MATH_OF_ONE.split()),
    "% fastmath<@fastmath>? {} : T",
    typing.same,
    fastmath="none",
)
_rule("math.absi", "% {} : T", typing.same)
_rule("math.fma", "% , % , % fastmath<@fastmath>? {} : T", typing.same, fastmath="none")

_rule("tt.get_program_id tt.get_num_programs", "@axis {} : T", typing.result_only, axis=_REQUIRED)
_rule("tt.make_range", "{} : T", typing.result_only, start=_REQUIRED, end=_REQUIRED)
_rule("ub.poison", "{} : T", typing.result_only, value="poison")
_rule("tt.splat tt.broadcast tt.bitcast tt.int_to_ptr tt.ptr_to_int", "% {} : T -> T", typing.first_to_rest)
_rule("tt.unsplat", "% {} : T", typing.unsplat)
_rule("tt.addptr", "% , % {} : T , T", typing.pointer_sum)
_rule("tt.expand_dims", "% {} : T -> T", typing.first_to_rest, axis=_REQUIRED)
_rule(
    "tt.reshape",
    "% allow_reorder! efficient_layout! {} : T -> T",
    typing.first_to_rest,
    allow_reorder=False,
    efficient_layout=False,
)
_rule("tt.trans", "% {} : T -> T", typing.first_to_rest, order=_REQUIRED)
_rule("tt.join tt.cat", "% , % {} : T -> T", typing.first_to_rest)
_rule("tt.split", "% {} : T -> T", typing.split)
_rule("tt.gather", "% [%*] {} : (T*) -> T", typing.functional, axis=_REQUIRED, efficient_layout=False)
_rule("tt.histogram", "% %? {} : T -> T", typing.histogram)
_rule("tt.fp_to_fp", "% ,rounding=@rounding? {} : T -> T", typing.first_to_rest, rounding="none")
_rule("tt.clampf", "% , % , % ,propagateNan=@propagateNan? {} : T", typing.same, propagateNan=_REQUIRED)
_rule("tt.mulhiui tt.precise_divf tt.approx_divf", "% , % {} : T", typing.same)
_rule("tt.precise_sqrt", "% {} : T", typing.same)
_rule(
    "tt.dot",
    "% , % , % ,inputPrecision=@inputPrecision? {} : T * T -> T",
    typing.dot,
    inputPrecision="ieee",
    maxNumImpreciseAcc=0,
)

# Its scales are optional and come last in the generic form; which there are, the sizes of the segments tell.
_rule(
    "tt.dot_scaled",
    "{scaled} lhs = @a_elem_type rhs = @b_elem_type {} : {scaled-types} -> T",
    typing.dot_scaled,
    a_elem_type=_REQUIRED,
    b_elem_type=_REQUIRED,
    fastMath=_REQUIRED,
    lhs_k_pack=True,
    rhs_k_pack=True,
    operandSegmentSizes=_REQUIRED,
)

_CACHE = "cacheModifier=@cache? evictionPolicy=@evict?"
_rule(
    "tt.load",
    f"% %? %? {_CACHE} {{}} : T",
    typing.load,
    cache="none",
    evict="evict_normal",
    isVolatile=False,
    boundaryCheck=(),
    padding="none",
)
_rule(
    "tt.store",
    f"% , % %? {_CACHE} {{}} : T",
    typing.store,
    cache="none",
    evict="evict_normal",
    boundaryCheck=(),
)
_rule(
    "tt.atomic_rmw",
    "@atomic_rmw_op , @sem , @scope , % , % %? {} : (T*) -> T",
    typing.functional,
    atomic_rmw_op=_REQUIRED,
    sem=_REQUIRED,
    scope=_REQUIRED,
)
_rule("tt.atomic_cas", "@sem , @scope , % , % , % {} : (T*) -> T", typing.functional, sem=_REQUIRED, scope=_REQUIRED)
_rule("tt.atomic_load", "@sem , @scope , % %? {} : (T*) -> T", typing.functional, sem=_REQUIRED, scope=_REQUIRED)
_rule("tt.atomic_store", "@sem , @scope , % , % %? {} : T", typing.store, sem=_REQUIRED, scope=_REQUIRED)
_rule("tt.atomic_poll", "@sem , @scope , % , % {} : T , T -> T", typing.functional, sem=_REQUIRED, scope=_REQUIRED)

_rule("tt.make_tensor_ptr", "% , [%*] , [%*] , [%*] {} : <ptr>", typing.make_block_pointer, order=_REQUIRED)
_rule("tt.advance", "% , [%*] {} : <ptr>", typing.advance)
_rule("tt.make_tensor_descriptor", "% , [%*] , [%*] {} : <ptr> , <desc>", typing.make_descriptor, padding="none")
_rule(
    "tt.descriptor_load",
    f"% [%*] {_CACHE} {{}} : T -> T",
    typing.descriptor_load,
    cache="none",
    evict="evict_normal",
)
_rule("tt.descriptor_store", "% [%*] , % {} : T , T", typing.descriptor_store, _value_second)
_rule(
    "tt.descriptor_reduce",
    "@kind , % [%*] , % {} : T , T",
    typing.descriptor_store,
    _value_second,
    kind=_REQUIRED,
)
_rule("tt.descriptor_gather", "% [%*] {} : (T*) -> T", typing.functional)
_rule("tt.descriptor_scatter", "% [%*] , % {} : T*", typing.no_results)

_rule("tt.assert", "% , @message {} : T", typing.assertion, message=_REQUIRED)
_rule("tt.print", "@prefix {} :%*? :T*?", typing.no_results, prefix=_REQUIRED, hex=_REQUIRED, isSigned=_REQUIRED)
_rule("llvm.intr.assume", "% {} : T", typing.assumption, op_bundle_sizes=())
_rule("gpu.barrier tt.grid_dependency_wait tt.grid_dependency_launch_dependents", "{}", typing.no_results)
_rule("ttg.barrier", "@addrSpace {}", typing.no_results, addrSpace=_REQUIRED)
_rule("tt.call", "@callee ( %* ) {} : (T*) ->T*", typing.functional, callee=_REQUIRED)
_rule(
    "tt.extern_elementwise",
    "%* {} : (T*) -> T",
    typing.functional,
    libname=_REQUIRED,
    libpath=_REQUIRED,
    pure=_REQUIRED,
    symbol=_REQUIRED,
)
_rule(
    "tt.elementwise_inline_asm",
    "@asm_string {} %* :T*? -> T*",
    typing.functional,
    asm_string=_REQUIRED,
    constraints=_REQUIRED,
    packed_element=_REQUIRED,
    pure=_REQUIRED,
)

# Those whose syntax is in `control`.
_rule("arith.constant", "", typing.result_only, value=_REQUIRED)
_rule("scf.if scf.while cf.br cf.cond_br", "", typing.functional)
_rule("scf.for", "", typing.functional, unsignedCmp=False)

# Ends of regions, and operations whose regions are printed in the generic form.
_rule("tt.return scf.yield", "{} %* :T*?", typing.no_results)
_rule("tt.reduce.return tt.scan.return tt.map_elementwise.return", "%* {} :T*?", typing.no_results)
_rule("scf.condition", "( % ) {} %* :T*?", typing.condition_first)
_rule("tt.reduce", "", typing.functional, axis=_REQUIRED)
_rule("tt.scan", "", typing.functional, axis=_REQUIRED, reverse=_REQUIRED)
_rule("tt.map_elementwise", "", typing.functional, pack=_REQUIRED)
