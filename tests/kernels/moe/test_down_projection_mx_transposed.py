"""down_projection_mx_transposed, inside a kernel that quantises the products and loads one expert's weights."""

import ml_dtypes
import numpy as np
import pytest

from opennki import KernelError, jit
from opennki import isa as nisa
from opennki import language as nl
from opennki.ir.graph import Stage, instructions
from opennki.kernels.moe.down_projection_mx_transposed import down_projection_mx_transposed
from opennki.kernels.moe.examples import mx_experts
from opennki.kernels.moe.experts import Experts
from opennki.kernels.moe.mx import from_mx_down, intermediate_index
from opennki.kernels.moe.mx_tiles import load_down
from opennki.kernels.moe.reference import mx_intermediate
from opennki.kernels.moe.tokens import Tile

DTYPES = pytest.mark.parametrize("dtype", ["float4_e2m1fn_x4", "float8_e4m3fn_x4"])


@jit
def projected(lanes, down, down_scale, I, claimed=None, columns=None, scale_columns=None):
    """lanes [128, nI, T, 4]: products where intermediate_index puts them, 0 elsewhere. The others replace what is passed."""
    values = nl.ndarray(lanes.shape, dtype=lanes.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=values, src=lanes)
    act = nl.ndarray(lanes.shape[:3], dtype=nl.float8_e4m3fn_x4, buffer=nl.sbuf)
    act_scale = nl.ndarray(lanes.shape[:3], dtype=nl.uint8, buffer=nl.sbuf)
    nisa.quantize_mx(dst=act, src=values, dst_scale=act_scale)
    weights, scales = load_down(Experts(down, down, None, down_scale), 0, Tile(0, 0, I))
    columns = columns or down.shape[-1]
    weights, scales = weights[:, :, 0:columns], scales[:, :, 0 : scale_columns or columns]
    result = down_projection_mx_transposed(act, act_scale, weights, scales, claimed or I)
    tile = nl.ndarray(result.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=tile, src=result)
    out = nl.ndarray(result.shape, dtype=nl.float32, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=tile)
    return out


def operands(H: int, I: int, T: int = 4, dtype: str = "float4_e2m1fn_x4"):
    random = np.random.default_rng(0)
    experts = mx_experts(random, 1, H, I, dtype)
    products = random.standard_normal((T, I)).astype(ml_dtypes.bfloat16)
    index = intermediate_index(I, 128)
    lanes = np.where(index >= 0, products[:, index], 0).astype(products.dtype)  # [T, 128, nI, 4]
    return products, {
        "lanes": np.ascontiguousarray(lanes.transpose(1, 2, 0, 3)), "down": experts["down"],
        "down_scale": experts["down_scale"], "I": I,
    }


@DTYPES
@pytest.mark.parametrize("H, I, T", [(512, 96, 4), (512, 512, 1), (1024, 640, 4), (512, 192, 2), (512, 1024, 4)])
def test_h_is_on_the_partitions(H, I, T, dtype):
    products, arguments = operands(H, I, T, dtype)
    actual = projected.with_target("gen4")(**arguments)
    down = from_mx_down(arguments["down"], arguments["down_scale"], dtype, I)[0]
    expected = mx_intermediate(products.astype(np.float32)) @ down
    assert actual.shape == (128, H // 128, T)
    np.testing.assert_allclose(actual.transpose(2, 1, 0).reshape(T, H), expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def test_one_matmul_for_128_of_h_and_512_of_i():
    _, arguments = operands(1024, 640)
    modules = projected.with_target("gen4").compile(**arguments).modules
    program = instructions(modules[Stage.BIR].cores[0].body)  # loops are unrolled here
    matmuls = [instr.operands["stationary"].partitions for instr in program if instr.op == "nc_matmul_mx"]
    # The second tile of I is 128 wide, a quarter of which lies on 32 partitions.
    assert sorted(matmuls) == [(0, 32)] * 8 + [(0, 128)] * 8


@pytest.mark.parametrize("changes, limit, hint", [
    ({"claimed": 513}, "act.shape[1] == weights.shape[1] == -(-I // 512)", "for each 512 of I"),
    ({"scale_columns": 384}, "act.shape == act_scale.shape and weights.shape == weights_scale.shape", "shape"),
    ({"columns": 192}, "H % 128 == 0", "multiple of 128"),
])
def test_gates(changes, limit, hint):
    _, arguments = operands(512, 512)
    with pytest.raises(KernelError) as caught:
        projected.with_target("gen4")(**{**arguments, **changes})
    assert caught.value.code == "E401" and caught.value.limit.startswith(limit) and hint in caught.value.hint


def test_the_result_lies_in_one_bank():
    """H / 128 * T: 4 * 128 elements fill a bank of 512 float32; 4 * 129 do not fit."""
    _, arguments = operands(512, 32, 128)
    assert projected.with_target("gen4")(**arguments).shape == (128, 4, 128)
    _, arguments = operands(512, 32, 129)
    with pytest.raises(KernelError) as caught:
        projected.with_target("gen4")(**arguments)
    assert caught.value.limit.startswith("H // 128 * T <= 512") and "PSUM bank" in caught.value.hint
