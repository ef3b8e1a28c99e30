"""resolve-accumulation: which matmul overwrites and which adds."""

import pytest

import opennki.passes  # noqa: F401 -- registers the passes
from opennki.ir.errors import KernelError
from opennki.ir.parser import parse
from opennki.passes.pipeline import run_passes

ALL = "%acc{0:128 | 0 + [1 x 512]}"
LEFT, RIGHT = "%acc{0:128 | 0 + [1 x 256]}", "%acc{0:128 | 256 + [1 x 256]}"


def kernel(body, target="gen3", acc="%acc: float32[128,512] @psum"):
    return f"""kernel @k stage=penguin target={target} {{
      core 0 {{
        {acc}
        %x: bfloat16[128,128] @sbuf
        %w: bfloat16[128,512] @sbuf
        %n: int32[1] @register
        %i: int32[1] @register
        {body}
      }}
    }}"""


def matmul(dst, accumulate=None, columns=512):
    text = f"nc_matmul dst={dst} stationary=%x{{0:128 | 0 + [1 x 128]}} moving=%w{{0:128 | 0 + [1 x {columns}]}}"
    return text if accumulate is None else f"{text} accumulate={accumulate}"


def loop(body, bounds="0 to %n"):
    return f"register_move dst=%n src=4\n for %i in {bounds} step 1 {{\n {body}\n }}"


def error(body, target="gen3"):
    with pytest.raises(KernelError) as caught:
        run_passes(parse(kernel(body, target), "k.ir"), ["resolve-accumulation"])
    assert caught.value.code == "E205"
    return caught.value


def test_the_first_matmul_overwrites_and_later_ones_add(check_pass):
    check_pass(
        "resolve-accumulation",
        before=kernel("\n".join([matmul(ALL)] * 3)),
        after=kernel("\n".join([matmul(ALL, "false"), matmul(ALL, "true"), matmul(ALL, "true")])),
    )


def test_locations_count_one_by_one(check_pass):
    check_pass(
        "resolve-accumulation",
        before=kernel("\n".join([matmul(LEFT, columns=256), matmul(RIGHT, columns=256), matmul(ALL)])),
        after=kernel("\n".join([matmul(LEFT, "false", 256), matmul(RIGHT, "false", 256), matmul(ALL, "true")])),
    )


def test_overlapping_matmuls_are_decided_by_column(check_pass):
    """Half of the second one's locations are new, as in a convolution."""
    check_pass(
        "resolve-accumulation",
        before=kernel("\n".join([matmul(LEFT, columns=256), matmul(ALL), matmul(ALL)])),
        after=kernel("\n".join([matmul(LEFT, "false", 256), matmul(ALL) + " overwrites=[[256, 256]]", matmul(ALL, "true")])),
    )


def test_what_the_author_said_stays(check_pass):
    text = kernel("\n".join([matmul(ALL, "false"), matmul(ALL, "true"), matmul(ALL, "false")]))
    check_pass("resolve-accumulation", before=text, after=text)


def test_memset_makes_a_location_new(check_pass):
    fill = f"memset dst={ALL} value=0.0"
    check_pass(
        "resolve-accumulation",
        before=kernel("\n".join([fill, matmul(ALL), fill, matmul(ALL)])),
        after=kernel("\n".join([fill, matmul(ALL, "false"), fill, matmul(ALL, "false")])),
    )


def test_reading_does_not_make_a_location_new(check_pass):
    copy = f"tensor_copy dst=%w{{0:128 | 0 + [1 x 512]}} src={ALL}"
    check_pass(
        "resolve-accumulation",
        before=kernel("\n".join([matmul(ALL), copy, matmul(ALL)])),
        after=kernel("\n".join([matmul(ALL, "false"), copy, matmul(ALL, "true")])),
    )


def test_a_transpose_never_adds(check_pass):
    turn = (
        "nc_matmul dst=%t{0:128 | 0 + [1 x 128]} stationary=%x{0:128 | 0 + [1 x 128]} moving=%x{0:128 | 0 + [1 x 128]} "
        "is_transpose=true"
    )
    acc = "%t: bfloat16[128,128] @psum"
    check_pass(
        "resolve-accumulation",
        before=kernel(f"{turn}\n {turn}", acc=acc),
        after=kernel(f"{turn} accumulate=false\n {turn} accumulate=false", acc=acc),
    )


