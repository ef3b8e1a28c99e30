"""The text format: what is printed parses back, and text that is wrong ends in a KernelError at its line."""

import base64
import re
import zlib
from dataclasses import replace
from functools import cache
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import opennki.passes  # noqa: F401 -- registers the passes
from opennki.backend import plan
from opennki.ir.errors import KernelError
from opennki.ir.graph import Instruction, Module, Stage, Step, View
from opennki.ir.parser import parse
from opennki.ir.printer import to_text, value_text
from opennki.ir.verifier import verify
from opennki.passes.pipeline import TO_BIR, TO_PENGUIN, run_passes

CONTENTS = base64.b64encode(zlib.compress(bytes(range(32)), 9)).decode()

TRACE = f"""kernel @rich.kernel stage=trace target=gen4 {{
  param %x: float32[128,64] @shared_hbm
  param %table: bfloat16[256,2,8] @shared_hbm
  shared %y: float32[128,64] @shared_hbm
  constant %c: float32[2,4] @shared_hbm = "{CONTENTS}"
  gate "T % 128 == 0" holds (T=256, shape=[1, 2], ratio=0.5, name=x, none_="none", big=-1e+30, "two words"=inf)
  gate "no values" fails hint "choose \\"another\\" T"
  core 0 {{
    %t: float32[128,64] @sbuf
    %u: float32[64,128] @sbuf at 0x0040
    %v: float32[32,8] @sbuf at 32:0x1000
    %w: bfloat16[16,1,8] @sbuf
    %i: int32[128,2] @sbuf
    %p: float32[128,512] @psum
    %t#2: float32[128,64] @sbuf
    %"odd name \\u00e9 \\"q\\"": float32[128,4] @sbuf
    %n: int32[1] @register
    memset dst=%t value=0.0
    memset dst=%t value=-1.5e-07
    memset dst=%t value=inf
    vector.memset dst=%t[:, 0:32] value=-inf name="plain"
    memset dst=%t[0:64, ...] value=nan name="in \\"quotes\\" // no comment"
    gpsimd.memset dst=%i value=-7 in (k@12=3, j@14=-1)
    memset dst=%t[:, 1:64:2] value=3 after "plain", "in \\"quotes\\" // no comment" in (k@12=3)
    dma_copy dst=%t src=%x
    dma_copy dst=%t[0:64] src=%x[64:128, 0:64]
    dma_copy dst=%t[3, :] src=%x[-1, :] priority=2
    dma_copy dst=%u.permute([0, 1]) src=%x.permute([1, 0])
    dma_copy dst=%"odd name \\u00e9 \\"q\\""[0:2, :] src=%c
    dma_copy dst=%w src=%table.ap([[16, 16], [8, 1], [1, 8]], offset=8, scalar_offset=%n)
    dma_copy dst=%w src=%table.ap([[16, 16], [1, 8]], scalar_offset=%i[0:1, 0:1]) oob_mode=skip
    dma_copy dst=%w src=%table.ap([[16, 16], [1, 8]], vector_offset=%i[0:16, 1:2])
    dma_copy dst=%w src=%table.vector_select(0, %i[0:16, 0:1])[:, 0, :]
    dma_copy dst=%t[0:1, 0:32] src=%x.ap([[1, 32]], indirect_dim=0, dtype=int32).view(float32)
    nc_transpose dst=%p[0:64, 0:128] data=%t
    nc_transpose dst=%p[0:1, 0:128] data=%t.slice(1, 2, 3)
    tensor_copy dst=%t.rearrange([p, [a, b]], [p, b, a], (a=4)) src=%t#2.reshape([128, 16, 4])
    tensor_copy dst=%t.expand_dim(1) src=%t.select(1, %n).broadcast(1, 64)
    tensor_scalar dst=%t data=%t op0=none op1=maximum operand1=0.0
    tensor_scalar dst=%t data=%t op0=multiply operand0=%t[:, 3:4] op1=add operand1=-2 reverse1=true
    tensor_reduce dst=%t[:, 0:1] op=add data=%p[:, 0:64] axis=[1] negate=true
    activation dst=%t op=exp data=%p[:, 0:64] bias=%t[:, 0:1] scale=0.5
    activation dst=%t op=copy data=%t reduce_op=add reduce_res=%t[:, 0:1] reduce_cmd=reset_reduce
    nc_matmul dst=%p[0:64, 0:64] stationary=%t moving=%t accumulate=false
    nc_matmul dst=%p[0:32, 0:64] stationary=%t[:, 0:32] moving=%t tile_position=[0, 0] tile_size=[128, 32]
    iota dst=%i pattern=[[1, 2]] offset=%n channel_multiplier=-1
    nc_stream_shuffle dst=%t src=%t#2 shuffle_mask={[*range(31), 255]}
    register_load dst=%n src=%i[0:1, 0:1]
    while %n in (k@20=0) {{
      %local: float32[1,8] @sbuf
      memset dst=%local value=1.0
      register_move dst=%n src=0
      for %n in 0 to %n step 2 {{
        %deep: float32[1,8] @sbuf
        tensor_copy dst=%deep src=%local
      }}
    }}
    device_print tensor=%t[0:1] print_prefix="t = "
    dma_copy dst=%y src=%t
    core_barrier data=%y cores=[0, 1]
    sendrecv src=%t dst=%t#2 send_to_rank=1 recv_from_rank=1 pipe_id=0
  }}
  core 1 {{
    %t: float32[128,64] @sbuf
    core_barrier data=%y cores=[0, 1]
    sendrecv src=%t dst=%t send_to_rank=0 recv_from_rank=0 pipe_id=0 dma_engine=gpsimd_dma
  }}
  return %y, %x[0:2, :], %c
}}
"""

