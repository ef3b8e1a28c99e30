"""fold-layouts: view chains become access patterns. Text in, text out."""

import pytest

from opennki.ir.errors import KernelError
from opennki.ir.graph import Stage
from opennki.ir.parser import parse
from opennki.ir.printer import operand_to_text
from opennki.passes.fold_layouts import fold
from opennki.passes.pipeline import run_passes


def folded(tensor: str, view: str) -> str:
    """The access that a view of `tensor` (a declaration) folds to."""
    module = parse(f"""kernel @k stage=trace target=gen3 {{
      {tensor.replace('%', 'param %', 1) if 'hbm' in tensor else ''}
      core 0 {{
        %r: int32[1] @register
        %i: int32[128,1] @sbuf
        {'' if 'hbm' in tensor else tensor}
        device_print tensor={view} print_prefix=p
      }}
    }}
    """)
    return operand_to_text(fold(module.cores[0].body[0].operands["tensor"]))


CHIP, HBM = "%t: float32[128,4,16] @sbuf", "%t: float32[64,4,16] @private_hbm"


@pytest.mark.parametrize(
    ("view", "access"),
    [
        ("%t", "%t{0:128 | 0 + [1 x 64]}"),  # contiguous dimensions merge
        ("%t[:, 1:3, :]", "%t{0:128 | 16 + [1 x 32]}"),
        ("%t[:, :, 0:8]", "%t{0:128 | 0 + [16 x 4] [1 x 8]}"),  # a gap keeps them apart
        ("%t[32:64, 2, 5]", "%t{32:64 | 37 + [1 x 1]}"),  # unit dimensions vanish
        ("%t[3]", "%t{3:4 | 0 + [1 x 64]}"),
        ("%t.permute([0, 2, 1])", "%t{0:128 | 0 + [1 x 16] [16 x 4]}"),
        ("%t.slice(1, 2, 3).squeeze_dim(1).slice(1, 7, 8).broadcast(1, 100)", "%t{0:128 | 39 + [0 x 100]}"),
        ("%t[:, :, ::2].expand_dim(1)", "%t{0:128 | 0 + [2 x 32]}"),
        ("%t.reshape([128, 64]).view(bfloat16)", "%t{0:128 | 0 + [1 x 128]} as bfloat16"),
        ("%t.ap([[64, 16], [16, 4], [1, 16]], offset=640)", "%t{10:26 | 0 + [1 x 64]}"),
        ("%t.ap([[64, 128], [0, 3], [1, 4]], scalar_offset=%r, indirect_dim=1)",
         "%t{0:128 | 0 + [0 x 3] [1 x 4] + (scalar %r * 16 in 0:4)}"),
    ],
)
def test_chip_view_folds_to(view, access):
    assert folded(CHIP, view) == access


@pytest.mark.parametrize(
    ("view", "access"),
    [
        ("%t", "%t{0 + [1 x 4096]}"),
        ("%t[5]", "%t{320 + [1 x 64]}"),
        ("%t[:, 1, :]", "%t{16 + [64 x 64] [1 x 16]}"),
        ("%t.select(0, %r)", "%t{0 + [1 x 64] + (scalar %r * 64 in 0:64)}"),
        # rows stay apart where each has an address or a check of its own
        ("%t.vector_select(0, %i)", "%t{0 + [64 x 128] [1 x 64] + (vector %i{0:128 | 0 + [1 x 1]} * 64 in 0:64)}"),
        ("%t.ap([[64, 8], [1, 64]], offset=128, scalar_offset=%r)",
         "%t{128 + [64 x 8] [1 x 64] + (scalar %r * 64 walk 1 in -2:62)}"),
    ],
)
def test_hbm_view_folds_to(view, access):
    assert folded(HBM, view) == access


def test_reduction_keeps_its_dimensions(check_pass):
    check_pass(
        "fold-layouts",
        before="""kernel @k stage=trace target=gen3 {
          core 0 {
            %t: float32[128,4,16] @sbuf
            %s: float32[128,4] @sbuf
            tensor_reduce dst=%s op=add data=%t axis=[2]
          }
        }""",
        after="""kernel @k stage=penguin target=gen3 {
          core 0 {
            %t: float32[128,4,16] @sbuf
            %s: float32[128,4] @sbuf
            tensor_reduce dst=%s{0:128 | 0 + [1 x 4]} op=add data=%t{0:128 | 0 + [16 x 4] [1 x 16]} axis=[2]
          }
        }""",
    )


def test_broadcast_stays_a_step_of_zero(check_pass):
    check_pass(
        "fold-layouts",
        before="""kernel @k stage=trace target=gen3 {
          core 0 {
            %s: float32[128,4] @sbuf
            %t: float32[16,128] @psum
            nc_transpose dst=%t[:, :] data=%s.slice(1, 2, 3).broadcast(1, 16)
          }
        }""",
        after="""kernel @k stage=penguin target=gen3 {
          core 0 {
            %s: float32[128,4] @sbuf
            %t: float32[16,128] @psum
            nc_transpose dst=%t{0:16 | 0 + [1 x 128]} data=%s{0:128 | 2 + [0 x 16]}
          }
        }""",
    )


def test_loop_bounds_and_indices_fold_too(check_pass):
    check_pass(
        "fold-layouts",
        before="""kernel @k stage=trace target=gen3 {
          param %x: float32[8,16] @private_hbm
          core 0 {
            %n: int32[1] @register
            %i: int32[1] @register
            %t: float32[1,16] @sbuf
            register_move dst=%n src=3
            for %i in 0 to %n step 1 {
              dma_copy dst=%t src=%x.select(0, %i)
            }
          }
        }""",
        after="""kernel @k stage=penguin target=gen3 {
          param %x: float32[8,16] @private_hbm
          core 0 {
            %n: int32[1] @register
            %i: int32[1] @register
            %t: float32[1,16] @sbuf
            register_move dst=%n src=3
            for %i in 0 to %n step 1 {
              dma_copy dst=%t{0:1 | 0 + [1 x 16]} src=%x{0 + [1 x 16] + (scalar %i * 16 in 0:8)}
            }
          }
        }""",
    )


def test_folding_what_is_folded_changes_nothing():
    module = parse("""kernel @k stage=penguin target=gen3 {
      core 0 {
        %t: float32[16,128] @sbuf
        memset dst=%t{0:16 | 0 + [1 x 128]} value=1.0
      }
    }
    """)
    assert run_passes(module, ["fold-layouts"]) == module and module.stage is Stage.PENGUIN


def test_pattern_of_five_free_pairs_is_refused():
    module = parse("""kernel @k stage=trace target=gen3 {
      core 0 {
        %t: float32[128,4096] @sbuf
        memset dst=%t.reshape([128, 8, 8, 8, 8])[:, 0:2, 0:2, 0:2, 0:2] value=1.0
      }
    }
    """)
    run_passes(module, ["fold-layouts"])  # four pairs are legal
    five = parse("""kernel @k stage=penguin target=gen3 {
      core 0 {
        %t: float32[128,4096] @sbuf
        memset dst=%t{0:128 | 0 + [1024 x 2] [256 x 2] [64 x 2] [16 x 2] [4 x 2]} value=1.0
      }
    }
    """)
    with pytest.raises(KernelError) as error:
        run_passes(five, ["check-limits"])
    assert error.value.code == "E307" and "5 free dimensions" in str(error.value)
