"""`NkiTensor`: what a kernel holds. A view of a buffer: shape, strides, dtype are known, the values are not."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from ..ir.dtypes import Dtype, as_dtype
from ..ir.errors import KernelError
from ..ir.graph import Address, Tensor, View
from ..ir.layout import STEPS
from ..ir.machine import QUADRANT, Space
from ..ir.parser import canonical_step
from .tracer import author_error, located

__all__ = ["NkiTensor", "as_address", "as_operand", "new_view"]

PSUM_BANK = 2048  # bytes of a partition
_NO_ARITHMETIC = "nl.add / nisa.tensor_tensor and their like write to a dst tile"
_NO_COMPARISON = "op=nl.greater and its like make 0 or 1 of each element; a loop of the machine tests a register (while reg:)"


class NkiTensor:
    """A view of an HBM, SBUF or PSUM tensor while a kernel is traced.

    shape, strides and offset are in elements of dtype; buffer is a memory region of nl. Every view method returns a new
    view and copies nothing. Source: `nki.language` reference, NkiTensor.
    """

    __slots__ = ("_view",)

    def __init__(self, view: View) -> None:
        self._view = view

    # --- facts ------------------------------------------------------------------------------------------------

    @property
    def shape(self) -> tuple[int, ...]:
        return self._view.layout.shape

    @property
    def strides(self) -> tuple[int, ...]:
        return self._view.layout.strides

    @property
    def offset(self) -> int:
        return self._view.layout.offset

    @property
    def dtype(self) -> Dtype:
        return self._view.layout.dtype

    @property
    def buffer(self) -> Space:
        return self._view.tensor.space

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def name(self) -> str:
        return self._view.tensor.name

    @property
    def address(self) -> tuple[int, int] | None:
        """(start partition, byte) of a pinned tensor, None where the compiler places it."""
        address = self._view.tensor.address
        return None if address is None else (address.partition, address.byte)

    def is_contiguous(self) -> bool:
        return self._view.layout.is_contiguous()

    def is_indirect(self) -> bool:
        return self._view.layout.dynamic is not None

    def get_pattern(self) -> list[list[int]]:
        """[[stride, count], ...], outermost first."""
        return [[stride, count] for stride, count in zip(self.strides, self.shape, strict=True)]

    # --- views ------------------------------------------------------------------------------------------------

    def _step(self, name: str, *args: Any, **kwargs: Any) -> NkiTensor:
        """The view with one more step, applied at once so that errors name the author's line."""
        try:
            step = canonical_step(
                name, tuple(map(_frozen, args)), {key: _frozen(value) for key, value in kwargs.items()}
            )
        except TypeError as error:
            raise author_error("E301", f"{name}: {error}") from None
        layout = located(STEPS[name], self._view.layout, *step.args)
        view = View(self._view.tensor, (*self._view.steps, step))
        vars(view)["layout"] = layout  # what the property would find, by all steps anew
        return NkiTensor(view)

    def __getitem__(self, key: Any) -> NkiTensor:
        return self._step("index", *(key if isinstance(key, tuple) else (key,)))

    def slice(self, dim: int, start: int, end: int, step: int = 1) -> NkiTensor:
        return self._step("slice", dim, start, end, step)

    def select(self, dim: int, index: Any) -> NkiTensor:
        return self._step("select", dim, index)

    def vector_select(self, dim: int, index: NkiTensor) -> NkiTensor:
        return self._step("vector_select", dim, index)

    def indirect(self, index: NkiTensor, num_elem: int | None = None) -> NkiTensor:
        """Elements along the free axis, gathered (as an input) or scattered (as dst) by an index tile; gen4."""
        return self._step("indirect", index, num_elem)

    def permute(self, dims: Sequence[int]) -> NkiTensor:
        return self._step("permute", dims)

    def broadcast(self, dim: int, size: int) -> NkiTensor:
        return self._step("broadcast", dim, size)

    def expand_dim(self, dim: int) -> NkiTensor:
        return self._step("expand_dim", dim)

    def squeeze_dim(self, dim: int) -> NkiTensor:
        return self._step("squeeze_dim", dim)

    def reshape_dim(self, dim: int, shape: Sequence[int]) -> NkiTensor:
        return self._step("reshape_dim", dim, shape)

    def flatten_dims(self, start: int, end: int) -> NkiTensor:
        return self._step("flatten_dims", start, end)

    def reshape(self, shape: Sequence[int], *more: int) -> NkiTensor:
        return self._step("reshape", (shape, *more) if more else shape)

    def rearrange(self, src: Sequence, dst: Sequence, fixed_sizes: dict[str, int] | None = None) -> NkiTensor:
        sizes = None if fixed_sizes is None else tuple(sorted(fixed_sizes.items()))
        return self._step("rearrange", src, dst, sizes)

    def view(self, dtype: Any) -> NkiTensor:
        return self._step("view", located(as_dtype, dtype))

    reinterpret_cast = view

    def ap(
        self,
        pattern: Sequence[Sequence[int]],
        offset: int | None = None,
        scalar_offset: Any = None,
        vector_offset: Any = None,
        indirect_dim: int = 0,
        dtype: Any = None,
    ) -> NkiTensor:
        """A raw access pattern over the storage, see ir/layout.py."""
        dtype = None if dtype is None else located(as_dtype, dtype)
        if scalar_offset is None and vector_offset is None:
            indirect_dim = 0  # means nothing without an offset
        return self._step("ap", pattern, offset, scalar_offset, vector_offset, indirect_dim, dtype)

    # --- what a tile is not -------------------------------------------------------------------------------------

    # Identity: kernels write `t == None` and `if t:` and mean "is there a tensor".
    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other

    def __bool__(self) -> bool:
        return True

    # A view is immutable: the copy of a kernel's object holds the same tensor.
    def __copy__(self) -> NkiTensor:
        return self

    def __deepcopy__(self, memo: object) -> NkiTensor:
        return self

    def __setitem__(self, key: Any, value: Any) -> None:
        raise author_error(
            "E803",
            "assignment to a tile is not an instruction",
            hint="write with one: nisa.tensor_copy(dst=tile[...], src=...)",
        )

    def __iter__(self) -> Any:
        raise author_error("E803", "iteration over a tensor is not an instruction", hint="loop over an index and slice")

    def _no_arithmetic(self, *_: object) -> Any:
        raise author_error("E803", "Python arithmetic on a tensor is not an instruction", hint=_NO_ARITHMETIC)

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _no_arithmetic
    __matmul__ = __rmatmul__ = __pow__ = __neg__ = _no_arithmetic
    __rpow__ = __pos__ = __abs__ = __invert__ = __mod__ = __rmod__ = __floordiv__ = __rfloordiv__ = _no_arithmetic
    __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = _no_arithmetic
    __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = _no_arithmetic

    def _no_comparison(self, _: object) -> Any:
        raise author_error("E803", "Python cannot compare a tensor: it has no values while tracing", hint=_NO_COMPARISON)

    __lt__ = __le__ = __gt__ = __ge__ = _no_comparison
    __array_ufunc__ = None  # NumPy numbers leave the operators to this class

    def __repr__(self) -> str:
        return f"NkiTensor({self.name}: {self.dtype}{list(self.shape)} @{self.buffer.value})"