PENGUIN = """kernel @k stage=penguin target=gen3 {
  param %x: float32[128,64] @private_hbm at 0x0000
  shared %y: float32[128,64] @shared_hbm at 0x8000
  core 0 {
    %a: float32[128,64] @sbuf at 0x0000
    %b: int32[32,8] @sbuf at 32:0x0400
    %n: int32[1] @register
    %p: float32[128,512] @psum at 0x0000
    dma.dma_copy dst=%a{0:128 | 0 + [1 x 64]} src=%x{0 + [64 x 128] [1 x 64]}
    signal vector + 16
    dma.dma_copy dst=%a{0:4 | 0 + [1 x 64]} src=%x{64 + [64 x 4] [1 x 64] + (scalar %n * 64 walk 1 in -1:127)} oob_mode=skip
    dma.dma_copy dst=%a{0:4 | 0 + [1 x 8]} src=%x{0 + [64 x 4] [1 x 8] + (vector %b{0:4 | 2 + [1 x 1]} * 64 in 0:128)}
    vector.memset dst=%b{0:32 | 0 + [1 x 8]} as float32 value=1.0
    wait dma0 >= 16
    vector.tensor_copy dst=%a{0:32 | 0 + [2 x 8]} src=%a{32:64 | 1 + [0 x 8]}
    vector.tensor_copy dst=%a{0:32 | 0 + [1 x 8]} src=%a{0:32 | 0 + [1 x 8] + (scalar %b{0:1 | 0 + [1 x 1]} * 8 in 0:8)}
    while %n {
      sync.register_move dst=%n src=0
    }
    for k@12 in range(0, 64, 16) in (j@11=2) {
      %t: float32[32,16] @sbuf
      for k#2@30 in range(5, 2, -1) {
        vector.memset dst=%a{k/16*32:k/16*32 + 16 | k#2 + k*-1 + 50 + [1 x 1]} value=k#2*2 - 3
        gpsimd.iota dst=%b{0:32 | k#2 - 1 + [1 x 4]} pattern=[[k/8, 2], [2, 2]] offset=k in (i@31=1)
        vector.tensor_scalar dst=%a{0:32 | 0 + [1 x 16]} data=%t{0:32 | 0 + [1 x 16]} op0=add operand0=k
      }
      dma.dma_copy dst=%a{0:4 | 0 + [1 x 64]} src=%x{k*64 + [64 x 4] [1 x 64] + (scalar %b{0:1 | k/16 + [1 x 1]} * 64 walk 1 in k*-1:k*-1 + 125)}
      for %n in 0 to 3 step 1 {
        vector.memset dst=%t{0:32 | k/16 + [1 x 1]} value=1
      }
    }
  }
  return %y
}
"""  # noqa: E501

BIR = """kernel @k stage=bir target=gen3 {
  param %x: float32[128,64] @shared_hbm at 0x0000
  shared %y: float32[128,64] @shared_hbm at 0x8000
  core 0 {
    %a: float32[128,64] @sbuf at 0x0000
    %i: int32[128,1] @sbuf at 0x0100
    %n: int32[1] @register at 0x0000
    %p: float32[64,128] @psum at 0x0800
    %z: float32[4] @private_hbm at 0x10000
    queue tensor {
      wait dma0 >= 16
      tensor.nc_transpose dst=psum[0:64, bank 1 + 0x000] float32 [1 x 128] data=sbuf[0:128, 0x0000] float32 [1 x 64]
      signal vector + 1
    }
    queue vector {
      wait tensor >= 1
      vector.tensor_copy dst=sbuf[0:64, 0x0000] float32 [1 x 64] src=psum[0:64, bank 1 + 0x100] float32 [1 x 64]
      signal dma1 + 1
    }
    queue sync {
      sync.register_move dst=register[0x0000] int32 src=3
    }
    queue dma0 {
      dma.dma_copy dst=sbuf[0:128, 0x0000] float32 [1 x 64] src=shared[0x0000] float32 [1 x 8192]
      signal tensor + 16
    }
    queue dma1 {
      wait vector >= 1
      dma.dma_copy dst=shared[0x8000] float32 [1 x 8192] src=sbuf[0:128, 0x0000] float32 [1 x 64]
      dma.dma_copy dst=private[0x10000] float32 [1 x 4] src=sbuf[0:1, 0x0000] float32 [1 x 4]
    }
    for %n in 0 to register[0x0000] int32 step 1 {
      queue dma2 {
        dma.dma_copy dst=shared[0x8000] float32 [64 x 4] [1 x 64] + (vector sbuf[0:4, 0x0100] int32 [1 x 1] * 64 in 0:128) src=sbuf[0:4, 0x0000] float32 [1 x 64]
      }
    }
  }
  return %y
}
"""  # noqa: E501

RICH = {"trace": TRACE, "penguin": PENGUIN, "bir": BIR}


@pytest.mark.parametrize("stage", RICH)
def test_a_rich_module_prints_and_parses_to_itself(stage):
    module = parse(RICH[stage])
    verify(module)
    assert str(module) == RICH[stage]
    assert parse(str(module)) == module


def test_locations_are_comments():
    text = to_text(parse(PENGUIN), loc=True)
    assert "// <text>:9" in text and parse(text) == parse(PENGUIN)


@pytest.mark.parametrize("stage", RICH)
@pytest.mark.parametrize(
    "rewrite",
    [
        lambda text: text.replace("\n", "\r\n"),
        lambda text: text.replace("    ", "\t"),
        lambda text: text.replace("\n", "\n\n  \n"),
        lambda text: text.rstrip(),
        lambda text: "\n// first\n" + text + "// last",
        lambda text: text.replace("\n", " // a comment\n"),
        lambda text: text.replace("\n", "   \n"),
    ],
)
def test_white_space_and_comments_mean_nothing(stage, rewrite):
    assert parse(rewrite(RICH[stage])) == parse(RICH[stage])


