"""`nki.typing`: annotations of kernel parameters. They document; the arguments themselves decide."""

from __future__ import annotations

from typing import Any

from .tensor import NkiTensor

__all__ = ["mutable_tensor", "tensor"]


class tensor(NkiTensor):
    """`x: nt.tensor[128, 512]` declares an expected shape."""

    def __class_getitem__(cls, shape: Any) -> type[NkiTensor]:
        return NkiTensor


mutable_tensor = NkiTensor
