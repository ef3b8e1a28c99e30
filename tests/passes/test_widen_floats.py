"""widen-floats: which tensors become float32, and kernels in the high-precision mode."""

import ml_dtypes
import numpy as np
import pytest

import opennki as nki
import opennki.passes
from opennki import isa as nisa
from opennki import language as nl
from opennki.ir.errors import KernelError
from opennki.ir.graph import Stage
from opennki.ir.machine import Space
from opennki.ir.parser import parse
from opennki.passes.pipeline import TO_BIR, run_passes


def kernel(tensors, body, target="gen4"):
    return f"kernel @k stage=penguin target={target} {{\n core 0 {{\n{tensors}\n{body}\n}}\n}}"


def rows(name, count=64):
    return f"%{name}{{0:32 | 0 + [1 x {count}]}}"


def test_low_precision_tensors_become_float32(check_pass):
    narrow, wide = (
        f"%a: {dtype}[32,64] @sbuf\n %b: {other}[32,64] @sbuf\n %n: int8[32,64] @sbuf\n %t: tfloat32[32,64] @sbuf"
        for dtype, other in (("bfloat16", "float8_e4m3"), ("float32", "float32"))
    )
    body = f"""tensor_tensor dst={rows('b')} data1={rows('a')} data2={rows('n')} op=add
        tensor_copy dst={rows('t')} src={rows('b')}"""
    check_pass("widen-floats", before=kernel(narrow, body), after=kernel(wide, body))


def test_a_tensor_whose_bits_are_seen_otherwise_stays(check_pass):
    tensors = "%a: bfloat16[32,64] @sbuf\n %b: {}[32,64] @sbuf\n %n: uint16[32,64] @sbuf"
    body = f"tensor_copy dst={rows('n')} src={rows('a')} as uint16\n tensor_copy dst={rows('b')} src={rows('a')}"
    check_pass(
        "widen-floats",
        before=kernel(tensors.format("float16"), body),
        after=kernel(tensors.format("float32"), body),
    )


def test_what_an_instruction_takes_only_narrow_stays_and_binds_its_neighbours(check_pass):
    """quantize_mx takes no float32, and the transpose before it keeps one dtype: only what is before both is widened."""
    tensors = """%a: {}[32,32] @sbuf
        %b: bfloat16[32,32] @sbuf
        %c: bfloat16[32,32] @sbuf
        %q: float8_e4m3fn_x4[32,8] @sbuf
        %s: uint8[32,8] @sbuf"""
    body = f"""tensor_copy dst={rows('b', 32)} src={rows('a', 32)}
        nc_transpose dst={rows('c', 32)} data={rows('b', 32)}
        quantize_mx dst={rows('q', 8)} src={rows('c', 32)} dst_scale={rows('s', 8)}"""
    check_pass(
        "widen-floats",
        before=kernel(tensors.format("float16"), body),
        after=kernel(tensors.format("float32"), body),
    )


def test_a_pinned_tensor_stays(check_pass):
    text = kernel("%a: bfloat16[32,64] @sbuf at 0x100", f"memset dst={rows('a')} value=1.0")
    check_pass("widen-floats", before=text, after=text)


def test_tensors_of_loops_are_widened(check_pass):
    def text(dtype):
        return kernel("%i: int32[1] @register", f"""for %i in 0 to 4 step 1 {{
            %a: {dtype}[32,64] @sbuf
            memset dst={rows('a')} value=1.0
        }}""")

    check_pass("widen-floats", before=text("bfloat16"), after=text("float32"))


def test_another_stage_is_refused():
    text = "kernel @k stage=trace target=gen3 {\n core 0 {\n %a: bfloat16[32,64] @sbuf\n memset dst=%a value=1.0\n}\n}"
    with pytest.raises(KernelError) as error:
        run_passes(parse(text), ["widen-floats"])
    assert error.value.code == "E603"


# --- kernels -----------------------------------------------------------------------------------------------------


@nki.jit
def three_steps(x, w, sums):
    """bfloat16 everywhere: each step rounds, unless tensors are wide. `sums` is updated in place."""
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    a, b = nl.ndarray(x.shape, x.dtype, buffer=nl.sbuf), nl.ndarray(w.shape, w.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=a, src=x)
    nisa.dma_copy(dst=b, src=w)
    nisa.tensor_tensor(a, a, b, op=nl.add)
    nisa.tensor_tensor(a, a, b, op=nl.multiply)
    nisa.tensor_tensor(a, a, b, op=nl.subtract)
    nisa.dma_copy(dst=out, src=a)
    nisa.dma_copy(dst=sums, src=a)
    return out


@nki.jit
def matmul(x, w):
    out = nl.ndarray((x.shape[1], w.shape[1]), nl.bfloat16, buffer=nl.shared_hbm)
    a, b = nl.ndarray(x.shape, x.dtype, buffer=nl.sbuf), nl.ndarray(w.shape, w.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=a, src=x)
    nisa.dma_copy(dst=b, src=w)
    acc = nl.ndarray(out.shape, nl.float32, buffer=nl.psum)
    nisa.nc_matmul(acc, a, b)
    low, high = (nl.ndarray(out.shape, nl.bfloat16, buffer=nl.sbuf) for _ in range(2))
    nisa.tensor_copy(low, acc)
    nisa.tensor_scalar(high, low, op0=nl.multiply, operand0=3.0)
    nisa.dma_copy(dst=out, src=high)
    return out


