"""allocate: addresses for every tensor, live ones apart, pinned ones kept."""

import pytest

from opennki.ir.errors import KernelError
from opennki.ir.parser import parse
from opennki.passes.allocate import memory_use
from opennki.passes.pipeline import run_passes


def allocated(declarations: str, body: str, target: str = "gen3"):
    return run_passes(parse(f"""kernel @k stage=penguin target={target} {{
      core 0 {{
        {declarations}
        {body}
      }}
    }}
    """), ["allocate"])


def addresses(module) -> dict:
    return {t.name: tuple(t.address) for t in module.cores[0].tensors}


def test_tensors_that_live_together_lie_apart_and_later_ones_reuse_the_bytes():
    module = allocated(
        """%a: float32[128,64] @sbuf
        %b: float32[128,64] @sbuf
        %c: float32[128,64] @sbuf""",
        """memset dst=%a{0:128 | 0 + [1 x 64]} value=1.0
        tensor_copy dst=%b{0:128 | 0 + [1 x 64]} src=%a{0:128 | 0 + [1 x 64]}
        tensor_copy dst=%c{0:128 | 0 + [1 x 64]} src=%b{0:128 | 0 + [1 x 64]}""",
    )
    assert addresses(module) == {"a": (0, 0), "b": (0, 256), "c": (0, 0)}  # %a is dead when %c is born
    assert memory_use(module.cores[0]).sbuf == 512


def test_psum_tensors_start_at_banks():
    module = allocated(
        """%a: float32[128,8] @psum
        %b: float32[128,600] @psum
        %c: float32[128,8] @psum""",
        """memset dst=%a{0:128 | 0 + [1 x 8]} value=0.0
        memset dst=%b{0:128 | 0 + [1 x 600]} value=0.0
        memset dst=%c{0:128 | 0 + [1 x 8]} value=0.0
        tensor_scalar dst=%a{0:128 | 0 + [1 x 8]} data=%a{0:128 | 0 + [1 x 8]} op0=add operand0=1.0
        tensor_copy dst=%c{0:128 | 0 + [1 x 8]} src=%b{0:128 | 592 + [1 x 8]}""",
    )
    assert addresses(module) == {"a": (0, 0), "b": (0, 2048), "c": (0, 3 * 2048)}  # %b spans two banks


def test_pinned_addresses_are_kept_and_others_avoid_them():
    module = allocated(
        """%a: float32[128,64] @sbuf
        %p: float32[32,64] @sbuf at 32:0x0080""",
        """memset dst=%p{0:32 | 0 + [1 x 64]} value=1.0
        memset dst=%a{0:128 | 0 + [1 x 64]} value=1.0
        tensor_copy dst=%a{0:32 | 0 + [1 x 64]} src=%p{0:32 | 0 + [1 x 64]}""",
    )
    assert addresses(module) == {"a": (0, 384), "p": (32, 128)}


def test_pinned_tensors_may_share_bytes_one_after_the_other():
    module = allocated(
        """%a: float32[128,64] @sbuf at 0x0000
        %b: float32[128,64] @sbuf at 0x0000""",
        """memset dst=%a{0:128 | 0 + [1 x 64]} value=1.0
        memset dst=%b{0:128 | 0 + [1 x 64]} value=1.0""",
    )
    assert addresses(module) == {"a": (0, 0), "b": (0, 0)}


def test_pinned_tensors_that_overlap_while_both_live_are_refused():
    with pytest.raises(KernelError) as error:
        allocated(
            """%a: float32[128,64] @sbuf at 0x0000
            %b: float32[128,64] @sbuf at 0x0080""",
            """memset dst=%a{0:128 | 0 + [1 x 64]} value=1.0
            memset dst=%b{0:128 | 0 + [1 x 64]} value=1.0
            tensor_copy dst=%b{0:128 | 0 + [1 x 64]} src=%a{0:128 | 0 + [1 x 64]}""",
        )
    assert error.value.code == "E202"
    assert "%b and %a overlap" in error.value.message and "bytes 128 to 384" in error.value.operand
    assert "%a was created at" in error.value.notes[0]


