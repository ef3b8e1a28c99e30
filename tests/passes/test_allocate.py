"""allocate: addresses for every tensor, live ones apart, pinned ones kept."""

from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest
from strategies import kernel

from opennki.ir.errors import KernelError
from opennki.ir.graph import Instruction, Module, Stage, Tensor, declared_tensors
from opennki.ir.machine import Space
from opennki.ir.parser import parse
from opennki.passes.allocate import allocate
from opennki.passes.demand import demands
from opennki.passes.liveness import LiveRange, touched
from opennki.passes.packing import Block, clash, end_of, live_bytes, most_live, pack, pack_tightly
from opennki.passes.pipeline import TO_PENGUIN, run_passes


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


def chain(columns: int, space: str = "sbuf", target: str = "gen3") -> Module:
    """%a is dead when %c is born."""
    return allocated(
        "\n".join(f"%{name}: float32[128,{columns}] @{space}" for name in "abc"),
        """vector.memset dst=%a{0:128 | 0 + [1 x 64]} value=1.0
        vector.tensor_copy dst=%b{0:128 | 0 + [1 x 64]} src=%a{0:128 | 0 + [1 x 64]}
        vector.tensor_copy dst=%c{0:128 | 0 + [1 x 64]} src=%b{0:128 | 0 + [1 x 64]}""",
        target,
    )


def test_bytes_rest_where_there_is_room():
    module = chain(64)
    assert addresses(module) == {"a": (0, 0), "b": (0, 256), "c": (0, 512)}  # so that writing %c waits for nobody


def test_bytes_of_dead_tensors_are_reused_where_there_is_none():
    assert addresses(chain(20000)) == {"a": (0, 0), "b": (0, 80000), "c": (0, 0)}
    assert addresses(chain(2048, "psum")) == {"a": (0, 0), "b": (0, 8192), "c": (0, 0)}


def test_what_nothing_touches_takes_no_room():
    module = allocated(
        """%a: float32[128,50000] @sbuf
        %b: float32[128,50000] @sbuf
        %c: float32[128,50000] @sbuf""",
        "memset dst=%a{0:128 | 0 + [1 x 8]} value=1.0",
    )
    assert addresses(module)["a"] == (0, 0)


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


