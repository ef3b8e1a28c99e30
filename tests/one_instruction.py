"""One instruction on arrays, for the differential tests: `call` checks it against its row, binds it and runs it.

Operands are physical places, as in a finished program; the arrays arrive in the shapes that a plan uses. Destinations
are strided views with guards between their elements.
"""

from dataclasses import dataclass
from math import prod

import numpy as np

import opennki.backend.engines  # noqa: F401 -- registers the semantics
from opennki.backend.numerics import silent
from opennki.backend.semantics import SEMANTICS, BoundOp, CoreState
from opennki.ir.checks import check_instruction
from opennki.ir.dtypes import DTYPES, as_dtype
from opennki.ir.graph import Instruction, Memory
from opennki.ir.machine import TARGETS, Engine, Space
from opennki.ir.table import TABLE

GEN3, GEN4 = TARGETS["gen3"], TARGETS["gen4"]
SBUF, PSUM, HBM, REGISTER = Space.SBUF, Space.PSUM, Space.HBM, Space.REGISTER
INF, NAN = float("inf"), float("nan")


@dataclass
class In:
    """An operand's contents; dtype only where the array's own is not the machine's."""

    array: np.ndarray
    dtype: str | None = None
    space: Space = SBUF
    start: int = 0

    @property
    def memory(self):
        shape = self.array.shape
        partitions = (self.start, shape[0]) if self.space.is_on_chip else None
        counts = shape[1:] if partitions else shape
        pattern = tuple((prod(counts[i + 1 :]), n) for i, n in enumerate(counts))
        return Memory(self.space, partitions, 0, as_dtype(self.dtype or self.array.dtype), pattern)


class Out(In):
    """A destination: a view of every second element of guarded memory, filled with `old` or with a loud pattern."""

    def __init__(self, shape, dtype="float32", space=SBUF, start=0, old=None):
        storage = DTYPES[dtype].storage
        self.guarded = np.full((*shape, 2), 64).astype(storage)
        view = self.guarded[..., 0]
        if old is not None:
            view[...] = np.asarray(old).astype(storage).reshape(shape)
        super().__init__(view, dtype, space, start)

    def check(self):
        assert (self.guarded[..., 1].astype(np.float32) == 64).all(), "wrote outside the view"
        return self.array


def make(name, target=GEN3, core=None, legal=True, **given):
    """The run function of an instruction that its row finds legal (not asked where `legal` is False)."""
    row = TABLE[name]
    names = {param.name for param in row.operands}
    operands = {n: v.memory if isinstance(v, In) else v for n, v in given.items() if n in names and v is not None}
    attrs = {attr.name: attr.decode(given[attr.name]) if attr.name in given else attr.default for attr in row.attrs}
    engine = attrs.get("engine", Engine.unknown)
    instr = Instruction(name, operands, attrs)
    if engine in (None, Engine.unknown):
        engine = row.choose_engine(instr, target)
    instr = Instruction(name, operands, attrs, engine=engine)
    if legal:
        check_instruction(instr, target)
    return SEMANTICS[name](BoundOp(instr, target, core or CoreState(0)))


def call(name, *, written=None, **given):
    """Run an instruction once; returns the array of dst, of shape dst."""
    run = make(name, **given)
    arrays = {}
    for param in TABLE[name].operands:
        operand = given.get(param.name)
        if not isinstance(operand, In):
            continue
        array = operand.array
        if not param.writes and not param.keeps_dims:
            on_chip = operand.space.is_on_chip and param.dims != ""
            array = array.reshape(array.shape[0], -1) if on_chip else array.reshape(-1)
        arrays[param.name] = array
    with silent():
        run(**arrays, **({} if written is None else {"written": written}))
    for operand in given.values():
        if isinstance(operand, Out):
            operand.check()
    return given["dst"].array


def random(*shape, dtype="float32", seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(DTYPES[dtype].storage)


def ints(*shape, dtype="int32", seed=0):
    info = np.iinfo(DTYPES[dtype].storage)
    return np.random.default_rng(seed).integers(info.min, info.max, shape, DTYPES[dtype].storage, endpoint=True)


def f32(*rows):
    return np.array(rows, np.float32)


def bits_of(array):
    return np.ascontiguousarray(array).view(np.uint8).tobytes()
