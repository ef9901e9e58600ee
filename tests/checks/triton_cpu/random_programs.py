"""Random kernels on tiles of int32: nested loops and branches, several loop variables, masks, gathers, atomics, calls.

They find what no kernel written for one operation finds: loops fused wrongly, scratch given back too early, variables
of loops that change before they are read.
"""

from __future__ import annotations

import random
from collections.abc import Callable

HEAD = """
import triton
import triton.language as tl


@triton.jit
def helper(a, s):
    if s > 3:
        return a * 2 + s
    a = a ^ s
    return a


@triton.jit
def kernel(x, y, out, n, M: tl.constexpr, N: tl.constexpr):
    pid = tl.program_id(0)
    r = tl.arange(0, M)
    c = tl.arange(0, N)
    off = r[:, None] * N + c[None, :]
    t0 = tl.load(x + off + pid)
    t1 = tl.load(y + off, mask=off < n, other=3)
    s1 = tl.load(x + pid) & 7
"""

#: Names in reach, by what they are: tiles, rows' and columns' vectors, scalars.
Names = dict[str, list[str]]

_TILES = (
    "{t} + {t}", "{t} - {t}", "{t} * {t}", "{t} & {t}", "{t} | {t}", "{t} ^ {t}", "{t} // ({t} | 1)",
    "tl.where({t} > {t}, {t}, {t})", "{t} + {r}[:, None]", "{t} * {c}[None, :]", "{r}[:, None] ^ {c}[None, :]",
    "{t} + {s}", "tl.reshape(tl.trans({t}), (M, N)) - {t}", "tl.flip({t} + {t}, 0) ^ {t}", "helper({t}, {s})",
    "tl.load(y + off + ({s} & 63))", "tl.load(x + ({t} & 1023), mask=off < n + {s}, other={t})",
)  # fmt: skip
_SCALARS = ("tl.max({r}) & 15", "({s} + {s} * 3) & 31", "tl.load(x + ({s} & 255)) & 7")
_STORES = (
    "tl.store(out + {place} + off, {t})",
    "tl.store(out + {place} + off, {t}, mask=off < n)",
    "tl.store(y + off, {t}, mask={t} > 0)",
    "tl.atomic_add(out + {place} + ({t} & (M * N - 1)), {t}, mask=off < n)",
)


class Writer:
    """Writes one kernel."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._lines: list[str] = []
        self._depth = 1
        self._count = 0

    def source(self) -> str:
        """The text of a module with ``kernel``; ``out`` needs ``9 * M * N`` elements."""
        names: Names = {"t": ["t0", "t1"], "r": ["r"], "c": ["c"], "s": ["pid", "s1", "n"]}
        self._body(names, self._random.randrange(10, 25))
        for place, tile in enumerate(names["t"][-3:]):
            self._line(f"tl.store(out + {6 + place} * M * N + off, {tile})")
        return HEAD + "\n".join(self._lines) + "\n"

    def _line(self, text: str) -> None:
        self._lines.append("    " * self._depth + text)

    def _fresh(self) -> str:
        self._count += 1
        return f"v{self._count}"

    def _filled(self, forms: tuple[str, ...], names: Names) -> str:
        text = self._random.choice(forms).replace("{place}", f"{self._random.randrange(6)} * M * N")
        for kind in "trcs":
            while f"{{{kind}}}" in text:
                text = text.replace(f"{{{kind}}}", self._random.choice(names[kind]), 1)
        return text

    def _body(self, names: Names, count: int) -> None:
        for _ in range(count):
            kind = self._random.choices("trcsxi", (11, 1, 1, 2, 2, 3 if self._depth < 3 else 0))[0]
            if kind == "x":
                self._line(self._filled(_STORES, names))
            elif kind == "i":
                self._nested(names)
            else:
                self._define(kind, names)

    def _define(self, kind: str, names: Names) -> None:
        axis = {"r": "tl.sum({t}, 1)", "c": "tl.sum({t}, 0)"}.get(kind, "")
        forms = {"t": _TILES, "s": _SCALARS}.get(kind, (axis, f"{{{kind}}} * 3 + {{s}}"))
        name = self._fresh()
        self._line(f"{name} = {self._filled(forms, names)}")
        names[kind].append(name)

    def _nested(self, names: Names) -> None:
        """A loop or a branch that changes one to four variables; they begin as different values."""
        carried = [(kind, self._fresh()) for kind in self._random.choices("tttrs", k=self._random.randrange(1, 5))]
        for kind, name in carried:
            self._line(f"{name} = {self._random.choice(names[kind])} + {self._random.randrange(3)}")
        inner = {kind: [*found, *(name for k, name in carried if k == kind)] for kind, found in names.items()}
        self._random.choice((self._for, self._for, self._while, self._if))(inner, carried)
        for kind, name in carried:
            names[kind].append(name)

    def _for(self, names: Names, carried: list[tuple[str, str]]) -> None:
        counter = self._fresh()
        self._line(f"for {counter} in range({self._random.randrange(2)}, {self._random.choice(names['s'])} & 3):")
        self._block({**names, "s": [*names["s"], counter]}, carried)

    def _while(self, names: Names, carried: list[tuple[str, str]]) -> None:
        counter = self._fresh()
        self._line(f"{counter} = {self._random.choice(names['s'])} & 3")
        self._line(f"while {counter} > 0:")
        self._block({**names, "s": [*names["s"], counter]}, carried, lambda: self._line(f"{counter} -= 1"))

    def _if(self, names: Names, carried: list[tuple[str, str]]) -> None:
        self._line(f"if {self._random.choice(names['s'])} > {self._random.choice(names['s'])}:")
        self._block(names, carried)
        if self._random.random() < 0.7:
            self._line("else:")
            self._block(names, carried)

    def _successor(self, kind: str, names: Names, carried: list[tuple[str, str]]) -> str:
        """What a variable becomes: half of the time one of those that change with it."""
        others = [name for other, name in carried if other == kind]
        return self._random.choice(others if self._random.random() < 0.5 else names[kind])

    def _block(self, names: Names, carried: list[tuple[str, str]], end: Callable[[], None] = lambda: None) -> None:
        names = {kind: list(found) for kind, found in names.items()}
        self._depth += 1
        self._body(names, self._random.randrange(1, 5))
        values = [self._successor(kind, names, carried) for kind, _ in carried]
        self._line(f"{', '.join(name for _, name in carried)} = {', '.join(values)}")
        end()
        self._depth -= 1
