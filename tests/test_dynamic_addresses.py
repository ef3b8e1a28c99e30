"""Addresses that are known only when the kernel runs, against NumPy: gathers, scatters, walking rows, what is skipped."""

import numpy as np
import pytest

import opennki.passes  # noqa: F401 -- registers the passes
from opennki.backend import executor, plan
from opennki.ir.errors import KernelError
from opennki.ir.parser import parse
from opennki.ir.verifier import verify
from opennki.passes.pipeline import TO_BIR, TO_PENGUIN, run_passes

X = np.arange(16 * 24, dtype=np.float32).reshape(16, 24)
OLD = -1.0  # what a tile holds before a DMA that may leave rows out


def run(body: str, shape: tuple[int, ...] = (16, 24), dtype: str = "float32", fill: bool = True, **arrays: np.ndarray):
    """Execute a kernel whose %y starts as OLD; each array is a parameter. All legal orders give these bits.

    On chip there are %t [16,24], %i [16,1] int32 (loaded from `index`, where that is given) and the register %n.
    """
    module = parse(kernel(body, shape, dtype, fill, **arrays))
    verify(module)
    module = run_passes(module, (*TO_PENGUIN, *TO_BIR))
    (result,) = executor.run(plan.build(module), {name: array.copy() for name, array in arrays.items()})
    for seed in range(3):
        (shuffled,) = executor.run(plan.build(module, shuffle=seed), {name: array.copy() for name, array in arrays.items()})
        assert shuffled.tobytes() == result.tobytes()
    return result


def kernel(body: str, shape: tuple[int, ...], dtype: str, fill: bool, **arrays: np.ndarray) -> str:
    params = "".join(
        f"  param %{name}: {array.dtype.name}[{','.join(map(str, array.shape))}] @shared_hbm\n"
        for name, array in arrays.items()
    )
    lines = []
    if fill:
        lines = [f"%full: {dtype}[{shape[0]},{int(np.prod(shape[1:]))}] @sbuf", f"memset dst=%full value={int(OLD)}"]
        lines += ["dma_copy dst=%y src=%full"]
    lines += ["%t: float32[16,24] @sbuf", f"memset dst=%t value={OLD}", "%n: int32[1] @register"]
    if "index" in arrays:
        name, count = arrays["index"].dtype.name, arrays["index"].size
        lines += [f"%i: {name}[{count},1] @sbuf", "dma_copy dst=%i src=%index", "register_load dst=%n src=%i[0:1, :]"]
    lines += body.strip().splitlines()
    text = "".join(f"    {line.strip()}\n" for line in lines)
    sizes = ",".join(map(str, shape))
    return (
        f"kernel @k stage=trace target=gen3 {{\n{params}  shared %y: {dtype}[{sizes}] @shared_hbm\n"
        f"  core 0 {{\n{text}  }}\n  return %y\n}}\n"
    )


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int32)[:, None]


# --- one index for the whole access ------------------------------------------------------------------------------


@pytest.mark.parametrize("index", ["%n", "%i[0:1, 0:1]"])
@pytest.mark.parametrize("at", [0, 5, 15])
def test_a_row_chosen_by_register_or_tile(index, at):
    got = run(f"dma_copy dst=%y[0:1] src=%x.ap([[24, 1], [1, 24]], scalar_offset={index})", x=X, index=ints(at))
    np.testing.assert_array_equal(got[0], X[at])


def test_select_and_indexing_with_a_register_mean_the_same():
    for view in ("%x[%n, :]", "%x.select(0, %n)", "%x.ap([[1, 24]], scalar_offset=%n)"):
        np.testing.assert_array_equal(run(f"dma_copy dst=%y[0] src={view}", x=X, index=ints(7))[0], X[7])


def test_a_row_of_the_destination():
    got = run("dma_copy dst=%t src=%x\ndma_copy dst=%y[%n, :] src=%t[3:4, :]", x=X, index=ints(9))
    want = np.full_like(X, OLD)
    want[9] = X[3]
    np.testing.assert_array_equal(got, want)


