"""``tt.gather``: lanes picked by number along an axis."""

from __future__ import annotations

from ..ir import Operation
from .program import Program
from .regions import Axis, axis_of
from .registry import statement
from .scalars import as_signed


@statement("tt.gather")
def gather(program: Program, operation: Operation) -> None:
    """Picks lanes of the source.

    A number outside of the axis ends the launch, as in the interpreter; on a GPU the lane holds anything. Negative
    numbers are outside as well, though numpy counts them from the end.
    """
    source, chosen = operation.operands
    (result,) = operation.results
    axis, number = axis_of(operation), operation.attributes["axis"]
    assert chosen.shape is not None and isinstance(number, int)
    place = Axis.of(chosen.shape, number)
    message = f"an index of tl.gather is outside of the {axis.length} lanes of axis {number}"
    site = program.site(operation, message=message)
    with program.lanes(place.outer, "outer"), program.lanes(place.length, "along"), program.lanes(place.inner, "inner"):
        program.line(f"const int32_t place = {place.lane('outer', 'along', 'inner')};")
        program.line(f"const int64_t number = {as_signed(chosen.element, program.lane(chosen, 'place'))};")
        outside = f"number < 0 || number >= {axis.length}"
        program.line(f"if ({outside}) {{ stop(launch, ASSERTION_FAILED, {site}); return; }}")
        program.line(f"const int32_t picked = {axis.lane('outer', '(int32_t)number', 'inner')};")
        program.line(f"{program.storage(result)}[place] = {program.lane(source, 'picked')};")