def test_strings_that_look_like_words_stay_strings():
    for text in ("none", "true", "inf", "nan", "two words", "", "\u00e9", '"', "\\", "a\nb", "x"):
        assert parse(with_prefix(value_text(text))).cores[0].body[0].attrs["print_prefix"] == text


def with_prefix(text: str) -> str:
    return f"""kernel @k stage=trace target=gen3 {{
      param %x: float32[1] @shared_hbm
      core 0 {{
        device_print tensor=%x print_prefix={text}
      }}
    }}"""


def test_one_nan_is_like_another():
    text = kernel("memset dst=%t value=nan", "activation dst=%t op=exp data=%t bias=nan")
    assert parse(text) == parse(text) and parse(str(parse(text))) == parse(text)


def test_negative_axes_are_stored_counted_from_the_front():
    assert parse(kernel("tensor_reduce dst=%t[:, 0:1] op=add data=%t axis=-1")).cores[0].body[0].attrs["axis"] == (1,)


# --- generated modules -------------------------------------------------------------------------------------------

NAMES = st.text(st.characters(codec="utf-8"), max_size=6)
NUMBERS = st.integers(-(2**31), 2**32 - 1) | st.floats(width=32)


@st.composite
def modules(draw) -> Module:
    """A rich module with other names, numbers, labels and view steps."""
    module = parse(TRACE)
    core = module.cores[0]
    names = draw(st.lists(NAMES, min_size=2, max_size=2, unique=True))
    tensors = {"t": replace(core.tensors[0], name="t" + names[0]), "t#2": replace(core.tensors[6], name="#2" + names[1])}
    start = draw(st.integers(0, 62))
    step = Step("index", (slice(None), slice(start, draw(st.integers(start + 1, 64)), draw(st.none() | st.just(1)))))
    body = []
    for value in draw(st.lists(NUMBERS, min_size=1, max_size=4)):
        view = View(tensors[draw(st.sampled_from(sorted(tensors)))], draw(st.sampled_from([(), (step,)])))
        label, prefix = draw(st.none() | NAMES), draw(NAMES)
        body.append(parsed("memset dst=%t value=0", {"dst": view}, {"value": value}, label))
        body.append(parsed("device_print tensor=%t print_prefix=x", {"tensor": view}, {"print_prefix": prefix}, None))
    gates = tuple(replace(gate, text=draw(NAMES), hint=draw(NAMES), values=((draw(NAMES), draw(NUMBERS | NAMES)),))
                  for gate in module.gates)
    core = replace(core, tensors=tuple(tensors.values()), body=tuple(body))
    return replace(module, name=draw(NAMES), gates=gates, cores=(core,), results=module.results[:1])


@cache
def instruction_of(line: str) -> Instruction:
    return parse(kernel(line)).cores[0].body[0]


def parsed(line: str, operands: dict, attrs: dict, label: str | None) -> Instruction:
    instr = instruction_of(line)
    row_attrs = {name: attrs.get(name, value) for name, value in instr.attrs.items()}
    return replace(instr, operands={**instr.operands, **operands}, attrs=row_attrs, label=label)


@settings(max_examples=60, deadline=None)
@given(module=modules())
def test_parse_undoes_print(module):
    text = str(module)
    assert str(parse(text)) == text
    if "value=nan" not in text and "=nan)" not in text:  # the generated NaNs are unlike the one that text means
        assert parse(text) == module


# --- text that is wrong ------------------------------------------------------------------------------------------


def kernel(*lines: str, stage: str = "trace", head: str = "", tail: str = "") -> str:
    """A kernel with the tensors that the cases use; the body starts on line 9."""
    body = "".join(f"    {line}\n" for line in lines)
    at = {"trace": "", "penguin": "", "bir": " at 0x0000"}[stage]
    return (
        f"kernel @k stage={stage} target=gen3 {{{head}\n  param %x: float32[128,64] @shared_hbm{at}\n"
        f"  core 0 {{\n    %t: float32[128,64] @sbuf{at}\n    %i: int32[128,1] @sbuf{at and ' at 0x0100'}\n"
        f"    %n: int32[1] @register{at}\n    %p: float32[128,64] @psum{at}\n    %h: float32[8] @private_hbm"
        f"{at and ' at 0x8000'}\n{body}  }}\n{tail}}}\n"
    )


def refusal(text: str) -> KernelError:
    """The error of parsing, verifying, compiling or planning a text, which must be a KernelError."""
    with pytest.raises(KernelError) as error:
        to_the_end(text)
    str(error.value)
    return error.value


def to_the_end(text: str) -> None:
    module = parse(text)
    verify(module)
    assert str(parse(str(module))) == str(module)
    passes = {Stage.TRACE: (*TO_PENGUIN, *TO_BIR), Stage.PENGUIN: TO_BIR, Stage.BIR: ("check-order",)}[module.stage]
    plan.build(run_passes(module, passes))


SBUF = "sbuf[0:128, 0x0000] float32 [1 x 64]"


def in_loop(trips: int, *lines: str) -> str:
    """A penguin kernel with a static loop over k; the body starts on line 10."""
    return kernel(f"for k@1 in range(0, {trips}) {{", *lines, "}", stage="penguin")


def one(offset: str, line: str = "memset dst=% value=0") -> str:
    """An instruction on one element of each partition."""
    return line.replace("%", f"%t{{0:128 | {offset} + [1 x 1]}}")


IN_VECTOR = "queue vector {{\n{}\n}}"