def test_an_index_into_dimension_one():
    three = X.reshape(4, 4, 24)
    body = "dma_copy dst=%y src=%z.ap([[96, 4], [1, 24]], offset=24, scalar_offset=%n, indirect_dim=1)"
    got = run(body, (4, 24), z=three, index=ints(2))
    np.testing.assert_array_equal(got, three[:, 3])


def test_an_index_into_dimension_one_of_the_destination():
    three = X.reshape(4, 4, 24)
    got = run("dma_copy dst=%y[:, %n, 2:7] src=%z[:, 0, 0:5]", (4, 4, 24), z=three, index=ints(3))
    want = np.full_like(three, OLD)
    want[:, 3, 2:7] = three[:, 0, :5]
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("engine", ["vector", "scalar", "gpsimd"])
def test_on_chip_a_free_dimension_moves(engine):
    body = f"""dma_copy dst=%t src=%x
    %o: float32[16,4] @sbuf
    {engine}.tensor_copy dst=%o src=%t.ap([[24, 16], [1, 4]], scalar_offset=%n, indirect_dim=1)
    dma_copy dst=%y[:, 0:4] src=%o"""
    np.testing.assert_array_equal(run(body, x=X, index=ints(13))[:, :4], X[:, 13:17])


def test_on_chip_a_block_of_columns_is_written():
    body = """dma_copy dst=%t src=%x
    %b: float32[16,6,4] @sbuf
    memset dst=%b value=-1.0
    tensor_copy dst=%b.select(1, %i[0:1, :]) src=%t[:, 8:12]
    dma_copy dst=%y src=%b"""
    got = run(body, (16, 6, 4), x=X, index=ints(4))
    want = np.full((16, 6, 4), OLD, np.float32)
    want[:, 4] = X[:, 8:12]
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("at, moved", [(2, True), (6, False), (-1, False)])
@pytest.mark.parametrize("side", ["dst", "src"])
def test_on_chip_dma_skips_the_whole_access(at, moved, side):
    """Not a row, but columns of many partitions have the one bad address."""
    if side == "dst":
        body = """%b: float32[16,6,4] @sbuf
        memset dst=%b value=-1.0
        dma_copy dst=%b.select(1, %n) src=%x[:, 0:4] oob_mode=skip
        dma_copy dst=%y src=%b"""
        want = np.full((16, 6, 4), OLD, np.float32)
        if moved:
            want[:, at] = X[:, :4]
    else:
        body = """dma_copy dst=%t src=%x
        dma_copy dst=%y.reshape([16, 24])[:, 0:4] src=%t.reshape([16, 6, 4]).select(1, %n) oob_mode=skip"""
        want = np.full((16, 6, 4), OLD, np.float32)
        want[:, 0] = X.reshape(16, 6, 4)[:, at] if moved else OLD
    np.testing.assert_array_equal(run(body, (16, 6, 4), x=X, index=ints(at)), want)


def test_an_index_in_another_dtype_counts_elements_of_that_dtype():
    body = """%o: int16[1,8] @sbuf
    dma_copy dst=%o src=%x.ap([[48, 1], [1, 8]], scalar_offset=%n, dtype=int16)
    dma_copy dst=%y[0:1, 0:8] src=%o"""
    got = run(body, (1, 8), "int16", x=X, index=ints(3))
    np.testing.assert_array_equal(got[0], X[3].view(np.int16)[:8])


# --- rows that walk ----------------------------------------------------------------------------------------------

WALK = "dma_copy dst=%t[0:4] src=%x.ap([[24, 4], [1, 24]], scalar_offset=%n) oob_mode={}\ndma_copy dst=%y src=%t"


def walked(first: int, step: int = 1, rows: int = 4) -> np.ndarray:
    want = np.full_like(X, OLD)
    for row in range(rows):
        if 0 <= first + row * step < 16:
            want[row] = X[first + row * step]
    return want


