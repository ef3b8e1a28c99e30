"""`nl`: creating tensors, constants and their names; and what a kernel may do with a view."""

import copy
import operator
import pickle
from typing import Optional, Union

import ml_dtypes
import numpy as np
import pytest

import opennki as nki
from opennki import KernelError
from opennki import isa as nisa
from opennki import language as nl
from opennki.ir.dtypes import DTYPES

X = np.arange(128 * 8, dtype=np.float32).reshape(128, 8)
REGIONS = [nl.sbuf, nl.psum, nl.hbm, nl.shared_hbm]


def run(body, target="gen3", cores=None):
    kernel = nki.jit(lambda x: body(x), target=target)
    return (kernel if cores is None else kernel[cores])(X)


def inside(body, target="gen3"):
    """What `body` gives while a kernel is traced."""
    seen = []
    nki.jit(lambda x: seen.append(body(x)), target=target).trace(X)
    return seen[0]


def fault(body, target="gen3") -> KernelError:
    with pytest.raises(KernelError) as error:
        run(body, target)
    assert error.value.loc.file == __file__
    return error.value


def stored(tile):
    """A result with the contents of a tile, by way of SBUF where it is in PSUM."""
    out = nl.ndarray(tile.shape, tile.dtype, buffer=nl.shared_hbm)
    if tile.buffer is nl.psum:
        staged = nl.ndarray(tile.shape, tile.dtype)
        nisa.tensor_copy(staged, tile)
        tile = staged
    nisa.dma_copy(dst=out, src=tile)
    return out


# --- creation ----------------------------------------------------------------------------------------------------


ZEROS = [(name, nl.psum) for name in ("float32", "bfloat16")]
ZEROS += [(name, region) for region in (nl.sbuf, nl.hbm, nl.shared_hbm) for name in DTYPES if name != "float8_e8m0fnu"]


@pytest.mark.parametrize("name, region", ZEROS)
def test_zeros_in_every_dtype_and_region(name, region):
    result = run(lambda x: stored(nl.zeros((4, 6), getattr(nl, name), buffer=region)), "gen4")
    assert result.shape == (4, 6) and not result.view(np.uint8).any()


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float8_e5m2", "int32", "uint8", "bool_"])
@pytest.mark.parametrize("region", [nl.sbuf, nl.hbm, nl.shared_hbm], ids=str)
def test_ones_and_full(name, region):
    assert (run(lambda x: stored(nl.ones((4, 6), getattr(nl, name), buffer=region))).astype(float) == 1).all()
    if name != "bool_":
        assert (run(lambda x: stored(nl.full((4, 6), 3, getattr(nl, name), region))).astype(float) == 3).all()


@pytest.mark.parametrize("shape", [7, (7,), [7], (3, 4, 5), (300, 4), (1, 1, 1, 1, 2)])
def test_full_in_hbm_takes_any_shape(shape):
    assert (run(lambda x: nl.full(shape, 2.5, nl.float32, buffer=nl.shared_hbm)) == 2.5).all()


WRONG_VALUES = [(2.5, "int32"), (300, "uint8"), (-1, "uint8"), (2**40, "int32"), (float("nan"), "int8"), ("a", "float32"),
                (10**400, "float32"), (1, "float8_e4m3fn_x4")]  # fmt: skip


@pytest.mark.parametrize("value, dtype", WRONG_VALUES)
def test_a_value_that_the_dtype_does_not_hold(value, dtype):
    assert fault(lambda x: nl.full((4, 4), value, dtype), "gen4").code == "E105"


def test_like_takes_shape_dtype_and_region():
    def body(x):
        empty = nl.empty_like(x, buffer=nl.sbuf)
        other = nl.empty_like(empty, dtype=nl.int16, buffer=nl.psum, name="other")
        assert (empty.shape, empty.dtype, empty.buffer) == (x.shape, x.dtype, nl.sbuf)
        assert (other.dtype, other.buffer, other.name) == (nl.int16, nl.psum, "other")
        return stored(nl.zeros_like(empty, dtype=nl.int8))

    result = run(body)
    assert result.dtype == np.int8 and not result.any()


@pytest.mark.parametrize("dtype", ["bfloat16", nl.bfloat16, ml_dtypes.bfloat16, np.dtype(ml_dtypes.bfloat16)])
def test_a_dtype_has_several_spellings(dtype):
    assert inside(lambda x: nl.ndarray((4, 4), dtype).dtype) == nl.bfloat16