CASES = {
    # what is wrong: code, line of the fault (None where no line is at fault), text
    "empty": ("E601", 1, ""),
    "not a kernel": ("E601", 1, "hello"),
    "no opening brace": ("E601", 1, "kernel @k stage=trace target=gen3\n"),
    "no closing brace": ("E601", 1, "kernel @k stage=trace target=gen3 {\n"),
    "no name": ("E601", 1, "kernel stage=trace target=gen3 {\n}"),
    "no stage": ("E601", 1, "kernel @k target=gen3 {\n}"),
    "more behind the kernel": ("E601", 5, "kernel @k stage=trace target=gen3 {\n  core 0 {\n  }\n}\nmore"),
    "two statements on a line": ("E601", 9, kernel("memset dst=%t value=0 memset dst=%t value=0")),
    "open string": ("E601", 9, kernel('memset dst=%t value=0 name="open')),
    "bad escape": ("E601", 9, kernel('memset dst=%t value=0 name="\\q"')),
    "bare carriage return": ("E601", 9, kernel("memset dst=%t\rvalue=0")),
    "form feed": ("E601", 9, kernel("memset dst=%t \x0c value=0")),
    "null": ("E601", 9, kernel("memset dst=%t \x00 value=0")),
    "a number of 5000 digits": ("E601", 9, kernel(f"memset dst=%t value={'9' * 5000}")),
    "an address of 5000 digits": ("E601", 9, kernel(f"%q: float32[1,1] @sbuf at 0x{'f' * 5000}")),
    "a shape of 5000 digits": ("E601", 9, kernel(f"%q: float32[1,{'9' * 5000}] @sbuf")),
    "a core of 5000 digits": ("E601", 2, f"kernel @k stage=trace target=gen3 {{\n  core {'9' * 5000} {{\n  }}\n}}"),
    "brackets without end": ("E601", 1, kernel("iota dst=%i pattern=" + "[" * 5000 + "]" * 5000)),
    "unknown space": ("E601", 9, kernel("%q: float32[1,1] @cache")),
    "negative size": ("E601", 9, kernel("%q: float32[1,-1] @sbuf")),
    "uppercase hexadecimal": ("E601", 9, kernel("%q: float32[1,1] @sbuf at 0xFF")),
    "operand of no stage": ("E601", 9, kernel("memset dst=<0> value=0")),
    # names
    "unknown stage": ("E603", 1, "kernel @k stage=late target=gen3 {\n  core 0 {\n  }\n}"),
    "unknown target": ("E705", 1, "kernel @k stage=trace target=gen9 {\n  core 0 {\n  }\n}"),
    "generation without a model": ("E705", 1, "kernel @k stage=trace target=gen2 {\n  core 0 {\n  }\n}"),
    "unknown dtype": ("E704", 9, kernel("%q: float7[1,1] @sbuf")),
    "dtype of 64 bits": ("E704", 9, kernel("%q: float64[1,1] @sbuf")),
    "unknown instruction": ("E107", 9, kernel("memste dst=%t value=0")),
    "unknown engine": ("E106", 9, kernel("warp.memset dst=%t value=0")),
    "engine that does not run it": ("E106", 9, kernel("tensor.memset dst=%t value=0")),
    "unknown attribute": ("E602", 9, kernel("memset dst=%t value=0 valeu=1")),
    "engine as an attribute": ("E602", 9, kernel("memset dst=%t value=0 engine=vector")),
    "unknown operand": ("E602", 9, kernel("memset target=%t value=0")),
    "attribute twice": ("E602", 9, kernel("memset dst=%t value=0 value=1")),
    "operand twice": ("E602", 9, kernel("memset dst=%t dst=%t value=0")),
    "name twice": ("E602", 9, kernel("memset dst=%t value=0 name=a name=b")),
    "undeclared tensor": ("E602", 9, kernel("memset dst=%tt value=0")),
    "declared behind its use": ("E602", 9, kernel("memset dst=%q value=0", "%q: float32[1,1] @sbuf")),
    "tensor declared twice": ("E602", 9, kernel("%t: float32[1,1] @sbuf")),
    "tensor named as a parameter": ("E602", 9, kernel("%x: float32[1,1] @sbuf")),
    "tensor of a loop behind it": (
        "E602", 12, kernel("while %n {", "%q: float32[1,1] @sbuf", "}", "memset dst=%q value=0")),
    "tensor of the other core": ("E602", 11, kernel("  }", "core 1 {", "memset dst=%t value=0")),
    "result of a core": ("E602", 10, kernel(tail="  return %t\n")),
    "unknown step": ("E602", 9, kernel("memset dst=%t.slcie(0, 0, 1) value=0")),
    "step argument that it has not": ("E603", 9, kernel("memset dst=%t.slice(0, 0, 1, size=3) value=0")),
    "unknown operator": ("E105", 9, kernel("tensor_scalar dst=%t data=%t op0=plus operand0=1.0")),
    "unknown activation": ("E105", 9, kernel("activation dst=%t op=expp data=%t")),
    "unknown member": ("E105", 9, kernel("dma_copy dst=%t src=%x dge_mode=fast")),
    "after a label that is not there": ("E602", 9, kernel('memset dst=%t value=0 after "a"')),
    "after itself": ("E602", 9, kernel('memset dst=%t value=0 name=a after "a"')),
    "after what is inside a loop": (
        "E602", 12, kernel("while %n {", "memset dst=%t value=0 name=a", "}", 'memset dst=%t value=0 after "a"')),
    # attributes and operands of the wrong kind
    "missing operand": ("E109", 9, kernel("memset value=0")),
    "missing attribute": ("E109", 9, kernel("memset dst=%t")),
    "none for a tensor": ("E109", 9, kernel("memset dst=none value=0")),
    "number for a tensor": ("E109", 9, kernel("memset dst=3 value=0")),
    "tensor for a number": ("E105", 9, kernel("memset dst=%t value=%t")),
    "word for a number": ("E105", 9, kernel("memset dst=%t value=zero")),
    "number for a name": ("E105", 9, kernel("memset dst=%t value=0 name=3")),
    "infinite integer": ("E105", 9, kernel("iota dst=%i pattern=[[1, 1]] channel_multiplier=inf")),
    "integer that is none": ("E105", 9, kernel("iota dst=%i pattern=[[1, 1]] channel_multiplier=nan")),
    "integer of 33 bits": ("E105", 9, kernel("iota dst=%i pattern=[[1, 1]] channel_multiplier=4294967296")),
    "offset that is no integer": ("E105", 9, kernel("iota dst=%i pattern=[[1, 1]] offset=inf")),
    "nested pattern": ("E105", 9, kernel("iota dst=%i pattern=[[[1], 1]]")),
    "negative counts": ("E105", 9, kernel("iota dst=%i pattern=[[1, -1], [1, -1]]")),
    "nested axes": ("E105", 9, kernel("tensor_reduce dst=%t[:, 0:1] op=add data=%t axis=[[1]]")),
    "nested mask": ("E105", 9, kernel(f"nc_stream_shuffle dst=%t src=%t shuffle_mask={[[0]] * 32}")),
    "infinite bits": ("E103", 9, kernel("tensor_scalar dst=%i data=%i op0=bitwise_and operand0=inf")),
    "bits of nan": ("E103", 9, kernel("tensor_scalar dst=%i data=%i op0=bitwise_and operand0=nan")),
    "tile of one number": (
        "E105", 9, kernel("nc_matmul dst=%p[0:64] stationary=%t moving=%t tile_position=[0] tile_size=[128]")),
    "overwrites past the end": (
        "E105", 9, kernel("nc_matmul dst=%p[0:64] stationary=%t moving=%t overwrites=[[0, 65]]")),
    # shapes and places
    "zero size": ("E603", 9, kernel("%q: float32[1,0] @sbuf")),
    "no dimensions": ("E603", 9, kernel("%q: float32[] @private_hbm")),
    "one dimension on chip": ("E603", 9, kernel("%q: float32[8] @sbuf")),
    "seventy dimensions": ("E603", 9, kernel(f"%q: float32[{','.join('1' * 70)}] @sbuf")),
    "more than SBUF": ("E201", 9, kernel("%q: float32[128,1099511627776] @sbuf", "memset dst=%q[:, 0:8] value=0",
                                         "dma_copy dst=%x[:, 0:8] src=%q[:, 0:8]")),
    "more than HBM": ("E201", 2, kernel().replace("128,64] @shared", "1099511627776,64] @shared")),
    "more partitions than there are": ("E102", 9, kernel("%q: float32[1099511627776,4] @sbuf", "memset dst=%q value=0")),
    "parameter on chip": ("E603", 2, kernel().replace("@shared_hbm", "@sbuf")),
    "shared HBM inside a core": ("E603", 9, kernel("%q: float32[8] @shared_hbm")),
    "register of two": ("E603", 9, kernel("%q: int32[2] @register")),
    "register of floats": ("E603", 9, kernel("%q: float32[1] @register")),
    "slice past the end": ("E304", 9, kernel("memset dst=%t[:, 0:65] value=0")),
    "step of zero": ("E304", 9, kernel("memset dst=%t[:, 0:4:0] value=0")),
    "no core": ("E603", 1, "kernel @k stage=trace target=gen3 {\n}"),
    "core 1 alone": ("E603", 1, kernel().replace("core 0", "core 1")),
    "three cores": ("E603", None, kernel("}", "core 1 {", "}", "core 2 {")),
    "two returns": ("E603", 11, kernel(tail="  return %x\n  return %x\n")),
    "result at a run-time place": ("E602", 10, kernel(tail="  return %x.select(0, %n)\n")),
    # constants
    "no base64": ("E603", 2, kernel(head='\nconstant %c: float32[8] @shared_hbm = "???"')),
    "base64 beyond ASCII": ("E603", 2, kernel(head='\nconstant %c: float32[8] @shared_hbm = "\u00e9"')),
    "too short": ("E603", 2, kernel(head=f'\nconstant %c: float32[9] @shared_hbm = "{CONTENTS}"')),
    "too long": ("E603", 2, kernel(head=f'\nconstant %c: float32[7] @shared_hbm = "{CONTENTS}"')),
    "constant on chip": ("E603", 2, kernel(head=f'\nconstant %c: float32[1,8] @sbuf = "{CONTENTS}"')),
    "written constant": (
        "E101", 10, kernel("dma_copy dst=%c src=%h", head=f'\nconstant %c: float32[8] @shared_hbm = "{CONTENTS}"')),
    # loops
    "bound that is a word": ("E109", 9, kernel("for %n in 0 to many step 1 {", "}")),
    "bound that is a tuple": ("E109", 9, kernel("for %n in 0 to [3] step 1 {", "}")),
    "bound that is a float": ("E603", 9, kernel("for %n in 0 to 2.5 step 1 {", "}")),
    "bound that is infinite": ("E603", 9, kernel("for %n in 0 to inf step 1 {", "}")),
    "bound in SBUF": ("E603", 9, kernel("for %n in 0 to %i[0:1, :] step 1 {", "}")),
    "condition in SBUF": ("E603", 9, kernel("while %i[0:1, :] {", "}")),
    "step of zero in a loop": ("E801", 9, kernel("for %n in 0 to 3 step 0 {", "}")),
    "variable in SBUF": ("E603", 9, kernel("for %i in 0 to 3 step 1 {", "}")),
    "undeclared variable": ("E602", 9, kernel("for %j in 0 to 3 step 1 {", "}")),
    "loops without end": ("E603", 41, kernel(*["while %n {"] * 1000, *["}"] * 1000)),
    # static loops
    "static loop at stage trace": ("E603", 9, kernel("for k@1 in range(0, 2) {", "}")),
    "static loop at stage bir": ("E603", 9, kernel("for k@1 in range(0, 2) {", "}", stage="bir")),
    "static loop without trips": ("E603", 9, kernel("for k@1 in range(2, 2) {", "}", stage="penguin")),
    "static loop with a step of zero": ("E603", 9, kernel("for k@1 in range(0, 2, 0) {", "}", stage="penguin")),
    "more trips than there is time for": ("E603", None, in_loop(4611686018427387903)),
    "static loops of one name": ("E602", 10, in_loop(2, "for k@2 in range(0, 2) {", "}")),
    "variable behind its loop": ("E602", 11, kernel("for k@1 in range(0, 2) {", "}", one("k"), stage="penguin")),
    "unknown variable": ("E602", 10, in_loop(2, one("j*2"))),
    "variable divided by zero": ("E603", 10, in_loop(2, one("k/0"))),
    "variable for a float": (
        "E105", 10, in_loop(2, one("k", "affine_select dst=% pattern=[[1, 1]] channel_multiplier=0 on_true_tile=% "
                                        "on_false_value=k"))),
    "variable for a word": ("E105", 10, in_loop(2, one("k", "tensor_scalar dst=% data=% op0=k*2"))),
    "variable in a view": ("E601", 10, in_loop(2, "memset dst=%t[k:3] value=0")),
    "partitions of varying number": ("E603", 10, in_loop(2, "memset dst=%t{0:k + 1 | 0 + [1 x 64]} value=0")),
    "name in a static loop": ("E603", 10, in_loop(2, one("k", "memset dst=% value=0 name=a"))),
    "last trip past the end": ("E306", 10, in_loop(65, one("k"))),
    "first trip before the start": ("E306", 10, in_loop(60, one("k - 1"))),
    "corner of two loops past the end": ("E306", 11, in_loop(8, "for j@2 in range(0, 9) {", one("k*8 + j"), "}")),
    "partitions of the last trip": ("E306", 10, in_loop(5, "memset dst=%t{k*32:k*32 + 32 | 0 + [1 x 64]} value=0")),
    "start partition of a trip in between": (
        "E102", 10, in_loop(3, "memset dst=%t{k*16:k*16 + 16 | 0 + [1 x 64]} value=0")),
    "bank border in a trip in between": (
        "E102", 11, in_loop(8, "%r: float32[128,1024] @psum", "nc_matmul dst=%r{0:64 | k*100 + [1 x 64]} "
                               "stationary=%t{0:128 | 0 + [1 x 64]} moving=%t{0:128 | 0 + [1 x 64]}")),
    "indices of the last trip": (
        "E306", 10, in_loop(3, "memset dst=%t{0:128 | 0 + [1 x 8] + (scalar %n * 8 in 0:k + 7)} value=0")),
    # stages
    "access at stage trace": ("E603", 9, kernel("memset dst=%t{0:128 | 0 + [1 x 64]} value=0")),
    "place at stage trace": ("E603", 9, kernel(f"memset dst={SBUF} value=0")),
    "view at stage penguin": ("E603", 9, kernel("memset dst=%t value=0", stage="penguin")),
    "view at stage bir": ("E603", 10, kernel(IN_VECTOR.format("vector.memset dst=%t value=0"), stage="bir")),
    "queue at stage trace": ("E603", None, kernel(IN_VECTOR.format("memset dst=%t value=0"))),
    "queue in a loop of penguin": (
        "E603", None, kernel("while %n {", IN_VECTOR.format("vector.memset dst=%t{0:128 | 0 + [1 x 64]} value=0"), "}",
                             stage="penguin")),
    "instruction outside a queue": ("E603", 9, kernel(f"vector.memset dst={SBUF} value=0", stage="bir")),
    "tensor in a queue": ("E603", 9, kernel(IN_VECTOR.format(f"%q: float32[1,1] @sbuf\nvector.memset dst={SBUF} value=0"),
                                            stage="bir")),
    "queue in a queue": ("E603", 9, kernel(IN_VECTOR.format(IN_VECTOR.format(f"vector.memset dst={SBUF} value=0")),
                                           stage="bir")),
    "unknown queue": ("E603", None, kernel(IN_VECTOR.format(f"vector.memset dst={SBUF} value=0").replace(
        "queue vector", "queue vectro"), stage="bir")),
    "queue of another engine": ("E603", 10, kernel(IN_VECTOR.format(f"gpsimd.memset dst={SBUF} value=0"), stage="bir")),
    "no engine in a queue": ("E603", 10, kernel(IN_VECTOR.format(f"memset dst={SBUF} value=0"), stage="bir")),
    "queue twice": ("E603", None, kernel(*[IN_VECTOR.format(f"vector.memset dst={SBUF} value=0")] * 2, stage="bir")),
    # semaphores
    "wait with nothing behind it": ("E603", 9, kernel("wait vector >= 1")),
    "wait before a loop": ("E603", 10, kernel("wait vector >= 1", "while %n {", "}")),
    "signal with nothing before it": ("E603", 9, kernel("signal vector + 1")),
    "signal behind a loop": ("E603", 11, kernel("while %n {", "}", "signal vector + 1")),
    "wait without a value": ("E601", 9, kernel("wait vector")),
    "signal without a value": ("E601", 10, kernel("memset dst=%t value=0", "signal vector +")),
    "wait that never ends": (
        "E504", 11, kernel(IN_VECTOR.format(f"wait tensor >= 1\nvector.memset dst={SBUF} value=0"), stage="bir")),
    "transfer on one core": (
        "E503", 10, kernel("memset dst=%t value=1", "sendrecv src=%t dst=%t send_to_rank=1 recv_from_rank=1 pipe_id=0")),
    "barrier on one core": ("E503", 9, kernel("core_barrier data=%x cores=[0, 1]")),
    # accesses of stage penguin
    "partitions past the end": ("E306", 9, kernel("memset dst=%t{0:129 | 0 + [1 x 64]} value=0", stage="penguin")),
    "partitions backwards": ("E306", 9, kernel("memset dst=%t{5:3 | 0 + [1 x 64]} value=0", stage="penguin")),
    "no partitions on chip": ("E306", 9, kernel("memset dst=%t{0 + [1 x 64]} value=0", stage="penguin")),
    "partitions in HBM": ("E306", 9, kernel("dma_copy dst=%x{0:1 | 0 + [1 x 64]} src=%t{0:1 | 0 + [1 x 64]}",
                                            stage="penguin")),
    "elements past the end": ("E306", 9, kernel("memset dst=%t{0:128 | 1 + [1 x 64]} value=0", stage="penguin")),
    "negative offset": ("E306", 9, kernel("memset dst=%t{0:128 | -1 + [1 x 64]} value=0", stage="penguin")),
    "negative step": ("E306", 9, kernel("memset dst=%t{0:128 | 63 + [-1 x 64]} value=0", stage="penguin")),
    "count of zero": ("E306", 9, kernel("memset dst=%t{0:128 | 0 + [1 x 0]} value=0", stage="penguin")),
    "five free dimensions": (
        "E307", 9, kernel("memset dst=%t{0:128 | 0 + [1 x 1] [1 x 1] [1 x 1] [1 x 1] [1 x 1]} value=0", stage="penguin")),
    "six dimensions in HBM": (
        "E307", 9, kernel(f"dma_copy dst=%x{{0 + {'[1 x 1] ' * 6}}} src=%t{{0:1 | 0 + [1 x 1]}}", stage="penguin")),
    "a step beyond the memory": (
        "E306", 9, kernel("memset dst=%t{0:128 | 0 + [2305843009213693952 x 1]} value=0", stage="penguin")),
    "a part of a register": ("E306", 9, kernel("register_move dst=%n{1 + [1 x 1]} src=0", stage="penguin")),
    "unknown kind of offset": (
        "E603", 9, kernel("memset dst=%t{0:128 | 0 + [1 x 8] + (matrix %n * 8 in 0:8)} value=0", stage="penguin")),
    "offset that reaches too far": (
        "E306", 9, kernel("memset dst=%t{0:128 | 0 + [1 x 8] + (scalar %n * 8 in 0:9)} value=0", stage="penguin")),
    "offset with no legal index": (
        "E306", 9, kernel("memset dst=%t{0:128 | 0 + [1 x 8] + (scalar %n * 8 in 3:3)} value=0", stage="penguin")),
    "offset in floats": (
        "E303", 9, kernel("memset dst=%t{0:128 | 0 + [1 x 8] + (scalar %t{0:1 | 0 + [1 x 1]} * 8 in 0:8)} value=0",
                          stage="penguin")),
    "offset in HBM": (
        "E303", 9, kernel("memset dst=%t{0:128 | 0 + [1 x 8] + (scalar %h{0 + [1 x 1]} * 8 in 0:8)} value=0",
                          stage="penguin")),
    "two indices of a scalar": (
        "E303", 9, kernel("memset dst=%t{0:128 | 0 + [1 x 8] + (scalar %i{0:2 | 0 + [1 x 1]} * 8 in 0:8)} value=0",
                          stage="penguin")),
    "too few indices of a vector": (
        "E303", 9, kernel("dma_copy dst=%t{0:4 | 0 + [1 x 64]} src=%x{0 + [64 x 4] [1 x 64] + "
                          "(vector %i{0:3 | 0 + [1 x 1]} * 64 in 0:128)}", stage="penguin")),
    "vector on chip": (
        "E303", 9, kernel("memset dst=%t{0:128 | 0 + [1 x 8] + (vector %i{0:128 | 0 + [1 x 1]} * 8 in 0:8)} value=0",
                          stage="penguin")),
    "rows that walk faster than they step": (
        "E306", 9, kernel("dma_copy dst=%t{0:4 | 0 + [1 x 64]} src=%x{0 + [64 x 4] [1 x 64] + (scalar %n * 64 walk 2 in 0:9)}",
                          stage="penguin")),
    # places of stage bir
    "byte past SBUF": (
        "E201", 10, kernel(IN_VECTOR.format("vector.memset dst=sbuf[0:128, 0xffffff] float32 [1 x 64] value=0"), stage="bir")),
    "bank past PSUM": (
        "E201", 10, kernel(IN_VECTOR.format("vector.memset dst=psum[0:128, bank 8 + 0x000] float32 [1 x 64] value=0"),
                           stage="bir")),
    "odd byte": (
        "E306", 10, kernel(IN_VECTOR.format("vector.memset dst=sbuf[0:128, 0x0002] float32 [1 x 64] value=0"), stage="bir")),
    "HBM of no tensor": (
        "E201", 10, kernel("queue dma1 {\ndma.dma_copy dst=shared[0x100000] float32 [1 x 64] src=" + SBUF.replace(
            "0:128", "0:1") + "\n}", stage="bir")),
    "HBM past its tensor": (
        "E201", 10, kernel("queue dma1 {\ndma.dma_copy dst=shared[0x7fc0] float32 [1 x 64] src=" + SBUF.replace(
            "0:128", "0:1") + "\n}", stage="bir")),
    "tensor without an address": ("E204", 4, kernel(stage="bir").replace("@sbuf at 0x0000", "@sbuf")),
    "tensor past SBUF": ("E201", 4, kernel(stage="bir").replace("@sbuf at 0x0000", "@sbuf at 0xffffffffffff")),
    "tensors in one place of HBM": ("E202", 8, kernel(stage="bir").replace("at 0x8000", "at 0x0004")),
    "loop bound past the registers": ("E201", 9, kernel("while register[0xfff0] int32 {", "}", stage="bir")),
}


