"""Element types: names, sizes, NumPy storage.

Source: NKI language guide and `nki.language` reference, data types; packed types: MX matmul guide.
"""

from __future__ import annotations

from enum import Enum

import ml_dtypes
import numpy as np

from .errors import KernelError, Loc

__all__ = ["DTYPES", "Dtype", "Kind", "as_dtype", "numpy_dtype"]


class Kind(Enum):
    """What an element is: decides which arithmetic it may take part in."""

    INT = "integer"
    FLOAT = "float"
    PACKED = "packed"  # x4 words: moved as bits, only MX instructions compute with them


class Dtype(str):
    """An element type. It *is* its public name: kernels compare, hash and print dtypes as strings.

    nbytes:  bytes of one element (of one x4 word).
    storage: NumPy type of the bytes in memory; packed words are unsigned integers.
    """

    nbytes: int
    kind: Kind
    storage: np.dtype

    def __new__(cls, name: str, storage: object, kind: Kind) -> Dtype:
        self = super().__new__(cls, name)
        self.storage = np.dtype(storage)  # type: ignore[call-overload]
        self.nbytes = self.storage.itemsize
        self.kind = kind
        return self

    @property
    def is_int(self) -> bool:
        return self.kind is Kind.INT

    @property
    def is_float(self) -> bool:
        return self.kind is Kind.FLOAT

    @property
    def is_packed(self) -> bool:
        return self.kind is Kind.PACKED

    def __repr__(self) -> str:
        return str.__str__(self)

    def __reduce__(self) -> tuple:
        return (as_dtype, (str.__str__(self),))


def _table() -> dict[str, Dtype]:
    rows = [
        ("bool_", np.uint8, Kind.INT),  # a byte, 0 or 1
        ("int8", np.int8, Kind.INT),
        ("uint8", np.uint8, Kind.INT),
        ("int16", np.int16, Kind.INT),
        ("uint16", np.uint16, Kind.INT),
        ("int32", np.int32, Kind.INT),
        ("uint32", np.uint32, Kind.INT),
        ("float32", np.float32, Kind.FLOAT),
        ("tfloat32", np.float32, Kind.FLOAT),  # 10 mantissa bits in a 32-bit word
        ("bfloat16", ml_dtypes.bfloat16, Kind.FLOAT),
        ("float16", np.float16, Kind.FLOAT),
        ("float8_e4m3", ml_dtypes.float8_e4m3, Kind.FLOAT),  # IEEE-like: infinities, largest 240
        ("float8_e4m3fn", ml_dtypes.float8_e4m3fn, Kind.FLOAT),  # OCP: no infinity, largest 448
        ("float8_e5m2", ml_dtypes.float8_e5m2, Kind.FLOAT),
        ("float8_e8m0fnu", ml_dtypes.float8_e8m0fnu, Kind.FLOAT),  # 2^(b-127): MX scales
        ("float8_e4m3fn_x4", np.uint32, Kind.PACKED),
        ("float8_e5m2_x4", np.uint32, Kind.PACKED),
        ("float4_e2m1fn_x4", np.uint16, Kind.PACKED),
    ]
    return {name: Dtype(name, storage, kind) for name, storage, kind in rows}


DTYPES: dict[str, Dtype] = _table()

# Spellings met in kernels and arrays besides the public names.
_ALIASES = {"bool": "bool_", "float8e4": "float8_e4m3", "float8e5": "float8_e5m2"}


def as_dtype(value: object, loc: Loc | None = None) -> Dtype:
    """The Dtype that `value` names: a Dtype, its name, a NumPy or ml_dtypes type, or an object that has one as `dtype`.

    raises: KernelError E704 for anything else, 64-bit types included (the hardware has none).
    """
    if isinstance(value, Dtype):
        return value
    name = value if isinstance(value, str) else None
    if name is None:
        try:
            name = np.dtype(value).name  # type: ignore[call-overload]
        except TypeError:
            name = str(getattr(value, "dtype", value)).removeprefix("torch.")
    found = DTYPES.get(_ALIASES.get(name, name))
    if found is None:
        raise KernelError(
            "E704",
            f"{value!r} is not a dtype of the machine",
            loc=loc,
            limit=", ".join(DTYPES),
            actual=name,
            hint="cast the array (64-bit types to their 32-bit ones) or name one of these dtypes",
        )
    return found


def numpy_dtype(dtype: Dtype) -> np.dtype:
    """The NumPy type in which a caller passes and receives arrays of `dtype`: bool for `bool_`, else the storage."""
    return np.dtype(np.bool_) if dtype == "bool_" else dtype.storage