def test_pinned_tensors_in_other_partitions_do_not_overlap():
    allocated(
        """%a: float32[32,64] @sbuf at 0x0000
        %b: float32[32,64] @sbuf at 32:0x0000""",
        """memset dst=%a{0:32 | 0 + [1 x 64]} value=1.0
        memset dst=%b{0:32 | 0 + [1 x 64]} value=1.0
        tensor_copy dst=%b{0:32 | 0 + [1 x 64]} src=%a{0:32 | 0 + [1 x 64]}""",
    )


@pytest.mark.parametrize(("target", "columns"), [("gen3", 212984 // 8), ("gen4", 245752 // 8)])
def test_sbuf_holds_exactly_its_bytes(target, columns):
    def two(columns):
        return allocated(
            f"""%a: float32[128,{columns}] @sbuf
            %b: float32[128,{columns}] @sbuf""",
            """memset dst=%a{0:128 | 0 + [1 x 8]} value=1.0
            tensor_copy dst=%b{0:128 | 0 + [1 x 8]} src=%a{0:128 | 0 + [1 x 8]}""",
            target,
        )

    two(columns // 8 * 8)  # the first tensor ends at a multiple of 32 bytes
    with pytest.raises(KernelError) as error:
        two(columns + 8)
    assert error.value.code == "E201" and error.value.loc is not None
    assert error.value.limit.startswith(str({"gen3": 212984, "gen4": 245752}[target]))
    assert any("%a: float32" in note and "live 1 to 2" in note for note in error.value.notes)


def test_psum_overflows_by_banks():
    tiles = "\n".join(f"%p{i}: float32[128,8] @psum" for i in range(9))
    fills = "\n".join(f"memset dst=%p{i}{{0:128 | 0 + [1 x 8]}} value=0.0" for i in range(9))
    uses = "\n".join(
        f"tensor_scalar dst=%p{i}{{0:128 | 0 + [1 x 8]}} data=%p{i}{{0:128 | 0 + [1 x 8]}} op0=add operand0=1.0"
        for i in range(9)
    )
    allocated(tiles, fills)  # each dies before the next is born
    with pytest.raises(KernelError) as error:
        allocated(tiles, fills + "\n" + uses)
    assert error.value.code == "E201" and error.value.actual == 9 * 2048


def test_a_tensor_used_in_a_loop_lives_through_all_of_it():
    module = run_passes(parse("""kernel @k stage=penguin target=gen3 {
      core 0 {
        %n: int32[1] @register
        %kept: float32[128,8] @sbuf
        %early: float32[128,8] @sbuf
        register_move dst=%n src=3
        memset dst=%kept{0:128 | 0 + [1 x 8]} value=1.0
        while %n {
          %inner: float32[128,8] @sbuf
          tensor_copy dst=%early{0:128 | 0 + [1 x 8]} src=%kept{0:128 | 0 + [1 x 8]}
          memset dst=%inner{0:128 | 0 + [1 x 8]} value=2.0
          register_move dst=%n src=0
        }
      }
    }
    """), ["allocate"])
    core = module.cores[0]
    starts = {t.name: t.address.byte for t in (*core.tensors, *core.body[2].tensors) if t.name != "n"}
    assert len(set(starts.values())) == 3  # %kept is dead after its last line, but the next trip reads it


def test_registers_overflow_at_sixty_four():
    names = [f"%r{i}: int32[1] @register" for i in range(65)]
    moves = [f"register_move dst=%r{i} src={i}" for i in range(65)]
    stores = [f"register_move dst=%r{i} src=%r{(i + 1) % 65}" for i in range(65)]
    with pytest.raises(KernelError) as error:
        allocated("\n".join(names), "\n".join(moves + stores))
    assert error.value.code == "E201" and "registers" in error.value.message
