"""`nki.language`: tensor creation, memory regions, dtypes, loops, operators, functions.

Source: `nki.language` reference and NKI language guide (NKI 0.6).
"""

from __future__ import annotations

import builtins
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from difflib import get_close_matches
from typing import Any

import numpy as np

from ..ir.access_pattern import MAX_RANK
from ..ir.dtypes import DTYPES, Dtype, as_dtype
from ..ir.graph import Tensor
from ..ir.machine import NCVersion, Space, Target
from .calls import FUNCTIONS
from .functions import FUNCTIONS_OF_NL
from .objects import NKIObject
from .operators import HANDLES
from .registers import dynamic_range, fori_loop, while_loop
from .target import current_target
from .tensor import NkiTensor, as_address, new_view
from .tracer import author_error, current, located

# --- memory regions and dtypes -----------------------------------------------------------------------------------

MemoryRegion = Space
sbuf, psum, shared_hbm = Space.SBUF, Space.PSUM, Space.SHARED_HBM
hbm = private_hbm = Space.HBM

globals().update(DTYPES)
bool = DTYPES["bool_"]
dtype = Dtype
globals().update({**FUNCTIONS_OF_NL, **HANDLES})  # what is both is a handle

tensor = NkiTensor


def _region(buffer: Any) -> Space:
    if not isinstance(buffer, Space) or buffer is Space.REGISTER:
        raise author_error(
            "E701",
            f"buffer {buffer!r}",
            limit="nl.sbuf, nl.psum, nl.hbm, nl.shared_hbm",
            actual=repr(buffer),
            hint="the regions are objects of nl, not their names",
        )
    return buffer


def is_hbm(buffer: Space) -> builtins.bool:
    return _region(buffer).is_hbm


def is_on_chip(buffer: Space) -> builtins.bool:
    return _region(buffer).is_on_chip


def is_psum(buffer: Space) -> builtins.bool:
    return _region(buffer) is Space.PSUM


def is_sbuf(buffer: Space) -> builtins.bool:
    return _region(buffer) is Space.SBUF