def test_a_tensor_of_several_banks_finds_them_side_by_side():
    names = "abcde"
    module = allocated(
        "\n".join(f"%{name}: float32[128,{1024 if name in 'ace' else 512}] @psum" for name in names),
        "\n".join(f"memset dst=%{name}{{0:128 | 0 + [1 x 512]}} value=0.0" for name in names)
        + "\nmemset dst=%e{0:128 | 0 + [1 x 8]} value=1.0\nmemset dst=%a{0:128 | 0 + [1 x 8]} value=1.0",
    )
    banks = {name: byte // 2048 for name, (_, byte) in addresses(module).items()}
    assert all(byte % 2048 == 0 for _, byte in addresses(module).values())
    assert {banks["e"], banks["e"] + 1}.isdisjoint({banks["a"], banks["a"] + 1})


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
    assert error.value.actual.endswith(" too many") and error.value.hint == "tile the free dimension of %a of <text>:3 by 2"
    assert any("%a: float32" in note and "live from <text>:5 (memset) to <text>:6" in note for note in error.value.notes)


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
    assert error.value.code == "E201" and error.value.limit == "8 banks" and error.value.actual == "9 banks, 1 too many"
    assert "full from" not in "".join(error.value.notes)  # that moment is the peak


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


# --- random blocks and programs against independent oracles -----------------------------------------------------------


Where = tuple[int, int, int, int]  # first and past the last partition, first and past the last byte


def random_blocks(random: Random, count: int) -> list[Block]:
    blocks = []
    for _ in range(count):
        start = random.randrange(200)
        live = LiveRange(start, start + random.choice([0, 3, 20, 200]))
        blocks.append(Block(random.choice([1, 32, 100, 512, 1000, 2048]), live, (0, random.choice([1, 32, 64, 128]))))
        if random.random() < 0.1:  # pinned where it meets no other pinned one
            rows = random.choice([(0, 128), (0, 32), (32, 64), (64, 128)])
            pin = blocks.pop()._replace(rows=rows, at=random.randrange(4000))
            if clash([*blocks, pin]) is None:
                blocks.append(pin)
    return blocks


def disjoint(one: Where, other: Where) -> bool:
    return one[1] <= other[0] or other[1] <= one[0] or one[3] <= other[2] or other[3] <= one[2]


@pytest.mark.parametrize("seed", range(20))
def test_blocks_that_live_together_share_no_byte_and_no_placement_beats_the_bound(seed):
    random = Random(seed)
    blocks = random_blocks(random, random.choice([5, 30, 60]))
    bound = most_live(live_bytes(blocks, 32)).nbytes
    for starts in (pack(blocks, 32, 8000), pack(blocks, 32, 1 << 20), pack_tightly(blocks, 32, 8000)):
        assert end_of(blocks, starts) > bound - 32  # the last block may end before its unit does
        placed = list(zip(blocks, starts, strict=True))
        assert all(start == block.at if block.at is not None else start % 32 == 0 for block, start in placed)
        where = [(*block.rows, start, start + block.size) for block, start in placed]
        for number, one in enumerate(blocks):
            for earlier, other in enumerate(blocks[:number]):
                if one.live.start <= other.live.end and other.live.start <= one.live.end:
                    assert disjoint(where[number], where[earlier])


def test_the_largest_first_come_to_the_bound_where_program_order_wastes():
    large, small, late = (Block(size, LiveRange(*live), (0, 128)) for size, live in ((96, (0, 1)), (32, (0, 3)), (128, (2, 3))))
    assert end_of([large, small, late], pack([large, small, late], 32, 160)) == 160  # in program order %late has no gap


def test_bytes_rest_as_long_as_fits_where_the_way_round_does_not():
    """The large block is born where the small ones have cut the memory into pieces; between them is room to rest."""
    small = [Block(32, LiveRange(4 * n, 4 * n + 1), (0, 128)) for n in range(5)]
    large = Block(96, LiveRange(9, 30), (0, 128))  # two free pieces of 64 bytes
    starts = pack([*small, large], 32, 160)
    assert end_of([*small, large], starts) <= 160
    assert starts[:5] != pack_tightly([*small, large], 32, 160)[:5]
    assert all(one != other for one, other in pairwise(starts[:5]))  # neighbours in time do not share bytes


def test_fifty_thousand_blocks_are_packed_at_the_bound():
    random = Random(0)
    blocks = [
        Block(random.choice([64, 256, 1024, 4096]), LiveRange(4 * n, 4 * n + random.choice([2, 20, 20, 400])), (0, 128))
        for n in range(50_000)
    ]
    bound = most_live(live_bytes(blocks, 32)).nbytes
    assert end_of(blocks, pack(blocks, 32, 212984)) <= 212984
    assert end_of(blocks, pack_tightly(blocks, 32, bound)) <= 1.02 * bound


def on_chip(tensor: Tensor) -> Where:
    row, byte = tensor.address
    return row, row + tensor.partitions, byte, byte + tensor.row_bytes


def walked(body, trip: tuple = ()) -> list[tuple[Tensor, tuple]]:
    """The tensors that a run touches, in order, with the trip that they are of; loops turn twice."""
    steps = []
    for statement in body:
        if isinstance(statement, Instruction):
            steps.append((touched(statement), trip))
            continue
        for number in (0, 1):
            own = {tensor.name for tensor in statement.tensors}
            steps += [(names, where if names & own else trip) for names, where in walked(statement.body, (*trip, number))]
    return steps


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("share", [1.0, 1.3])
def test_no_two_live_tensors_of_a_random_kernel_overlap(seed, share):
    """Also where SBUF has little more, or nothing more, than what is live at once."""
    module = run_passes(parse(kernel(seed, loops=True)[0]), [*TO_PENGUIN, "expand-loops"])
    assert module.stage is Stage.PENGUIN
    (core,) = module.cores
    bound = most_live(live_bytes(next(iter(demands(core, module.target))).blocks, 32)).nbytes
    small = replace(module, target=replace(module.target, sbuf_bytes=int(share * bound)))
    placed = allocate(small).cores[0]
    end = max(on_chip(tensor)[3] for tensor in declared_tensors(placed) if tensor.space is Space.SBUF)
    assert bound - 32 < end <= small.target.sbuf_bytes
    assert_apart(placed)


def assert_apart(core) -> None:
    tensors = {tensor.name: tensor for tensor in declared_tensors(core) if tensor.space in (Space.SBUF, Space.PSUM)}
    loops = [statement for statement in core.body if not isinstance(statement, Instruction)]
    inner = {tensor.name for loop in loops for tensor in loop.tensors}  # fresh in each trip
    lives: dict[tuple, list[int]] = {}
    for now, (names, trip) in enumerate(walked(core.body)):
        for name in names & tensors.keys():
            lives.setdefault((name, trip if name in inner else ()), []).append(now)
    placed = [(tensors[name], times[0], times[-1]) for (name, _), times in lives.items()]
    for number, (one, born, dead) in enumerate(placed):
        for other, other_born, other_dead in placed[:number]:
            if one.space is other.space and one is not other and born <= other_dead and other_born <= dead:
                assert disjoint(on_chip(one), on_chip(other)), f"{one} and {other}"
