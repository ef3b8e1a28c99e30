"""dead-code: what nothing observes goes, and nothing else."""


def kernel(body, stage="trace", head="", tail="", tensors="%a %b"):
    """A kernel of one core that copies %b to the result."""
    declared = "\n".join(f"{name}: float32[128,64] @sbuf" for name in tensors.split())
    return f"""kernel @k stage={stage} target=gen3 {{
      param %x: float32[128,64] @private_hbm
      shared %y: float32[128,64] @shared_hbm
      {head}
      core 0 {{
        {declared}
        {body}
      }}
      return %y
    }}"""


def test_overwritten_scratch_is_dropped(check_pass):
    check_pass(
        "dead-code",
        before=kernel("memset dst=%a value=0.0\n memset dst=%b value=1.0\n dma_copy dst=%y src=%b"),
        after=kernel("memset dst=%b value=1.0\n dma_copy dst=%y src=%b", tensors="%b"),
    )


def test_tile_written_in_parts_is_kept(check_pass):
    text = kernel("memset dst=%b value=0.0\n memset dst=%b[0:64, :] value=1.0\n dma_copy dst=%y src=%b", tensors="%b")
    check_pass("dead-code", before=text, after=text)


def test_it_works_on_accesses_too(check_pass):
    copy = "dma_copy dst=%y{0 + [1 x 8192]} src=%b{0:128 | 0 + [1 x 64]}"
    fill = "memset dst=%b{0:128 | 0 + [1 x 64]} value=1.0"
    check_pass(
        "dead-code",
        before=kernel(f"memset dst=%a{{0:128 | 0 + [1 x 64]}} value=0.0\n {fill}\n {copy}", "penguin"),
        after=kernel(f"{fill}\n {copy}", "penguin", tensors="%b"),
    )


def test_a_chain_that_ends_nowhere_goes_as_a_whole(check_pass):
    check_pass(
        "dead-code",
        before=kernel("dma_copy dst=%a src=%x\n tensor_copy dst=%b src=%a\n tensor_copy dst=%a src=%b"),
        after=kernel("", tensors=""),
    )


def test_the_callers_arrays_are_observed(check_pass):
    text = kernel("memset dst=%a value=0.0\n dma_copy dst=%x src=%a", tensors="%a")
    check_pass("dead-code", before=text, after=text)


def test_private_hbm_is_not_observed_by_itself(check_pass):
    scratch = "%s: float32[128,64] @private_hbm\n"
    check_pass(
        "dead-code",
        before=kernel(f"{scratch} memset dst=%a value=0.0\n dma_copy dst=%s src=%a"),
        after=kernel("", tensors=""),
    )


def test_an_instruction_with_effects_keeps_what_it_reads(check_pass):
    text = kernel('memset dst=%a value=0.0\n device_print tensor=%a print_prefix="a"', tensors="%a")
    check_pass("dead-code", before=text, after=text)


def test_a_dynamic_address_is_read(check_pass):
    text = kernel(
        """%i: int32[1,1] @sbuf
        memset dst=%b value=0.0
        memset dst=%i value=3
        dma_copy dst=%y.select(0, %i) src=%b[0:1, :]""",
        tensors="%b",
    )
    check_pass("dead-code", before=text, after=text)


def test_what_an_accumulator_sums_is_kept_for_the_one_that_reads_it(check_pass):
    """The Scalar engine adds over two instructions; the first one's own dst is junk."""
    text = kernel(
        """%s: float32[128,1] @sbuf
        memset dst=%b value=0.0
        activation dst=%a op=exp data=%b reduce_op=add reduce_cmd=reset_reduce
        activation dst=%a op=exp data=%b reduce_op=add reduce_res=%s reduce_cmd=reduce
        dma_copy dst=%y[:, 0:1] src=%s""",
    )
    check_pass("dead-code", before=text, after=text)
    unread = text.replace("reduce_res=%s ", "").replace("dma_copy dst=%y[:, 0:1] src=%s", "")
    check_pass("dead-code", before=unread, after=kernel("", tensors=""))


def test_a_tensor_that_nothing_uses_is_no_longer_declared(check_pass):
    check_pass(
        "dead-code",
        before=kernel("memset dst=%b value=0.0\n dma_copy dst=%y src=%b", head="shared %unused: int32[4] @shared_hbm"),
        after=kernel("memset dst=%b value=0.0\n dma_copy dst=%y src=%b", tensors="%b"),
    )


def test_a_result_that_nobody_writes_stays_declared(check_pass):
    check_pass("dead-code", before=kernel(""), after=kernel("", tensors=""))


# ---- order ----


def test_after_skips_a_dropped_instruction_and_keeps_the_order(check_pass):
    last = "dma_copy dst=%y src=%b"
    check_pass(
        "dead-code",
        before=kernel(
            f"""memset dst=%b value=0.0 name="first"
            memset dst=%a value=0.0 name="second" after "first"
            {last} after "second" """,
        ),
        after=kernel(f'memset dst=%b value=0.0 name="first"\n {last} after "first"', tensors="%b"),
    )


def test_after_a_dropped_first_instruction_is_after_nothing(check_pass):
    check_pass(
        "dead-code",
        before=kernel(
            """memset dst=%a value=0.0 name="first"
            memset dst=%b value=0.0 after "first"
            dma_copy dst=%y src=%b""",
        ),
        after=kernel("memset dst=%b value=0.0\n dma_copy dst=%y src=%b", tensors="%b"),
    )


# ---- loops ----

LOOP = """%n: int32[1] @register
        %i: int32[1] @register
        register_move dst=%n src=4
        memset dst=%a value=0.0
        memset dst=%b value=0.0
        for %i in 0 to %n step 1 {
          tensor_copy dst=%b src=%a
          tensor_copy dst=%a src=%x2
        }
        dma_copy dst=%y src=%b"""


def test_what_the_next_trip_reads_is_kept(check_pass):
    text = kernel("%x2: float32[128,64] @sbuf\n memset dst=%x2 value=1.0\n" + LOOP)
    check_pass("dead-code", before=text, after=text)


def test_what_no_trip_reads_goes(check_pass):
    text = kernel("%x2: float32[128,64] @sbuf\n memset dst=%x2 value=1.0\n" + LOOP)
    check_pass(
        "dead-code",
        before=text.replace("tensor_copy dst=%b src=%a", "tensor_copy dst=%b src=%x2"),
        after=text.replace("tensor_copy dst=%b src=%a", "tensor_copy dst=%b src=%x2")
        .replace("tensor_copy dst=%a src=%x2", "")
        .replace("memset dst=%a value=0.0", "")
        .replace("%a: float32[128,64] @sbuf", ""),
    )


def test_a_counted_loop_without_a_body_goes_with_its_registers(check_pass):
    text = kernel(
        """%n: int32[1] @register
        %i: int32[1] @register
        register_move dst=%n src=4
        for %i in 0 to %n step 1 {
          %t: float32[128,64] @sbuf
          memset dst=%t value=0.0
        }""",
    )
    check_pass("dead-code", before=text, after=kernel("", tensors=""))


def test_a_while_loop_keeps_what_its_condition_needs(check_pass):
    text = kernel(
        """%n: int32[1] @register
        %c: int32[1,1] @sbuf
        register_move dst=%n src=4
        while %n {
          memset dst=%c value=0
          register_load dst=%n src=%c
        }""",
        tensors="",
    )
    check_pass("dead-code", before=text, after=text)
