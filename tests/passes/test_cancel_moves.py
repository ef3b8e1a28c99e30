"""cancel-moves: there and back again is where it was."""

import numpy as np

import opennki as nki
from opennki import isa as nisa
from opennki import language as nl
from opennki.ir.graph import Stage, instructions

HEAD = """kernel @k stage=penguin target=gen3 {
  shared %y: float32[128,64] @shared_hbm
  core 0 {
    %a: float32[128,64] @sbuf
    %b: float32[64,128] @psum
    %c: float32[64,128] @sbuf
    %d: float32[128,64] @psum
    %e: float32[128,64] @sbuf
    vector.memset dst=%a{0:128 | 0 + [1 x 64]} value=1.0
    tensor.nc_transpose dst=%b{0:64 | 0 + [1 x 128]} data=%a{0:128 | 0 + [1 x 64]}
"""
COPY = "    vector.tensor_copy dst=%c{0:64 | 0 + [1 x 128]} src=%b{0:64 | 0 + [1 x 128]}\n"
BACK = "    tensor.nc_transpose dst=%d{0:128 | 0 + [1 x 64]} data=%c{0:64 | 0 + [1 x 128]}\n"
READ = "    vector.tensor_copy dst=%e{0:128 | 0 + [1 x 64]} src=%SRC{0:128 | 0 + [1 x 64]}\n"
STORE = "    dma.dma_copy dst=%y{0 + [1 x 8192]} src=%e{0:128 | 0 + [1 x 64]}\n"
TAIL = "  }\n  return %y\n}\n"


def test_two_transposes_are_read_where_they_began(check_pass):
    check_pass(
        "cancel-moves",
        before=HEAD + COPY + BACK + READ.replace("SRC", "d") + STORE + TAIL,
        after=HEAD + COPY + BACK + READ.replace("SRC", "a") + STORE.replace("%e", "%a") + TAIL,
    )


def test_a_tile_that_changed_in_between_is_not(check_pass):
    change = "    vector.memset dst=%c{0:64 | 5 + [1 x 1]} value=9.0\n"
    text = HEAD + COPY + change + BACK + READ.replace("SRC", "d") + STORE + TAIL
    check_pass("cancel-moves", before=text, after=text)


def test_an_origin_that_was_overwritten_is_not(check_pass):
    change = "    vector.memset dst=%a{0:128 | 0 + [1 x 1]} value=9.0\n"
    text = HEAD + COPY + BACK + change + READ.replace("SRC", "d") + STORE + TAIL
    check_pass("cancel-moves", before=text, after=text)


def test_a_plain_copy_stays(check_pass):
    text = HEAD + READ.replace("SRC", "a") + STORE + TAIL
    check_pass("cancel-moves", before=text, after=text)


def test_a_loop_ends_what_is_known(check_pass):
    loop = "    sync.register_move dst=%r src=1\n    while %r {\n      sync.register_move dst=%r src=0\n    }\n"
    head = HEAD.replace("    vector.memset", "    %r: int32[1] @register\n    vector.memset")
    text = head + COPY + loop + BACK + READ.replace("SRC", "d") + STORE + TAIL
    check_pass("cancel-moves", before=text, after=text)


def test_the_chain_is_gone_from_the_compiled_kernel():
    @nki.jit
    def there_and_back(x):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        tile = nl.ndarray(x.shape, x.dtype)
        nisa.dma_copy(tile, x)
        for _ in range(2):
            turned = nl.ndarray(tile.shape[::-1], x.dtype, buffer=nl.psum)
            nisa.nc_transpose(turned, tile)
            tile = nl.ndarray(turned.shape, x.dtype)
            nisa.tensor_copy(tile, turned)
        nisa.dma_copy(out, tile)
        return out

    x = np.random.default_rng(0).random((128, 64), np.float32)
    np.testing.assert_array_equal(there_and_back(x), x)
    left = [i.op for i in instructions(there_and_back.compile(x).modules[Stage.BIR].cores[0].body)]
    assert left == ["dma_copy", "dma_copy"]