@pytest.mark.parametrize("first", [0, 12, 13, 15, 16, -1, -3, -4, 2**31 - 1, -(2**31)])
def test_rows_outside_are_skipped_one_by_one(first):
    np.testing.assert_array_equal(run(WALK.format("skip"), x=X, index=ints(first)), walked(first))


@pytest.mark.parametrize("first, row, index", [(13, 3, 16), (16, 0, 16), (-1, 0, -1)])
def test_rows_outside_are_an_error_that_names_the_row(first, row, index):
    with pytest.raises(KernelError) as error:
        run(WALK.format("error"), x=X, index=ints(first))
    assert error.value.code == "E308" and error.value.loc.line == 15
    assert f"index {index} of row {row} is outside %x" in error.value.message and error.value.limit == "0 <= index < 16"


def test_rows_inside_are_no_error():
    np.testing.assert_array_equal(run(WALK.format("error"), x=X, index=ints(12)), walked(12))


@pytest.mark.parametrize("first", [0, 9, 10, 14, -2])
def test_every_third_row(first):
    body = WALK.format("skip").replace("[[24, 4]", "[[72, 4]")
    np.testing.assert_array_equal(run(body, x=X, index=ints(first)), walked(first, 3))


@pytest.mark.parametrize("first", [-6, -5, 0, 8, 9])
def test_a_static_offset_in_front_makes_negative_indices_legal(first):
    body = WALK.format("skip").replace("scalar_offset", "offset=120, scalar_offset")
    np.testing.assert_array_equal(run(body, x=X, index=ints(first)), walked(first + 5))


@pytest.mark.parametrize("first", [-2, 0, 13, 15])
def test_written_rows_outside_are_dropped(first):
    body = "dma_copy dst=%t src=%x\ndma_copy dst=%y.ap([[24, 4], [1, 24]], scalar_offset=%n) src=%t[0:4] oob_mode=skip"
    want = np.full_like(X, OLD)
    for row in range(4):
        if 0 <= first + row < 16:
            want[first + row] = X[row]
    np.testing.assert_array_equal(run(body, x=X, index=ints(first)), want)


@pytest.mark.parametrize("mode", ["skip", "error"])
def test_rows_that_step_across_the_indexed_dimension(mode):
    """Row r is [r, n + r]: the index moves along dimension 1, the pattern along the diagonal."""
    three = X.reshape(4, 4, 24)
    body = f"""dma_copy dst=%t[0:3] src=%z.ap([[120, 3], [1, 24]], scalar_offset=%n, indirect_dim=1) oob_mode={mode}
    dma_copy dst=%y src=%t"""
    at = 2 if mode == "skip" else 1
    want = np.full_like(X, OLD)
    for row in range(3):
        if at + row < 4:
            want[row] = three[row, at + row]
    np.testing.assert_array_equal(run(body, z=three, index=ints(at)), want)


def test_both_sides_may_move():
    two_rows = ".ap([[24, 2], [1, 24]], scalar_offset={})"
    body = f"dma_copy dst=%y{two_rows.format('%i[0:1, :]')} src=%x{two_rows.format('%n')}"
    want = np.full_like(X, OLD)
    want[6:8] = X[6:8]
    np.testing.assert_array_equal(run(body, x=X, index=ints(6)), want)


# --- an index for each row ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("view", ["%x.ap([[24, 8], [1, 24]], vector_offset=%i[0:8])", "%x.vector_select(0, %i[0:8])"])
def test_gather(view):
    index = ints(3, 0, 15, 3, 8, 1, 2, 14)
    got = run(f"dma_copy dst=%t[0:8] src={view}\ndma_copy dst=%y src=%t", x=X, index=index)
    np.testing.assert_array_equal(got[:8], X[index[:, 0]])
    assert (got[8:] == OLD).all()


