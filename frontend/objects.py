"""`nl.NKIObject`: the base class of objects that kernels build and pass around."""

from __future__ import annotations

import dataclasses
from typing import Any

__all__ = ["NKIObject"]


class _Lenient(type):
    """Builds dataclasses as the public front end does, which public kernels rely on.

    A declared field without default may be missing (reading it later fails), and an unannotated class attribute may be
    given as a keyword.
    """

    def __call__(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if not dataclasses.is_dataclass(cls) or not _is_generated(cls):
            return super().__call__(*args, **kwargs)
        fields = [field for field in dataclasses.fields(cls) if field.init]
        given = dict(zip((field.name for field in fields), args, strict=False)) | kwargs
        extra = [key for key in kwargs if key not in {f.name for f in fields} and hasattr(cls, key)]
        missing = [
            f.name
            for f in fields
            if f.name not in given and f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
        ]
        if not extra and not missing:
            return super().__call__(*args, **kwargs)
        known = {key: value for key, value in given.items() if key not in extra}
        self = super().__call__(**known, **dict.fromkeys(missing))
        for key in missing:
            object.__delattr__(self, key)
        for key in extra:
            object.__setattr__(self, key, kwargs[key])
        return self


def _is_generated(cls: Any) -> bool:
    """Did @dataclass write the constructor (it names it after the class)?"""
    return (
        cls.__dict__.get("__init__") is not None
        and "__dataclass_fields__" in cls.__dict__
        and (
            cls.__init__.__qualname__.endswith("__create_fn__.<locals>.__init__")
            or cls.__init__.__code__.co_filename == "<string>"
        )
    )


class NKIObject(metaclass=_Lenient):
    """Base class of the public language for user classes in kernels; any Python class works here."""
