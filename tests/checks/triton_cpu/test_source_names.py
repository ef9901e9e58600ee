"""Names of functions by line."""

from mrv2.checks.triton_cpu.source_names import function_at

SOURCE = """import os


@decorated
@twice(
    1
)
def outer(a):
    def inner(b):
        return b

    return inner


class Kind:
    async def method(self):
        pass
"""


def test_the_innermost_function_holds_a_line(tmp_path):
    file = tmp_path / "kernel.py"
    file.write_text(SOURCE)
    names = [function_at(str(file), line) for line in range(1, 18)]
    assert names == [*[""] * 3, *["outer"] * 5, "inner", "inner", "outer", "outer", *[""] * 3, "method", "method"]


def test_sources_that_cannot_be_read(tmp_path):
    broken = tmp_path / "broken.py"
    broken.write_text("def f(:\n")
    assert function_at(str(broken), 1) == ""
    assert function_at(str(tmp_path / "absent.py"), 1) == ""
    assert function_at("a\0b", 1) == ""
    assert function_at("<string>", 1) == ""