class _TileSize:
    """`nl.tile_size`: the target's limits, read when asked for."""

    @property
    def _target(self) -> Target:
        return current_target()

    pmax = property(lambda self: self._target.partitions, doc="partitions")
    psum_bank_fmax = property(lambda self: self._target.psum_bank_bytes // 4, doc="float32 elements of a PSUM bank")
    psum_fmax = psum_bank_fmax  # deprecated name
    psum_bank_fmax_bytes = property(lambda self: self._target.psum_bank_bytes)
    psum_num_banks = property(lambda self: self._target.psum_banks)
    gemm_stationary_fmax = property(lambda self: 128)
    gemm_moving_fmax = property(lambda self: 512)
    bn_stats_fmax = property(lambda self: 512)
    psum_min_align = property(lambda self: 4, doc="bytes")
    sbuf_min_align = property(lambda self: 1, doc="bytes")
    sbuf_fmax_bytes = property(lambda self: self._target.sbuf_bytes, doc="usable bytes of a partition")
    total_available_sbuf_size = sbuf_fmax_bytes  # deprecated name
    sbuf_fmax = property(lambda self: self._target.sbuf_bytes // 4, doc="float32 elements of a partition")
    # Whether the reserved bytes count is not published; the usable part is what a kernel can allocate.
    sbuf_size_bytes = property(lambda self: self._target.partitions * self._target.sbuf_bytes)


tile_size = _TileSize()

# --- creation ----------------------------------------------------------------------------------------------------


class _Ndarray(type):
    """`nl.ndarray(...)` allocates, `isinstance(x, nl.ndarray)` and annotations mean the tensor class."""

    def __call__(
        cls, shape: Sequence[int], dtype: Any, buffer: Space = Space.SBUF, name: str = "", address: Any = None
    ) -> NkiTensor:
        return _allocate(shape, dtype, buffer, name, address)

    def __instancecheck__(cls, instance: object) -> builtins.bool:
        return isinstance(instance, NkiTensor)


# Not a class statement, so that type checkers see what a call returns.
ndarray = _Ndarray("ndarray", (), {"__doc__": """A new tensor with undefined contents.

    ndarray(shape, dtype, buffer=nl.sbuf, name='', address=None)

    shape: partition dimension first on chip (two dimensions or more there). dtype: a dtype of nl.
    address: (start partition, byte) pins an on-chip tensor.
    raises: KernelError E203 (address), E701 (shape or buffer), E704 (dtype), E602 (name used twice).
    """})


def _allocate(shape: Sequence[int], dtype: Any, buffer: Space, name: str, address: Any = None) -> NkiTensor:
    tracer = current("nl.ndarray")
    sizes = _sizes(shape, _region(buffer))
    place = located(as_address, address, buffer)
    return new_view(tracer.new_tensor(sizes, located(as_dtype, dtype), buffer, name or "", place))


def _sizes(shape: Any, buffer: Space) -> tuple[int, ...]:
    items = tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)
    if not items or any(not hasattr(size, "__index__") or isinstance(size, NkiTensor) for size in items):
        hint = "sizes are known while tracing: use // where / gives a float"
        raise author_error("E701", f"shape {shape!r}", limit="ints", actual=shape, hint=hint)
    sizes = tuple(size.__index__() for size in items)
    if any(size < 1 for size in sizes):
        hint = "leave out the tensor and its instructions where there is nothing to hold"
        raise author_error("E701", f"shape {sizes}", limit="sizes of at least 1", actual=sizes, hint=hint)
    if len(sizes) > MAX_RANK:
        hint = "merge dimensions; reshape gives views of other shapes"
        raise author_error("E701", f"shape {sizes}", limit=f"at most {MAX_RANK} dimensions", actual=len(sizes), hint=hint)
    if buffer.is_on_chip and len(sizes) < 2:
        raise author_error(
            "E701",
            f"shape {sizes} in {buffer}",
            limit="two dimensions or more on chip",
            actual=sizes,
            hint=f"({sizes[0]}, 1) or (1, {sizes[0]}): the first dimension is the partition",
        )
    limit = current_target().partitions
    if buffer.is_on_chip and sizes[0] > limit:
        raise author_error(
            "E102",
            f"size of partition dimension {sizes[0]} exceeds the architecture's limit of {limit}",
            limit=f"shape[0] <= {limit}",
            actual=sizes[0],
            hint=f"tile the partition dimension by {limit}",
        )
    return sizes


def full(shape: Sequence[int], fill_value: Any, dtype: Any, buffer: Space = Space.SBUF, name: str = "") -> NkiTensor:
    """A new tensor of one value. On chip a memset; in HBM a DMA that repeats one element."""
    result = _allocate(shape, dtype, buffer, name)
    if buffer.is_on_chip:
        FUNCTIONS["memset"](result, fill_value)
        return result
    element = _allocate((1, 1), dtype, Space.SBUF, "")
    FUNCTIONS["memset"](element, fill_value)
    FUNCTIONS["dma_copy"](dst=result, src=element.ap([[1, 1], [0, result.size]]))
    return result


def zeros(shape: Sequence[int], dtype: Any, buffer: Space = Space.SBUF, name: str = "") -> NkiTensor:
    return full(shape, 0, dtype, buffer, name)


def ones(shape: Sequence[int], dtype: Any, buffer: Space = Space.SBUF, name: str = "") -> NkiTensor:
    return full(shape, 1, dtype, buffer, name)


def zeros_like(x: NkiTensor, dtype: Any = None, buffer: Space | None = None, name: str = "") -> NkiTensor:
    return zeros(x.shape, x.dtype if dtype is None else dtype, x.buffer if buffer is None else buffer, name)


def empty_like(x: NkiTensor, dtype: Any = None, buffer: Space | None = None, name: str = "") -> NkiTensor:
    return _allocate(x.shape, x.dtype if dtype is None else dtype, x.buffer if buffer is None else buffer, name)


def rand(shape: Sequence[int], dtype: Any, buffer: Space = Space.SBUF, name: str = "") -> NkiTensor:
    """A new tensor of uniform random numbers, at least 0 and below 1, from the Vector engine.

    nisa.rand2 where the target has it; before, the upper 24 bits of nisa.rng, which are exact in float32.
    """
    result = _allocate(shape, dtype, buffer, name)
    tile = result if buffer.is_on_chip else _allocate(shape, dtype, Space.SBUF, "")
    if current_target().version >= NCVersion.gen4:
        FUNCTIONS["rand2"](tile, 0.0, 1.0)
    else:
        bits = _allocate(shape, "uint32", Space.SBUF, "")
        FUNCTIONS["rng"](bits)
        FUNCTIONS["tensor_scalar"](bits, bits, HANDLES["right_shift"], 8)
        FUNCTIONS["tensor_scalar"](tile, bits, HANDLES["multiply"], 2.0**-24)
    if tile is not result:
        FUNCTIONS["dma_copy"](dst=result, src=tile)
    return result


def random_seed(seed: NkiTensor) -> None:
    """Seed the Vector engine with the 32 bits of a (1,1) tensor: the same seed gives the same `rand`."""
    FUNCTIONS["set_rng_seed"](seed)


def shared_constant(value: Any) -> NkiTensor:
    """A shared HBM tensor with contents known while tracing: a NumPy array, or the path of a .npy file."""
    if isinstance(value, (str, os.PathLike)):
        try:
            value = np.load(value)
        except (OSError, ValueError, EOFError) as error:
            raise author_error(
                "E706",
                f"shared_constant: {error}",
                actual=str(value),
                limit="a readable .npy file",
                hint="np.save(path, array) makes one; relative paths start at the working directory",
            ) from None
    if not isinstance(value, np.ndarray) or value.size == 0 or value.ndim == 0:
        raise author_error(
            "E701",
            f"shared_constant: {type(value).__name__} of shape {getattr(value, 'shape', None)}",
            limit="a NumPy array of one dimension or more with elements, or the path of one",
            actual=type(value).__name__,
            hint="np.array(values, np.float32) makes one",
        )
    return _constant(value, located(as_dtype, value.dtype))


def _constant(array: np.ndarray, kind: Dtype, default_name: str | None = None) -> NkiTensor:
    tracer = current("nl.shared_constant")
    place = tracer.place()
    wanted = default_name or place.assigned_name() or "constant"
    name = tracer.claim_name(wanted, place.loc, explicit=False, matched=tracer.cores > 1)
    data = array.astype(kind.storage).tobytes()  # in this machine's byte order
    return new_view(tracer.share(Tensor(name, kind, array.shape, Space.SHARED_HBM, data=data, loc=place.loc)))


def shared_identity_matrix(n: int, dtype: Any = DTYPES["uint8"], dst: NkiTensor | None = None) -> NkiTensor:
    """An (n, n) identity in SBUF, loaded once for each size and dtype of the kernel (or into `dst`)."""
    tracer = current("nl.shared_identity_matrix")
    kind = located(as_dtype, dtype if dst is None else dst.dtype)
    if dst is None and (n, kind) in tracer.identities:
        return tracer.identities[n, kind]
    size = _sizes((n, n), Space.SBUF)[0]
    identity = np.eye(size).astype(kind.storage)
    if kind.is_packed or not np.array_equal(identity.astype(np.float32), np.eye(size)):
        hint = "make it in bfloat16 and copy it into a tile of another dtype"
        raise author_error("E704", f"an identity of {kind}", limit="a dtype with 0 and 1", actual=kind, hint=hint)
    tile = dst if dst is not None else _allocate((size, size), kind, Space.SBUF, "")
    FUNCTIONS["dma_copy"](dst=tile, src=_constant(identity, kind, "identity_matrix"))
    # A tile of a loop body ends with the loop, so only tiles outside loops are kept.
    if dst is None and not tracer.is_in_loop:
        tracer.identities[size, kind] = tile
    return tile


# --- indices and loops -------------------------------------------------------------------------------------------


def ds(start: int, size: int) -> slice:
    """`t[:, nl.ds(start, size)]` is `t[:, start:start + size]`."""
    for what, number in (("start", start), ("size", size)):
        if not hasattr(number, "__index__"):
            raise author_error(
                "E301",
                f"ds: {what} {number!r}",
                limit="ints known while tracing",
                hint="a start known only at run time is ap(scalar_offset=...) or select()",
            )
    return slice(start.__index__(), start.__index__() + size.__index__())


# Loops over these run as Python; the public names are deprecated aliases of range.
range = affine_range = sequential_range = static_range = builtins.range


def program_id(axis: int = 0) -> int:
    """The number of this core within the launch, 0 without brackets."""
    _check_axis(axis)
    return current("nl.program_id").core


def num_programs(axes: int = 0) -> int:
    """How many cores the launch has."""
    _check_axis(axes)
    return current("nl.num_programs").cores


def program_ndim() -> int:
    """1 for `kernel[n](...)`, 0 for `kernel(...)`."""
    return int(current("nl.program_ndim").grid)


def _check_axis(axis: Any) -> None:
    if axis not in (0, (0,), [0]):
        raise author_error("E701", f"program axis {axis}", limit="axis 0", actual=axis, hint="a launch has one axis")


def device_print(print_prefix: str, tensor: NkiTensor) -> None:
    """Print a tensor each time the kernel runs, on stderr: `prefix core 0: values`."""
    FUNCTIONS["device_print"](tensor, print_prefix)


def no_reorder() -> AbstractContextManager[None]:
    """Instructions recorded inside stay in order."""
    return current("nl.no_reorder").no_reorder()


_GONE = {  # in NKI 0.2
    "arange": "index with slices and nl.ds",
    "mgrid": "index with slices and nl.ds",
    "par_dim": "the first dimension is the partition",
    "static_cast": "copy into a tile of the other dtype",
    "loop_reduce": "accumulate with nisa.tensor_tensor or in PSUM",
    "spmd_dim": "launch with kernel[n](...)",
    "nc": "launch with kernel[n](...)",
}

__all__ = [
    "MemoryRegion",
    "NKIObject",
    "affine_range",
    "bool",
    "device_print",
    "ds",
    "dtype",
    "dynamic_range",
    "empty_like",
    "fori_loop",
    "full",
    "hbm",
    "is_hbm",
    "is_on_chip",
    "is_psum",
    "is_sbuf",
    "ndarray",
    "no_reorder",
    "num_programs",
    "ones",
    "private_hbm",
    "program_id",
    "program_ndim",
    "psum",
    "rand",
    "random_seed",
    "range",
    "sbuf",
    "sequential_range",
    "shared_constant",
    "shared_hbm",
    "shared_identity_matrix",
    "static_range",
    "tensor",
    "tile_size",
    "while_loop",
    "zeros",
    "zeros_like",
    *DTYPES,
    *{**FUNCTIONS_OF_NL, **HANDLES},
]


def __getattr__(name: str) -> Any:
    if name in _GONE:
        raise AttributeError(f"nl.{name} was removed in NKI 0.2: {_GONE[name]}")
    close = get_close_matches(name, __all__, 1)
    raise AttributeError(f"nki.language has no {name}" + (f"; did you mean {close[0]}?" if close else ""))