@pytest.mark.parametrize(
    "shape, kwargs, code",
    [((4,), {}, "E701"), ((0, 4), {}, "E701"), ((4, -1), {}, "E701"), ((4.0, 4), {}, "E701"), ((), {}, "E701"),
     ("ab", {}, "E701"), ((1,) * 6, {}, "E701"),
     ((129, 4), {}, "E102"), ((4, 4), {"buffer": "sbuf"}, "E701"), ((4, 4), {"buffer": None}, "E701"),
     ((4, 4), {"dtype": np.float64}, "E704"), ((4, 4), {"dtype": "float"}, "E704"), ((4, 4), {"dtype": None}, "E704"),
     ((4, 4), {"dtype": 3}, "E704"), ((4, 4), {"name": 'a"b'}, "E602"), ((4, 4), {"name": "a\nb"}, "E602"),
     ((4, 4), {"name": 3}, "E602"), ((4, 4), {"name": "x"}, "E602"), ((4, 4), {"address": 3}, "E203"),
     ((4, 4), {"address": (1, 0)}, "E203"), ((4, 4), {"address": (128, 0)}, "E203"), ((4, 4), {"address": (0, -4)}, "E203"),
     ((4, 4), {"address": (0, 0), "buffer": nl.hbm}, "E203"), ((4, 4), {"address": (0, 4), "buffer": nl.psum}, "E203")],
)  # fmt: skip
def test_a_tensor_that_cannot_be(shape, kwargs, code):
    error = fault(lambda x: nl.ndarray(shape, **{"dtype": nl.float32} | kwargs))
    assert error.code == code and error.limit and (error.hint or error.actual)


@pytest.mark.parametrize("address", [(0, 64), [32, 0], (np.int64(96), np.int32(128)), None])
def test_an_address_is_start_partition_and_byte(address):
    tensor = inside(lambda x: nl.ndarray((4, 4), nl.float32, address=address))
    assert tensor.address == (None if address is None else tuple(address))


@pytest.mark.parametrize(
    "shape, region, address", [((4, 4), nl.sbuf, (0, 212976)), ((4, 4), nl.psum, (0, 16384)), ((64, 4), nl.sbuf, (96, 0))]
)
def test_a_pinned_tensor_lies_inside_its_memory(shape, region, address):
    def body(x):
        pinned = nl.ndarray(shape, nl.float32, buffer=region, address=address)
        nisa.dma_copy(dst=pinned, src=x[: shape[0], :4]) if region is nl.sbuf else nisa.memset(pinned, 0.0)
        return stored(pinned)

    assert fault(body).code == "E201"


def test_names_come_from_the_variable_and_are_unique():
    def body(x):
        tile = nl.ndarray((4, 4), nl.float32)
        many = [nl.ndarray((4, 4), nl.float32) for tile in range(2)]
        tile = nl.ndarray((4, 4), nl.float32)
        named = nl.ndarray((4, 4), nl.float32, name="part.1/2")
        x = nl.ndarray((4, 4), nl.float32)
        return [tensor.name for tensor in (tile, named, x, *many)]

    assert inside(body) == ["tile#2", "part.1/2", "x#2", "t", "t#2"]


def test_a_name_is_given_once():
    error = fault(lambda x: [nl.ndarray((4, 4), nl.float32, name="same") for _ in range(2)])
    assert error.code == "E602" and error.actual == "same" and "number them" in error.hint


# --- constants ---------------------------------------------------------------------------------------------------

ARRAYS = [X[:2, :3], X[::4, ::4], X[:2].astype(">f4"), np.array([True, False]), X[:2].astype(ml_dtypes.bfloat16)]


@pytest.mark.parametrize("array", ARRAYS)
def test_a_constant_has_the_arrays_values(array):
    result = run(lambda x: nl.shared_constant(array))
    np.testing.assert_array_equal(result.astype(np.float32), array.astype(np.float32))


def test_a_constant_is_read_from_a_file(tmp_path):
    np.save(tmp_path / "weights.npy", X)
    np.testing.assert_array_equal(run(lambda x: nl.shared_constant(tmp_path / "weights.npy")), X)
    np.testing.assert_array_equal(run(lambda x: nl.shared_constant(str(tmp_path / "weights.npy"))), X)


