"""mask_expert_affinities: a rank's slice of the affinities, in SBUF or HBM, masked or not."""

import ml_dtypes
import numpy as np
import pytest

from opennki import KernelError, jit
from opennki import isa as nisa
from opennki import language as nl
from opennki.kernels.moe.mask_expert_affinities import MASK_EXPERT_AFFINITIES as SLICED
from opennki.kernels.moe.mask_expert_affinities import MASKED_AFFINITIES as MASKED
from opennki.kernels.moe.mask_expert_affinities import mask_expert_affinities, masked_affinities
from opennki.kernels.moe.tokens import fold_shape, tiles

BOTH = pytest.mark.parametrize("cores", [1, 2])
TOKENS = [1, 2, 5, 16, 31, 127, 128, 129, 200, 255, 256]


@BOTH
@pytest.mark.parametrize("T", TOKENS)
@pytest.mark.parametrize("rank", [0, 3])
def test_tiles(matches, cores, T, rank):
    for masked in (True, False):
        matches(MASKED, cores, {**MASKED.example(T=T, rank=rank), "mask_unselected_experts": masked})


@BOTH
@pytest.mark.parametrize("T", TOKENS)
@pytest.mark.parametrize("rank", [0, 3])
def test_slices_in_hbm(matches, cores, T, rank):
    """On two cores each copies its own rows: those of the second start at row T // 2."""
    matches(SLICED, cores, SLICED.example(T=T, rank=rank))


@pytest.mark.parametrize("E, E_L, K", [(8, 1, 8), (8, 8, 1), (64, 16, 4), (512, 128, 8), (10, 4, 2)])
def test_experts(matches, E, E_L, K):
    for rank in (0, E // E_L - 1):
        matches(MASKED, 1, MASKED.example(E=E, E_L=E_L, K=K, rank=rank))
        matches(SLICED, 2, SLICED.example(E=E, E_L=E_L, K=K, rank=rank))


def test_affinities_of_the_chosen_in_numbers():
    affinities = np.arange(1, 17, dtype=np.float32).reshape(2, 8)
    index = np.array([[7, 0, 5], [4, 5, 6]], np.uint32)
    local = masked_affinities(affinities, index, np.array([[1]], np.int32), 4)
    assert local.tolist() == [[0, 6, 0, 8], [13, 14, 15, 0]]
    assert masked_affinities(affinities, index, np.array([[0]], np.int32), 4).tolist() == [[1, 0, 0, 0], [0, 0, 0, 0]]


def test_an_index_that_names_an_expert_twice_counts_once(matches):
    arguments = MASKED.example(T=3)
    arguments["expert_index"][:] = 5
    matches(MASKED, 1, arguments)


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("io_dtype", [nl.float32, nl.bfloat16, nl.float16])
@BOTH
def test_dtypes(matches, cores, dtype, io_dtype):
    matches(MASKED, cores, {**MASKED.example(T=5, dtype=dtype), "io_dtype": io_dtype})
    affinities = SLICED.example(T=5)["expert_affinities"].astype(dtype)
    matches(SLICED, cores, {**SLICED.example(T=5), "expert_affinities": affinities, "io_dtype": io_dtype})


@pytest.mark.parametrize("dtype", [np.int32, np.uint32])
def test_integer_dtypes(matches, dtype):
    arguments = MASKED.example()
    matches(MASKED, 1, {**arguments, **{name: arguments[name].astype(dtype) for name in ("rank_id", "expert_index")}})


@jit
def with_tiles(expert_affinities, expert_index, rank_id, E_L):
    """The call of a kernel that has the index in SBUF; result: [cores, T, E_L], as each core has it."""
    (T, _), K = expert_affinities.shape, expert_index.shape[1]
    index = nl.ndarray(fold_shape(T, K), dtype=expert_index.dtype, buffer=nl.sbuf)
    for tile in tiles(T, 128):
        nisa.dma_copy(dst=rows_of(index, tile), src=expert_index[tile.span])
    local = mask_expert_affinities(expert_affinities, index, rank_id, E_L, T, K, nl.float32, True, True)
    assert local.shape == fold_shape(T, E_L)
    out = nl.ndarray((nl.num_programs(0), T, E_L), dtype=local.dtype, buffer=nl.shared_hbm)
    for tile in tiles(T, 128):
        nisa.dma_copy(dst=out[nl.program_id(0), tile.span], src=rows_of(local, tile))
    return out


def rows_of(tensor, tile):
    return tensor[0 : tile.size, tile.number] if len(tensor.shape) == 3 else tensor[tile.span]


@BOTH
@pytest.mark.parametrize("T", TOKENS)
def test_index_in_sbuf(cores, T):
    arguments = MASKED.example(T=T)
    expected = MASKED.golden(**arguments)
    for core in with_tiles[cores](**arguments):
        np.testing.assert_array_equal(core, expected)


@jit
def read_by_all(expert_affinities, rank_id, E_L):
    """Each core reads all that mask_expert_affinities left in HBM."""
    T = expert_affinities.shape[0]
    local = mask_expert_affinities(expert_affinities, None, rank_id, E_L, T, 1, nl.float32, False, False)
    out = nl.ndarray((nl.num_programs(0), T, E_L), dtype=local.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out[nl.program_id(0)], src=local)
    return out


@BOTH
@pytest.mark.parametrize("T", [1, 5, 256])
def test_both_cores_may_read_the_slice_in_hbm(cores, T):
    arguments = SLICED.example(T=T)
    for core in read_by_all[cores](arguments["expert_affinities"], arguments["rank_id"], 4):
        np.testing.assert_array_equal(core, SLICED.golden(**arguments))


@pytest.mark.parametrize("rank, index", [(4, 16), (-1, -4)])
def test_a_rank_without_experts_is_refused_by_the_run(refused, rank, index):
    for entry in (MASKED, SLICED):
        error = refused(entry, 1, entry.example(rank=rank))
        assert (error.code, error.actual) == ("E308", index)


@pytest.mark.parametrize("T, modes", [
    (16, [""]), (15, ["swdge"]), (128, [""]), (130, ["", "swdge"]), (256, [""]), (144, ["", ""]),
])
def test_software_makes_the_descriptors_of_odd_row_counts(T, modes):
    text = str(masked_affinities.trace(**MASKED.example(T=T)))
    slices = [line for line in text.splitlines() if "dma_copy dst=%local" in line and "scalar_offset" in line]
    assert [line.partition("dge_mode=")[2].partition(" in ")[0] for line in slices] == modes


def test_engines(engines):
    assert engines(MASKED, 1, MASKED.example()) == {
        "dma": {"dma_copy"},
        "vector": {"tensor_copy", "tensor_scalar", "tensor_tensor", "scalar_tensor_tensor", "nc_stream_shuffle"},
        "gpsimd": {"iota"},
    }
    assert engines(SLICED, 2, SLICED.example()) == {
        "dma": {"dma_copy"}, "vector": {"tensor_scalar"}, "gpsimd": {"core_barrier"},
    }


@BOTH
def test_text_runs_as_the_kernel_does(runs_from_text, cores):
    runs_from_text(MASKED, cores, MASKED.example(T=130))
    runs_from_text(SLICED, cores, SLICED.example(T=5))


def test_documented_scale(matches):
    for entry in (MASKED, SLICED):
        matches(entry, entry.cores, entry.example(**entry.scale))


# --- gates -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("changes, limit, actual, hint", [
    ({"mask_unselected_experts": True}, "output_in_sbuf or not mask_unselected_experts", "mask_unselected_experts=true",
     "output_in_sbuf=True"),
    ({"T": 5}, "expert_affinities.shape[0] == T", "T=5", "number of tokens"),
    ({"expert_affinities": np.zeros(16, np.float32)}, "len(expert_affinities.shape) == 2", "float32[16]", "[T, E]"),
    ({"E_L": 17}, "1 <= E_L <= expert_affinities.shape[1]", "E_L=17", "columns"),
    ({"E_L": 0}, "1 <= E_L <= expert_affinities.shape[1]", "E_L=0", "columns"),
    ({"rank_id": np.zeros(1, np.int32)}, "rank_id.shape == (1, 1)", "int32[1]", "(1, 1)"),
    ({"rank_id": np.zeros((1, 1), np.float32)}, "rank_id.shape == (1, 1)", "float32[1,1]", "integer"),
])
def test_gates(refused, changes, limit, actual, hint):
    error = refused(SLICED, 1, {**SLICED.example(), **changes})
    assert error.code == "E401" and error.limit.startswith(limit)
    assert actual in error.actual and hint in error.hint


