"""Effects of kernels on the memory behind their arguments: what may happen is found, what cannot is denied."""

import re

import pytest
import triton
import triton.language as tl
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import ASTSource, make_backend

from mrv2.checks.triton_cpu import frontend
from mrv2.checks.triton_cpu.effects import Effects, effects_of
from mrv2.checks.triton_cpu.ir import Pointer
from mrv2.checks.triton_cpu.reader import read

from .golden_kernels import CASES, GOLDEN


def effects(kernel, elsewhere="", constants=None, **kinds):
    """Letters for each argument: r, w, a, e; what happens elsewhere must be as said."""
    signature = {**kinds, **dict.fromkeys(constants or {}, "constexpr")}
    found = effects_of(read(frontend.ttir(kernel, signature, constants or {})))
    return described(found, kinds, elsewhere)


def described(found, kinds, elsewhere=""):
    assert letters(found.elsewhere) == elsewhere
    pairs = zip(kinds.items(), found.arguments, strict=True)
    return {name: letters(each) for (name, kind), each in pairs if kind.startswith("*")}


def letters(found):
    marks = zip("rwae", (found.reads, found.writes, found.atomics, found.escapes), strict=True)
    return "".join(mark for mark, holds in marks if holds)


@triton.jit
def copy(p, q, unused, n):
    lanes = tl.arange(0, 16)
    tl.store(q + lanes, tl.load(p + lanes, mask=lanes < n), mask=lanes < n)


def test_loads_read_and_stores_write():
    assert effects(copy, p="*fp32", q="*fp32", unused="*fp32", n="i32") == {"p": "r", "q": "w", "unused": ""}


@triton.jit
def selected(p, q, r, flag, n):
    target = p if flag is not None else r
    chosen = tl.where(n > 3, target, q)
    tl.store(chosen, tl.load(q))


def test_selections_mean_either():
    assert effects(selected, p="*fp32", q="*fp32", r="*fp32", n="i32", constants={"flag": 1}) == {
        "p": "w", "q": "rw", "r": "",
    }  # fmt: skip


@triton.jit
def by_condition(p, q, r, n):
    if tl.load(p + tl.load(r)) > 3:
        tl.store(q, 1)


def test_offsets_and_conditions_carry_no_address():
    assert effects(by_condition, p="*i32", q="*i32", r="*i32", n="i32") == {"p": "r", "q": "w", "r": "r"}


@triton.jit
def swapping(p, q, r, n):
    for _ in range(n):
        tl.store(p, 1)
        p, q = q, p
        tl.store(r, 1)


@triton.jit
def advancing(p, q, n):
    while n > 0:
        tl.store(q, tl.load(p))
        p += 1
        n -= 1


def test_loops_carry_addresses_around():
    assert effects(swapping, p="*i32", q="*i32", r="*i32", n="i32") == {"p": "w", "q": "w", "r": "w"}
    assert effects(advancing, p="*i32", q="*i32", n="i32") == {"p": "r", "q": "w"}


@triton.jit
def while_swapping(p, q, r, n):
    first, second = p, q
    while n > 0:
        first, second = second, first
        n -= 1
    tl.store(first, tl.load(r))


def test_while_loops_carry_addresses_out():
    assert effects(while_swapping, p="*i32", q="*i32", r="*i32", n="i32") == {"p": "w", "q": "w", "r": "r"}


@triton.jit
def conditional(p, q, r, n):
    if n > 3:
        chosen = p
        tl.store(r, 1)
    else:
        chosen = q
    tl.atomic_add(chosen, 1)


def test_conditionals_and_atomics():
    assert effects(conditional, p="*i32", q="*i32", r="*i32", n="i32") == {"p": "rwa", "q": "rwa", "r": "w"}


def test_block_arguments():
    text = """module {
      tt.func public @k(%p: !tt.ptr<i32>, %q: !tt.ptr<i32>, %r: !tt.ptr<i32>, %c: i1, %x: i32) {
        cf.cond_br %c, ^bb1(%p : !tt.ptr<i32>), ^bb1(%q : !tt.ptr<i32>)
      ^bb1(%a: !tt.ptr<i32>):
        tt.store %a, %x : !tt.ptr<i32>
        cf.br ^bb2(%r : !tt.ptr<i32>)
      ^bb2(%b: !tt.ptr<i32>):
        tt.return
      }
    }"""
    assert [letters(each) for each in effects_of(read(text)).arguments] == ["w", "w", "", "", ""]


@triton.jit(noinline=True)
def outlined(a, b):
    tl.store(a, 1)
    return b


@triton.jit
def calling(p, q, r):
    tl.store(outlined(p, q), tl.load(r))


def test_calls_carry_addresses_in_and_out():
    found = effects(calling, p="*i32", q="*i32", r="*i32")
    assert found == {"p": "w", "q": "w", "r": "r"}


@triton.jit
def storing_addresses(p, q, r):
    tl.store(r, p.to(tl.int64))
    tl.store(r + 1, tl.load(q))


def test_a_stored_address_escapes():
    assert effects(storing_addresses, p="*fp32", q="*i64", r="*i64") == {"p": "e", "q": "r", "r": "w"}


def test_addresses_are_followed_through_integers():
    text = """module {
      tt.func public @k(%p: !tt.ptr<i32>, %q: !tt.ptr<i32>, %r: !tt.ptr<i32>, %x: i64) {
        %a = tt.ptr_to_int %p : !tt.ptr<i32> -> i64
        %b = arith.addi %a, %x : i64
        %c = tt.int_to_ptr %b : i64 -> !tt.ptr<i32>
        %d = tt.load %q : !tt.ptr<i32>
        tt.store %c, %d : !tt.ptr<i32>
        tt.return
      }
    }"""
    assert [letters(each) for each in effects_of(read(text)).arguments] == ["we", "r", "", ""]


