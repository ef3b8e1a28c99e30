"""dma_compute: sums of lists of tensors, rows added to tiles and tiles to rows, and what is refused."""

import inspect

import ml_dtypes
import numpy as np
import pytest

from opennki import KernelError, jit
from opennki import isa as nisa
from opennki import language as nl
from opennki.ir.dtypes import DTYPES
from opennki.ir.graph import Stage
from opennki.ir.parser import parse
from opennki.ir.verifier import verify


def refused(run, code, text):
    with pytest.raises(KernelError) as error:
        run()
    assert error.value.code == code and text in str(error.value), str(error.value)


def random(*shape, dtype="float32", seed=0):
    return (np.random.default_rng(seed).standard_normal(shape) * 50).astype(DTYPES[dtype].storage)


# --- sums --------------------------------------------------------------------------------------------------------


@jit
def add_all(xs, dtype=None):
    out = nl.ndarray(xs[0].shape, dtype or xs[0].dtype, buffer=nl.shared_hbm)
    nisa.dma_compute(out, xs, nl.add)
    return out


def test_the_public_signature():
    names = ["dst", "srcs", "reduce_op", "scales", "unique_indices", "oob_mode", "name"]
    signature = inspect.signature(nisa.dma_compute)
    assert list(signature.parameters) == names
    assert [signature.parameters[n].default for n in names[3:5]] == [None, True]


@pytest.mark.parametrize("count", [1, 2, 3, 9, 10, 16])
def test_inputs_add_up_in_order_in_float32(count):
    xs = [random(3, 40, seed=i) for i in range(count)]
    total = xs[0]
    for x in xs[1:]:
        total = total + x
    assert add_all(xs).tobytes() == total.tobytes()
    assert np.allclose(total, sum(x.astype(np.float64) for x in xs), atol=1e-4)


@pytest.mark.parametrize("dst", ["float32", "bfloat16", "int8", "uint16"])
def test_any_dtypes_meet_in_float32(dst):
    xs = [random(2, 30, seed=1).astype(t) for t in (np.float16, ml_dtypes.float8_e5m2, np.int16, ml_dtypes.bfloat16)]
    wide = np.zeros((2, 30), np.float32)
    for x in xs:
        wide = wide + x.astype(np.float32)
    storage = DTYPES[dst].storage
    if DTYPES[dst].is_int:
        info = np.iinfo(storage)
        wide = np.clip(np.rint(wide), info.min, info.max)
    assert add_all(xs, getattr(nl, dst)).tobytes() == wide.astype(storage).tobytes()


def test_one_input_is_no_bit_copy_and_extremes_stay():
    whole = np.array([[2**24 + 1, 2**31 - 1]], np.int32)
    assert add_all([whole]).tolist() == [[2**24, 2**31 - 1]]  # 2^31 saturates
    odd = np.array([[np.inf, -np.inf, np.nan, -0.0, 1e-45, 3e38]], np.float32)
    twice = add_all([odd, odd.copy()])
    assert twice[0, :2].tolist() == [np.inf, -np.inf] and np.isnan(twice[0, 2]) and np.signbit(twice[0, 3])
    assert twice[0, 4] == np.float32(3e-45) and twice[0, 5] == np.inf


def test_shapes_pair_in_row_major_order_between_hbm_and_sbuf():
    @jit
    def kernel(x, y):
        tile, out = nl.ndarray((4, 6), nl.float32), nl.ndarray((3, 8), nl.float32, buffer=nl.shared_hbm)
        nisa.dma_compute(tile, [x, y], reduce_op=nl.add, scales=(1.0, 1))
        nisa.dma_compute(dst=tile[:, 2:6], srcs=(tile[:, 0:4], tile[:, 2:6]), reduce_op=nl.add)  # dst is an input
        nisa.dma_compute(out, (tile,), nl.add)
        return out

    x, y = random(24), random(2, 3, 4, seed=1)
    tile = (x.reshape(4, 6) + y.reshape(4, 6)).copy()
    tile[:, 2:6] = tile[:, 0:4] + tile[:, 2:6]
    assert kernel(x, y).tobytes() == tile.tobytes()


def test_the_text_names_each_input_and_parses_back():
    module = add_all.compile([random(2, 8), random(2, 8, seed=1)]).modules
    assert "srcs_0=" in str(module[Stage.TRACE]) and "srcs_1=" in str(module[Stage.BIR])
    for stage in Stage:
        again = parse(str(module[stage]))
        verify(again)
        assert again == module[stage]


def test_never_written_inputs_are_found():
    @jit
    def kernel(x):
        tile, out = nl.ndarray((4, 6), nl.float32), nl.ndarray((4, 6), nl.float32, buffer=nl.shared_hbm)
        nisa.dma_compute(out, [x, tile], nl.add)
        return out

    refused(lambda: kernel(random(4, 6)), "E501", "never-written")


