"""What must hold between an operation and its regions, so that later steps may rely on it."""

from __future__ import annotations

from collections.abc import Sequence

from ..ir import Function, Operation, Pointer, Region, Scalar, Tensor, Type, Value
from .lexer import Fault

_COMBINING = {"tt.reduce": "tt.reduce.return", "tt.scan": "tt.scan.return"}


def check_regions(operation: Operation) -> None:
    """Regions take and give what the operation passes and expects.

    Raises:
        Fault: they do not.
    """
    name = operation.name
    if name == "scf.if":
        _check_conditional(operation)
    elif name == "scf.for":
        _check_for(operation)
    elif name == "scf.while":
        _check_while(operation)
    elif name in _COMBINING:
        _check_combining(operation, _COMBINING[name])
    elif name == "tt.map_elementwise":
        _check_map(operation)
    elif operation.regions:
        raise Fault(f"{name} with a region")


def check_returns(function: Function) -> None:
    """A function returns what it says.

    Raises:
        Fault: it does not.
    """
    _check_region(
        f"the function {function.name}", function.body, _types(function.arguments), "tt.return", function.results
    )


def _check_conditional(operation: Operation) -> None:
    results = _types(operation.results)
    if results and len(operation.regions) < 2:
        raise Fault(f"{operation.name} with results in one case only")
    for region in operation.regions:
        _check_block(operation.name, region, (), "scf.yield", results)


def _check_for(operation: Operation) -> None:
    carried = _types(operation.results)
    if len(operation.operands) < 3 or _types(operation.operands[3:]) != carried:
        raise Fault("scf.for with other initial values than results")
    (region,) = _exactly(operation, 1)
    _check_block("scf.for", region, [operation.operands[0].type, *carried], "scf.yield", carried)


def _check_while(operation: Operation) -> None:
    before, after = _types(operation.operands), _types(operation.results)
    condition, body = _exactly(operation, 2)
    _check_block("scf.while", condition, before, "scf.condition", [Scalar("i1"), *after])
    _check_block("scf.while", body, after, "scf.yield", before)


def _check_combining(operation: Operation, end: str) -> None:
    elements = [_element(value.type) for value in operation.operands]
    (region,) = _exactly(operation, 1)
    _check_region(operation.name, region, [*elements, *elements], end, elements)
    if [_element(value.type) for value in operation.results] != elements:
        raise Fault(f"{operation.name} with results of other types than its operands")


def _check_map(operation: Operation) -> None:
    pack = operation.attributes["pack"]
    if not isinstance(pack, int) or not 0 < pack <= 64:
        raise Fault(f"tt.map_elementwise of {pack} lanes at once")
    takes = [_element(value.type) for value in operation.operands for _ in range(pack)]
    gives = [_element(value.type) for value in operation.results for _ in range(pack)]
    (region,) = _exactly(operation, 1)
    _check_region(operation.name, region, takes, "tt.map_elementwise.return", gives)


def _exactly(operation: Operation, count: int) -> Sequence[Region]:
    if len(operation.regions) != count:
        raise Fault(f"{operation.name} with {len(operation.regions)} regions")
    return operation.regions


def _check_block(name: str, region: Region, takes: Sequence[Type], end: str, gives: Sequence[Type]) -> None:
    """A region of one block, as structured control flow has them."""
    if len(region.blocks) != 1:
        raise Fault(f"{name} with a region of {len(region.blocks)} blocks")
    if region.blocks[0].operations[-1].name != end:
        raise Fault(f"{name} with a region that does not end in {end}")
    _check_region(name, region, takes, end, gives)


def _check_region(name: str, region: Region, takes: Sequence[Type], end: str, gives: Sequence[Type]) -> None:
    entry = region.blocks[0]
    # The arguments of a function come before its region, those of others belong to the first block.
    if end != "tt.return" and _types(entry.arguments) != list(takes):
        raise Fault(f"{name} with a region that takes other values")
    for block in region.blocks:
        last = block.operations[-1]
        if last.name not in (end, "cf.br", "cf.cond_br"):
            raise Fault(f"{name} with a region that ends in {last.name}")
        if last.name == end and _types(last.operands) != list(gives):
            raise Fault(f"{name} with a region that gives other values")


def _types(values: Sequence[Value]) -> list[Type]:
    return [value.type for value in values]


def _element(kind: Type) -> Type:
    if isinstance(kind, Tensor):
        return kind.element
    if isinstance(kind, Scalar | Pointer):
        return kind
    raise Fault(f"an element of {kind}")
