"""Dependences and the semaphores that cover them."""

from opennki.ir.graph import instructions
from opennki.ir.parser import parse
from opennki.passes.dependences import dependence_graph
from opennki.passes.pipeline import run_passes

HEAD = """kernel @k stage=penguin target=gen3 {
  param %x: float32[128,64] @private_hbm at 0x0000
  shared %y: float32[128,64] @shared_hbm at 0x8000
  core 0 {
    %a: float32[128,64] @sbuf at 0x0000
    %b: float32[128,64] @sbuf at 0x0100
    %p: float32[64,128] @psum at 0x0000
"""
WHOLE = "{0:128 | 0 + [1 x 64]}"
LOAD = f"    dma.dma_copy dst=%a{WHOLE} src=%x{{0 + [1 x 8192]}}\n"


def block(*lines: str):
    return parse(HEAD + "".join(f"    {line}\n" for line in lines) + "  }\n  return %y\n}\n")


def edges(*lines: str) -> dict:
    module = block(*lines)
    graph = dependence_graph(list(instructions(module.cores[0].body)), 0)
    return {edge: sorted(kinds) for *edge, kinds in map(list, graph.edges(data="kinds")) for edge in [tuple(edge)]}


FILL_A = f"vector.memset dst=%a{WHOLE} value=1.0"
FILL_LEFT, FILL_RIGHT = (f"vector.memset dst=%a{{0:128 | {at} + [1 x 32]}} value=1.0" for at in (0, 32))
FILL_EVEN, FILL_ODD = (f"vector.memset dst=%a{{0:128 | {at} + [2 x 32]}} value=1.0" for at in (0, 1))
COPY = f"scalar.tensor_copy dst=%b{WHOLE} src=%a{WHOLE}"


def test_read_after_write():
    assert edges(FILL_A, COPY) == {(0, 1): ["RAW"]}


def test_write_after_read_and_after_write():
    assert edges(FILL_A, COPY, FILL_A) == {(0, 1): ["RAW"], (0, 2): ["WAW"], (1, 2): ["WAR"]}


def test_disjoint_halves_are_independent():
    assert edges(FILL_LEFT, FILL_RIGHT) == {}


def test_interleaved_columns_are_independent():
    assert edges(FILL_EVEN, FILL_ODD) == {}


def test_other_partitions_are_independent():
    upper, lower = (f"vector.memset dst=%a{{{rows} | 0 + [1 x 64]}} value=1.0" for rows in ("0:64", "64:128"))
    assert edges(upper, lower) == {}


def test_a_full_overwrite_hides_what_was_before():
    assert edges(FILL_LEFT, FILL_A, COPY) == {(0, 1): ["WAW"], (1, 2): ["RAW"]}


def test_a_partial_overwrite_does_not():
    assert edges(FILL_A, FILL_LEFT, COPY) == {(0, 1): ["WAW"], (0, 2): ["RAW"], (1, 2): ["RAW"]}


def test_addresses_count_not_names():
    other = f"vector.memset dst=%c{WHOLE} value=2.0"
    module = parse(HEAD + f"    %c: float32[128,64] @sbuf at 0x00c0\n    {FILL_A}\n    {other}\n  }}\n  return %y\n}}\n")
    graph = dependence_graph(list(instructions(module.cores[0].body)), 0)
    assert list(graph.edges) == [(0, 1)]


def test_a_dynamic_write_may_touch_all_that_its_index_reaches():
    module = parse("""kernel @k stage=penguin target=gen3 {
      shared %y: float32[8,64] @shared_hbm at 0x0000
      core 0 {
        %a: float32[1,64] @sbuf at 0x0000
        %i: int32[1,1] @sbuf at 0x0400
        vector.memset dst=%a{0:1 | 0 + [1 x 64]} value=1.0
        vector.memset dst=%i{0:1 | 0 + [1 x 1]} value=2
        dma.dma_copy dst=%y{128 + [1 x 64] + (scalar %i{0:1 | 0 + [1 x 1]} * 64 in 0:6)} src=%a{0:1 | 0 + [1 x 64]}
        dma.dma_copy dst=%y{0 + [1 x 64]} src=%a{0:1 | 0 + [1 x 64]}
        dma.dma_copy dst=%y{192 + [1 x 64]} src=%a{0:1 | 0 + [1 x 64]}
      }
      return %y
    }
    """)
    graph = dependence_graph(list(instructions(module.cores[0].body)), 0)
    assert set(graph.edges) == {(0, 2), (1, 2), (0, 3), (0, 4), (2, 4)}  # row 0 is out of the index's reach


def test_asked_for_order_is_an_edge():
    assert edges(FILL_LEFT + ' name="first"', FILL_RIGHT.replace("vector", "gpsimd") + ' after "first"') == {(0, 1): ["ORDER"]}


def test_meetings_of_one_kind_keep_their_order():
    """The k-th barrier of one core meets the k-th of the other, whatever the queue; a barrier of one core meets nobody."""
    def barriers(cores: str) -> dict:
        places = zip(("gpsimd", "vector"), ("0", "4096"), strict=True)
        return edges(*(f"{engine}.core_barrier data=%y{{{start} + [1 x 64]}} cores={cores}" for engine, start in places))

    assert barriers("[0, 1]") == {(0, 1): ["ORDER"]}
    assert barriers("[0]") == {}


def synchronised(*lines: str) -> str:
    return str(run_passes(block(*lines), ["synchronise"])).split("at 0x0000\n", 3)[-1]


def test_waits_and_signals(check_pass):
    before = HEAD + LOAD + f"    vector.tensor_copy dst=%b{WHOLE} src=%a{WHOLE}\n" \
        f"    dma.dma_copy dst=%y{{0 + [1 x 8192]}} src=%b{WHOLE}\n  }}\n  return %y\n}}\n"
    after = HEAD + LOAD + f"""    signal vector + 16
    wait dma0 >= 16
    vector.tensor_copy dst=%b{WHOLE} src=%a{WHOLE}
    signal dma1 + 1
    wait vector >= 1
    dma.dma_copy dst=%y{{0 + [1 x 8192]}} src=%b{WHOLE}
  }}
  return %y
}}
"""
    check_pass("synchronise", before=before, after=after)


def test_a_queue_needs_no_semaphore_for_itself():
    assert "wait" not in synchronised(FILL_A, f"vector.tensor_copy dst=%b{WHOLE} src=%a{WHOLE}")


def test_an_implied_wait_is_left_out():
    """scalar waits for vector, which waited for the load: so scalar need not wait for the load itself."""
    text = synchronised(LOAD.strip(), f"vector.tensor_copy dst=%b{WHOLE} src=%a{WHOLE}",
                        f"scalar.tensor_copy dst=%a{WHOLE} src=%b{WHOLE}")
    assert text.count("wait") == 2 and "wait vector >= 1" in text and text.count("wait dma0") == 1


def test_counters_start_again_behind_a_loop():
    module = run_passes(parse(f"""kernel @k stage=penguin target=gen3 {{
      core 0 {{
        %n: int32[1] @register at 0x0000
        %a: float32[128,64] @sbuf at 0x0000
        %b: float32[128,64] @sbuf at 0x0100
        {FILL_A}
        {COPY}
        sync.register_move dst=%n src=1
        while %n {{
          {FILL_A}
          {COPY}
          sync.register_move dst=%n src=0
        }}
        {FILL_A}
        {COPY}
      }}
    }}
    """), ["synchronise"])
    assert str(module).count("wait vector >= 1") == 3 and ">= 2" not in str(module)