def test_gather_ignores_the_first_step_and_takes_a_part_of_the_rows():
    index = ints(3, 0, 15, 9)
    body = "dma_copy dst=%t[0:4, 0:5] src=%x.ap([[7, 4], [2, 5]], offset=1, vector_offset=%i)\ndma_copy dst=%y src=%t"
    np.testing.assert_array_equal(run(body, x=X, index=index)[:4, :5], X[index[:, 0], 1:11:2])


@pytest.mark.parametrize(
    "index", [ints(3, -1, 15, 16, 2), ints(*[-(2**31)] * 5), np.uint32([[1], [2**32 - 1], [3], [16], [0]])]
)
def test_gather_leaves_the_rows_of_bad_indices(index):
    body = "dma_copy dst=%t[0:5] src=%x.vector_select(0, %i) oob_mode=skip\ndma_copy dst=%y src=%t"
    want = np.full_like(X, OLD)
    for row, at in enumerate(index[:, 0].astype(np.int64)):
        if 0 <= at < 16:
            want[row] = X[at]
    np.testing.assert_array_equal(run(body, x=X, index=index), want)


def test_gather_names_the_first_bad_row():
    with pytest.raises(KernelError) as error:
        run("dma_copy dst=%t[0:3] src=%x.vector_select(0, %i)\ndma_copy dst=%y src=%t", x=X, index=ints(3, 16, -1))
    assert error.value.code == "E308" and "index 16 of row 1 is outside %x" in error.value.message
    assert error.value.loc.line == 15 and "oob_mode" in error.value.hint


@pytest.mark.parametrize("index", [ints(3, 0, 15, 9), ints(5, -1, 16, 2)])
def test_scatter(index):
    body = "dma_copy dst=%t src=%x\ndma_copy dst=%y.vector_select(0, %i) src=%t[4:8] oob_mode=skip"
    want = np.full_like(X, OLD)
    for row, at in enumerate(index[:, 0]):
        if 0 <= at < 16:
            want[at] = X[4 + row]
    np.testing.assert_array_equal(run(body, x=X, index=index), want)


def test_gather_from_memory_to_memory():
    index = ints(3, 16, 1)
    got = run("dma_copy dst=%y[1:4] src=%x.vector_select(0, %i) oob_mode=skip", x=X, index=index)
    np.testing.assert_array_equal(got[1:4], [X[3], np.full(24, OLD), X[1]])


def test_gather_of_blocks_pairs_in_row_major_order():
    """Two rows of [3,8] elements into four partitions of 12."""
    body = "dma_copy dst=%t[0:4, 0:12] src=%x.reshape([16, 3, 8]).vector_select(0, %i)\ndma_copy dst=%y src=%t"
    got = run(body, x=X, index=ints(6, 11))
    np.testing.assert_array_equal(got[:4, :12], X[[6, 11]].reshape(4, 12))


def test_skipped_rows_pair_with_their_part_of_the_destination():
    body = "dma_copy dst=%t[0:4, 0:12] src=%x.vector_select(0, %i) oob_mode=skip\ndma_copy dst=%y src=%t"
    got = run(body, x=X, index=ints(99, 11))
    np.testing.assert_array_equal(got[:4, :12], np.concatenate([np.full(24, OLD, np.float32), X[11]]).reshape(4, 12))


@pytest.mark.parametrize("dtype", ["int32", "bfloat16", "float16", "uint8"])
def test_a_gather_converts(dtype):
    index = ints(3, 77, 1)
    body = f"""%c: {dtype}[3,24] @sbuf
    memset dst=%c value=7
    dma_copy dst=%c src=%x.vector_select(0, %i) oob_mode=skip
    dma_copy dst=%y[0:3] src=%c"""
    want = np.stack([X[3] / 2, np.full(24, 7), X[1] / 2])
    np.testing.assert_array_equal(run(body, x=X / 2, index=index)[:3], want if "16" in dtype else np.rint(want))