def bf16(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(ml_dtypes.bfloat16)


def test_a_kernel_in_the_high_precision_mode_rounds_once(monkeypatch):
    x, w = bf16(8, 30), bf16(8, 30, seed=1)
    a, b = x.astype(np.float32), w.astype(np.float32)
    once = ((a + b) * b - b).astype(ml_dtypes.bfloat16)
    sums = np.zeros((8, 30), np.float16)
    plain = three_steps(x, w, sums)
    monkeypatch.setenv("NKI_PRECISE_FP", "0")
    precise = three_steps(x, w, sums)
    assert precise.dtype == ml_dtypes.bfloat16 and precise.tobytes() == once.tobytes() != plain.tobytes()
    assert sums.tobytes() == ((a + b) * b - b).astype(np.float16).tobytes()
    monkeypatch.setenv("NKI_PRECISE_FP", "1")
    assert three_steps(x, w, sums).tobytes() == plain.tobytes()


def test_matmul_operands_of_float8_and_bfloat16_become_wide_together(monkeypatch):
    monkeypatch.setenv("NKI_PRECISE_FP", "0")
    x, w = bf16(16, 8).astype(ml_dtypes.float8_e4m3), bf16(16, 20, seed=1)
    product = 3 * (x.astype(np.float32).T @ w.astype(np.float32))
    assert matmul(x, w).tobytes() == product.astype(ml_dtypes.bfloat16).tobytes()
    modules = matmul.compile(x, w).modules
    assert "bfloat16" in str(modules[Stage.TRACE])
    for stage in (Stage.PENGUIN, Stage.BIR):
        assert "bfloat16" not in str(modules[stage]) and "float8" not in str(modules[stage])


def test_a_widened_module_lowers_from_its_text(monkeypatch):
    monkeypatch.setenv("NKI_PRECISE_FP", "0")
    modules = matmul.compile(bf16(16, 8), bf16(16, 20)).modules
    assert str(run_passes(parse(str(modules[Stage.PENGUIN])), TO_BIR)) == str(modules[Stage.BIR])


def test_constants_are_widened_with_their_contents(monkeypatch):
    table = np.arange(8, dtype=np.float32).reshape(1, 8).astype(ml_dtypes.bfloat16)

    @nki.jit
    def kernel(x):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        a, b = (nl.ndarray(x.shape, x.dtype, buffer=nl.sbuf) for _ in range(2))
        nisa.dma_copy(dst=a, src=x)
        nisa.dma_copy(dst=b, src=nl.shared_constant(table))
        nisa.tensor_tensor(a, a, b, op=nl.add)
        nisa.dma_copy(dst=out, src=a)
        return out

    monkeypatch.setenv("NKI_PRECISE_FP", "0")
    assert (kernel(table) == 2 * table).all()


@nki.jit(target="gen4")
def exchange(x, scales, quantised):
    """Each core sends its row; where `quantised`, core 1 alone also quantises what it sends, which keeps it narrow."""
    out = nl.ndarray((2, *x.shape[1:]), x.dtype, buffer=nl.shared_hbm)
    core = nl.program_id(0)
    mine, theirs = (nl.ndarray(x.shape[1:], x.dtype, buffer=nl.sbuf) for _ in range(2))
    nisa.dma_copy(dst=mine, src=x[core])
    if quantised and core == 1:
        words, scale = (nl.ndarray((32, 2), dtype, buffer=nl.sbuf) for dtype in (nl.float8_e4m3fn_x4, nl.uint8))
        nisa.quantize_mx(words, mine, scale)
        nisa.dma_copy(dst=scales, src=scale[0:4, :])
    nisa.sendrecv(src=mine, dst=theirs, send_to_rank=1 - core, recv_from_rank=1 - core, pipe_id=0)
    nisa.tensor_tensor(theirs, theirs, mine, op=nl.subtract)
    nisa.dma_copy(dst=out[core], src=theirs)
    return out


@pytest.mark.parametrize("quantised", [False, True])
def test_the_cores_exchange_tiles_of_one_dtype(monkeypatch, quantised):
    monkeypatch.setenv("NKI_PRECISE_FP", "0")
    x, scales = bf16(2, 32, 8), np.zeros((4, 2), np.uint8)
    a, b = x.astype(np.float32)
    assert exchange[2](x, scales, quantised).tobytes() == np.stack([b - a, a - b]).astype(x.dtype).tobytes()
    assert (scales > 0).all() == quantised
    tiles = [t for core in exchange[2].compile(x, scales, quantised).modules[Stage.BIR].cores for t in core.tensors]
    floats = {str(t.dtype) for t in tiles if t.space is Space.SBUF and t.dtype.is_float}
    assert floats == {"bfloat16" if quantised else "float32"}
