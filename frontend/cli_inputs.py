"""The command line's values: what `--set name=value` means, and the arrays that it makes.

    x=float32[128,512]     a random array, by the seed: floats are normal, integers 0 to 9
    x=@file.npy            the array of a file
    x=bfloat16@file.npy    the same, in a dtype that .npy files cannot name, or cast to it
    n=3  eps=1e-6  flag=true  act=none  dims=[1,2]  d=bfloat16  s=text  s='"3"'
"""

from __future__ import annotations

import ast
import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum
from math import prod
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import typer

from ..ir.dtypes import DTYPES, Dtype, as_dtype, numpy_dtype
from ..ir.errors import KernelError

__all__ = ["ArraySpec", "array_or_file", "load_array", "parse_settings", "random_array", "require_known", "value_of"]

_ARRAY = re.compile(r"(\w+)\[\s*(\d+(?:\s*,\s*\d+)*)\s*,?\s*\]")
_FILE = re.compile(r"(\w*)@(.+)")
_WORDS = {"none": None, "true": True, "false": False}
_LARGEST_INTEGER = 10  # exclusive, of random integer arrays: small, so that they may be indices and counts
_LANES = {"float8_e4m3fn_x4": ml_dtypes.float8_e4m3fn, "float8_e5m2_x4": ml_dtypes.float8_e5m2,
          "float4_e2m1fn_x4": ml_dtypes.float4_e2m1fn}


@dataclass(frozen=True)
class ArraySpec:
    """An array to make: `float32[128,512]`."""

    dtype: Dtype
    shape: tuple[int, ...]


def parse_settings(settings: Iterable[str] | None) -> dict[str, str]:
    """`name=value` texts by name. raises: typer.BadParameter for what is no such pair, and for a name given twice."""
    parsed: dict[str, str] = {}
    for text in settings or ():
        name, equals, value = text.partition("=")
        name = name.strip()
        if not equals or not name:
            raise typer.BadParameter(f"{text!r} is not name=value, e.g. x=float32[128,512]", param_hint="--set")
        if name in parsed:
            raise typer.BadParameter(f"{name} is given twice", param_hint="--set")
        parsed[name] = value
    return parsed


def require_known(given: Iterable[str], known: Iterable[str], what: str) -> None:
    """raises: typer.BadParameter naming the nearest name and all there are."""
    names = list(known)
    for name in given:
        if name not in names:
            close = get_close_matches(name, names, 1)
            hint = f"did you mean {close[0]}? " if close else ""
            there = ", ".join(names) or "nothing to set"
            raise typer.BadParameter(f"{what} has no {name}; {hint}it has {there}", param_hint="--set")


def value_of(text: str, name: str, seed: int, example: Any = None) -> Any:
    """The value that a `--set` text stands for. example: the parameter's default; an Enum there lets members be named.

    raises: typer.BadParameter for a text that looks like an array, a file or a Python literal and is none;
            KernelError E706 for a file that cannot be read.
    """
    if isinstance(example, Enum) and text in type(example).__members__:
        return type(example)[text]
    if isinstance(found := array_or_file(text, name), ArraySpec):
        return random_array(found, name, seed)
    if found is not None:
        return found
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if text in DTYPES:
        return DTYPES[text]
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    if text[:1] in tuple("([{'\""):
        try:
            return ast.literal_eval(text)
        except (ValueError, SyntaxError):
            raise typer.BadParameter(f"{name}={text} is no Python literal", param_hint="--set") from None
    return text


def array_or_file(text: str, name: str) -> ArraySpec | np.ndarray | None:
    """The array that a text names, None where it is something else."""
    if match := _ARRAY.fullmatch(text):
        return ArraySpec(_dtype(match[1], name), tuple(int(size) for size in match[2].split(",")))
    if (match := _FILE.fullmatch(text)) and (not match[1] or match[1] in DTYPES or text.endswith(".npy")):
        return load_array(match[2], _dtype(match[1], name) if match[1] else None)
    return None


def _dtype(text: str, name: str) -> Dtype:
    try:
        return as_dtype(text)
    except KernelError as error:
        close = get_close_matches(text, list(DTYPES), 1)
        hint = f"; did you mean {close[0]}?" if close else f"; it is one of {error.limit}"
        if text.endswith("64"):
            hint = f"; the machine has no 64-bit types: {text.removesuffix('64')}32 is the widest"
        raise typer.BadParameter(f"{name}: no dtype {text}{hint}", param_hint="--set") from None


def load_array(path: str, dtype: Dtype | None = None) -> np.ndarray:
    """The array of a .npy file, as `dtype` where one is given. raises: KernelError E706."""
    try:
        array = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError, MemoryError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise KernelError("E706", f"{path}: {reason}", actual=reason, limit="a .npy file that NumPy can read without pickle",
                          hint=f"numpy.save({Path(path).name!r}, array) writes one") from None
    if not isinstance(array, np.ndarray):
        raise KernelError("E706", f"{path} is an archive of several arrays", limit="a .npy file of one array",
                          hint="save each array with numpy.save")
    if dtype is None:
        return array
    wanted = numpy_dtype(dtype)
    if array.dtype.kind == "V" and array.dtype.itemsize == wanted.itemsize:
        return array.view(wanted)  # .npy files keep the bytes of ml_dtypes types, and not their names
    return array.astype(wanted)


def random_array(spec: ArraySpec, name: str, seed: int) -> np.ndarray:
    """The same array for the same name, type and seed, whatever else is set."""
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    dtype, shape = spec.dtype, spec.shape
    try:
        if dtype == "bool_":
            return rng.integers(0, 2, shape).astype(np.bool_)
        if dtype.is_int:
            return rng.integers(0, _LARGEST_INTEGER, shape).astype(dtype.storage)
        if dtype.is_packed:
            lanes = rng.standard_normal((prod(shape), 4)).astype(_LANES[dtype])
            return _packed(lanes).view(dtype.storage).reshape(shape)
        if dtype == "float8_e8m0fnu":
            return np.exp2(rng.integers(-3, 4, shape)).astype(dtype.storage)
        return rng.standard_normal(shape, np.float32).astype(dtype.storage)
    except (MemoryError, ValueError, OverflowError) as error:
        raise KernelError("E701", f"{name}: no array of {dtype}{list(shape)}: {error}", actual=list(shape),
                          limit="an array that fits the host's memory") from None


def _packed(lanes: np.ndarray) -> np.ndarray:
    """uint8 bytes of x4 words, lane 0 in the lowest bits."""
    codes = lanes.view(np.uint8)
    if lanes.dtype == ml_dtypes.float4_e2m1fn:
        return np.ascontiguousarray(codes[:, 0::2] & 15 | (codes[:, 1::2] & 15) << 4)
    return np.ascontiguousarray(codes)