def test_a_gather_of_reinterpreted_words():
    index = ints(5, 2)
    body = """%c: uint16[2,48] @sbuf
    dma_copy dst=%c src=%x.view(uint16).vector_select(0, %i)
    dma_copy dst=%y src=%c"""
    got = run(body, (2, 48), "uint16", fill=False, x=X, index=index)
    np.testing.assert_array_equal(got, X[[5, 2]].view(np.uint16))


def test_rows_of_odd_length():
    """Seven bytes a row: no row but the first starts at a multiple of 4 bytes."""
    rows = np.arange(77, dtype=np.uint8).reshape(11, 7)
    got = run("dma_copy dst=%y src=%r.vector_select(0, %i)", (3, 7), "uint8", fill=False, r=rows, index=ints(10, 0, 3))
    np.testing.assert_array_equal(got, rows[[10, 0, 3]])


# --- dma_transpose -----------------------------------------------------------------------------------------------

WIDE = np.arange(64 * 20, dtype=np.int16).reshape(64, 20)


def transposed(index: np.ndarray, rows: int, mode: str = "error") -> np.ndarray:
    partitions, columns = index.shape
    body = f"""%c: uint32[{partitions},{columns}] @sbuf
    dma_copy dst=%c src=%where
    %o: int16[20,{rows}] @sbuf
    memset dst=%o value=-1
    dma_transpose dst=%o src=%w.ap([[20, {rows}], [1, 20]], vector_offset=%c) oob_mode={mode}
    dma_copy dst=%y src=%o"""
    return run(body, (20, rows), "int16", fill=False, w=WIDE, where=index.astype(np.uint32))


def test_indirect_transpose():
    index = np.random.default_rng(1).integers(0, 64, (16, 1))
    np.testing.assert_array_equal(transposed(index, 16), WIDE[index[:, 0]].T)


def test_indirect_transpose_takes_its_indices_column_by_column():
    index = np.random.default_rng(2).integers(0, 64, (128, 3))
    np.testing.assert_array_equal(transposed(index, 272), WIDE[index.T.reshape(-1)[:272]].T)


def test_indirect_transpose_keeps_the_columns_of_bad_indices():
    index = np.random.default_rng(3).integers(0, 90, (128, 2))
    flat = index.T.reshape(-1)[:144]
    want = np.where(flat < 64, WIDE[np.minimum(flat, 63)].T, OLD)
    np.testing.assert_array_equal(transposed(index, 144, "skip"), want)


def test_indirect_transpose_of_three_dimensions():
    cube = WIDE.reshape(64, 5, 4)
    index = np.arange(63, 31, -2, dtype=np.uint32)[:, None]
    body = """%c: uint32[16,1] @sbuf
    dma_copy dst=%c src=%where
    %o: int16[4,5,16] @sbuf
    dma_transpose dst=%o src=%w.vector_select(0, %c)
    dma_copy dst=%y src=%o"""
    got = run(body, (4, 5, 16), "int16", fill=False, w=cube, where=index)
    np.testing.assert_array_equal(got, cube[index[:, 0]].transpose(2, 1, 0))


@pytest.mark.parametrize("at", [0, 48, 56, -8])
def test_transpose_at_a_scalar_offset_skips_rows(at):
    body = """%o: int16[20,16] @sbuf
    memset dst=%o value=-1
    dma_transpose dst=%o src=%w.ap([[20, 16], [1, 20]], scalar_offset=%n) oob_mode=skip
    dma_copy dst=%y src=%o"""
    rows = at + np.arange(16)
    want = np.where((rows >= 0) & (rows < 64), WIDE[np.clip(rows, 0, 63)].T, OLD)
    np.testing.assert_array_equal(run(body, (20, 16), "int16", fill=False, w=WIDE, index=ints(at)), want)


# --- loops and cores ---------------------------------------------------------------------------------------------


def test_a_loop_variable_is_an_index():
    body = """%k: int32[1] @register
    for %k in 0 to %n step 2 {
      %row: float32[1,24] @sbuf
      dma_copy dst=%row src=%x[%k, :]
      tensor_scalar dst=%row data=%row op0=multiply operand0=2.0
      dma_copy dst=%y[%k, :] src=%row
    }"""
    want = np.full_like(X, OLD)
    want[0:11:2] = 2 * X[0:11:2]
    np.testing.assert_array_equal(run(body, x=X, index=ints(11)), want)