@pytest.mark.parametrize("changes", [{"E_L": 16, "rank_id": np.zeros((1, 1), np.int32)}, {"E_L": 1}])
def test_gates_just_inside(matches, changes):
    matches(SLICED, 1, {**SLICED.example(), **changes})
    matches(MASKED, 1, {**MASKED.example(), **changes})


def test_the_mask_wants_an_index_of_the_tokens(refused):
    error = refused(MASKED, 1, {**MASKED.example(), "expert_index": np.zeros((5, 3), np.uint32)})
    assert error.code == "E401" and error.limit.startswith("expert_index.shape ==") and "[T, K]" in error.hint

    @jit
    def without_index(expert_affinities, rank_id):
        return mask_expert_affinities(expert_affinities, None, rank_id, 4, 4, 3, nl.float32, True, True)

    arguments = MASKED.example()
    with pytest.raises(KernelError) as caught:
        without_index(arguments["expert_affinities"], arguments["rank_id"])
    assert (caught.value.code, caught.value.limit) == ("E401", "expert_index is not None")


@pytest.mark.parametrize("name, hint", [("expert_affinities", "addresses HBM"), ("rank_id", "rank_id is in HBM")])
def test_affinities_and_rank_are_in_hbm(name, hint):
    @jit
    def from_tiles(expert_affinities, rank_id):
        operands = {"expert_affinities": expert_affinities, "rank_id": rank_id}
        source = operands[name]
        operands[name] = nl.ndarray(source.shape, dtype=source.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=operands[name], src=source)
        return mask_expert_affinities(
            **operands, expert_index=None, E_L=4, T=4, K=3, io_dtype=nl.float32, mask_unselected_experts=False,
            output_in_sbuf=False,
        )

    arguments = MASKED.example()
    with pytest.raises(KernelError) as caught:
        from_tiles(arguments["expert_affinities"], arguments["rank_id"])
    assert (caught.value.code, caught.value.limit) == ("E401", f"not {name}.buffer.is_on_chip")
    assert hint in caught.value.hint
