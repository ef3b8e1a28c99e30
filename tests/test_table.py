"""Every row of the instruction table: an example made from the row, one violation for each thing the row says, and the
rules that only its own checks can state, each with a near miss."""

from math import prod

import pytest

import opennki.backend.engines  # noqa: F401 -- registers the semantics
from opennki.backend.semantics import SEMANTICS
from opennki.ir.checks import check_instruction
from opennki.ir.dtypes import DTYPES
from opennki.ir.errors import KernelError
from opennki.ir.graph import Instruction, Memory
from opennki.ir.machine import TARGETS, Engine, NCVersion, Space
from opennki.ir.operators import ALU, OpKind
from opennki.ir.parser import parse
from opennki.ir.poison import RULES
from opennki.ir.table import ANY, TABLE, Param, Row
from opennki.ir.verifier import verify

GEN3, GEN4 = TARGETS["gen3"], TARGETS["gen4"]

# What an example needs beside the row: sizes of dims, dtypes of operands, attributes, operands with a number.
DIMS: dict[str, dict[str, int]] = {
    "bn_aggr": {"T": 4},
    "local_gather": {"P": 32, "F": 16, "D": 32, "K": 2},
    "nc_matmul_mx": {"K": 32, "S": 32, "T": 32, "A": 64, "B": 16, "M": 64, "N": 16},
    "nc_stream_shuffle": {"Q": 32},
    "nonzero_with_count": {"D": 17},
    "quantize_mx": {"P": 32, "F": 16, "S": 32},
    "rand_get_state": {"F": 6},
    "rand_set_state": {"F": 6},
    "sequence_bounds": {"P": 1},
    "set_rng_seed": {"P": 1},
    "tensor_partition_reduce": {"Q": 1},
    "topk": {"K": 16},
}
DTYPES_OF: dict[str, dict[str, str]] = {
    "dropout": {"prob": "float32"},
    "nc_matmul_mx": {"stationary_scale": "uint8", "moving_scale": "uint8"},
    "select_reduce": {"predicate": "uint8"},
    "tensor_copy_predicated": {"predicate": "uint8"},
}
ATTRS: dict[str, dict[str, object]] = {
    "activate2": {"op": "exp", "op0": "multiply", "op1": "add"},
    "activation": {"op": "exp"},
    "activation_reduce": {"op": "exp", "reduce_op": "add"},
    "affine_select": {"pattern": ((1, 16),), "channel_multiplier": 1, "on_false_value": 0.0},
    "all_gather_v": {"replica_group": ((0,),)},
    "all_to_all_v": {"replica_group": ((0,),)},
    "all_gather": {"collective_dim": 0, "replica_group": ((0,),)},
    "all_reduce": {"op": "add", "replica_group": ((0,),)},
    "all_to_all": {"collective_dim": 0, "replica_group": ((0,),)},
    "collective_permute": {"source_target_pairs": ((0, 0),)},
    "collective_permute_implicit": {"replica_group": ((0,),)},
    "collective_permute_implicit_current_processing_rank_id": {"replica_group": ((0,),)},
    "collective_permute_implicit_reduce": {"op": "add", "replica_group": ((0,),)},
    "core_barrier": {"cores": (0, 1)},
    "device_print": {"print_prefix": "x"},
    "dma_compute": {"reduce_op": "add"},
    "iota": {"pattern": ((1, 16),)},
    "memset": {"value": 0},
    "nc_match_replace8": {"imm": 0.0},
    "nc_stream_shuffle": {"shuffle_mask": tuple(range(32))},
    "range_select": {"comp_op0": "greater_equal", "comp_op1": "less"},
    "scalar_tensor_tensor": {"op0": "add", "op1": "add"},
    "reduce_scatter": {"collective_dim": 0, "op": "add", "replica_group": ((0,),)},
    "sendrecv": {"send_to_rank": 1, "recv_from_rank": 1, "pipe_id": 0},
    "tensor_partition_reduce": {"op": "add"},
    "tensor_reduce": {"op": "add", "axis": (1,)},
    "tensor_scalar": {"op0": "add"},
    "tensor_scalar_cumulative": {"op0": "add", "op1": "add"},
    "tensor_scalar_reduce": {"op0": "add", "reduce_op": "add"},
    "tensor_tensor": {"op": "add"},
    "tensor_tensor_scan": {"op0": "add", "op1": "add"},
    "topk": {"n": 64},
}
NUMBERS = {
    "activate2": ("imm0", "imm1"),
    "dropout": ("prob",),
    "scalar_tensor_tensor": ("operand0",),
    "select_reduce": ("on_false",),
    "tensor_scalar": ("operand0",),
    "tensor_scalar_cumulative": ("imm0",),
    "tensor_scalar_reduce": ("operand0",),
    "tensor_tensor_scan": ("initial",),
}
SHAPES = {
    "all_gather_v": {"metadata_tensor": (3, 1)},
    "all_to_all_v": {"metadata_tensor": (3, 1)},
    "dma_transpose": {"dst": (32, 64), "src": (64, 32)},
    "tensor_reduce": {"dst": (32, 1)},
}


def size_of(dim: str, sizes: dict[str, int]) -> int:
    if dim.isdigit():
        return int(dim)
    factor, name = (int(dim[0]), dim[1:]) if dim[0].isdigit() else (1, dim)
    return factor * sizes.get(name, 16 if name in ("F", "N", "*", "T", "K", "D") else 32)


