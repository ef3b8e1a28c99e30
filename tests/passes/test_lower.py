"""lower: physical operands in per-engine queues."""

import pytest

from opennki.ir.errors import KernelError
from opennki.ir.graph import Memory, Queue, Stage
from opennki.ir.parser import parse
from opennki.passes.pipeline import run_passes

TEXT = """kernel @k stage=penguin target=gen3 {{
  param %x: bfloat16[128,64] @private_hbm
  shared %y: bfloat16[128,64] @shared_hbm
  core 0 {{
    %a: bfloat16[128,64] @sbuf{address}
    %b: bfloat16[64,128] @sbuf{other}
    dma.dma_copy dst=%a{{0:128 | 0 + [1 x 64]}} src=%x{{0 + [1 x 8192]}}
    vector.memset dst=%b{{0:64 | 32 + [1 x 16]}} value=1.0
    dma.dma_copy dst=%y{{0 + [1 x 8192]}} src=%a{{0:128 | 0 + [1 x 64]}}
  }}
  return %y
}}"""


def lowered(*passes, address=" at 0:0x0100", other=" at 64:0x0400"):
    return run_passes(parse(TEXT.format(address=address, other=other)), [*passes, "lower"])


def test_each_engine_gets_a_queue_of_its_own_instructions():
    module = lowered("allocate", "synchronise")
    (core,) = module.cores
    assert module.stage is Stage.BIR
    assert [(queue.name, [i.op for i in queue.body]) for queue in core.body if isinstance(queue, Queue)] == [
        ("vector", ["memset"]), ("dma0", ["dma_copy"]), ("dma1", ["dma_copy"]),
    ]


def test_an_access_becomes_a_place():
    """Partition and byte of the tensor's address come on top of the access's own; elements become bytes."""
    queues = {queue.name: queue for queue in lowered("allocate", "synchronise").cores[0].body}
    dst = queues["vector"].body[0].operands["dst"]
    assert isinstance(dst, Memory)
    assert (dst.partitions, dst.byte, dst.pattern) == ((64, 64), 1024 + 2 * 32, ((1, 16),))


def test_a_tensor_without_address_is_refused():
    with pytest.raises(KernelError, match="address"):
        lowered()