def test_a_file_that_is_no_array(tmp_path):
    (tmp_path / "empty.npy").write_bytes(b"")
    (tmp_path / "text.npy").write_text("hello")
    for path in (tmp_path / "missing.npy", tmp_path / "empty.npy", tmp_path / "text.npy", tmp_path):
        error = fault(lambda x, path=path: nl.shared_constant(path))
        assert error.code == "E706" and error.actual == str(path)


@pytest.mark.parametrize("value, code", [(X.astype(np.float64), "E704"), (np.array([None]), "E704"), (np.float32(1), "E701"),
                                         (X[:0], "E701"), ([1, 2], "E701"), (None, "E701")])  # fmt: skip
def test_a_constant_that_the_machine_does_not_have(value, code):
    assert fault(lambda x: nl.shared_constant(value)).code == code


def test_cores_share_a_constant_and_must_agree_on_it():
    def body(x, differ):
        constant = nl.shared_constant(X[:4] + (nl.program_id(0) if differ else 0))
        return constant

    assert len(nki.jit(body)[2].trace(X, False).shared) == 1
    with pytest.raises(KernelError) as error:
        nki.jit(body)[2](X, True)
    assert error.value.code == "E703"


@pytest.mark.parametrize("size, dtype", [(1, "float32"), (128, "bfloat16"), (4, "uint8"), (4, "bool_"), (4, "float8_e4m3")])
def test_the_identity(size, dtype):
    result = run(lambda x: stored(nl.shared_identity_matrix(size, dtype=dtype)))
    np.testing.assert_array_equal(result.astype(float), np.eye(size))


def test_the_identity_is_loaded_once_for_each_dtype():
    def body(x):
        first, other = nl.shared_identity_matrix(4), nl.shared_identity_matrix(4, nl.float32)
        assert first is nl.shared_identity_matrix(4) and other is not first and first.dtype == nl.uint8
        for _ in nl.dynamic_range(2):
            assert nl.shared_identity_matrix(8) is not nl.shared_identity_matrix(8)  # gone with the loop's body
        given = nl.ndarray((4, 4), nl.float16)
        assert nl.shared_identity_matrix(4, dst=given) is given
        return stored(given)

    np.testing.assert_array_equal(run(body), np.eye(4))


WRONG_IDENTITIES = [((129,), "E102"), ((0,), "E701"), ((2.0,), "E701"), (("a",), "E701"), ((4, "int64"), "E704"),
                    ((4, "float8_e8m0fnu"), "E704"), ((4, "float8_e4m3fn_x4"), "E704")]  # fmt: skip


@pytest.mark.parametrize("args, code", WRONG_IDENTITIES)
def test_an_identity_that_cannot_be(args, code):
    assert fault(lambda x: nl.shared_identity_matrix(*args), "gen4").code == code


# --- names of the module -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", nl.__all__)
def test_every_public_name_is_there(name):
    assert getattr(nl, name) is not None


def test_dtypes_are_strings():
    assert nl.bfloat16 == "bfloat16" and str(nl.float8_e4m3) == "float8_e4m3" and "x4" in nl.float4_e2m1fn_x4
    assert {nl.float8_e4m3: 240.0}["float8_e4m3"] == 240.0 and nl.bool == nl.bool_ and isinstance(nl.int8, nki.dtype)


@pytest.mark.parametrize("target, version, sbuf", [("gen3", 3, 212984), ("gen4", 4, 245752)])
def test_tile_size_follows_the_target(target, version, sbuf):
    def body(x):
        size = nl.tile_size
        assert (size.pmax, size.psum_num_banks, size.psum_bank_fmax_bytes) == (128, 8, 2048)
        assert size.psum_fmax == size.psum_bank_fmax == 512
        assert (size.gemm_stationary_fmax, size.gemm_moving_fmax, size.bn_stats_fmax) == (128, 512, 512)
        assert (size.psum_min_align, size.sbuf_min_align) == (4, 1)
        assert size.sbuf_fmax_bytes == size.total_available_sbuf_size == sbuf and size.sbuf_fmax == sbuf // 4
        assert size.sbuf_size_bytes == 128 * sbuf
        return int(nisa.get_nc_version()), nisa.get_nc_version() >= nisa.nc_version.gen4

    assert inside(body, target) == (version, version >= 4)