def memory(row: Row, param: Param, sizes: dict[str, int], **changes) -> Memory:
    """An operand that satisfies its row; start: its first partition."""
    dims = param.dims.split() or ["P", "F"]
    space = changes.get("space", param.spaces[0])
    shape = SHAPES.get(row.name, {}).get(param.name) or tuple(size_of(dim, sizes) for dim in dims)
    wanted = DTYPES_OF.get(row.name, {}).get(param.name, "float32")
    dtype = wanted if wanted in param.dtypes else sorted(param.dtypes)[0]
    dtype = DTYPES[changes.get("dtype", "int32" if space is Space.REGISTER else dtype)]
    start = changes.get("start", 0)
    if space is Space.REGISTER:
        return Memory(space, None, 0, dtype, ((1, 1),))
    if not space.is_on_chip:
        shape = shape if param.keeps_dims or not param.dims else (prod(shape),)
        return Memory(space, None, 0, dtype, tuple((prod(shape[i + 1 :]), n) for i, n in enumerate(shape)))
    shape = (changes.get("partitions", shape[0]), *(shape[1:] or (1,)))
    return Memory(space, (start, shape[0]), 0, dtype, ((1, prod(shape[1:])),))


def example(row: Row, sizes: dict[str, int] | None = None, engine: Engine | None = None, **operands) -> Instruction:
    """A legal instruction of the row. operands: others, by name."""
    sizes = DIMS.get(row.name, {}) | (sizes or {})
    numbers = dict.fromkeys(NUMBERS.get(row.name, ()), 1.0)
    made = {p.name: memory(row, p, sizes) for p in row.operands if not p.optional and p.name not in numbers}
    attrs = {attr.name: None if attr.required else attr.default for attr in row.attrs if attr.name != "engine"}
    return Instruction(row.name, made | numbers | operands, attrs | ATTRS.get(row.name, {}), engine)


def code_of(instr: Instruction, target=GEN4) -> str | None:
    try:
        check_instruction(instr, target)
    except KernelError as error:
        assert error.limit is not None, "an error names the limit"
        return error.code
    return None


OPERANDS = [(row.name, param.name) for row in TABLE.values() for param in row.operands if not param.name.startswith("srcs_1")]


@pytest.mark.parametrize("name", TABLE)
def test_every_row_is_complete(name):
    row = TABLE[name]
    assert row.doc and row.source and row.formula and name in SEMANTICS and row.poison in RULES
    assert all(param.spaces and param.dtypes for param in row.operands)
    assert len({param.name for param in row.params}) == len(row.params)


@pytest.mark.parametrize("name", TABLE)
def test_every_row_has_a_legal_example(name):
    row = TABLE[name]
    assert code_of(example(row)) is None
    if row.since <= NCVersion.gen3 and code_of(example(row), GEN3) is not None:
        assert name in ("nc_matmul",), "an example may differ in dtype alone"


@pytest.mark.parametrize("name", TABLE)
def test_costs_of_the_example_are_finite(name):
    instr = example(TABLE[name])
    instr = example(TABLE[name], engine=TABLE[name].choose_engine(instr, GEN4))
    assert 0 <= TABLE[name].cycles(check_instruction(instr, GEN4), instr, GEN4) < 10_000


@pytest.mark.parametrize("name, operand", OPERANDS)
def test_every_memory_is_enforced(name, operand):
    row = TABLE[name]
    param = row.operand(operand)
    for space in set(Space) - set(param.spaces):
        assert code_of(example(row, **{operand: memory(row, param, DIMS.get(name, {}), space=space)})) == "E101"


@pytest.mark.parametrize("name, operand", [(n, o) for n, o in OPERANDS if TABLE[n].operand(o).dtypes != ANY])
def test_every_dtype_is_enforced(name, operand):
    row = TABLE[name]
    param = row.operand(operand)
    for dtype in ANY - param.dtypes:
        changed = memory(row, param, DIMS.get(name, {}), dtype=dtype)
        assert code_of(example(row, **{operand: changed})) == "E103", dtype


@pytest.mark.parametrize("name", TABLE)
def test_every_engine_is_enforced(name):
    for engine in set(Engine) - {Engine.unknown, *TABLE[name].engines}:
        assert code_of(example(TABLE[name], engine=engine)) == "E106"


@pytest.mark.parametrize("name", [name for name, row in TABLE.items() if row.since > NCVersion.gen3])
def test_every_generation_is_enforced(name):
    assert code_of(example(TABLE[name]), GEN3) == "E108"


@pytest.mark.parametrize("name, operand", [(n, p) for n, p in OPERANDS if not TABLE[n].operand(p).optional])
def test_no_operand_may_be_missing(name, operand):
    instr = example(TABLE[name])
    del instr.operands[operand]
    assert code_of(instr) == "E109"


@pytest.mark.parametrize("name, operand", OPERANDS)
def test_numbers_stand_only_where_the_row_says_so(name, operand):
    assert TABLE[name].operand(operand).immediate or code_of(example(TABLE[name], **{operand: 1})) == "E109"


@pytest.mark.parametrize("name, operand", [(n, o) for n, o in OPERANDS if TABLE[n].operand(o).spaces[0].is_on_chip])
def test_128_partitions_are_the_limit(name, operand):
    row = TABLE[name]
    changed = memory(row, row.operand(operand), DIMS.get(name, {}), partitions=129)
    assert code_of(example(row, **{operand: changed})) == "E102"


STARTS = [(n, o) for n, o in OPERANDS if TABLE[n].operand(o).spaces[0].is_on_chip and TABLE[n].operand(o).whole_rule]


@pytest.mark.parametrize("name, operand", STARTS)
def test_start_partitions(name, operand):
    row = TABLE[name]
    for start, partitions in ((16, 32), (1, 1), (32, 64), (96, 33), (32, 65), (64, 128)):
        changed = memory(row, row.operand(operand), DIMS.get(name, {}), start=start, partitions=partitions)
        assert code_of(example(row, **{operand: changed})) == "E102"


@pytest.mark.parametrize("partitions, starts", [(1, (0, 32, 64, 96)), (32, (0, 32, 64, 96)), (64, (0, 64)), (128, (0,))])
def test_legal_start_partitions(partitions, starts):
    row = TABLE["tensor_copy"]
    for src in starts:
        for dst in starts:  # the two may differ: data crosses quadrants
            src_view = memory(row, row.operand("src"), {"P": partitions}, start=src)
            dst_view = memory(row, row.operand("dst"), {"P": partitions}, start=dst)
            assert code_of(example(row, dst=dst_view, src=src_view)) is None