@pytest.mark.parametrize("name", CASES)
def test_wrong_text_is_refused_at_its_line(name):
    code, line, text = CASES[name]
    error = refusal(text)
    assert error.code == code, error
    assert (error.loc and error.loc.line) == line
    assert len(str(error)) < 3000


@pytest.mark.parametrize("stage", RICH)
def test_text_that_ends_anywhere_is_refused(stage):
    text = RICH[stage].rstrip()
    for end in range(0, len(text) - 1, 7):
        with pytest.raises(KernelError) as error:
            parse(text[:end])
        assert error.value.code in ("E601", "E602", "E603", "E704", "E109", "E705", "E105", "E107"), text[:end][-80:]


def compiled(text: str) -> None:
    """Parse, verify, compile and plan; nothing but KernelError may come out."""
    try:
        to_the_end(text)
    except KernelError as error:
        str(error)
    except Exception as error:
        raise AssertionError(text) from error


SMALL = {
    "trace": kernel(
        "dma_copy dst=%t src=%x",
        "%o: float32[1,64] @sbuf",
        "memset dst=%i value=3",
        "register_load dst=%n src=%i[0:1, :]",
        "nc_transpose dst=%p[0:64, 0:64] data=%t[0:64, :]",
        "for %n in 0 to 3 step 1 {",
        "dma_copy dst=%o src=%x.ap([[64, 1], [1, 64]], scalar_offset=%n) oob_mode=skip",
        "tensor_scalar dst=%t data=%t op0=multiply operand0=%t[:, 1:2] op1=add operand1=2.0 in (k@3=1)",
        "}",
        "dma_copy dst=%x src=%t name=a",
        'dma_copy dst=%x.ap([[64, 8], [1, 64]], vector_offset=%i[0:8]) src=%t[0:8] after "a"',
        tail="  return %x\n",
    ),
    "penguin": kernel(
        "dma.dma_copy dst=%t{0:128 | 0 + [1 x 64]} src=%x{0 + [1 x 8192]}",
        "for k@1 in range(0, 64, 16) in (i@7=3) {",
        "%o: float32[32,16] @sbuf",
        "for j@2 in range(0, 4) {",
        "vector.tensor_copy dst=%o{0:32 | 0 + [1 x 16]} src=%t{j*32:j*32 + 32 | k + [1 x 16]}",
        "vector.tensor_scalar dst=%t{j*32:j*32 + 32 | k + [1 x 16]} data=%o{0:32 | 0 + [1 x 16]} op0=add operand0=k/4*3 - 1",
        "}",
        "}",
        "dma.dma_copy dst=%x{0 + [1 x 8192]} src=%t{0:128 | 0 + [1 x 64]}",
        stage="penguin",
        tail="  return %x\n",
    ),
    "bir": BIR,
}
TOKEN = re.compile(r'"[^"\n]*"|0x[0-9a-f]+|-?\d+(?:\.\d+)?|[%@]?[A-Za-z_][\w#]*|\n|[ \t]+|.')
NUMBERS_TRIED = ("0", "1", "2", "-1", "3", "16", "31", "63", "64", "65", "127", "128", "129", "255", "256", "4096", "65536",
                 "2147483648", "4294967296", "99999999999", "4611686018427387903", "1.5", "inf", "nan", "0x0", "0x4", "0x800",
                 "0xffffff", "none", "true")  # fmt: skip