# --- rows --------------------------------------------------------------------------------------------------------


@jit
def gather_add(table, index, tile, skip=False, first=False):
    rows, sum_ = nl.ndarray(index.shape, index.dtype), nl.ndarray(tile.shape, tile.dtype)
    out = nl.ndarray(tile.shape, tile.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(rows, index)
    nisa.dma_copy(sum_, tile)
    chosen = table.ap([[table.shape[1], index.shape[0]], [1, table.shape[1]]], vector_offset=rows, indirect_dim=0)
    mode = nisa.oob_mode.skip if skip else nisa.oob_mode.error
    srcs = [chosen, sum_] if first else [sum_, chosen]
    nisa.dma_compute(dst=sum_, srcs=srcs, reduce_op=nl.add, unique_indices=True, oob_mode=mode)
    nisa.dma_copy(out, sum_)
    return out


@jit
def scatter_add(table, index, tile, skip=False):
    rows, new = nl.ndarray(index.shape, index.dtype), nl.ndarray(tile.shape, tile.dtype)
    nisa.dma_copy(rows, index)
    nisa.dma_copy(new, tile)
    chosen = table.vector_select(0, rows)
    mode = nisa.oob_mode.skip if skip else nisa.oob_mode.error
    nisa.dma_compute(chosen, [new, chosen], nl.add, oob_mode=mode)
    return table


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_rows_are_added_to_a_tile(first, dtype):
    table, tile = random(9, 12).astype(dtype), random(5, 12, seed=1)
    index = np.array([[3], [8], [0], [3], [5]], np.int32)  # rows may be read twice
    expected = tile + table[index[:, 0]].astype(np.float32)
    assert gather_add(table, index, tile, first=first).tobytes() == expected.tobytes()


def test_a_tile_is_added_to_rows():
    table, tile = random(9, 12), random(4, 12, seed=1)
    index = np.array([[3], [8], [0], [5]], np.uint32)
    expected = table.copy()
    expected[index[:, 0]] += tile
    assert scatter_add(table, index, tile) is table
    assert table.tobytes() == expected.tobytes()


@pytest.mark.parametrize("bad", [-1, 9, 2**31 - 1, -(2**31)])
def test_rows_outside_are_an_error_or_left_out(bad):
    table, tile = random(9, 12), random(3, 12, seed=1)
    index = np.array([[3], [bad], [8]], np.int32)
    refused(lambda: gather_add(table, index, tile), "E308", f"index {bad}")
    refused(lambda: scatter_add(table.copy(), index, tile), "E308", f"index {bad}")
    expected = tile.copy()
    expected[[0, 2]] += table[[3, 8]]
    assert gather_add(table, index, tile, skip=True).tobytes() == expected.tobytes()
    expected = table.copy()
    expected[[3, 8]] += tile[[0, 2]]
    assert scatter_add(table, index, tile, skip=True).tobytes() == expected.tobytes()


def test_rows_that_meet_are_found():
    table, tile = random(9, 12), random(3, 12, seed=1)
    index = np.array([[3], [8], [3]], np.int32)
    refused(lambda: scatter_add(table.copy(), index, tile), "E308", "index 3 occurs 2 times")
    index[::2] = 99  # twice the same, but left out
    expected = table.copy()
    expected[8] += tile[1]
    assert scatter_add(table, index, tile, skip=True).tobytes() == expected.tobytes()


def test_read_modify_write_waits_for_what_wrote_the_rows_and_is_waited_for():
    @jit
    def kernel(x, index):
        rows, tile = nl.ndarray((4, 1), nl.int32), nl.ndarray((4, 8), nl.float32)
        table = nl.ndarray((6, 8), nl.float32, buffer=nl.hbm)
        out = nl.ndarray((6, 8), nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(rows, index)
        nisa.dma_copy(table, x)
        nisa.memset(tile, 1.0)
        chosen = table.vector_select(0, rows)
        for _ in range(3):
            nisa.dma_compute(chosen, [chosen, tile], nl.add)
            nisa.tensor_scalar(tile, tile, nl.multiply, 2.0)
        nisa.dma_copy(out, table)
        return out

    x, index = random(6, 8), np.array([[5], [0], [2], [3]], np.int32)
    expected = x.copy()
    for step in (1, 2, 4):
        expected[index[:, 0]] += np.float32(step)
    assert kernel(x, index).tobytes() == expected.tobytes()


# --- what is refused ---------------------------------------------------------------------------------------------


def call(make, shape=(4, 6)):
    """A kernel that calls dma_compute with what make(x, tile, rows, out) returns."""

    @jit
    def kernel(x, index):
        rows, tile = nl.ndarray((4, 1), nl.int32), nl.zeros(shape, nl.float32)
        nisa.dma_copy(rows, index)
        out = nl.zeros((4, 6), nl.float32, buffer=nl.shared_hbm)
        arguments = {"dst": out, "reduce_op": nl.add, **make(x, tile, rows, out)}
        nisa.dma_compute(**arguments)
        return out

    return lambda: kernel(random(4, 6), np.arange(4, dtype=np.int32)[:, None])


def test_lists_are_refused():
    call(lambda x, t, rows, out: {"srcs": [x] * 16})()
    refused(call(lambda x, t, rows, out: {"srcs": [x] * 17}), "E102", "17 tensors")
    refused(call(lambda x, t, rows, out: {"srcs": []}), "E109", "1 to 16 tensors")
    refused(call(lambda x, t, rows, out: {"srcs": x}), "E109", "write [tensor]")
    refused(call(lambda x, t, rows, out: {"srcs": [x, 2.0]}), "E109", "a tensor")
    refused(call(lambda x, t, rows, out: {"srcs": [x, None]}), "E109", "list or tuple")
    refused(call(lambda x, t, rows, out: {"srcs": [x, t]}, (4, 5)), "E104", "20 elements for 24")


def test_attributes_are_refused():
    refused(call(lambda x, t, rows, out: {"srcs": [x], "reduce_op": nl.maximum}), "E105", "maximum")
    refused(call(lambda x, t, rows, out: {"srcs": [x, t], "scales": [1.0]}), "E105", "1.0 for each")
    refused(call(lambda x, t, rows, out: {"srcs": [x, t], "scales": [1.0, 0.5]}), "E105", "1.0 for each")
    refused(call(lambda x, t, rows, out: {"srcs": [x, t], "scales": 1.0}), "E105", "list or tuple of numbers")
    refused(call(lambda x, t, rows, out: {"srcs": [x], "oob_mode": nisa.oob_mode.skip}), "E105", "without a dynamic")
    refused(call(lambda x, t, rows, out: {"srcs": [x], "dge_mode": nisa.dge_mode.swdge}), "E110", "dge_mode")


def test_memories_and_dtypes_are_refused():
    def psum(x, t, rows, out):
        return {"srcs": [nl.zeros((4, 6), nl.float32, buffer=nl.psum)]}

    def packed(x, t, rows, out):
        return {"srcs": [x.view(nl.float8_e4m3fn_x4)]}

    refused(call(psum), "E101", "psum")
    refused(call(packed), "E103", "x4")


def test_indirect_forms_are_refused():
    def gather(**changes):
        return lambda x, t, rows, out: {"dst": t, "srcs": [x.vector_select(0, rows), t], **changes}

    call(gather())()
    refused(call(gather(unique_indices=False)), "E105", "unique_indices")
    refused(call(lambda x, t, rows, out: {"srcs": [x.vector_select(0, rows)], "dst": t}), "E105", "1 inputs")
    refused(call(lambda x, t, rows, out: {"srcs": [x.vector_select(0, rows), t, t], "dst": t}), "E105", "3 inputs")
    refused(call(lambda x, t, rows, out: {"srcs": [x.vector_select(0, rows), x], "dst": t}), "E105", "gather")
    refused(call(lambda x, t, rows, out: {"srcs": [x.vector_select(0, rows), out]}), "E105", "dst in SBUF")
    refused(call(lambda x, t, rows, out: {"srcs": [x.vector_select(0, rows)] * 2, "dst": t}), "E105", "gather")
    refused(call(lambda x, t, rows, out: {"srcs": [t, t], "dst": out.vector_select(0, rows)}), "E105", "scatter")
    refused(call(lambda x, t, rows, out: {"srcs": [x.vector_select(0, rows), t], "dst": out.vector_select(0, rows)}),
            "E105", "scatter")
    refused(call(lambda x, t, rows, out: {"srcs": [out.vector_select(0, rows)] * 2, "dst": out.vector_select(0, rows)}),
            "E105", "scatter")


def test_a_scalar_offset_is_refused():
    def dynamic(x, t, rows, out):
        return {"srcs": [x.select(0, rows[0:1])], "dst": out[0]}

    refused(call(dynamic), "E303", "scalar offset")


def test_gaps_in_the_text_are_refused():
    text = """kernel @k stage=trace target=gen3 {
        shared %y: float32[4,8] @shared_hbm
        core 0 {
            %a: float32[4,8] @sbuf
            dma_compute dst=%y srcs_0=%a SECOND=%a reduce_op=add
        }
    }"""
    verify(parse(text.replace("SECOND", "srcs_1")))
    refused(lambda: verify(parse(text.replace("SECOND", "srcs_2"))), "E109", "without gaps")
