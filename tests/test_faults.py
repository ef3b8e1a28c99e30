"""Faults that hostile tests found, one test each."""

from time import perf_counter

import numpy as np
import pytest

import opennki as nki
from opennki import KernelError
from opennki import isa as nisa
from opennki import language as nl
from opennki.frontend.tracer import Tracer
from opennki.ir.graph import Stage
from opennki.ir.machine import target

X = np.arange(32 * 32, dtype=np.float32).reshape(32, 32)


def turned_twice(tile):
    """The tile again, by two transposes: cancel-moves reads the first one where it may."""
    for _ in range(2):
        turned = nl.ndarray((32, 32), nl.float32)
        nisa.nc_transpose(turned, tile, engine=nisa.engine.vector)
        tile = turned
    return tile


def test_a_pinned_address_is_free_again_after_the_last_use_that_the_author_wrote():
    @nki.jit(target="gen3")
    def kernel(x):
        out = nl.ndarray((2, 32, 32), nl.float32, buffer=nl.shared_hbm)
        first = nl.ndarray((32, 32), nl.float32, address=(0, 0))
        nisa.dma_copy(first, x)
        again = turned_twice(first)
        second = nl.ndarray((32, 32), nl.float32, address=(0, 0))
        nisa.memset(second, 5.0)
        nisa.dma_copy(out[0], second)
        nisa.dma_copy(out[1], again)
        return out

    fives, same = kernel(X)
    assert (fives == 5).all() and (same == X).all()


def test_psum_banks_are_free_again_after_the_last_use_that_the_author_wrote():
    @nki.jit(target="gen3")
    def kernel(x):
        out = nl.ndarray((9, 32, 32), nl.float32, buffer=nl.shared_hbm)
        tile = nl.ndarray((32, 32), nl.float32)
        nisa.dma_copy(tile, x)
        kept = []
        for _ in range(9):  # one bank more than there are
            bank = nl.ndarray((32, 32), nl.float32, buffer=nl.psum)
            nisa.tensor_scalar(bank, tile, op0=nl.multiply, operand0=2.0)
            kept.append(turned_twice(bank))
        for i, again in enumerate(kept):
            result = nl.ndarray((32, 32), nl.float32)
            nisa.tensor_scalar(result, again, op0=nl.add, operand0=float(i))
            nisa.dma_copy(out[i], result)
        return out

    assert (kernel(X) == 2 * X + np.arange(9)[:, None, None]).all()


def test_a_name_that_the_compiler_took_from_a_variable_is_still_the_authors_to_give():
    @nki.jit(target="gen3")
    def kernel(x):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        t = nl.ndarray(x.shape, x.dtype)
        nisa.dma_copy(t, x)
        other = nl.ndarray(x.shape, x.dtype, name="t")
        nisa.tensor_copy(other, t)
        again = nl.ndarray(x.shape, x.dtype, name="u")
        nisa.tensor_copy(again, other)
        u = nl.ndarray(x.shape, x.dtype)
        nisa.tensor_copy(u, again)
        nisa.dma_copy(out, u)
        return out

    assert (kernel(X) == X).all()
    names = [tensor.name for tensor in kernel.trace(X).cores[0].tensors]
    assert names == ["t", "t#2", "u", "u#2"]


def test_each_of_several_tensors_in_one_line_has_its_own_name():
    @nki.jit(target="gen3")
    def kernel(x):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm); a = nl.ndarray(x.shape, x.dtype)  # noqa: E702 # fmt: skip
        b = nl.ndarray(x.shape, x.dtype); c = nl.ndarray(x.shape, x.dtype, name="d")  # noqa: E702 # fmt: skip
        nisa.dma_copy(a, x)
        nisa.tensor_copy(b, a)
        nisa.tensor_copy(c, b)
        nisa.dma_copy(out, c)
        return out

    module = kernel.trace(X)
    assert [tensor.name for tensor in (*module.shared, *module.cores[0].tensors)] == ["out", "a", "b", "d"]


def test_many_tensors_of_one_name_are_numbered_in_linear_time():
    def seconds(count):
        tracer = Tracer((lambda: 0).__code__, target("gen3"), 0, 1, False, {})
        start = perf_counter()
        names = [tracer.claim_name("t", None, explicit=False) for _ in range(count)]
        assert names[:3] == ["t", "t#2", "t#3"] and len(set(names)) == count
        return perf_counter() - start

    assert seconds(20000) < 1  # it took half a minute


def test_a_number_that_the_author_wrote_is_skipped():
    @nki.jit(target="gen3")
    def kernel(x):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        given = nl.ndarray(x.shape, x.dtype, name="t#2")
        nisa.dma_copy(given, x)
        tile = given
        for _ in range(3):
            t = nl.ndarray(x.shape, x.dtype)
            nisa.tensor_copy(t, tile)
            tile = t
        nisa.dma_copy(out, tile)
        return out

    assert (kernel(X) == X).all()
    assert [tensor.name for tensor in kernel.trace(X).cores[0].tensors] == ["t#2", "t", "t#3", "t#4"]


def test_a_shared_name_is_never_changed_on_one_core():
    """The cores find shared tensors by name; a number behind it on one core alone would pair other buffers."""

    @nki.jit(target="gen3")
    def kernel(x):
        core = nl.program_id(0)
        if core == 0:
            scratch = nl.ndarray(x.shape, x.dtype)
            nisa.dma_copy(scratch, x)
        given = nl.ndarray((2, *x.shape), x.dtype, buffer=nl.shared_hbm, name="scratch")
        tile = nl.ndarray(x.shape, x.dtype)
        nisa.dma_copy(tile, x)
        nisa.dma_copy(given[core], tile)
        return given

    with pytest.raises(KernelError, match="scratch") as error:
        kernel[2](X)
    assert error.value.code == "E602"