OTHERS = ("[", "]", "(", ")", "{", "}", "|", ":", ",", "+", "-", "=", "*", "...", "", "\n", "\r", '"', "//", " as int32",
          " walk 1", ".select(0, %n)", ".select(1, %n)", "[0]", "[:, 0:1]", ".ap([[64, 2], [1, 4]])", "\u00e9",
          "\x00")  # fmt: skip
WORDS = sorted({word for text in RICH.values() for word in TOKEN.findall(text) if word[0].isalpha()})
TENSORS = sorted({word for text in SMALL.values() for word in TOKEN.findall(text) if word[0] == "%"})


def mutated(seed: int) -> str:
    """A good text with one to three tokens or lines changed, mostly for others of their kind."""
    random = Random(seed)
    text = random.choice(sorted(SMALL.values()))
    for _ in range(random.randint(1, 3)):
        if random.random() < 0.1:
            lines = text.split("\n")
            source, target = random.randrange(len(lines)), random.randrange(len(lines))
            lines[target : target + random.randint(0, 1)] = lines[source : source + random.randint(0, 1)]
            text = "\n".join(lines)
            continue
        tokens = TOKEN.findall(text)
        if random.random() < 0.1:
            at, others = random.randrange(len(tokens)), (*OTHERS, *WORDS, *NUMBERS_TRIED)
        else:
            kinds = {"%": TENSORS, "0": NUMBERS_TRIED, "-": NUMBERS_TRIED, "a": WORDS}
            at, kind = random.choice([(at, kind) for at, token in enumerate(tokens) if (kind := _kind(token)) in kinds])
            others = kinds[kind]
        tokens[at] = random.choice(others)
        text = "".join(tokens)
    return text


def _kind(token: str) -> str:
    return "a" if token[0].isalpha() else "0" if token[0].isdigit() else token[0] if len(token) > 1 else ""


@pytest.mark.parametrize("start", range(0, 400, 100))
def test_a_mutated_text_never_breaks_the_compiler(start):
    for seed in range(start, start + 100):
        compiled(mutated(seed))


@pytest.mark.slow
def test_many_mutated_texts_never_break_the_compiler():
    for seed in range(1000, 10000):
        compiled(mutated(seed))


def test_the_text_that_is_mutated_is_good():
    for text in SMALL.values():
        to_the_end(text)