@triton.jit
def through_memory(table, p):
    tl.store(tl.load(table).to(tl.pointer_type(tl.int32)), tl.load(p))


@triton.jit
def from_a_number(address, p):
    tl.store(p, tl.load(address.to(tl.pointer_type(tl.int32))))


def test_what_no_argument_names_is_elsewhere():
    assert effects(through_memory, "w", table="*i64", p="*i32") == {"table": "r", "p": "r"}
    assert effects(from_a_number, "r", address="i64", p="*i32") == {"p": "w"}


@triton.jit
def foreign(p, q, r):
    tl.store(r, tl.inline_asm_elementwise("ld.global.b32 $0, [$1];", "=r,l", [p], tl.int32, is_pure=True, pack=1))
    tl.store(q, tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [tl.load(q)], tl.int32, is_pure=True, pack=1))


def test_assembly_may_do_anything_with_addresses():
    assert effects(foreign, "rwae", p="*i32", q="*i32", r="*i32") == {"p": "rwae", "q": "rw", "r": "w"}


@triton.jit
def reduced(p, q):
    lanes = tl.arange(0, 16)
    tl.store(q, tl.max(tl.load(p + lanes), 0))
    tl.store(q + lanes, tl.sort(tl.load(p + lanes)))


def test_reductions_of_numbers_carry_no_address():
    assert effects(reduced, p="*i32", q="*i32") == {"p": "r", "q": "w"}


def test_descriptors():
    text = CASES["descriptors"].ttir()
    found = zip(read(text).kernel.arguments, effects_of(read(text)).arguments, strict=True)
    assert [letters(each) for argument, each in found if isinstance(argument.type, Pointer)] == ["rw", "rw", "rwa", "r"]


ORDERED = """module {
  tt.func public @k(%p: !tt.ptr<i32>, %q: !tt.ptr<i32>, %r: !tt.ptr<i32>, %d: !tt.tensordesc<tensor<4x4xi32>>,
                    %e: !tt.tensordesc<4x4xi32>, %c: i1, %i: i32) {
    %x = tt.atomic_load acquire, gpu, %p, %c : (!tt.ptr<i32>, i1) -> i32
    tt.atomic_store release, sys, %q, %x, %c : !tt.ptr<i32>
    %y = tt.atomic_poll acquire, gpu, %r, %x : !tt.ptr<i32>, i32 -> i1
    %z = tt.descriptor_load %d[%i, %i] : !tt.tensordesc<4x4xi32> -> tensor<4x4xi32>
    tt.descriptor_store %e[%i, %i], %z : !tt.tensordesc<4x4xi32>, tensor<4x4xi32>
    tt.return
  }
}"""


def test_ordered_accesses_and_descriptors_of_a_gpu():
    assert [letters(each) for each in effects_of(read(ORDERED)).arguments] == ["ra", "wa", "ra", "r", "w", "", ""]


RUNNER = {
    "apply_staged_writes": "table",
    "prepare_block_tables": "batch_table slot_mapping",
    "prepare_inputs": "input_ids positions seq_lens bounds",
    "sample_blocks": "best_score best_token best_logit max_logit sum_exp",
    "combine_blocks": "token logprob",
}


@pytest.mark.parametrize("folder", sorted(GOLDEN.iterdir()), ids=lambda folder: folder.name)
@pytest.mark.parametrize("name", RUNNER)
def test_the_runner_s_kernels_read_inputs_and_write_outputs(folder, name):
    """Their comments say which arguments are written; all others are only read.

    The names are those of the file: the kernel has perhaps got further arguments since it was written.
    """
    text = (folder / f"{name}.ttir").read_text()
    module = read(text)
    found = effects_of(module)
    written = {f"{each}_ptr" for each in RUNNER[name].split()}
    (header,) = re.findall(r"tt\.func public @\w+\((.*)", text)
    names = re.findall(r"%(\w+): ", header)
    assert written < set(names)
    for argument, each in zip(names, found.arguments, strict=True):
        expected = Effects(writes=True) if argument in written else Effects(reads=argument.endswith("_ptr"))
        assert (argument, each) == (argument, expected)
    assert found.elsewhere == Effects()


def of_a_gpu(case):
    """The TTIR that a compilation for a GPU keeps as ``asm["ttir"]``: all passes of its first stage."""
    target = GPUTarget("cuda", 90, 32)
    backend = make_backend(target)
    options = backend.parse_options({"enable_fp_fusion": True, **case.options})
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    source = ASTSource(case.kernel, dict(case.signature), dict(case.constants), {(0,): [["tt.divisibility", 16]]})
    module = source.make_ir(
        target, options, backend.get_codegen_implementation(options), backend.get_module_map(), context
    )
    return str(backend.make_ttir(module, {}, options, 90).str())


@pytest.mark.parametrize("name", sorted(name for name, case in CASES.items() if case.here and name != "tuples"))
def test_text_of_a_compilation_for_a_gpu(name):
    """Other passes, descriptors as such: the effects are the same."""
    case = CASES[name]
    ours, theirs = effects_of(read(case.ttir())), effects_of(read(of_a_gpu(case)))
    if name != "descriptors":  # there the front end here has more arguments
        assert theirs.arguments == ours.arguments
    assert sorted(map(letters, theirs.arguments)) == sorted(map(letters, ours.arguments))[-len(theirs.arguments) :]
    assert theirs.elsewhere == ours.elsewhere