# Dims that grow with a limited one.
ALONG = {("nc_matmul_mx", "K"): ("S", "T"), ("nc_matmul_mx", "M"): ("A",), ("quantize_mx", "P"): ("S",)}
LIMITS = [(name, dim, target) for name, row in TABLE.items() for dim in row.limits
          for target in (GEN3, GEN4) if row.since <= target.version]  # fmt: skip


@pytest.mark.parametrize("name, dim, target", LIMITS)
def test_every_limit_is_enforced(name, dim, target):
    row = TABLE[name]
    limit = row.limit(dim, target.version)
    narrow = {"dst": memory(row, row.operand("dst"), {dim: limit}, dtype="bfloat16")} if limit == 8192 else {}
    along = dict.fromkeys(ALONG.get((name, dim), ()), limit)
    assert code_of(example(row, {dim: limit} | along, **narrow), target) is None
    assert code_of(example(row, {dim: limit + 1}), target) == "E102"


PAIRS = [(name, dim) for name, row in TABLE.items()
         for dim in sorted({d for p in row.operands for d in p.dims.split() if d.isalpha()})
         if sum(dim in p.dims.split() for p in row.operands if not p.optional) > 1]  # fmt: skip


@pytest.mark.parametrize("name, dim", PAIRS)
def test_operands_agree_in_every_dimension(name, dim):
    row = TABLE[name]
    last = [p for p in row.operands if dim in p.dims.split() and not p.optional][-1]
    sizes = DIMS.get(name, {})
    changed = memory(row, last, sizes | {dim: size_of(dim, sizes) // 2})
    assert code_of(example(row, **{last.name: changed})) == "E104"


COLUMNS = [(n, o) for n, o in OPERANDS if TABLE[n].operand(o).dims == "P 1" and len(TABLE[n].operands) > 1]


@pytest.mark.parametrize("name, operand", COLUMNS)
def test_a_column_has_one_element_a_partition(name, operand):
    row = TABLE[name]
    assert not row.operand(operand).keeps_dims
    param = row.operand(operand)
    column = memory(row, param, DIMS.get(name, {}))
    two = Memory(column.space, column.partitions, 0, column.dtype, ((1, 2),))
    assert code_of(example(row, **{operand: two})) == "E104"
    one_row = Memory(column.space, (0, 1), 0, column.dtype, ((1, 1),))
    assert code_of(example(row, **{operand: one_row})) == "E104"  # never broadcast over partitions


# --- the rules that only a check can state -----------------------------------------------------------------------


def kernel(line: str, target: str = "gen3", cores: int = 1) -> str:
    text = f"""kernel @k stage=trace target={target} {{
  param %x: float32[128,64] @shared_hbm
  param %xh: bfloat16[128,64] @shared_hbm
  param %x3: bfloat16[16,4,64] @shared_hbm
  param %x8: uint8[128,64] @shared_hbm
  core 0 {{
"""
    for name, dtype, shape, space in (
        ("t", "float32", (128, 64), "sbuf"), ("u", "float32", (128, 64), "sbuf"), ("h", "bfloat16", (128, 64), "sbuf"),
        ("i", "int32", (128, 64), "sbuf"), ("k", "uint32", (128, 4), "sbuf"), ("b", "uint8", (128, 64), "sbuf"),
        ("p", "float32", (128, 512), "psum"), ("q", "float32", (128, 512), "psum"), ("pi", "int32", (128, 64), "psum"),
        ("ph", "bfloat16", (64, 128), "psum"), ("w", "float8_e4m3fn_x4", (128, 64), "sbuf"),
        ("f", "float8_e4m3", (128, 2, 64), "sbuf"), ("fn", "float8_e4m3fn", (128, 64), "sbuf"),
        ("e5", "float8_e5m2", (128, 64), "sbuf"), ("h2", "float16", (128, 64), "sbuf"), ("n", "int32", (1,), "register"),
        ("long", "float32", (128, 1024), "psum"), ("tf", "tfloat32", (128, 64), "sbuf"),
        ("wide", "float32", (128, 4096), "sbuf"),
        ("g", "int32", (128, 65), "sbuf"), ("j", "bfloat16", (64, 16), "sbuf"), ("bl", "bool_", (128, 64), "sbuf"),
    ):  # fmt: skip
        text += f"    %{name}: {dtype}[{','.join(map(str, shape))}] @{space}\n"
    return f"{text}    {line}\n  }}\n}}\n"


def check(line: str, target: str = "gen3") -> str | None:
    try:
        verify(parse(kernel(line, target)))
    except KernelError as error:
        return error.code
    return None


MASK = list(range(32))
RULES_OF_ROWS: dict[str, list[tuple]] = {
    "memset": [
        (None, "memset dst=%b value=0.0"),  # as public kernels do
        (None, "memset dst=%b value=255"),
        ("E105", "memset dst=%b value=256"),
        ("E105", "memset dst=%b value=-1"),
        ("E105", "memset dst=%b value=0.5"),
        ("E105", "memset dst=%i value=nan"),
        (None, "memset dst=%t value=-inf"),
        (None, "memset dst=%w value=0"),
        ("E105", "memset dst=%w value=1"),
        ("E101", "gpsimd.memset dst=%p value=0"),
        (None, "vector.memset dst=%p value=0"),
        ("E106", "scalar.memset dst=%t value=0"),
    ],
    "tensor_copy": [
        (None, "scalar.tensor_copy dst=%t src=%p[:, 0:64]"),
        ("E101", "gpsimd.tensor_copy dst=%t src=%p[:, 0:64]"),
        ("E101", "tensor_copy dst=%t src=%x"),
        (None, "tensor_copy dst=%w src=%w"),
        ("E103", "tensor_copy dst=%t src=%w"),
        ("E104", "tensor_copy dst=%t src=%p"),
        ("E104", "tensor_copy dst=%t[0:64] src=%u"),
        (None, "tensor_copy dst=%f[:, 0, :] src=%t"),
        ("E302", "tensor_copy dst=%t[0:64:2] src=%u[0:32]"),
    ],
    "tensor_tensor": [
        (None, "tensor_tensor dst=%t data1=%t data2=%u op=add"),
        (None, "tensor_tensor dst=%t data1=%p[:, 0:64] data2=%u op=add"),
        ("E101", "tensor_tensor dst=%t data1=%p[:, 0:64] data2=%q[:, 0:64] op=add"),
        ("E101", "gpsimd.tensor_tensor dst=%t data1=%p[:, 0:64] data2=%u op=add"),
        (None, "tensor_tensor dst=%t data1=%t data2=%u op=power"),
        ("E106", "vector.tensor_tensor dst=%t data1=%t data2=%u op=power"),
        ("E106", "tensor_tensor dst=%t data1=%p[:, 0:64] data2=%u op=power"),
        (None, "tensor_tensor dst=%i data1=%i data2=%i op=bitwise_xor"),
        ("E103", "tensor_tensor dst=%i data1=%t data2=%i op=bitwise_xor"),
        ("E103", "tensor_tensor dst=%t data1=%i data2=%i op=left_shift"),
        ("E106", "gpsimd.tensor_tensor dst=%i data1=%i data2=%i op=bitwise_and"),
        ("E105", "tensor_tensor dst=%t data1=%t data2=%u op=rsqrt"),
        ("E105", "tensor_tensor dst=%i data1=%i data2=%i op=invert"),
        ("E105", "tensor_tensor dst=%t data1=%t data2=%u op=average"),
        ("E108", "tensor_tensor dst=%t data1=%t data2=%u op=abs_max"),
        (None, "tensor_tensor dst=%t data1=%t data2=%u op=abs_max", "gen4"),
        ("E109", "tensor_tensor dst=%t data1=%t data2=2 op=add"),
        ("E103", "tensor_tensor dst=%w data1=%w data2=%w op=add"),
    ],
    "tensor_scalar": [
        (None, "tensor_scalar dst=%t data=%u op0=multiply operand0=2.0 op1=add operand1=1"),
        (None, "tensor_scalar dst=%t data=%u op0=none op1=minimum operand1=1"),
        ("E109", "tensor_scalar dst=%t data=%u op0=none"),
        ("E109", "tensor_scalar dst=%t data=%u op0=none operand0=3.0 op1=add operand1=1.0"),
        ("E109", "tensor_scalar dst=%t data=%u op0=add"),
        ("E109", "tensor_scalar dst=%t data=%u op0=add operand0=1.0 op1=add"),
        ("E109", "tensor_scalar dst=%t data=%u op0=add operand0=1.0 operand1=2.0"),
        (None, "tensor_scalar dst=%t data=%u op0=abs"),
        (None, "tensor_scalar dst=%t data=%u op0=abs operand0=0"),
        ("E105", "tensor_scalar dst=%t data=%u op0=abs operand0=1"),
        (None, "tensor_scalar dst=%t data=%u op0=power operand0=-0.5"),
        (None, "tensor_scalar dst=%t data=%u op0=add operand0=%t[:, 0:1]"),
        (None, "tensor_scalar dst=%t data=%u op0=add operand0=%p[:, 0:1]"),
        ("E104", "tensor_scalar dst=%t data=%u op0=add operand0=%t[:, 0:2]"),
        ("E104", "tensor_scalar dst=%t data=%u op0=add operand0=%t[0:1, 0:1]"),
        ("E103", "tensor_scalar dst=%t data=%u op0=add operand0=%h[:, 0:1]"),
        ("E103", "tensor_scalar dst=%t data=%u op0=add operand0=%i[:, 0:1]"),
        (None, "tensor_scalar dst=%i data=%i op0=add operand0=%i[:, 0:1]"),  # the address form
        (None, "tensor_scalar dst=%i data=%i op0=bitwise_and operand0=%i[:, 0:1] op1=left_shift operand1=2"),
        ("E105", "tensor_scalar dst=%i data=%i op0=bitwise_and operand0=1 op1=add operand1=2"),
        ("E103", "tensor_scalar dst=%t data=%i op0=bitwise_and operand0=1"),
        ("E103", "tensor_scalar dst=%i data=%i op0=bitwise_and operand0=1.5"),
        ("E105", "tensor_scalar dst=%t data=%u op0=bypass operand0=1.0"),
        ("E106", "vector.tensor_scalar dst=%t data=%u op0=rsqrt"),
        (None, "gpsimd.tensor_scalar dst=%t data=%u op0=rsqrt"),
        ("E101", "gpsimd.tensor_scalar dst=%t data=%p[:, 0:64] op0=rsqrt"),
        ("E106", "gpsimd.tensor_scalar dst=%t data=%u op0=add operand0=1"),
        (None, "scalar.tensor_scalar dst=%t data=%u op0=multiply operand0=2.0 op1=add operand1=1"),
        (None, "scalar.tensor_scalar dst=%t data=%u op0=multiply operand0=2.0"),
        (None, "scalar.tensor_scalar dst=%t data=%u op0=add operand0=2.0"),
        ("E106", "scalar.tensor_scalar dst=%t data=%u op0=add operand0=2.0 op1=multiply operand1=1"),
        ("E106", "scalar.tensor_scalar dst=%t data=%u op0=subtract operand0=2.0"),
        (None, "scalar.tensor_scalar dst=%t data=%u op0=subtract operand0=2.0", "gen4"),
        ("E106", "scalar.tensor_scalar dst=%i data=%i op0=bitwise_or operand0=2", "gen4"),
        ("E108", "tensor_scalar dst=%t data=%u op0=square"),
        (None, "tensor_scalar dst=%t data=%u op0=square", "gen4"),
    ],
    "nc_transpose": [
        (None, "nc_transpose dst=%p[0:64, 0:128] data=%t"),
        (None, "tensor.nc_transpose dst=%p[0:64, 0:128] data=%t"),
        ("E104", "nc_transpose dst=%p[0:63, 0:128] data=%t"),
        ("E102", "vector.nc_transpose dst=%p[0:64, 0:128] data=%t"),
        (None, "vector.nc_transpose dst=%t[0:32, 0:32] data=%u[0:32, 0:32]"),
        (None, "vector.nc_transpose dst=%p[0:32, 0:32] data=%q[0:32, 0:32]"),
        ("E102", "nc_transpose dst=%t[0:33, 0:32] data=%u[0:32, 0:33]"),
        ("E101", "tensor.nc_transpose dst=%t[0:32, 0:32] data=%u[0:32, 0:32]"),
        ("E101", "tensor.nc_transpose dst=%p[0:32, 0:32] data=%q[0:32, 0:32]"),
        ("E103", "nc_transpose dst=%p[0:64, 0:128] data=%h"),
        (None, "nc_transpose dst=%ph data=%h"),
        ("E106", "gpsimd.nc_transpose dst=%t[0:32, 0:32] data=%u[0:32, 0:32]"),
    ],
    "nc_matmul": [
        (None, "nc_matmul dst=%p[0:64, 0:64] stationary=%t moving=%u"),
        ("E104", "nc_matmul dst=%p[0:64, 0:64] stationary=%t[0:64] moving=%u"),
        ("E104", "nc_matmul dst=%p[0:64, 0:32] stationary=%t moving=%u"),
        ("E101", "nc_matmul dst=%t[0:64, 0:64] stationary=%t moving=%u"),
        ("E101", "nc_matmul dst=%p[0:64, 0:64] stationary=%t moving=%q[:, 0:64]"),
        ("E102", "nc_matmul dst=%p[0:64, 0:64] stationary=%wide[:, 0:129] moving=%u"),
        ("E103", "nc_matmul dst=%p[0:64, 0:64] stationary=%t moving=%h"),
        (None, "nc_matmul dst=%p[0:64, 0:64] stationary=%t moving=%tf"),
        (None, "nc_matmul dst=%p[0:64, 0:64] stationary=%e5 moving=%h"),
        (None, "nc_matmul dst=%p[0:64, 0:64] stationary=%h2 moving=%h"),
        ("E103", "nc_matmul dst=%p[0:64, 0:64] stationary=%i moving=%h"),
        ("E108", "nc_matmul dst=%p[0:64, 0:64] stationary=%fn moving=%h"),
        (None, "nc_matmul dst=%p[0:64, 0:64] stationary=%fn moving=%h", "gen4"),
        ("E103", "nc_matmul dst=%p[0:64, 0:64] stationary=%fn moving=%f[:, 0, :]", "gen4"),
        ("E103", "nc_matmul dst=%ph[:, 0:64] stationary=%h moving=%h"),
        (None, "nc_matmul dst=%ph[:, 0:64] stationary=%h moving=%h", "gen4"),
        (None, "nc_matmul dst=%long[0:64, 512:1024] stationary=%t moving=%wide[:, 0:512]"),
        ("E102", "nc_matmul dst=%long[0:64, 511:1023] stationary=%t moving=%wide[:, 0:512]"),
        ("E102", "nc_matmul dst=%long[0:64, 500:520] stationary=%t moving=%wide[:, 0:20]"),
        (None, "nc_matmul dst=%long[0:64, 500:520] stationary=%t moving=%wide[:, 0:20]", "gen4"),
        ("E102", "nc_matmul dst=%long[0:64, 0:1024:4] stationary=%t moving=%wide[:, 0:256]"),
        ("E102", "nc_matmul dst=%long[0:64, 0:513] stationary=%t moving=%wide[:, 0:513]"),
        ("E104", "nc_matmul dst=%p[0:64, 0:64] stationary=%t moving=%u is_transpose=true"),
        (None, "nc_matmul dst=%p[0:64, 0:64] stationary=%t[0:64] moving=%u[0:64] is_transpose=true"),
        ("E103", "nc_matmul dst=%p[0:64, 0:64] stationary=%h[0:64] moving=%h[0:64] is_transpose=true"),
        ("E105", "nc_matmul dst=%p[0:64, 0:64] stationary=%t moving=%u tile_position=[0, 0]"),
        ("E105", "nc_matmul dst=%p[0:64, 0:64] stationary=%t moving=%u tile_size=[128, 64]"),
        (None, "nc_matmul dst=%p[0:64, 0:64] stationary=%t moving=%u tile_position=[0, 0] tile_size=[128, 64]"),
        (None, "nc_matmul dst=%p[64:128, 0:64] stationary=%t moving=%u tile_position=[0, 64] tile_size=[128, 64]"),
        ("E105", "nc_matmul dst=%p[0:64, 0:64] stationary=%t moving=%u tile_position=[0, 64] tile_size=[128, 64]"),
        ("E105", "nc_matmul dst=%p[0:64, 0:64] stationary=%t moving=%u tile_position=[0, 32] tile_size=[128, 64]"),
        ("E105", "nc_matmul dst=%p[0:64, 0:64] stationary=%t moving=%u tile_position=[0, 0] tile_size=[128, 48]"),
        ("E102", "nc_matmul dst=%p[0:64, 0:64] stationary=%t moving=%u tile_position=[0, 0] tile_size=[64, 64]"),
        ("E102", "nc_matmul dst=%p[0:64, 0:64] stationary=%t moving=%u tile_position=[0, 0] tile_size=[128, 32]"),
        (None, "nc_matmul dst=%p[0:64, 0:64] stationary=%t[64:128] moving=%u[64:128] tile_position=[64, 0] "
               "tile_size=[64, 128]"),
        (None, "nc_matmul dst=%p[0:64, 0:64] stationary=%f moving=%f perf_mode=double_row"),
        ("E104", "nc_matmul dst=%p[0:64, 0:32] stationary=%f[:, 0, :] moving=%f perf_mode=double_row"),
        ("E103", "nc_matmul dst=%p[0:32, 0:32] stationary=%h moving=%h perf_mode=double_row"),
        ("E105", "nc_matmul dst=%p[0:64, 0:64] stationary=%f moving=%f perf_mode=double_row tile_position=[0, 0] "
                 "tile_size=[128, 64]"),
        (None, "nc_matmul dst=%p[0:64, 0:64] stationary=%f[0:64] moving=%f[0:64] perf_mode=double_row tile_position=[0, 0] "
               "tile_size=[64, 128]"),
        ("E105", "nc_matmul dst=%p[0:64, 0:64] stationary=%t moving=%u accumulate=true overwrites=[[0, 4]]"),
        ("E105", "nc_matmul dst=%p[0:64, 0:64] stationary=%t moving=%u overwrites=[[4, 4], [0, 4]]"),
        (None, "nc_matmul dst=%p[0:64, 0:64] stationary=%t moving=%u overwrites=[[0, 4], [8, 56]]"),
    ],
    "tensor_reduce": [
        (None, "tensor_reduce dst=%t[:, 0:1] op=add data=%p axis=1"),
        (None, "tensor_reduce dst=%t[:, 0:1] op=add data=%p axis=[-1]"),
        (None, "tensor_reduce dst=%t[:, 0:2] op=maximum data=%f axis=[2]"),
        (None, "tensor_reduce dst=%t[:, 0:1] op=add data=%f axis=[1, 2]"),
        ("E105", "tensor_reduce dst=%t op=add data=%f axis=[1]"),
        ("E105", "tensor_reduce dst=%t op=add data=%f axis=[0]"),
        ("E105", "tensor_reduce dst=%t[:, 0:1] op=add data=%f axis=[2, 1]"),
        ("E105", "tensor_reduce dst=%t[:, 0:1] op=add data=%f axis=[]"),
        ("E105", "tensor_reduce dst=%t[:, 0:1] op=add data=%f axis=[3]"),
        ("E104", "tensor_reduce dst=%t[:, 0:2] op=add data=%p axis=1"),
        ("E105", "tensor_reduce dst=%t[:, 0:1] op=power data=%p axis=1"),
        ("E105", "tensor_reduce dst=%t[:, 0:1] op=greater data=%p axis=1"),
        (None, "tensor_reduce dst=%i[:, 0:1] op=bitwise_or data=%i axis=1"),
        ("E103", "tensor_reduce dst=%t[:, 0:1] op=bitwise_or data=%i axis=1"),
        ("E105", "tensor_reduce dst=%i[:, 0:1] op=bitwise_or data=%i axis=1 negate=true"),
        (None, "tensor_reduce dst=%t[:, 0:1] op=add data=%p axis=1 negate=true keepdims=true"),
    ],
    "nc_stream_shuffle": [
        (None, f"nc_stream_shuffle dst=%t src=%u shuffle_mask={MASK}"),
        ("E105", f"nc_stream_shuffle dst=%t src=%u shuffle_mask={MASK[1:]}"),
        ("E105", f"nc_stream_shuffle dst=%t src=%u shuffle_mask={[32, *MASK[1:]]}"),
        ("E105", f"nc_stream_shuffle dst=%t src=%u shuffle_mask={[-1, *MASK[1:]]}"),
        (None, f"nc_stream_shuffle dst=%t src=%u shuffle_mask={[255] * 32}"),
        (None, f"nc_stream_shuffle dst=%t[0:32] src=%u[0:1] shuffle_mask={[0] * 32}"),
        ("E105", f"nc_stream_shuffle dst=%t[0:32] src=%u[0:1] shuffle_mask={[1] * 32}"),
        ("E103", f"nc_stream_shuffle dst=%t src=%h shuffle_mask={MASK}"),
        ("E104", f"nc_stream_shuffle dst=%t src=%p shuffle_mask={MASK}"),
        (None, f"nc_stream_shuffle dst=%t[32:64] src=%u[96:128] shuffle_mask={MASK}"),
        ("E102", f"nc_stream_shuffle dst=%t[16:48] src=%u[0:32] shuffle_mask={MASK}"),
        ("E102", f"nc_stream_shuffle dst=%t[32:96] src=%u[0:64] shuffle_mask={MASK}"),
        (None, f"nc_stream_shuffle dst=%t[64:128] src=%u[0:64] shuffle_mask={MASK}"),
    ],
    "activation": [
        (None, "activation dst=%t op=exp data=%p[:, 0:64] bias=%t[:, 0:1] scale=%u[:, 0:1]"),
        (None, "activation dst=%t op=exp data=%u bias=%h[:, 0:1]"),
        ("E103", "activation dst=%t op=exp data=%u bias=%tf[:, 0:1]"),
        ("E103", "activation dst=%t op=exp data=%u scale=%h[:, 0:1]"),
        ("E104", "activation dst=%t op=exp data=%u scale=%t[:, 0:2]"),
        (None, "activation dst=%t op=exp data=%u reduce_op=add reduce_res=%u[:, 0:1] reduce_cmd=reset_reduce"),
        ("E105", "activation dst=%t op=exp data=%u reduce_op=maximum reduce_cmd=reset_reduce"),
        ("E109", "activation dst=%t op=exp data=%u reduce_cmd=reduce"),
        ("E105", "activation dst=%t op=exp data=%u reduce_op=add reduce_cmd=load_reduce"),
        (None, "activation dst=%t op=exp data=%u reduce_cmd=reset"),
        ("E104", "activation dst=%t op=exp data=%u reduce_op=add reduce_res=%u[:, 0:2] reduce_cmd=reduce"),
        ("E105", "activation dst=%t op=cos data=%u"),
        ("E106", "vector.activation dst=%t op=exp data=%u"),
    ],
    "iota": [
        (None, "iota dst=%t pattern=[[1, 64]]"),
        (None, "iota dst=%t pattern=[[64, 1], [0, 4], [-4, 4], [1, 4]] offset=%n channel_multiplier=-3"),
        ("E104", "iota dst=%t pattern=[[1, 63]]"),
        ("E105", "iota dst=%t pattern=[]"),
        ("E105", "iota dst=%t pattern=[[1, 1], [1, 1], [1, 1], [1, 1], [1, 64]]"),
        ("E105", "iota dst=%t pattern=[[1, 64, 1]]"),
        ("E105", "iota dst=%t pattern=[1, 64]"),
        ("E105", "iota dst=%t pattern=[[1, -8], [1, -8]]"),
        (None, "iota dst=%t pattern=[[1, 64]] offset=3.0"),
        ("E105", "iota dst=%t pattern=[[1, 64]] offset=3.5"),
        ("E101", "iota dst=%p pattern=[[1, 512]]"),
        ("E101", "iota dst=%t pattern=[[1, 64]] offset=%i[0:1, 0:1]"),
    ],
    "nonzero_with_count": [
        (None, "nonzero_with_count dst=%g src=%t"),
        (None, "nonzero_with_count dst=%g src=%i index_offset=5 padding_val=-3"),
        ("E104", "nonzero_with_count dst=%g[:, 0:64] src=%t"),
        ("E104", "nonzero_with_count dst=%g src=%t[:, 0:63]"),
        ("E103", "nonzero_with_count dst=%g src=%h"),
        ("E103", "nonzero_with_count dst=%t src=%t[:, 0:63]"),
        ("E101", "nonzero_with_count dst=%g src=%p[:, 0:64]"),
    ],
    "dma_copy": [
        (None, "dma_copy dst=%t src=%x"),
        (None, "dma_copy dst=%h src=%x"),
        ("E101", "dma_copy dst=%p[:, 0:64] src=%x"),
        ("E101", "dma_copy dst=%x src=%p[:, 0:64]"),
        ("E104", "dma_copy dst=%t src=%x[0:127]"),
        (None, "dma_copy dst=%t[0:1] src=%x[0:64, 0:1]"),
        (None, "dma_copy dst=%t src=%x dge_mode=3"),  # raw integers, as public kernels pass them
        (None, "dma_copy dst=%t src=%x dge_mode=0"),
        ("E105", "dma_copy dst=%t src=%x dge_mode=4"),
        (None, "dma_copy dst=%t src=%x dge_mode=hwdge"),
        ("E103", "dma_copy dst=%h src=%x dge_mode=hwdge"),
        (None, "sync.dma_copy dst=%t src=%x dge_mode=hwdge"),
        (None, "scalar.dma_copy dst=%t src=%x dge_mode=hwdge"),
        ("E106", "scalar.dma_copy dst=%t src=%x"),
        ("E106", "sync.dma_copy dst=%t src=%x dge_mode=swdge"),
        ("E106", "gpsimd.dma_copy dst=%t src=%x dge_mode=hwdge"),
        ("E108", "dma_copy dst=%t src=%x priority=0"),
        (None, "dma_copy dst=%t src=%x priority=3", "gen4"),
        ("E105", "dma_copy dst=%t src=%x priority=4", "gen4"),
        ("E105", "dma_copy dst=%t src=%x priority=-1", "gen4"),
        ("E105", "dma_copy dst=%t src=%x oob_mode=skip"),
        (None, "dma_copy dst=%t[0:4] src=%x.vector_select(0, %k[0:4, 0:1]) oob_mode=skip"),
        (None, "dma_copy dst=%t[0:4] src=%x.vector_select(0, %k[0:4, 0:1]) dge_mode=swdge"),
        ("E105", "dma_copy dst=%t[0:4] src=%x.vector_select(0, %k[0:4, 0:1]) dge_mode=hwdge"),
        ("E105", "dma_copy dst=%t[0:4] src=%x.vector_select(0, %k[0:4, 0:1]) dge_mode=none"),
        ("E105", "dma_copy dst=%x.vector_select(0, %k[0:4, 0:1]) src=%x.vector_select(0, %k[0:4, 1:2])"),
        ("E303", "dma_copy dst=%t[0:8] src=%x.ap([[64, 8], [1, 64]], vector_offset=%k[0:4, 0:2])"),
        (None, "dma_copy dst=%t[0:4] src=%x.ap([[64, 4], [1, 64]], scalar_offset=%n) dge_mode=hwdge"),
        (None, "dma_copy dst=%t[0:4] src=%x.ap([[64, 4], [1, 64]], scalar_offset=%n) dge_mode=none"),
        (None, "dma_copy dst=%w src=%w"),
        ("E103", "dma_copy dst=%w src=%x"),
    ],
    "dma_transpose": [
        (None, "dma_transpose dst=%j src=%xh[0:16, :]"),
        (None, "dma_transpose dst=%j src=%xh[0:16, :] axes=[1, 0]"),
        ("E105", "dma_transpose dst=%j src=%xh[0:16, :] axes=[0, 1]"),
        ("E105", "dma_transpose dst=%j src=%x3[:, 0, 0]"),
        ("E104", "dma_transpose dst=%j src=%xh[0:15, :]"),
        ("E104", "dma_transpose dst=%j.expand_dim(1) src=%xh[0:16, :]"),
        ("E103", "dma_transpose dst=%t[0:64, 0:16] src=%xh[0:16, :]"),
        ("E103", "dma_transpose dst=%b[0:64, 0:32] src=%x8[0:32, :]"),
        ("E101", "dma_transpose dst=%x[0:64, 0:16] src=%xh[0:16, :]"),
        (None, "dma_transpose dst=%j src=%xh[0:16, :] dge_mode=hwdge"),
        ("E102", "dma_transpose dst=%h[0:64, 0:32] src=%xh[0:32, :] dge_mode=hwdge"),
        ("E103", "dma_transpose dst=%t[0:64, 0:16] src=%x[0:16, :] dge_mode=hwdge"),
        (None, "dma_transpose dst=%h[0:64].reshape([64, 4, 16]) src=%x3 dge_mode=hwdge"),
        (None, "dma_transpose dst=%h[0:64, 0:8].reshape([64, 4, 2]) src=%x3[0:4:2]"),
        ("E102", "dma_transpose dst=%h[0:64, 0:8].reshape([64, 4, 2]) src=%x3[0:4:2] dge_mode=hwdge"),
        (None, "dma_transpose dst=%h[0:64, 0:32] src=%xh.vector_select(0, %k[0:32, 0:1])"),
        ("E103", "dma_transpose dst=%h[0:64, 0:32] src=%xh.vector_select(0, %i[0:32, 0:1])"),
        ("E103", "dma_transpose dst=%t[0:64, 0:32] src=%x.vector_select(0, %k[0:32, 0:1])"),
        ("E102", "dma_transpose dst=%h[0:64, 0:8] src=%xh.vector_select(0, %k[0:8, 0:1])"),
        ("E102", "dma_transpose dst=%h[0:64, 0:32] src=%xh.ap([[64, 32], [1, 64]], vector_offset=%k[0:16, 0:2])"),
        ("E105", "dma_transpose dst=%h[0:64, 0:32] src=%xh.vector_select(0, %k[0:32, 0:1]) dge_mode=hwdge"),
        ("E105", "dma_transpose dst=%j src=%xh[0:16, :] oob_mode=skip"),
        (None, "dma_transpose dst=%h[0:64, 0:32] src=%xh.vector_select(0, %k[0:32, 0:1]) oob_mode=skip"),
    ],
    "registers": [
        (None, "register_move dst=%n src=4294967295"),
        ("E105", "register_move dst=%n src=4294967296"),
        ("E105", "register_move dst=%n src=1.5"),
        ("E105", "register_move dst=%n src=-2147483649"),
        (None, "register_load dst=%n src=%i[3, 3:4]"),
        (None, "register_load dst=%n src=%x8[3, 3:4]"),
        ("E104", "register_load dst=%n src=%i[0:1, 0:2]"),
        ("E104", "register_load dst=%n src=%i[0:2, 0:1]"),
        ("E103", "register_load dst=%n src=%t[0:1, 0:1]"),
        ("E101", "register_load dst=%n src=%pi[0:1, 0:1]"),
        (None, "register_store dst=%b[5, 5:6] src=%n"),
        ("E103", "register_store dst=%bl[0, 0:1] src=%n"),
        ("E109", "register_store dst=%i[0, 0:1] src=3"),
    ],
    "multicore": [
        (None, "core_barrier data=%x cores=[0, 1]"),
        (None, "core_barrier data=%x cores=[0]"),
        (None, "core_barrier data=%t cores=0"),
        ("E105", "core_barrier data=%x cores=[1, 0]"),
        ("E105", "core_barrier data=%x cores=[0, 1, 2]"),
        ("E105", "core_barrier data=%x cores=2"),
        ("E106", "dma.core_barrier data=%x cores=[0, 1]"),
        (None, "sendrecv src=%t dst=%u send_to_rank=1 recv_from_rank=1 pipe_id=0"),
        ("E105", "sendrecv src=%t dst=%u send_to_rank=2 recv_from_rank=1 pipe_id=0"),
        ("E105", "sendrecv src=%t dst=%u send_to_rank=1 recv_from_rank=-1 pipe_id=0"),
        ("E105", "sendrecv src=%t dst=%u send_to_rank=1 recv_from_rank=1 pipe_id=-1"),
        ("E103", "sendrecv src=%t dst=%h send_to_rank=1 recv_from_rank=1 pipe_id=0"),
        ("E101", "sendrecv src=%t dst=%p[:, 0:64] send_to_rank=1 recv_from_rank=1 pipe_id=0"),
        ("E104", "sendrecv src=%t[0:64] dst=%u send_to_rank=1 recv_from_rank=1 pipe_id=0"),
        (None, "sendrecv src=%wide[:, 0:256] dst=%wide[:, 512:768] send_to_rank=1 recv_from_rank=1 pipe_id=0 "
               "dma_engine=gpsimd_dma"),
        ("E102", "sendrecv src=%wide[:, 0:257] dst=%wide[:, 512:769] send_to_rank=1 recv_from_rank=1 pipe_id=0 "
                 "dma_engine=gpsimd_dma"),
        (None, "sendrecv src=%wide[:, 0:257] dst=%wide[:, 512:769] send_to_rank=1 recv_from_rank=1 pipe_id=0"),
    ],
}  # fmt: skip
LINES = [(title, *case) for title, cases in RULES_OF_ROWS.items() for case in cases]


@pytest.mark.parametrize("title, code, line, target", [(*case, "gen3")[:4] for case in LINES])
def test_rules(title, code, line, target):
    assert check(line, target) == code


@pytest.mark.parametrize("name", ALU)
def test_operators_of_tensor_tensor(name):
    """By kind and arity, for every operator."""
    op = ALU[name]
    tiles = "dst=%i data1=%i data2=%i" if op.is_bitvec else "dst=%t data1=%t data2=%u"
    binary = op.kind in (OpKind.BITVEC, OpKind.ARITH) and op.arity == 2
    assert check(f"tensor_tensor {tiles} op={name}", "gen4") == (None if binary else "E105")


def test_a_limit_error_says_what_to_do():
    with pytest.raises(KernelError) as error:
        verify(parse(kernel("nc_matmul dst=%p[0:64, 0:64] stationary=%wide[:, 0:129] moving=%u")))
    assert str(error.value).splitlines()[0] == "error[E102]: nc_matmul `stationary`: dim M is 129, limit is 128"
    assert error.value.operand == "stationary float32[128,129] @sbuf" and error.value.limit == "M <= 128"
    assert error.value.actual == 129 and error.value.hint == "tile M by 128"
