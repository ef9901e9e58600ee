"""The language of kernels is whole again after an interpreted launch."""

import subprocess
import sys

_FIRST_INTERPRET_THEN_COMPILE = """
from mrv2.checks.hooks.triton_language import interpreted_language

with interpreted_language():
    from triton.compiler.code_generator import CodeGenerator
import triton.language as tl

# The code generator keeps some functions of the language from the moment of its import.
print(all(CodeGenerator.builtin_namespace[name] in vars(tl.core).values() for name in ("min", "max", "print")))
"""


def test_the_code_generator_never_keeps_functions_of_the_interpreter():
    done = subprocess.run(
        [sys.executable, "-c", _FIRST_INTERPRET_THEN_COMPILE], capture_output=True, text=True, check=True
    )
    assert done.stdout == "True\n"
