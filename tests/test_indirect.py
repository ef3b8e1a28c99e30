"""Indirect views: every instruction that takes one against the same instruction on gathered tiles, and what is refused."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from opennki import KernelError, jit
from opennki import isa as nisa
from opennki import language as nl
from opennki.backend import executor, plan
from opennki.ir.graph import Stage
from opennki.ir.parser import parse
from opennki.ir.verifier import verify

FEW = settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
BF16 = ml_dtypes.bfloat16


def refused(run, code, text):
    with pytest.raises(KernelError) as error:
        run()
    assert error.value.code == code and text in str(error.value), str(error.value)


def columns(index, count, group=16):
    """int[P, count]: the column of each element, index by index as the page tells it."""
    rows = len(index)
    place = [[(p // group * group + j % group, j // group) for j in range(count)] for p in range(rows)]
    return np.array([[int(index[at]) for at in row] for row in place])


def gathered(tile, index, count, group=16):
    return np.take_along_axis(tile.reshape(len(tile), -1), columns(index, count, group), axis=1)


def random_index(rows, width, bound, seed=0, dtype=np.int32):
    return np.random.default_rng(seed).integers(0, bound, (rows, width)).astype(dtype)


def distinct_index(rows, width, bound, group=16, seed=0):
    """An index whose groups name no element twice."""
    rng = np.random.default_rng(seed)
    index = np.empty((rows, width), np.int32)
    for first in range(0, rows, group):
        index[first : first + group] = rng.permutation(bound)[: group * width].reshape(group, width)
    return index


def floats(*shape, seed=0, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


# --- gathers -----------------------------------------------------------------------------------------------------


def copy(view):
    dst = nl.ndarray(view.shape, view.dtype)
    nisa.tensor_copy(dst, view)
    return dst


@FEW
@given(data=st.data())
def test_a_copy_gathers_any_columns(on_tiles, data):
    rows, width = data.draw(st.sampled_from([16, 32, 48, 64, 128])), data.draw(st.integers(1, 4))
    bound, count = data.draw(st.integers(1, 60)), data.draw(st.integers(1, 16 * width))
    dtype = data.draw(st.sampled_from([np.float32, BF16, np.int8, np.uint16]))
    tile = floats(rows, bound).view(np.uint32).astype(np.uint8).view(np.int8).astype(dtype)
    index = random_index(rows, width, bound, dtype=data.draw(st.sampled_from([np.int16, np.uint16, np.int32, np.uint32])))
    result = on_tiles(lambda t, i: copy(t.indirect(i, count)), tile, index, target="gen4")
    assert result.tobytes() == gathered(tile, index, count).tobytes()


def test_by_default_each_index_is_used(on_tiles):
    tile, index = floats(32, 9), random_index(32, 2, 9)
    result = on_tiles(lambda t, i: copy(t.indirect(i)), tile, index, target="gen4")
    assert result.tobytes() == gathered(tile, index, 32).tobytes()


def test_offsets_count_in_elements_of_the_view(on_tiles):
    """A strided slice, merged dimensions, and an index that is itself a slice."""
    tile, index = floats(16, 4, 30), random_index(16, 6, 9)

    def emit(t, i):
        return [copy(t[:, 1, 3:30:3].indirect(i[:, 1:3], 20)), copy(t[:, 2:4].indirect(i[:, ::2], 40))]

    one, two = on_tiles(emit, tile, index, target="gen4")
    assert one.tobytes() == gathered(tile[:, 1, 3:30:3], index[:, 1:3], 20).tobytes()
    assert two.tobytes() == gathered(tile[:, 2:4], index[:, ::2], 40).tobytes()


def test_from_psum_and_from_a_later_quadrant(on_tiles):
    def emit(t, i):
        psum = nl.ndarray(t.shape, t.dtype, buffer=nl.psum)
        nisa.tensor_copy(psum, t)
        return [copy(psum.indirect(i, 17)), copy(t[32:64].indirect(i[32:64], 5))]

    tile, index = floats(64, 12), random_index(64, 2, 12)
    psum, part = on_tiles(emit, tile, index, target="gen4")
    assert psum.tobytes() == gathered(tile, index, 17).tobytes()
    assert part.tobytes() == gathered(tile[32:64], index[32:64], 5).tobytes()


def out(shape, dtype=nl.float32):
    return nl.zeros(shape, dtype)


def tensor_tensor(view, other):
    nisa.tensor_tensor(dst := out(view.shape), view, other, nl.subtract)
    return dst


def tensor_scalar(view, other):
    nisa.tensor_scalar(dst := out(view.shape), view, nl.multiply, 3.0, op1=nl.add, operand1=other[:, 0:1])
    return dst


def tensor_reduce(view, other):
    nisa.tensor_reduce(dst := out((view.shape[0], 1)), nl.add, view, axis=1)
    return dst


def activation(view, other):
    dst, total = out(view.shape), out((view.shape[0], 1))
    nisa.activation(dst, nl.square, view, other[:, 1:2], reduce_op=nl.add, reduce_res=total,
                    reduce_cmd=nisa.reduce_cmd.reset_reduce)
    return [dst, total]


def activation_reduce(view, other):
    dst, total = out(view.shape), out((view.shape[0], 1))
    nisa.activation_reduce(dst, nl.exp, view, nl.add, total)
    return [dst, total]


def activate2(view, other):
    nisa.activate2(dst := out(view.shape), nl.copy, view, 2.0, 1.0, nl.multiply, nl.add)
    return dst


def tensor_scalar_reduce(view, other):
    dst, total = out(view.shape), out((view.shape[0], 1))
    nisa.tensor_scalar_reduce(dst, view, nl.add, other[:, 0:1], nl.maximum, total)
    return [dst, total]


def tensor_scalar_cumulative(view, other):
    nisa.tensor_scalar_cumulative(dst := out(view.shape), view, nl.multiply, nl.add, 0.5)
    return dst


def exponential(view, other):
    nisa.exponential(dst := out(view.shape), view, other[:, 0:1])
    return dst


def predicated(view, other):
    nisa.tensor_copy_predicated(dst := out(view.shape), other, view.view(nl.uint32) if not view.is_indirect() else view)
    return dst


GATHERS = [tensor_tensor, tensor_scalar, tensor_reduce, activation, activation_reduce, activate2, tensor_scalar_reduce,
           tensor_scalar_cumulative, exponential]


@pytest.mark.parametrize("body", GATHERS, ids=lambda body: body.__name__)
def test_an_input_may_be_indirect(on_tiles, body):
    tile, index, other = floats(32, 21), random_index(32, 2, 21), floats(32, 25, seed=1)
    indirect = on_tiles(lambda t, i, o: body(t.indirect(i, 25), o), tile, index, other, target="gen4")
    direct = on_tiles(body, gathered(tile, index, 25), other, target="gen4")
    for one, expected in zip(*(r if isinstance(r, list) else [r] for r in (indirect, direct)), strict=True):
        assert one.tobytes() == expected.tobytes() and one.any()


def test_a_predicate_may_be_indirect(on_tiles):
    predicate, index, other = random_index(32, 21, 2, dtype=np.uint8), random_index(32, 2, 21), floats(32, 25, seed=1)
    result = on_tiles(lambda t, i, o: predicated(t.indirect(i, 25), o), predicate, index, other, target="gen4")
    assert result.tobytes() == np.where(gathered(predicate, index, 25), other, np.float32(0)).tobytes()


@pytest.mark.parametrize("which", ["stationary", "moving", "both"])
def test_a_matmul_gathers_in_groups_of_32_partitions(on_tiles, which):
    def emit(stationary, moving, index):
        st_ = stationary.indirect(index, 40) if which != "moving" else stationary
        mv = moving.indirect(index, 50) if which != "stationary" else moving
        dst, result = nl.ndarray((st_.shape[1], mv.shape[1]), nl.float32, buffer=nl.psum), out((st_.shape[1], mv.shape[1]))
        nisa.nc_matmul(dst, st_, mv)
        nisa.tensor_copy(result, dst)
        return result

    stationary, moving, index = floats(64, 20, dtype=BF16), floats(64, 20, seed=1, dtype=BF16), random_index(64, 2, 20)
    result = on_tiles(emit, stationary, moving, index, target="gen4")
    if which != "moving":
        stationary = gathered(stationary, index, 40, 32)
    if which != "stationary":
        moving = gathered(moving, index, 50, 32)
    assert np.allclose(result, stationary.astype(np.float64).T @ moving.astype(np.float64), rtol=1e-4, atol=1e-4)


def test_a_transposing_matmul_gathers_what_it_transposes(on_tiles):
    def emit(tile, index, eye):
        dst, result = nl.ndarray((30, 32), nl.bfloat16, buffer=nl.psum), out((30, 32), nl.bfloat16)
        nisa.nc_matmul(dst, tile.indirect(index, 30), eye, is_transpose=True)
        nisa.tensor_copy(result, dst)
        return result

    tile, index = floats(32, 20, dtype=BF16), random_index(32, 1, 20)
    result = on_tiles(emit, tile, index, np.eye(32, dtype=BF16), target="gen4")
    assert result.tobytes() == gathered(tile, index, 30, 32).T.tobytes()


def mx(make):
    """An MX matmul of what make(tiles) returns: (stationary, moving, stationary_scale, moving_scale)."""

    def emit(*tiles):
        stationary, moving, *scales = make(*tiles)
        dst, result = nl.ndarray((40, 16), nl.float32, buffer=nl.psum), out((40, 16))
        nisa.nc_matmul_mx(dst, stationary, moving, *scales)
        nisa.tensor_copy(result, dst)
        return result

    return emit


def mx_tiles():
    rng = np.random.default_rng(0)
    words = [rng.integers(0, 64, (32, n, 4), np.uint8).view(np.uint32)[..., 0] for n in (20, 16)]  # small e4m3 numbers
    scales = [rng.integers(124, 130, (32, n), np.uint8) for n in (20, 16)]
    return *words, *scales, random_index(32, 2, 20)


def test_an_mx_tile_and_its_scales_are_gathered_alike(on_tiles):
    def view(tile):
        return tile.view(nl.float8_e4m3fn_x4)

    stationary, moving, scale, moving_scale, index = mx_tiles()
    indirect = on_tiles(
        mx(lambda s, m, ss, ms, i: (view(s).indirect(i, 40), view(m), ss.indirect(i, 40), ms)),
        stationary, moving, scale, moving_scale, index, target="gen4",
    )
    direct = on_tiles(
        mx(lambda s, m, ss, ms: (view(s), view(m), ss, ms)),
        gathered(stationary, index, 40, 32), moving, gathered(scale, index, 40, 32), moving_scale, target="gen4",
    )
    assert indirect.tobytes() == direct.tobytes() and indirect.any()


def test_an_mx_tile_and_its_scales_have_one_index(on_tiles):
    def run(scale):
        body = mx(lambda s, m, ss, ms, i: (s.view(nl.float8_e4m3fn_x4).indirect(i, 40), m.view(nl.float8_e4m3fn_x4),
                                           scale(ss, i), ms))
        return lambda: on_tiles(body, *mx_tiles(), target="gen4")

    refused(run(lambda scale, index: nl.zeros((32, 40), nl.uint8)), "E105", "the same index")
    refused(run(lambda scale, index: scale.indirect(nl.zeros((32, 2), nl.int32), 40)), "E105", "the same index")


# --- scatters ----------------------------------------------------------------------------------------------------


def into(view, source):
    """Instructions that write all of a view."""
    number = [("tensor_copy", lambda: nisa.tensor_copy(view, source)),
              ("tensor_tensor", lambda: nisa.tensor_tensor(view, source, source, nl.add)),
              ("tensor_scalar", lambda: nisa.tensor_scalar(view, source, nl.multiply, 2.0)),
              ("activation", lambda: nisa.activation(view, nl.copy, source)),
              ("activate2", lambda: nisa.activate2(view, nl.copy, source, 2.0, 1.0, nl.multiply, nl.add)),
              ("exponential", lambda: nisa.exponential(view, source)),
              ("cumulative", lambda: nisa.tensor_scalar_cumulative(view, source, nl.multiply, nl.add, 1.0)),
              ("reduce", lambda: nisa.tensor_reduce(view, nl.add, source.reshape((32, 25, 1)), axis=2))]
    return dict(number)


@pytest.mark.parametrize("name", into(None, None))
@pytest.mark.parametrize("buffer", [nl.sbuf, nl.psum])
def test_a_destination_may_be_indirect(on_tiles, name, buffer):
    if buffer is nl.psum and name.startswith("activat"):
        return  # refused, see below

    def emit(source, index, old):
        tile, direct, left = nl.ndarray((32, 40), nl.float32, buffer=buffer), out((32, 25)), out((32, 40))
        nisa.tensor_copy(tile, old)
        into(tile.indirect(index, 25), source)[name]()
        into(direct, source)[name]()
        nisa.tensor_copy(left, tile)
        return [left, direct]

    source, index, old = floats(32, 25), distinct_index(32, 2, 40), floats(32, 40, seed=1)
    left, direct = on_tiles(emit, source, index, old, target="gen4")
    expected = old.copy()
    np.put_along_axis(expected, columns(index, 25), direct, axis=1)
    assert left.tobytes() == expected.tobytes() and (left != old).any()


def test_of_columns_that_meet_the_last_stays(on_tiles):
    def emit(source, index):
        tile = nl.zeros((16, 5), nl.float32)
        nisa.tensor_copy(tile.indirect(index, 16), source)
        return tile

    source, index = floats(16, 16), random_index(16, 1, 5)
    expected = np.zeros((16, 5), np.float32)
    for j in range(16):
        expected[:, index[j, 0]] = source[:, j]
    assert on_tiles(emit, source, index, target="gen4").tobytes() == expected.tobytes()


def test_unselected_elements_of_a_scattered_tile_stay(on_tiles):
    """tensor_copy_predicated leaves them; so do elements that no index names."""

    def emit(source, index, predicate, old):
        nisa.tensor_copy_predicated(old.indirect(index, 30), source, predicate)
        return old

    source, index, old = floats(32, 30), distinct_index(32, 2, 40), floats(32, 40, seed=1)
    predicate = random_index(32, 30, 2, dtype=np.uint8)
    expected = old.copy()
    chosen = np.where(predicate, source, gathered(old, index, 30))
    np.put_along_axis(expected, columns(index, 30), chosen, axis=1)
    assert on_tiles(emit, source, index, predicate, old, target="gen4").tobytes() == expected.tobytes()


def test_a_matmul_scatters_and_adds(on_tiles):
    def emit(stationary, moving, index):
        dst, result = nl.ndarray((32, 60), nl.float32, buffer=nl.psum), out((32, 60))
        nisa.memset(dst, 0.0)
        nisa.nc_matmul(dst.indirect(index, 50), stationary, moving, accumulate=False)
        nisa.nc_matmul(dst.indirect(index, 50), stationary, moving, accumulate=True)
        nisa.tensor_copy(result, dst)
        return result

    stationary, moving = floats(32, 32, dtype=BF16), floats(32, 50, seed=1, dtype=BF16)
    index = np.zeros((32, 2), np.int32)
    for j, column in enumerate(np.random.default_rng(2).permutation(60)[:50]):
        index[j % 32, j // 32] = column
    result = on_tiles(emit, stationary, moving, index, target="gen4")
    expected = np.zeros((32, 60))
    product = 2 * (stationary.astype(np.float64).T @ moving.astype(np.float64))
    np.put_along_axis(expected, columns(index, 50, 32), product, axis=1)
    assert np.allclose(result, expected, rtol=1e-4, atol=1e-4)


def test_one_instruction_gathers_and_scatters_the_same_tile(on_tiles):
    def emit(tile, index, there):
        nisa.tensor_copy(tile.indirect(there, 16), tile.indirect(index, 16))
        return tile

    tile, index, there = floats(16, 16), random_index(16, 1, 16), distinct_index(16, 1, 16, seed=4)
    expected = tile.copy()
    np.put_along_axis(expected, columns(there, 16), gathered(tile, index, 16), axis=1)
    assert on_tiles(emit, tile, index, there, target="gen4").tobytes() == expected.tobytes()


# --- the pipeline ------------------------------------------------------------------------------------------------


@jit
def moves(x, index):
    tile = nl.ndarray(x.shape, x.dtype)
    rows = nl.ndarray(index.shape, index.dtype)
    sum_ = nl.zeros((32, 20), x.dtype)
    out_ = nl.ndarray((32, 20), x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(tile, x)
    nisa.dma_copy(rows, index)
    for _ in range(3):
        nisa.tensor_tensor(sum_, tile.indirect(rows, 20), sum_, nl.add)
        nisa.tensor_copy(tile.indirect(rows, 20), sum_, engine=nisa.engine.scalar)
        nisa.tensor_scalar(rows, rows, nl.bitwise_xor, 1)
    nisa.dma_copy(out_, sum_)
    return out_


def test_every_order_that_the_semaphores_allow_gives_the_same_bits():
    x, index = floats(32, 22), random_index(32, 2, 22)
    compiled = moves.with_target("gen4").compile(x, index)
    module = compiled.modules[Stage.BIR]
    arrays = {param.name: array for param, array in zip(module.params, (x, index), strict=True)}
    expected = executor.run(plan.build(module), arrays)[0].tobytes()
    tile, columns_, total = x.copy(), index.copy(), np.zeros((32, 20), np.float32)
    for _ in range(3):
        total = total + gathered(tile, columns_, 20)
        for p in range(32):
            for j, column in enumerate(columns(columns_, 20)[p]):
                tile[p, column] = total[p, j]
        columns_ ^= 1
    assert expected == total.tobytes()
    for seed in range(8):
        assert executor.run(plan.build(module, shuffle=seed), arrays)[0].tobytes() == expected


def test_the_text_reads_back_at_every_stage():
    modules = moves.with_target("gen4").compile(floats(32, 22), random_index(32, 2, 22)).modules
    assert "data1=%tile.indirect(%rows, 20)" in str(modules[Stage.TRACE])
    assert "[0 x 20] + (columns" in str(modules[Stage.PENGUIN]) and "(columns sbuf[0:32" in str(modules[Stage.BIR])
    for module in modules.values():
        again = parse(str(module))
        verify(again)
        assert again == module


def test_an_index_outside_stops_the_run(on_tiles):
    tile, index = floats(16, 7), random_index(16, 2, 7)
    index[5, 1] = 7
    on_tiles(lambda t, i: copy(t.indirect(i, 21)), tile, index, target="gen4")  # that one is not used
    refused(lambda: on_tiles(lambda t, i: copy(t.indirect(i, 22)), tile, index, target="gen4"), "E308", "index 7")
    index[0, 0] = -1
    refused(lambda: on_tiles(lambda t, i: copy(t.indirect(i, 1)), tile, index, target="gen4"), "E308", "index -1")


def test_never_written_indices_and_tiles_are_found(on_tiles):
    def emit(write_index, write_tile, count):
        def body(x, some):
            tile, index = nl.ndarray(x.shape, x.dtype), nl.ndarray((16, 2), nl.int32)
            if write_index:
                nisa.tensor_copy(index[:, 0:1], some)
            if write_tile:
                nisa.tensor_copy(tile[:, :4], x[:, :4])
            return copy(tile.indirect(index, count))

        return lambda: on_tiles(body, floats(16, 8), random_index(16, 1, 4), target="gen4")

    emit(True, True, 16)()
    refused(emit(True, True, 17), "E501", "dynamic address")
    refused(emit(False, True, 1), "E501", "dynamic address")
    refused(emit(True, False, 16), "E501", "never-written")


# --- what is refused ---------------------------------------------------------------------------------------------


def attempt(on_tiles, body, target="gen4"):
    """body(tile, index): float32 (32,40) and int32 (32,2) tiles."""

    def emit(tile, index):
        body(tile, index)
        return tile

    return lambda: on_tiles(emit, floats(32, 40), random_index(32, 2, 40), target=target)


def test_views_are_refused(on_tiles):
    def view(make):
        return attempt(on_tiles, lambda t, i: make(t, i))

    refused(view(lambda t, i: t.indirect(i)[:, 0:4]), "E303", "indirect as the last step")
    refused(view(lambda t, i: t.indirect(i).reshape((32, 8, 4))), "E303", "indirect as the last step")
    refused(view(lambda t, i: t.indirect(i).indirect(i)), "E303", "indirect as the last step")
    refused(view(lambda t, i: t.select(1, i[0:1, 0:1]).indirect(i)), "E303", "already dynamically addressed")
    refused(view(lambda t, i: t.indirect(i[0:16])), "E303", "(32, K)")
    refused(view(lambda t, i: t.indirect(3)), "E301", "cannot be an index")
    refused(view(lambda t, i: t.indirect(i, 0)), "E303", "1 to 64")
    refused(view(lambda t, i: t.indirect(i, 65)), "E303", "1 to 64")
    refused(view(lambda t, i: t.indirect(i, 2.5)), "E301", "not an integer")
    refused(view(lambda t, i: t.reshape((32, 5, 8))[:, :, 0:3].indirect(i)), "E305", "one stride")
    refused(view(lambda t, i: t[:, 0:1].broadcast(1, 4).indirect(i)), "E305", "one stride")
    refused(view(lambda t, i: nl.ndarray((32, 40), nl.float32, buffer=nl.hbm).indirect(i)), "E303", "in HBM")


def test_a_view_of_more_elements_than_the_group_has_indices_is_refused(on_tiles):
    refused(attempt(on_tiles, lambda t, i: copy(t.indirect(i, 33))), "E303", "32 indices in 2 columns of 16")


def test_targets_and_partitions_are_refused(on_tiles):
    refused(attempt(on_tiles, lambda t, i: copy(t.indirect(i)), "gen3"), "E108", "gen4")
    refused(attempt(on_tiles, lambda t, i: copy(t[0:24].indirect(i[0:24]))), "E104", "multiple of 16")


def test_indices_of_other_kinds_are_refused(on_tiles):
    def index(dtype, buffer=nl.sbuf):
        return attempt(on_tiles, lambda t, i: copy(t.indirect(nl.zeros((32, 2), dtype, buffer=buffer))))

    index(nl.uint16)()
    refused(index(nl.float32), "E303", "an index of float32")
    refused(index(nl.uint8), "E303", "an index of uint8")
    refused(index(nl.int32, nl.psum), "E303", "in psum")
    refused(attempt(on_tiles, lambda t, i: copy(t.indirect(t.view(nl.int32).indirect(i)))), "E303", "itself dynamically")


def test_operands_that_may_not_be_indirect(on_tiles):
    def direct(make):
        return attempt(on_tiles, lambda t, i: make(t, t.indirect(i, 32), nl.zeros((32, 32), nl.float32)))

    refused(direct(lambda t, v, d: nisa.tensor_tensor(d, d, v, nl.add)), "E303", "indirect: dst, data1")
    refused(direct(lambda t, v, d: nisa.nc_transpose(d, v)), "E303", "no operand")
    refused(direct(lambda t, v, d: nisa.dma_copy(d, v)), "E303", "no operand")
    refused(direct(lambda t, v, d: nisa.tensor_copy_predicated(d, v, t[:, 0:32].view(nl.uint32))), "E303", "dst, predicate")
    refused(attempt(on_tiles, lambda t, i: nisa.tensor_scalar(t, t, nl.add, t.indirect(i, 1))), "E303", "dst, data")


def test_engines_that_may_not(on_tiles):
    def scalar_into_psum(t, i):
        nisa.activation(nl.zeros((32, 40), nl.float32, buffer=nl.psum).indirect(i, 32), nl.copy, t[:, 0:32])

    refused(attempt(on_tiles, scalar_into_psum), "E101", "Scalar engine")
    copy_ = attempt(on_tiles, lambda t, i: nisa.tensor_copy(out((32, 4)), t.indirect(i, 4), engine=nisa.engine.gpsimd))
    refused(copy_, "E106", "vector or scalar")
    attempt(on_tiles, lambda t, i: nisa.tensor_copy(out((32, 4)), t.indirect(i, 4), engine=nisa.engine.scalar))()


def test_integer_arithmetic_takes_no_indirect_views(on_tiles):
    def address_form(t, i):
        nisa.tensor_scalar(nl.zeros((32, 8), nl.int32), t.view(nl.int32).indirect(i, 8), nl.add, 1)

    refused(attempt(on_tiles, address_form), "E303", "integer arithmetic")


def test_matmuls_that_may_not(on_tiles):
    def matmul(dtype=nl.bfloat16, moving=False, **more):
        def body(t, i):
            data, eye = nl.zeros((32, 32), dtype), nl.zeros((32, 32), dtype)
            kind = dtype if more.get("is_transpose") else nl.float32
            dst = nl.ndarray((32, 32), kind, buffer=nl.psum)
            views = (data, eye.indirect(i, 32)) if moving else (data.indirect(i, 32), eye)
            nisa.nc_matmul(dst, *views, **more)

        return attempt(on_tiles, body)

    matmul()()
    matmul(tile_position=(0, 0), tile_size=(32, 32))()
    refused(matmul(nl.float32), "E103", "float32 with an indirect")
    refused(matmul(moving=True, is_transpose=True), "E105", "static identity")
    matmul(is_transpose=True)()


def test_an_index_lies_where_its_tile_does(on_tiles):
    def placed(tile, index):
        def body(t, i):
            where = nl.ndarray((32, 8), nl.float32, address=(tile, 4096))
            chosen = nl.ndarray((32, 1), nl.int32, address=(index, 8192))
            nisa.tensor_copy(where, t[:, 0:8])
            nisa.memset(chosen, 3)
            copy(where.indirect(chosen))

        return attempt(on_tiles, body)

    placed(32, 32)()
    placed(0, 0)()
    refused(placed(32, 64), "E102", "partition 64")
    refused(attempt(on_tiles, lambda t, i: copy(t[0:16].indirect(i[16:32]))), "E102", "partition 16")


def test_the_index_of_a_destination_lies_where_the_input_does(on_tiles):
    def scatter(source, index):
        def body(t, i):
            where = nl.zeros((32, 8), nl.float32)
            data = nl.ndarray((32, 4), nl.float32, address=(source, 4096))
            chosen = nl.ndarray((32, 1), nl.int32, address=(index, 8192))
            nisa.tensor_copy(data, t[:, 0:4])
            nisa.memset(chosen, 3)
            nisa.tensor_copy(where.indirect(chosen, 4), data)

        return attempt(on_tiles, body)

    scatter(32, 32)()
    refused(scatter(32, 0), "E102", "partition 0")


def test_text_that_no_view_makes_is_refused():
    text = """kernel @k stage=penguin target=gen4 {
        core 0 {
            %t: float32[32,40] @sbuf
            %i: int32[32,2] @sbuf
            %d: float32[32,8] @sbuf
            vector.tensor_copy dst=%d{0:32 | 0 + [1 x 8]} src=%t{0:32 | 0 + PATTERN + INDEX}
        }
    }"""

    index = "(KIND %i{0:32 | 0 + [1 x 2]} * 1 in RANGE)"

    def check(pattern, legal="0:40", kind="columns"):
        place = index.replace("KIND", kind).replace("RANGE", legal)
        return lambda: verify(parse(text.replace("PATTERN", pattern).replace("INDEX", place)))

    check("[0 x 8]")()
    refused(check("[1 x 8]"), "E303", "[0 x count]")
    refused(check("[0 x 4] [0 x 2]"), "E303", "[0 x count]")
    refused(check("[0 x 8]", "0:41"), "E306", "element")
    refused(check("[0 x 8]", "-1:40"), "E303", "[0 x count]")
    refused(check("[0 x 8]", kind="rows"), "E603", "dynamic offset rows")