def test_regions_are_told_apart():
    assert [nl.is_sbuf(r) for r in REGIONS] == [True, False, False, False]
    assert [nl.is_psum(r) for r in REGIONS] == [False, True, False, False]
    assert [nl.is_hbm(r) for r in REGIONS] == [False, False, True, True] and nl.hbm is nl.private_hbm
    assert [nl.is_on_chip(r) for r in REGIONS] == [True, True, False, False]
    for wrong in ("sbuf", None, nl.ndarray):
        with pytest.raises(KernelError):
            nl.is_sbuf(wrong)


def test_ranges_are_pythons():
    for kind in (nl.range, nl.affine_range, nl.sequential_range, nl.static_range):
        assert list(kind(1, 7, 2)) == [1, 3, 5]


def test_ds_is_a_slice():
    assert nl.ds(3, 4) == slice(3, 7) and nl.ds(start=np.int64(0), size=2) == slice(0, 2)
    for wrong in ((0.5, 2), (0, 2.0), (None, 1)):
        with pytest.raises(KernelError) as error:
            nl.ds(*wrong)
        assert error.value.code == "E301"


def test_program_ids_have_one_axis():
    assert inside(lambda x: (nl.program_id(axis=0), nl.num_programs((0,)), nl.program_ndim())) == (0, 1, 0)
    assert fault(lambda x: nl.program_id(1)).code == fault(lambda x: nl.num_programs(axes=2)).code == "E701"


def test_device_print_goes_to_stderr_on_every_run(capfd):
    kernel = nki.jit(lambda x: nl.device_print("rows", x[0:1, 0:2]))
    kernel(X), kernel(X + 1)
    captured = capfd.readouterr()
    assert captured.out == "" and captured.err.count("rows core 0: ") == 2
    assert fault(lambda x: nl.device_print(3, x)).code == "E105" and fault(lambda x: nl.device_print("a", 3)).code == "E109"


@pytest.mark.parametrize("name", ["arange", "mgrid", "par_dim", "static_cast", "loop_reduce", "spmd_dim", "nc"])
def test_names_of_other_releases_say_what_to_write(name):
    assert not hasattr(nl, name)
    with pytest.raises(AttributeError, match=r"removed in NKI 0\.2: \w+"):
        getattr(nl, name)


def test_a_misspelt_name_is_corrected():
    with pytest.raises(AttributeError, match="did you mean float32"):
        _ = nl.flaot32
    with pytest.raises(AttributeError, match="did you mean tensor_copy"):
        _ = nisa.tensor_coppy


def test_operators_are_values():
    assert repr(nl.add) == "nl.add" and nl.add.__name__ == "add" and pickle.loads(pickle.dumps(nl.exp)) is nl.exp
    assert copy.deepcopy({"op": nl.add, "dtype": nl.int8}) == {"op": nl.add, "dtype": nl.int8}


OUTSIDE = {
    "ndarray": lambda: nl.ndarray((4, 4), nl.float32), "zeros": lambda: nl.zeros((4, 4), nl.float32),
    "memset": lambda: nisa.memset(None, 0), "program_id": lambda: nl.program_id(0), "constant": lambda: nl.shared_constant(X),
    "identity": lambda: nl.shared_identity_matrix(4), "no_reorder": lambda: nl.no_reorder(),
    "dynamic_range": lambda: list(nl.dynamic_range(3)), "fori_loop": lambda: nl.fori_loop(0, 3, print),
    "while_loop": lambda: nl.while_loop(1, print), "register": lambda: nisa.register_alloc(1),
    "print": lambda: nl.device_print("a", None),
}  # fmt: skip


@pytest.mark.parametrize("call", OUTSIDE.values(), ids=OUTSIDE)
def test_outside_a_kernel_there_is_no_machine(call):
    with pytest.raises(KernelError) as error:
        call()
    assert error.value.code == "E801" and error.value.loc.file == __file__ and "@nki.jit" in error.value.hint


# --- views -------------------------------------------------------------------------------------------------------


def test_the_tensor_class_is_an_annotation_and_an_allocator():
    assert Optional[nl.ndarray] and Union[int, nl.ndarray] and nl.ndarray | None and list[nl.ndarray]  # noqa: UP007, UP045
    assert inside(lambda x: isinstance(x, nl.ndarray) and isinstance(x, nl.tensor)) and not isinstance(X, nl.ndarray)


