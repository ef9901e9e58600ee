"""What shows that each operation of the reader's table is computed right, as data.

An operation is in one of three tables: seen in launches that are compared with Triton's interpreter, over the element
types that are listed; seen in launches that are compared with torch or Python, because the interpreter refuses the
operation or computes that type wrongly; or shown in another way by a test that is named, for a reason.
"""

from __future__ import annotations

_INTEGERS = "i8 i16 i32 i64"
_WIDE = "f32 f64"
_FLOATS = f"f16 {_WIDE}"
_FLOAT8 = "f8E4M3FN f8E5M2"
_MOVED = f"i8 i16 i32 i64 bf16 {_FLOATS}"


def _rows(*rows: tuple[str, str]) -> dict[str, frozenset[str]]:
    table: dict[str, frozenset[str]] = {}
    for names, types in rows:
        for name in names.split():
            assert name not in table, f"two rows for {name}"
            table[name] = frozenset(types.split())
    return table


#: Element types that each operation must have, as operand or result, in launches compared with the interpreter.
#: Triton's front end widens f16 and bf16 before quotients and remainders, and takes functions of f32 and f64 alone.
DIFFERENTIAL = _rows(
    ("arith.addi arith.subi arith.muli arith.divsi arith.divui arith.remsi arith.remui", _INTEGERS),
    ("arith.shli arith.shrsi arith.shrui arith.maxsi arith.maxui arith.minsi arith.minui math.absi", _INTEGERS),
    ("arith.andi arith.ori arith.xori arith.cmpi", f"i1 {_INTEGERS}"),
    ("arith.addf arith.subf arith.mulf arith.cmpf math.absf math.fma", _FLOATS),
    ("arith.maximumf arith.minimumf arith.maxnumf arith.minnumf tt.clampf", _FLOATS),
    ("arith.divf arith.remf arith.negf", _WIDE),
    ("math.ceil math.cos math.erf math.exp math.exp2 math.floor math.log math.log2 math.rsqrt math.sin", _WIDE),
    ("math.sqrt", _WIDE),
    ("tt.precise_divf tt.precise_sqrt", "f32"),
    ("tt.mulhiui", "i32 i64"),
    ("arith.select", f"i1 {_INTEGERS} {_FLOATS}"),
    ("arith.constant", f"i1 {_INTEGERS} {_FLOATS}"),
    ("arith.extsi arith.trunci", _INTEGERS),
    ("arith.extui", f"i1 {_INTEGERS}"),
    ("arith.sitofp", f"{_INTEGERS} {_FLOATS}"),
    ("arith.uitofp", f"i1 {_INTEGERS} {_FLOATS}"),
    ("arith.fptosi arith.fptoui", f"{_INTEGERS} {_WIDE}"),
    ("arith.extf arith.truncf", f"bf16 {_FLOATS}"),
    ("tt.fp_to_fp", f"f16 f32 {_FLOAT8}"),
    ("tt.bitcast", f"i8 i16 i32 i64 {_FLOATS} {_FLOAT8}"),
    ("tt.int_to_ptr tt.ptr_to_int", "i64"),
    ("tt.load", f"i1 {_MOVED} {_FLOAT8}"),
    ("tt.store", f"i1 {_MOVED}"),
    ("tt.atomic_rmw", f"i32 i64 {_FLOATS}"),
    ("tt.atomic_cas", "i32 i64"),
    ("tt.splat tt.unsplat tt.broadcast tt.expand_dims tt.reshape tt.trans tt.join tt.split tt.cat tt.gather", _MOVED),
    ("tt.histogram", "i1 i32"),
    ("tt.reduce tt.reduce.return", f"{_INTEGERS} {_FLOATS}"),
    ("tt.scan tt.scan.return", f"i32 i64 {_FLOATS}"),
    ("tt.dot", f"i8 i32 {_FLOATS} {_FLOAT8}"),
    ("tt.make_range tt.get_program_id tt.get_num_programs tt.call tt.return", "i32"),
    ("tt.addptr", "i32 i64"),
    ("scf.for scf.while scf.if scf.yield scf.condition", "i32 f32"),
    ("cf.cond_br", "i1"),
    ("cf.br llvm.intr.assume", ""),
)

#: The same of launches that are compared with torch or Python.
REFERENCE = _rows(
    ("tt.extern_elementwise", "i32 f32 f64"),
    ("tt.elementwise_inline_asm tt.map_elementwise tt.map_elementwise.return", "f32"),
    ("tt.assert", "i1"),
    ("arith.addf arith.subf arith.mulf math.absf arith.cmpf arith.select", "bf16"),
    ("arith.maximumf arith.minimumf arith.maxnumf arith.minnumf tt.clampf", "bf16"),
)

#: Rows of the first table that hold since Triton 3.9: 3.6 subtracts from zero, and its interpreter rounds fma twice.
COMPARED_SINCE_39 = frozenset({"arith.negf", "math.fma"})
#: The same of the second: the front end of 3.6 widens bf16 before it.
REFERENCE_SINCE_39 = frozenset({"arith.maximumf", "arith.minimumf", "arith.maxnumf", "arith.minnumf", "tt.clampf"})