def test_overwriting_one_root_keeps_the_images_of_another():
    @nki.jit(target="gen3")
    def kernel(x):
        out = nl.ndarray((2, 32, 32), nl.float32, buffer=nl.shared_hbm)
        one = nl.ndarray((32, 32), nl.float32)
        two = nl.ndarray((32, 32), nl.float32)
        nisa.dma_copy(one, x)
        nisa.tensor_scalar(two, one, op0=nl.add, operand0=1.0)
        images = [turned_twice(one), turned_twice(two)]
        nisa.memset(one, 7.0)
        for i, image in enumerate(images):
            nisa.dma_copy(out[i], image)
        return out

    assert (kernel(X) == [X, X + 1]).all()
    read = [instr.operands["src"].tensor.name for instr in kernel.compile(X).modules[Stage.PENGUIN].cores[0].body[-2:]]
    assert read[0] != "one" and read[1] == "two"


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("listed", [(0,), (1,), [0]])
def test_a_barrier_of_one_core_has_no_effect(cores, listed):
    @nki.jit(target="gen3")
    def kernel(x):
        out = nl.ndarray((2, 32, 32), nl.float32, buffer=nl.shared_hbm)
        core = nl.program_id(0) if cores == 2 else None
        tile = nl.ndarray((32, 32), nl.float32)
        nisa.dma_copy(tile, x)
        for half in (0, 1) if core is None else (core,):
            nisa.dma_copy(out[half], tile)
        nisa.core_barrier(out, listed)
        return out

    assert (kernel[cores](X) == X).all()


def test_an_argument_whose_array_protocol_fails_is_the_call_s_fault():
    class Broken:
        def __array__(self, *_args, **_kwargs):
            raise RuntimeError("no data")

    @nki.jit
    def returns_it(x):
        return x

    with pytest.raises(KernelError) as error:
        returns_it(Broken())
    assert error.value.code == "E701" and "no data" in error.value.message and error.value.hint

@pytest.mark.parametrize(("space", "bound"), [(nl.sbuf, 1 << 16), (nl.psum, 1 << 12)])
@pytest.mark.parametrize("engine", [nisa.engine.vector, nisa.engine.scalar])
def test_vector_and_scalar_take_so_many_elements_a_partition(space, bound, engine):
    @nki.jit
    def copied(x, size):
        tile = nl.ndarray((1, size), nl.bfloat16, buffer=space)
        nisa.memset(tile[:, 0:4096], 0.0)
        for start in range(4096, size, 4096):
            nisa.memset(tile[:, start : min(size, start + 4096)], 0.0)
        small = nl.ndarray((1, size), nl.uint8)
        nisa.tensor_copy(dst=small, src=tile, engine=engine)
        return x

    copied(X, bound)
    with pytest.raises(KernelError) as error:
        copied(X, bound + 1)
    assert error.value.code == "E102" and error.value.limit == f"{bound} for the {engine} engine"
    assert error.value.actual == bound + 1 and error.value.loc.file == __file__


@pytest.mark.parametrize("step", [32767, 32768])
@pytest.mark.parametrize("engine", [nisa.engine.vector, nisa.engine.scalar, nisa.engine.gpsimd, None])
def test_a_step_on_chip_has_16_bits_for_an_engine(engine, step):
    @nki.jit(target="gen3")
    def ends(x):
        tile, two = nl.ndarray(x.shape, x.dtype), nl.ndarray((1, 2), x.dtype)
        nisa.dma_copy(dst=tile, src=x)
        far_apart = tile.ap([[2 * step, 1], [step, 2]])
        if engine is None:
            nisa.dma_copy(dst=two, src=far_apart)
        else:
            nisa.tensor_copy(dst=two, src=far_apart, engine=engine)
        out = nl.ndarray((1, 2), x.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=two)
        return out

    x = (np.arange(2 * step) % 251).astype(np.uint8).reshape(1, -1)
    if engine is None or step < 32768:
        assert (ends(x) == x[:, [0, step]]).all()
        return
    with pytest.raises(KernelError) as error:
        ends(x)
    assert error.value.code == "E102" and error.value.actual == step and "`src`" in error.value.message


@nki.jit
def one_core_has_a_tile_of_the_shared_name(x):
    core = nl.program_id(0)
    if core == 0:
        t = nl.ndarray((16, 32), nl.float32)
        nisa.memset(t, 0.0)
    t = nl.ndarray((32, 32), nl.float32, buffer=nl.shared_hbm)
    rows = nl.ndarray((16, 32), nl.float32)
    nisa.dma_copy(rows, x[16 * core : 16 * core + 16])
    nisa.dma_copy(t[16 * core : 16 * core + 16], rows)
    return t


def test_the_cores_match_shared_tensors_whatever_else_one_of_them_has():
    np.testing.assert_array_equal(one_core_has_a_tile_of_the_shared_name[2](X), X)
    module = one_core_has_a_tile_of_the_shared_name[2].compile(X).modules[Stage.TRACE]
    assert [tensor.name for tensor in module.shared] == ["t"]
    assert not any(tensor.name == "t" for core in module.cores for tensor in core.tensors)


def test_a_given_name_is_not_taken_for_a_shared_tensor_that_has_it_by_chance():
    @nki.jit
    def kernel(x):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        other = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm, name="out")
        return out, other

    with pytest.raises(KernelError) as error:
        kernel[2](X)
    assert error.value.code == "E602" and "'out' is used twice" in error.value.message
