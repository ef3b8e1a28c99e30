"""What the compiler remembers of an object holds for that object alone."""

from dataclasses import replace

import pytest

from opennki.ir.checks import check_instruction
from opennki.ir.errors import KernelError
from opennki.ir.graph import Address, Stage, instructions
from opennki.ir.machine import TARGETS, Engine
from opennki.ir.parser import parse
from opennki.ir.verifier import verify
from opennki.passes.rewrite import changed

PENGUIN = """kernel @copy stage=penguin target=gen3 {
  shared %y: float32[64,32] @shared_hbm
  core 0 {
    %a: float32[64,32] @sbuf
    %b: float32[32,32] @sbuf
    vector.memset dst=%a{0:64 | 0 + [1 x 32]} value=1.0
    gpsimd.tensor_tensor dst=%a{0:64 | 0 + [1 x 32]} data1=%a{0:64 | 0 + [1 x 32]} data2=%a{0:64 | 0 + [1 x 32]} op=abs_max
    dma.dma_copy dst=%y{0 + [1 x 2048]} src=%a{0:64 | 0 + [1 x 32]}
  }
  return %y
}
"""


def error_of(check, *args):
    with pytest.raises(KernelError) as error:
        check(*args)
    return error.value.code


@pytest.fixture(params=[replace, changed])
def with_instruction(request):
    """The module with one of its instructions changed, all others the same objects."""

    def change(module, position, **changes):
        (core,) = module.cores
        body = list(core.body)
        body[position] = request.param(body[position], **changes)
        return replace(module, cores=(replace(core, body=tuple(body)),))

    return change


@pytest.fixture
def verified():
    module = parse(PENGUIN.replace("abs_max", "add"))
    verify(module)
    return module


def test_a_changed_operand_is_verified_again(verified, with_instruction):
    (core,) = verified.cores
    (small,) = [tensor for tensor in core.tensors if tensor.name == "b"]
    memset = core.body[0]
    beyond = {"dst": replace(memset.operands["dst"], tensor=small)}
    assert error_of(verify, with_instruction(verified, 0, operands=beyond)) == "E306"


def test_a_changed_attribute_is_verified_again(verified, with_instruction):
    tensor_tensor = verified.cores[0].body[1]
    assert error_of(verify, with_instruction(verified, 1, attrs={**tensor_tensor.attrs, "op": "bypass"})) == "E105"


def test_a_changed_engine_is_verified_again(verified, with_instruction):
    assert error_of(verify, with_instruction(verified, 1, engine=Engine.tensor)) == "E106"


def test_a_tensor_at_another_address_is_verified_again(verified):
    """allocate changes tensors, and so operands: engines may not start where the tensor then lies."""
    dst = verified.cores[0].body[0].operands["dst"]
    placed = replace(dst, tensor=replace(dst.tensor, address=Address(32, 0)))
    assert error_of(check_instruction, replace(verified.cores[0].body[0], operands={"dst": placed}), verified.target) == "E102"


def test_what_holds_on_one_target_is_checked_again_on_another():
    instr = list(instructions(parse(PENGUIN).cores[0].body))[1]
    check_instruction(instr, TARGETS["gen4"])
    assert error_of(check_instruction, instr, TARGETS["gen3"]) == "E108"


def test_the_stage_counts(verified):
    """The same instructions in a module that calls itself a trace, where operands are views."""
    assert error_of(verify, replace(verified, stage=Stage.TRACE)) == "E603"


def test_equal_numbers_of_other_types_are_checked_apart():
    """2.0**40 is a legal immediate; 2**40, which equals it, is no integer of 32 bits."""
    text = PENGUIN.replace("gpsimd.tensor_tensor", "vector.tensor_scalar").replace("op=abs_max", "op0=add")
    text = text.replace("data1=", "data=").replace("data2=%a{0:64 | 0 + [1 x 32]}", "operand0=1.0")
    legal = list(instructions(parse(text).cores[0].body))[1]
    check_instruction(replace(legal, operands={**legal.operands, "operand0": 2.0**40}), TARGETS["gen3"])
    large = replace(legal, operands={**legal.operands, "operand0": 2**40})
    assert error_of(check_instruction, large, TARGETS["gen3"]) == "E105"
