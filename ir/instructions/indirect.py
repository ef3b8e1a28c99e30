"""Which indirect views an instruction takes, beside the operands that its row names (tensor indirection, gen4).

Source: `nki.language` reference (NkiTensor.indirect) and the pages of the instructions.
"""

from __future__ import annotations

from ..checks import dtype_of, fail
from ..graph import Instruction, dynamic_kind
from ..machine import Engine, Target

__all__ = ["copies_on_vector_or_scalar", "matmul_operands", "matmul_pairs"]

_MATMUL_DTYPES = ("float16", "bfloat16", "float8_e4m3", "float8_e4m3fn", "float8_e5m2")


def _indirect(instr: Instruction) -> list[str]:
    return [name for name, operand in instr.operands.items() if dynamic_kind(operand) == "columns"]


def copies_on_vector_or_scalar(instr: Instruction, target: Target, dims: dict[str, int]) -> None:
    """Indirect views are copied by the Vector or the Scalar engine."""
    if instr.engine is Engine.gpsimd and (names := _indirect(instr)):
        raise fail(instr, "E106", names[0], "an indirect view on gpsimd", limit="vector or scalar", actual="gpsimd")


def _untiled(instr: Instruction, name: str) -> None:
    position = instr.attrs["tile_position"]
    if position and tuple(position) != (0, 0):
        raise fail(
            instr, "E105", "tile_position", f"{position} with an indirect {name}", limit="(0, 0) or unset", actual=position
        )


def matmul_operands(instr: Instruction, target: Target, dims: dict[str, int]) -> None:
    """Indirect matmuls have 8- and 16-bit operands and do not tile the array; the identity of a transpose is direct."""
    names = _indirect(instr)
    if not names:
        return
    _untiled(instr, names[0])
    for name in ("stationary", "moving"):
        if (dtype := dtype_of(instr, name)) not in _MATMUL_DTYPES:
            limit = ", ".join(_MATMUL_DTYPES)
            raise fail(instr, "E103", name, f"{dtype} with an indirect {names[0]}", limit=limit, actual=str(dtype))
    if instr.attrs["is_transpose"] and "moving" in names:
        raise fail(instr, "E105", "moving", "indirect with is_transpose", limit="a static identity")


def matmul_pairs(instr: Instruction, target: Target, dims: dict[str, int]) -> None:
    """A tile of an MX matmul and its scales are indirect by the same index, or neither is; the array is not tiled."""
    names = _indirect(instr)
    if not names:
        return
    _untiled(instr, names[0])
    for name in ("stationary", "moving"):
        data, scale = (instr.operands[n].index for n in (name, f"{name}_scale"))  # type: ignore[union-attr]
        if data != scale:
            raise fail(
                instr,
                "E105",
                f"{name}_scale",
                "another index than that of its tile",
                limit="the same index for both, or none",
                hint=f"give {name} and {name}_scale one index tile",
            )