def test_the_partitions_of_a_column_agree_or_it_is_an_error():
    half = "nc_matmul dst=%acc{0:64 | 0 + [1 x 512]} stationary=%x{0:128 | 0 + [1 x 64]} moving=%w{0:128 | 0 + [1 x 512]}"
    caught = error("\n".join([half, matmul(ALL)]))
    assert caught.message == "nc_matmul `dst`: adds in some partitions of a column and overwrites in others"
    assert caught.limit == "one of the two in each column of dst" and str(caught.loc) == "k.ir:9"
    assert caught.actual == "32768 of 65536 elements were written by a matmul before"
    assert caught.hint == "use one matmul for each range of partitions, or pass accumulate explicitly"


# ---- explicit accumulate=True ----


def test_adding_to_what_nothing_wrote_is_an_error():
    caught = error("\n".join([matmul(LEFT, columns=256), matmul(ALL, "true")]))
    assert caught.message == "nc_matmul `dst`: accumulate=True adds to elements that nothing wrote"
    assert caught.operand == "dst float32[128,512] @psum" and str(caught.loc) == "k.ir:9"
    assert caught.limit == "locations that a matmul wrote before"
    assert caught.actual == "32768 of 65536 elements were never written"
    assert caught.hint == "pass accumulate=False, or leave it out, for the first matmul of the sum"


def test_adding_to_a_memset_is_undefined_on_gen3():
    caught = error("\n".join([f"memset dst={ALL} value=0.0", matmul(ALL, "true")]))
    assert caught.message == "nc_matmul `dst`: accumulate=True adds to what memset or a copy wrote: undefined on gen3"
    assert caught.actual == "65536 of 65536 elements were written by another instruction"
    assert caught.limit == "locations that a matmul wrote before" and "tensor_tensor" in caught.hint


def test_adding_to_a_memset_is_fine_on_gen4(check_pass):
    text = kernel("\n".join([f"memset dst={ALL} value=0.0", matmul(ALL, "true")]), "gen4")
    check_pass("resolve-accumulation", before=text, after=text)


# ---- loops ----


def test_a_tile_of_the_loop_body_is_new_in_each_trip(check_pass):
    tile = "%t: float32[128,512] @psum"
    first, second = matmul(ALL.replace("acc", "t")), matmul(ALL.replace("acc", "t"))
    check_pass(
        "resolve-accumulation",
        before=kernel(loop(f"{tile}\n {first}\n {second}")),
        after=kernel(loop(f"{tile}\n {first} accumulate=false\n {second} accumulate=true")),
    )


def test_a_sum_started_before_the_loop_goes_on_in_it(check_pass):
    check_pass(
        "resolve-accumulation",
        before=kernel(matmul(ALL) + "\n" + loop(matmul(ALL)) + "\n" + matmul(ALL)),
        after=kernel(matmul(ALL, "false") + "\n" + loop(matmul(ALL, "true")) + "\n" + matmul(ALL, "true")),
    )


@pytest.mark.parametrize("bounds", ["0 to %n", "0 to 4"])
def test_a_sum_that_would_start_in_the_first_trip_is_an_error(bounds):
    caught = error(loop(matmul(ALL), bounds))
    assert caught.message == "nc_matmul `dst`: overwrites or adds, depending on the trips of a loop"
    assert str(caught.loc) == "k.ir:10" and caught.limit == "one meaning of accumulate=None in every trip"
    assert caught.actual == "the first write overwrites, later ones add"
    assert caught.hint.startswith("create the PSUM tile in the loop body")


def test_one_trip_is_as_good_as_none(check_pass):
    check_pass(
        "resolve-accumulation",
        before=kernel(loop(matmul(ALL), "0 to 1")),
        after=kernel(loop(matmul(ALL, "false"), "0 to 1")),
    )


def test_a_memset_in_the_body_starts_each_trip_anew(check_pass):
    fill = f"memset dst={ALL} value=0.0"
    check_pass(
        "resolve-accumulation",
        before=kernel(loop(f"{fill}\n {matmul(ALL)}\n {matmul(ALL)}")),
        after=kernel(loop(f"{fill}\n {matmul(ALL, 'false')}\n {matmul(ALL, 'true')}")),
    )


def test_a_sum_after_a_loop_that_may_not_have_run_is_an_error():
    caught = error(loop(matmul(ALL, "false")) + "\n" + matmul(ALL))
    assert str(caught.loc) == "k.ir:12"


def test_another_stage_is_refused():
    with pytest.raises(KernelError) as caught:
        run_passes(parse("kernel @k stage=trace target=gen3 {\n core 0 {\n }\n}"), ["resolve-accumulation"])
    assert (caught.value.code, caught.value.actual, caught.value.limit) == ("E603", "trace", "stage penguin")