def test_what_a_view_knows():
    def body(x):
        tile = nl.ndarray((64, 4, 8), nl.bfloat16)
        part = tile[:, 1:3, ::2]
        assert (tile.shape, tile.strides, tile.offset, tile.ndim, tile.size) == ((64, 4, 8), (32, 8, 1), 0, 3, 2048)
        assert (part.shape, part.strides, part.offset, part.dtype) == ((64, 2, 4), (32, 8, 2), 8, nl.bfloat16)
        assert part.get_pattern() == [[32, 64], [8, 2], [2, 4]] and part.name == "tile" and part.buffer is nl.sbuf
        assert tile.is_contiguous() and not part.is_contiguous() and tile[:, 1:3].is_contiguous()
        index = nl.ndarray((4, 1), nl.int32)
        assert x.vector_select(0, index).is_indirect() and not x.is_indirect() and tile[:, nisa.register_alloc(0)].is_indirect()
        assert repr(part) == "NkiTensor(tile: bfloat16[64, 2, 4] @sbuf)" and list(part.shape) == [64, 2, 4]
        return True

    assert inside(body)


KEYS = [(0, (1, 4, 8)), ((0, 0), (1, 8)), ((0, 0, 0), (1, 1)), (..., (64, 4, 8)), (-1, (1, 4, 8)), (nl.ds(8, 2), (2, 4, 8)),
        ((slice(2, 4), ..., np.int64(3)), (2, 4))]  # fmt: skip


@pytest.mark.parametrize("key, shape", KEYS)
def test_indexing_on_chip_keeps_the_partition(key, shape):
    assert inside(lambda x: nl.ndarray((64, 4, 8), nl.int8)[key].shape) == shape


WRONG_KEYS = [64, (0, 4), slice(0, 65), slice(3, 3), slice(None, None, 2), slice(0, 0), (0, 0, 0, 0), None, 1.5, "a", True,
              [1, 2], np.arange(3), (..., ...), slice(0, 1.5)]  # fmt: skip


@pytest.mark.parametrize("key", WRONG_KEYS)
def test_keys_that_address_nothing(key):
    error = fault(lambda x: nl.ndarray((64, 4, 8), nl.int8)[key])
    assert error.code in ("E301", "E302", "E304")


def test_a_view_is_true_and_equal_to_itself_alone():
    def body(x):
        assert x and (x == None) is False and x != None and x in [None, x] and x not in [None, x[0:1]]  # noqa: E711
        assert {x: 1}[x] == 1 and x != x[:] and x != 3
        return True

    assert inside(body)


def test_views_in_copied_and_pickled_objects():
    def body(x):
        view = x[0:4].reshape((2, 16))
        again = pickle.loads(pickle.dumps(view))
        assert copy.deepcopy({"a": [view]})["a"][0] is view and copy.copy(view) is view
        assert (again.shape, again.strides, again.dtype, again.name) == (view.shape, view.strides, view.dtype, "x")
        return view

    np.testing.assert_array_equal(run(body), X[:4].reshape(2, 16))


BINARY = [operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod, operator.pow,
          operator.or_, operator.matmul, operator.and_, operator.xor, operator.lshift,
          operator.rshift, operator.lt, operator.ge]  # fmt: skip
UNARY = [operator.neg, abs, operator.invert, list, lambda x: 3 in x, lambda x: operator.setitem(x, 0, 1),
         lambda x: operator.iadd(x, 1), lambda x: np.float32(2) * x]  # fmt: skip


@pytest.mark.parametrize("act", BINARY)
def test_arithmetic_on_a_view_is_no_instruction(act):
    for use in (lambda x: act(x, 2), lambda x: act(2, x), lambda x: act(x, x)):
        error = fault(use)
        assert error.code == "E803" and error.hint


@pytest.mark.parametrize("use", UNARY)
def test_what_else_is_no_instruction(use):
    error = fault(use)
    assert error.code == "E803" and error.hint


@pytest.mark.parametrize("use", [float, int, len, lambda x: x.T, lambda x: x(), lambda x: np.add(x, 1), lambda x: x.reshape()])
def test_python_that_a_view_does_not_know_names_the_line(use):
    assert fault(use).code == "E805"
