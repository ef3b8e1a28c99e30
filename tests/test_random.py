"""Random numbers: XORWOW word by word in plain Python, state that can be read and set, distributions, and what is refused."""

import ml_dtypes
import numpy as np
import pytest

from opennki import KernelError, jit
from opennki import isa as nisa
from opennki import language as nl
from opennki.ir.dtypes import DTYPES

GPSIMD, VECTOR = nisa.engine.gpsimd, nisa.engine.vector


def refused(run, code, text):
    with pytest.raises(KernelError) as error:
        run()
    assert error.value.code == code and text in str(error.value), str(error.value)


def xorwow(state, count):
    """Marsaglia's generator on Python integers: words and the state afterwards."""
    x, y, z, w, v, d = (int(word) for word in state)
    words = []
    for _ in range(count):
        t = x ^ (x >> 2)
        x, y, z, w = y, z, w, v
        v = (v ^ (v << 4)) ^ (t ^ (t << 1))
        v &= 0xFFFFFFFF
        d = (d + 362437) & 0xFFFFFFFF
        words.append((v + d) & 0xFFFFFFFF)
    return words, [x, y, z, w, v, d]


def lane(states, count):
    """The words of a lane: element i comes from stream i mod 4 (or the only one)."""
    streams = states.reshape(-1, 6)
    runs = [xorwow(stream, -(-count // len(streams))) for stream in streams]
    words = [runs[i % len(runs)][0][i // len(runs)] for i in range(count)]
    return words, np.concatenate([after for _, after in runs])


def seeds(rows, words, seed=0):
    return np.random.default_rng(seed).integers(0, 2**32, (rows, words), np.uint32)


def test_the_reference_is_marsaglias():
    """The first words from the start state of "Xorshift RNGs" (2003)."""
    start = [123456789, 362436069, 521288629, 88675123, 5783321, 6615241]
    assert xorwow(start, 5)[0] == [246875399, 3690007200, 1264581005, 3906711041, 1866187943]


# --- state -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine, words, target", [(GPSIMD, 6, "gen3"), (GPSIMD, 6, "gen4"), (VECTOR, 24, "gen4")])
@pytest.mark.parametrize("count", [1, 3, 4, 9, 64])
def test_words_and_state_follow_the_generator(on_tiles, engine, words, target, count):
    def emit(start):
        bits, after = nl.ndarray((32, count), nl.uint32), nl.ndarray((32, words), nl.uint32)
        nisa.rand_set_state(start, engine=engine)
        nisa.rng(bits, engine)
        nisa.rand_get_state(after, engine)
        return [bits, after]

    start = seeds(32, words)
    bits, after = on_tiles(emit, start, target=target)
    for p in (0, 1, 31):
        expected, state = lane(start[p], count)
        assert bits[p].tolist() == expected and after[p].tolist() == state.tolist()


def test_lanes_are_those_of_the_partitions(on_tiles):
    """Partitions 32 to 63 of a tile use lanes 32 to 63; the others keep their state."""

    def emit(start):
        nisa.rand_set_state(start)
        bits, after = nl.zeros((128, 2), nl.uint32), nl.ndarray((128, 6), nl.uint32)
        nisa.rng(bits[32:64], GPSIMD)
        nisa.rand_get_state(after)
        return [bits, after]

    start = seeds(128, 6)
    bits, after = on_tiles(emit, start)
    assert bits[40].tolist() == lane(start[40], 2)[0] and not bits[64:].any() and not bits[:32].any()
    unchanged = (after == start).all(axis=1)
    assert not unchanged[32:64].any() and unchanged[:32].all() and unchanged[64:].all()


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32"])
@pytest.mark.parametrize("buffer", [nl.sbuf, nl.psum])
def test_narrow_integers_take_the_low_bits(on_tiles, dtype, buffer):
    def emit(seed):
        nisa.set_rng_seed(seed)
        words = nl.ndarray((4, 33), nl.uint32)
        nisa.rng(dst=words)
        nisa.set_rng_seed(src_seeds=seed)
        wide, narrow = nl.zeros((4, 33, 2), dtype, buffer=buffer), nl.ndarray((4, 33, 2), dtype)
        nisa.rng(wide[..., 0])
        nisa.tensor_copy(narrow, wide)
        return [words, narrow]

    words, narrow = on_tiles(emit, np.array([[7]], np.int32))
    assert (narrow[..., 0] == words.astype(DTYPES[dtype].storage)).all() and not narrow[..., 1].any()


# --- seeds -------------------------------------------------------------------------------------------------------


def draws(seed, count=40):
    """Two draws after a seed, then one after the same seed."""
    nisa.set_rng_seed(seed)
    tiles = [nl.ndarray((128, count), nl.uint32) for _ in range(3)]
    nisa.rng(tiles[0])
    nisa.rng(tiles[1])
    nisa.set_rng_seed(seed)
    nisa.rng(tiles[2])
    return tiles


def test_the_same_seed_gives_the_same_numbers(on_tiles):
    seed = np.array([[42]], np.uint32)
    first, second, again = on_tiles(draws, seed)
    assert (first == again).all() and not (first == second).all()
    assert (on_tiles(draws, seed)[0] == first).all(), "in another kernel too"
    assert (on_tiles(draws, seed.view(np.float32))[0] == first).all(), "its bits count"
    assert not (on_tiles(draws, seed + 1)[0] == first).all()


def test_a_seed_leaves_gpsimd_alone(on_tiles):
    def emit(seed):
        before, after = nl.ndarray((128, 6), nl.uint32), nl.ndarray((128, 6), nl.uint32)
        nisa.rand_get_state(before)
        nisa.set_rng_seed(seed)
        nisa.rand_get_state(after)
        return [before, after]

    before, after = on_tiles(emit, np.array([[1]], np.int32))
    assert (before == after).all() and len(np.unique(before)) > 700


def test_unseeded_numbers_are_reproducible_and_differ_from_lane_to_lane_and_core_to_core():
    def draw():
        @jit
        def kernel():
            tile = nl.ndarray((128, 8), nl.uint32)
            out = nl.ndarray((2, 128, 8), nl.uint32, buffer=nl.shared_hbm)
            nisa.rng(tile)
            nisa.dma_copy(out[nl.program_id(0)], tile)
            return out

        return kernel[2]()

    one = draw()
    assert (one == draw()).all() and len(np.unique(one)) == one.size


def test_a_draw_whose_numbers_nobody_reads_still_advances_the_generator(on_tiles):
    def emit(unread):
        def body(seed):
            nisa.set_rng_seed(seed)
            tiles = [nl.ndarray((4, 4), nl.uint32) for _ in range(2)]
            if unread:
                nisa.rng(tiles[0])
            nisa.rng(tiles[1])
            return tiles[1]

        return on_tiles(body, np.array([[3]], np.int32))

    assert not (emit(True) == emit(False)).any()


# --- distributions -----------------------------------------------------------------------------------------------


def test_bits_are_balanced(on_tiles):
    words = on_tiles(lambda seed: draws(seed, 500), np.array([[5]], np.int32))[0]
    for bit in range(32):
        share = ((words >> np.uint32(bit)) & 1).mean()  # 64000 draws: 5 standard deviations are 0.0099
        assert abs(share - 0.5) < 0.0099


def uniform(on_tiles, low, high, dtype="float32", count=500):
    def emit(*bounds):
        tile = nl.ndarray((128, count), dtype)
        bounds = [*bounds] if bounds else [low, high]
        nisa.rand2(tile, *bounds)
        return tile

    tiles = () if isinstance(low, float) else (low, high)
    return on_tiles(emit, *tiles, target="gen4")


def test_uniform_numbers_between_two_numbers(on_tiles):
    values = uniform(on_tiles, -3.0, 5.0).astype(np.float64)
    assert values.min() >= -3 and values.max() <= 5
    assert abs(values.mean() - 1) < 5 * 8 / np.sqrt(12 * values.size)
    counts = np.histogram(values, 16, (-3, 5))[0]
    assert ((counts - values.size / 16) ** 2 / (values.size / 16)).sum() < 50  # chi square of 15 degrees: 1 in 10^5


def test_the_bounds_may_be_tiles(on_tiles):
    low = np.linspace(-1, 0, 128, dtype=np.float32)[:, None]
    high = np.linspace(1, 100, 128, dtype=np.float32)[:, None]
    values = uniform(on_tiles, low, high)
    assert (values >= low).all() and (values <= high).all()
    middle = (values.mean(1) - low[:, 0]) / (high - low)[:, 0]
    assert abs(middle - 0.5).max() < 6 / np.sqrt(12 * 500)


def test_numbers_are_words_scaled_in_one_rounding(on_tiles):
    def emit(start):
        tile = nl.ndarray((4, 10), nl.float32)
        nisa.rand_set_state(start, VECTOR)
        nisa.rand2(dst=tile, min=1.0, max=4.0)
        return tile

    start = seeds(4, 24)
    values = on_tiles(emit, start, target="gen4")
    for p in range(4):
        assert values[p].tolist() == [np.float32(1 + 3 * (word / 2**32)) for word in lane(start[p], 10)[0]]


@pytest.mark.parametrize("dtype", ["float8_e4m3", "float8_e5m2", "float16", "bfloat16", "tfloat32", "int8", "uint32"])
def test_uniform_numbers_are_rounded_to_dst(on_tiles, dtype):
    values = uniform(on_tiles, 0.0, 3.0, dtype, 64).astype(np.float64)
    assert values.min() >= 0 and values.max() <= 3 and len(np.unique(values)) > 3
    if DTYPES[dtype].is_int:
        assert set(np.unique(values)) == {0, 1, 2, 3}


@pytest.mark.parametrize("target", ["gen3", "gen4"])
@pytest.mark.parametrize("buffer", [nl.sbuf, nl.psum, nl.hbm])
def test_nl_rand_follows_its_seed(on_tiles, target, buffer):
    def emit(seed):
        nl.random_seed(seed)
        first = nl.rand((128, 200), nl.float32, buffer=buffer)
        nl.random_seed(seed)
        second = nl.rand((128, 200), nl.float32, name="again")
        in_sbuf = nl.ndarray((128, 200), nl.float32)
        (nisa.dma_copy if buffer == nl.hbm else nisa.tensor_copy)(in_sbuf, first)
        return [in_sbuf, second]

    first, second = on_tiles(emit, np.array([[42]], np.int32), target=target)
    assert (first == second).all() and first.min() >= 0 and first.max() < 1
    assert abs(first.mean(dtype=np.float64) - 0.5) < 0.01


def test_nl_rand_has_other_dtypes(on_tiles):
    values = on_tiles(lambda: nl.rand((4, 100), nl.bfloat16))
    assert values.dtype == ml_dtypes.bfloat16 and len(np.unique(values.astype(np.float32))) > 50


# --- what is refused ---------------------------------------------------------------------------------------------


def attempt(on_tiles, body, target="gen4"):
    def emit():
        body()
        return nl.zeros((1, 1), nl.float32)

    return lambda: on_tiles(emit, target=target)


def test_rng_is_refused(on_tiles):
    def rng(dtype, buffer=nl.sbuf, engine=VECTOR):
        return attempt(on_tiles, lambda: nisa.rng(nl.ndarray((4, 4), dtype, buffer=buffer), engine))

    rng(nl.uint8, nl.psum)()
    rng(nl.uint8, engine=GPSIMD)()
    refused(rng(nl.uint8, nl.psum, GPSIMD), "E101", "psum")
    refused(rng(nl.float32), "E103", "float32")
    refused(rng(nl.bool_), "E103", "bool_")
    refused(rng(nl.uint8, engine=nisa.engine.scalar), "E106", "scalar")


def test_rand2_is_refused(on_tiles):
    def rand2(low, high, dtype=nl.float32, target="gen4"):
        return attempt(on_tiles, lambda: nisa.rand2(nl.ndarray((4, 4), dtype), low, high), target)

    rand2(0, 1e-30)()
    refused(rand2(0.0, 1.0, target="gen3"), "E108", "gen4")
    refused(rand2(1.0, 1.0), "E105", "min < max")
    refused(rand2(2, 1), "E105", "min < max")
    refused(rand2(0.0, float("nan")), "E105", "min < max")
    refused(rand2(0.0, 1.0, nl.float8_e4m3fn), "E103", "float8_e4m3fn")
    refused(attempt(on_tiles, lambda: nisa.rand2(nl.ndarray((4, 4), nl.float32), nl.zeros((4, 2), nl.float32), 1.0)),
            "E104", "exactly 1")
    refused(attempt(on_tiles, lambda: nisa.rand2(nl.ndarray((4, 4), nl.float32), nl.zeros((4, 1), nl.int32), 1.0)),
            "E103", "int32")


def test_seeds_are_refused(on_tiles):
    def seed(shape, dtype=nl.int32):
        return attempt(on_tiles, lambda: nisa.set_rng_seed(nl.zeros(shape, dtype)), "gen3")

    seed((1, 1))()
    refused(seed((2, 1)), "E104", "one element")
    refused(seed((1, 2)), "E104", "exactly 1")
    refused(seed((1, 1), nl.int16), "E103", "int16")


@pytest.mark.parametrize("call", [nisa.rand_set_state, nisa.rand_get_state])
def test_states_are_refused(on_tiles, call):
    def state(words, engine=GPSIMD, dtype=nl.uint32, target="gen4", buffer=nl.sbuf):
        return attempt(on_tiles, lambda: call(nl.zeros((4, words), dtype, buffer=buffer), engine=engine), target)

    state(6, target="gen3")()
    state(24, VECTOR)()
    state(24, VECTOR, buffer=nl.psum)()
    state(6, nisa.engine.unknown)()
    state(24, nisa.engine.unknown)()
    refused(state(24), "E104", "6 words")
    refused(state(6, VECTOR), "E104", "24 words")
    refused(state(5), "E104", "6 words")
    refused(state(24, VECTOR, target="gen3"), "E108", "gen4")
    refused(state(24, nisa.engine.unknown, target="gen3"), "E108", "gen4")
    refused(state(6, dtype=nl.int32), "E103", "int32")
    refused(state(6, buffer=nl.psum), "E101", "psum")
    refused(state(6, nisa.engine.scalar), "E106", "scalar")