#: Tests whose launches are looked into for the first table; all of their parameters are.
COMPARED = (
    "test_emit_casts.test_casts",
    "test_emit_casts.test_casts_of_scalars",
    "test_emit_casts.test_bitcasts",
    "test_emit_casts.test_pointers_from_numbers",
    "test_emit_casts.test_float32_to_bfloat16_is_truncated_on_request_as_in_the_interpreter",
    "test_emit_control.test_early_returns",
    "test_emit_control.test_functions_inlined_or_not",
    "test_emit_control.test_nested_loops",
    "test_emit_control.test_while",
    "test_emit_control.test_programs_know_their_place",
    "test_emit_elementwise.test_integers",
    "test_emit_elementwise.test_floats",
    "test_emit_elementwise.test_functions",
    "test_emit_elementwise.test_extremes_of_floats",
    "test_emit_elementwise.test_a_fused_product_and_sum_is_rounded_once",
    "test_emit_elementwise.test_upper_half_of_a_product",
    "test_emit_elementwise.test_flags",
    "test_emit_float8.test_the_interpreter_agrees_where_it_knows_the_format",
    "test_emit_matmul.test_stacks_of_matrices",
    "test_emit_matmul.test_products_of_bytes_wrap",
    "test_emit_matmul.test_products_of_floats",
    "test_emit_matmul.test_products_of_floats_of_eight_bits",
    "test_emit_memory.test_copies",
    "test_emit_memory.test_atomics_on_integers",
    "test_emit_memory.test_atomics_on_floats",
    "test_emit_reduction.test_bitwise_reductions",
    "test_emit_reduction.test_integer_sums_wrap",
    "test_emit_reduction.test_functions_of_the_user_fold_in_order",
    "test_emit_reduction.test_narrow_types_are_widened_as_the_front_end_says",
    "test_emit_scan.test_running_sums_and_products",
    "test_emit_shape.test_histogram",
    "test_emit_shape.test_pairs",
    "test_operations.test_every_type_is_moved",
    "test_operations.test_what_no_other_test_compares",
)

#: The same for the second table.
AGAINST_REFERENCE = (
    "test_emit_control.test_assertions",
    "test_emit_library.test_smooth_functions_are_close",
    "test_emit_library.test_exact_functions_are_exact",
    "test_emit_library.test_functions_of_bits",
    "test_emit_library.test_known_assembly",
    "test_emit_shape.test_a_scalar_function_for_each_lane",
    "test_emit_elementwise.test_a_number_is_preferred_to_nan_unless_nans_propagate",
    "test_emit_elementwise.test_bfloat16_is_rounded_to_nearest_even_after_each_operation",
)

_REWRITTEN = "the passes before the reader make pointers of it; it stays for a GPU alone, where its effects are read"
_SINCE_39 = "since Triton 3.9; the test skips before"
#: Operations without a row, with the test that shows them and why they have none.
OTHERWISE = {
    "gpu.barrier": ("test_emit_program.test_what_orders_threads_or_launches_does_nothing", "computes nothing"),
    "ttg.barrier": ("test_reader_golden.test_golden_files_are_read", "computes nothing"),
    "tt.grid_dependency_wait": (
        "test_emit_program.test_what_orders_threads_or_launches_does_nothing",
        "computes nothing",
    ),
    "tt.grid_dependency_launch_dependents": (
        "test_emit_program.test_what_orders_threads_or_launches_does_nothing",
        "computes nothing",
    ),
    "tt.print": ("test_enable.test_prints", "its effect is text"),
    "ub.poison": ("test_emit_program.test_poison_that_nothing_uses", "any value is right"),
    "tt.approx_divf": (
        "test_emit_program.test_approximate_quotients_are_exact",
        "the public language has no word for it",
    ),
    "tt.atomic_load": ("test_emit_memory.test_atomic_loads_and_stores", _SINCE_39),
    "tt.atomic_store": ("test_emit_memory.test_atomic_loads_and_stores", _SINCE_39),
    "tt.atomic_poll": ("test_emit_memory.test_atomic_loads_and_stores", _SINCE_39),
    "tt.dot_scaled": ("test_emit_matmul.test_scaled_products", "compared by that test, but not in Triton 3.6"),
    "tt.make_tensor_ptr": ("test_descriptors.test_block_pointers", _REWRITTEN),
    "tt.advance": ("test_descriptors.test_block_pointers", _REWRITTEN),
    "tt.make_tensor_descriptor": ("test_effects.test_descriptors", _REWRITTEN),
    "tt.descriptor_load": ("test_effects.test_descriptors", _REWRITTEN),
    "tt.descriptor_store": ("test_effects.test_descriptors", _REWRITTEN),
    "tt.descriptor_reduce": ("test_effects.test_ordered_accesses_and_descriptors_of_a_gpu", _REWRITTEN),
    "tt.descriptor_gather": ("test_effects.test_ordered_accesses_and_descriptors_of_a_gpu", _REWRITTEN),
    "tt.descriptor_scatter": ("test_effects.test_ordered_accesses_and_descriptors_of_a_gpu", _REWRITTEN),
}