def test_a_loop_that_moves_its_own_index():
    """A list of linked rows: %next[i] names the row after i; row 15 ends it."""
    follow = (np.arange(16, dtype=np.int32) + 5) % 16
    body = """%at: int32[1,1] @sbuf
    %one: int32[1,1] @sbuf
    tensor_copy dst=%at src=%i
    %trips: int32[1] @register
    register_move dst=%trips src=7
    %k: int32[1] @register
    for %k in 0 to %trips step 1 {
      %row: float32[1,24] @sbuf
      dma_copy dst=%row src=%x.vector_select(0, %at)
      dma_copy dst=%y[%k, :] src=%row
      dma_copy dst=%one src=%follow.vector_select(0, %at)
      tensor_copy dst=%at src=%one
    }"""
    at, want = 3, np.full_like(X, OLD)
    for k in range(7):
        want[k] = X[at]
        at = follow[at]
    np.testing.assert_array_equal(run(body, x=X, follow=follow[:, None], index=ints(3)), want)


def test_a_gather_into_its_own_index():
    """The index is read before anything is written."""
    table = np.arange(16, dtype=np.int32)[::-1].copy()[:, None]
    body = "dma_copy dst=%i src=%table.vector_select(0, %i)\ndma_copy dst=%y src=%i"
    got = run(body, (4, 1), "int32", fill=False, table=table, index=ints(3, 0, 15, 9))
    assert got[:, 0].tolist() == [12, 15, 0, 6]


TWO_CORES = """kernel @k stage=trace target=gen3 {
  param %x: float32[16,24] @shared_hbm
  param %index: int32[2,8,1] @shared_hbm
  shared %y: float32[16,24] @shared_hbm
"""


def test_each_core_gathers_by_its_own_index():
    text = TWO_CORES
    for core in range(2):
        text += f"""  core {core} {{
    %i{core}: int32[8,1] @sbuf
    dma_copy dst=%i{core} src=%index[{core}]
    dma_copy dst=%y[{8 * core}:{8 * core + 8}] src=%x.vector_select(0, %i{core})
  }}
"""
    module = run_passes(parse(text + "  return %y\n}\n"), (*TO_PENGUIN, *TO_BIR))
    index = np.random.default_rng(4).integers(0, 16, (2, 8, 1)).astype(np.int32)
    (got,) = executor.run(plan.build(module), {"x": X, "index": index})
    np.testing.assert_array_equal(got, X[index.reshape(-1)])


def test_an_output_row_that_no_index_named_is_an_error():
    with pytest.raises(KernelError) as error:
        run("dma_copy dst=%t src=%x\ndma_copy dst=%y.vector_select(0, %i) src=%t", fill=False, x=X,
            index=ints(*[i % 15 for i in range(16)]))
    assert error.value.code == "E501" and "24 of 384 elements" in error.value.message
    assert error.value.actual == "the first is [15, 0]"


def test_an_output_whose_rows_are_all_named_is_complete():
    order = np.random.default_rng(5).permutation(16).astype(np.int32)[:, None]
    got = run("dma_copy dst=%t src=%x\ndma_copy dst=%y.vector_select(0, %i) src=%t", fill=False, x=X, index=order)
    np.testing.assert_array_equal(got[order[:, 0]], X)


def test_one_plan_runs_on_many_indices():
    module = run_passes(parse(kernel("dma_copy dst=%y[0] src=%x[%n, :]", (16, 24), "float32", True, x=X, index=ints(0))),
                        (*TO_PENGUIN, *TO_BIR))
    built = plan.build(module)
    for at in (3, 0, 15):
        (got,) = executor.run(built, {"x": X, "index": ints(at)})
        np.testing.assert_array_equal(got[0], X[at])
