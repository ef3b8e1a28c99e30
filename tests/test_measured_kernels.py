"""The kernels of `make bench-model` compute what they say, at small sizes: a benchmark of a wrong kernel measures nothing."""

from collections import Counter
from math import prod

import ml_dtypes
import numpy as np
import pytest
from bench.measured.batched_matmul import batched_matmul, batched_matmul_golden
from bench.measured.gemm import blocked_gemm, gemm_golden, resident_gemm, streamed_gemm
from bench.measured.streams import adamw, adamw_golden, silu, silu_golden
from bench.measured.table import CLOSED_FORMS, MEASURED
from bench.measured.transposes import tiled_transpose, tiled_transpose_golden
from bench.measured.vector_add import vector_add, vector_add_golden

from opennki.ir.graph import instructions


def normal(*shape, dtype=np.float32):
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(dtype)


def two_of(*shape, dtype=np.float32):
    values = normal(2, *shape, dtype=dtype)
    return values[0], values[1]


@pytest.mark.parametrize("shape", [(20, 1, 1), (9, 128, 1), (10, 128, 2), (1, 128, 200), (2, 128, 1000)])
def test_vector_add(shape):
    a, b = two_of(*shape)
    np.testing.assert_array_equal(vector_add(a, b), vector_add_golden(a, b))


@pytest.mark.parametrize("width", [64, 192])
def test_silu(width):
    x = normal(256, 192)
    np.testing.assert_allclose(silu(x, width), silu_golden(x, width), rtol=1e-6, atol=1e-7)


def test_adamw():
    param, gradient, moment = (normal(6, 128, width)[:, :, :16] for width in (16, 17, 18))
    variance = np.square(normal(6, 128, 19))[:, :, :16]
    arguments = [np.ascontiguousarray(each) for each in (param, gradient, moment, variance)]
    # Steps are about 1e-3, so that this is 1e-4 of a step.
    np.testing.assert_allclose(adamw(*arguments), adamw_golden(*arguments), rtol=1e-6, atol=1e-7)


def test_tiled_transpose():
    x = normal(256, 640)
    np.testing.assert_array_equal(tiled_transpose(x), tiled_transpose_golden(x))


@pytest.mark.parametrize(("transposes_first", "store_width"), [(False, 512), (True, 1024)])
def test_batched_matmul(transposes_first, store_width):
    lhs, rhs = normal(3, 384, 64), normal(3, 64, 1024)
    result = batched_matmul(lhs, rhs, transposes_first, store_width)
    np.testing.assert_allclose(result, batched_matmul_golden(lhs, rhs, transposes_first, store_width), rtol=1e-5, atol=1e-5)


BF16_STEP = 2.0**-7  # to the next number: a sum in another order may round the other way


@pytest.mark.parametrize(
    ("kernel", "options"),
    [
        (resident_gemm, {"row_blocks": 1}),
        (resident_gemm, {"row_blocks": 2}),
        (blocked_gemm, {"outer": "N", "k_tiles": 2, "m_tiles": 2, "n_tiles": 1}),
        (blocked_gemm, {"outer": "M", "k_tiles": 1, "m_tiles": 2, "n_tiles": 2}),
        (blocked_gemm, {"outer": "M", "k_tiles": 4, "m_tiles": 4, "n_tiles": 2}),
    ],
    ids=lambda value: value.__name__ if callable(value) else "-".join(map(str, value.values())),
)
def test_bfloat16_gemm(kernel, options):
    lhsT, rhs = normal(512, 512, dtype=ml_dtypes.bfloat16), normal(512, 1024, dtype=ml_dtypes.bfloat16)
    result, expected = kernel(lhsT, rhs, **options), gemm_golden(lhsT, rhs)
    np.testing.assert_allclose(result.astype(np.float32), expected.astype(np.float32), rtol=BF16_STEP, atol=1e-4)


@pytest.mark.parametrize("row_blocks", [1, 2])
def test_streamed_gemm(row_blocks):
    lhsT, rhs = normal(256, 512), normal(256, 3 * 76)
    result = streamed_gemm(lhsT, rhs, row_blocks, width=76)
    np.testing.assert_allclose(result, gemm_golden(lhsT, rhs), rtol=1e-5, atol=1e-4)


# --- the rows of the table are the published kernels: as many bytes, as many instructions ---------------------------------

ROWS = {row.id: row for row in MEASURED}


def counts(row, steps):
    """Instructions by name, and the bytes that DMA reads from and writes to HBM."""
    found = Counter()
    for instr in instructions(row.kernel.trace(**row.arguments(steps)).cores[0].body):
        found[instr.op] += 1
        for name in ("src", "dst") if instr.op == "dma_copy" else ():
            operand = instr.operands[name]
            if operand.space.is_hbm:
                found[name] += prod(operand.shape) * operand.dtype.nbytes
    return found


def whole(row):
    """Counts of the whole kernel: they grow by the same from step to step."""
    one, two = counts(row, 1), counts(row, 2)
    return {name: one[name] + (two[name] - one[name]) * (row.steps - 1) for name in two}


@pytest.mark.parametrize("name", [row.id for row in MEASURED if row.hbm_mb])
def test_the_kernel_moves_the_published_bytes(name):
    found, published = whole(ROWS[name]), ROWS[name].hbm_mb
    rounding = 0.6 if max(published) > 10 else 0.001  # published in whole MB or in KB
    assert (found["src"] / 1e6, found["dst"] / 1e6) == pytest.approx(published, abs=rounding)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("kda-adamw-v2-ch1824", {"activation": 192, "scalar_tensor_tensor": 288, "tensor_tensor": 96, "dma_copy": 480}),
        ("kda-bmm-v1", {"nc_matmul": 8704 // 2 - 256, "nc_transpose": 512}),  # published: 8704, two for each float32 matmul
        ("kda-bmm-v2", {"nc_matmul": 8704 // 2 - 256, "nc_transpose": 512}),
        ("kda-tmm-v1", {"nc_matmul": 24576 // 2}),
        ("kda-silu-v1", {"activation": 32}),
        ("kda-silu-v3-s7", {"activation": 224}),
        ("cs149-transpose1024", {"nc_transpose": 64, "dma_copy": 128}),
        ("cs149-vadd-tiled-rc1", {"dma_copy": 3 * 25600, "tensor_tensor": 25600}),
    ],
)
def test_the_kernel_has_the_published_instructions(name, expected):
    found = whole(ROWS[name])
    assert {op: found[op] for op in expected} == expected


def test_closed_forms_are_of_measured_kernels_and_near_them():
    for form in CLOSED_FORMS:
        assert form.us == pytest.approx(ROWS[form.id].us, rel=0.15), form.id
