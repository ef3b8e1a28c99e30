"""assign-engines: the row's engine where the author chose none, the author's where it did."""

import pytest

from opennki.ir.errors import KernelError
from opennki.ir.graph import instructions
from opennki.ir.parser import parse
from opennki.passes.assign_engines import queue_of
from opennki.passes.pipeline import run_passes

TILE = "{0:128 | 0 + [1 x 64]}"


def kernel(*body, dtype="float32", target="gen3"):
    lines = "\n".join(body)
    return f"""kernel @k stage=penguin target={target} {{
      param %x: {dtype}[128,64] @private_hbm
      shared %y: {dtype}[128,64] @shared_hbm
      core 0 {{
        %a: {dtype}[128,64] @sbuf
        %b: {dtype}[128,64] @sbuf
        {lines}
      }}
      return %y
    }}"""


def assigned(body, **more):
    (core,) = run_passes(parse(kernel(body, **more)), ["assign-engines"]).cores
    (instr,) = instructions(core.body)
    return str(instr.engine)


def test_the_row_chooses_where_the_author_did_not(check_pass):
    check_pass(
        "assign-engines",
        before=kernel(f"memset dst=%a{TILE} value=0.0", f"activation dst=%b{TILE} op=exp data=%a{TILE}"),
        after=kernel(f"vector.memset dst=%a{TILE} value=0.0", f"scalar.activation dst=%b{TILE} op=exp data=%a{TILE}"),
    )


def test_the_authors_choice_stays(check_pass):
    text = kernel(f"gpsimd.memset dst=%a{TILE} value=0.0", f"scalar.tensor_copy dst=%b{TILE} src=%a{TILE}")
    check_pass("assign-engines", before=text, after=text)




def test_moves_are_queued_by_their_direction():
    """Into SBUF, into HBM, and those whose descriptors GpSimd makes: three queues that do not wait for one another."""
    load, store = f"dma_copy dst=%a{TILE} src=%x{{0 + [1 x 8192]}}", f"dma_copy dst=%y{{0 + [1 x 8192]}} src=%a{TILE}"
    (core,) = run_passes(parse(kernel(load, store, load + " dge_mode=swdge")), ["assign-engines"]).cores
    assert [queue_of(instr) for instr in instructions(core.body)] == ["dma0", "dma1", "dma2"]


def test_an_instruction_without_engine_has_no_queue():
    (core,) = parse(kernel(f"memset dst=%a{TILE} value=0.0")).cores
    with pytest.raises(KernelError, match="assign-engines first"):
        queue_of(next(instructions(core.body)))