def _frozen(value: Any) -> Any:
    """Arguments as the IR keeps them: lists become tuples, tensors and registers become operands."""
    if isinstance(value, (list, tuple)):
        return tuple(map(_frozen, value))
    operand = as_operand(value)
    if operand is not None:
        return operand
    return value.__index__() if hasattr(value, "__index__") and not isinstance(value, bool) else value


def as_operand(value: Any) -> View | None:
    """The IR operand of a tensor or register of the kernel, None for anything else."""
    return getattr(value, "_view", None)


def new_view(tensor: Tensor) -> NkiTensor:
    return NkiTensor(View(tensor))


def as_address(address: Any, space: Space) -> Address | None:
    """`address=(start partition, byte)`; raises E203 for what is no such pair or is misaligned.

    The public pages call the second number an element offset once; every worked example means bytes.
    """
    if address is None:
        return None
    if not (
        isinstance(address, (tuple, list)) and len(address) == 2 and all(hasattr(a, "__index__") and a >= 0 for a in address)
    ):
        raise KernelError(
            "E203",
            f"address {address!r}",
            limit="(start partition, byte in the partition)",
            actual=address,
            hint="leave it out to let the compiler place the tensor",
        )
    partition, byte = (number.__index__() for number in address)
    if not space.is_on_chip:
        hint = "leave it out: the compiler places HBM tensors"
        raise KernelError("E203", f"address of a tensor in {space}", limit="sbuf or psum", actual=str(space), hint=hint)
    if partition % QUADRANT or partition >= 4 * QUADRANT:
        hint = "engines start at quadrant boundaries; slice a tensor that begins at one"
        raise KernelError("E203", f"start partition {partition}", limit="0, 32, 64 or 96", actual=partition, hint=hint)
    if space is Space.PSUM and byte % PSUM_BANK:
        hint = f"bank {byte // PSUM_BANK} starts at byte {byte // PSUM_BANK * PSUM_BANK}"
        raise KernelError(
            "E203", f"byte {byte} of psum", limit=f"the start of a bank, a multiple of {PSUM_BANK}", actual=byte, hint=hint
        )
    return Address(partition, byte)
