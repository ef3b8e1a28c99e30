"""Registers and the loops that the machine runs.

A loop body is traced once. `while reg:` opens the loop when Python first asks for the truth of `reg` and closes it when
the same line asks again; `dynamic_range` does so around its one `yield`; `fori_loop` and `while_loop` call their body once.
Source: deep dive "NKI Dynamic Loops", `nki.isa` register functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ..ir.errors import FrozenError, RegisterUseError
from ..ir.graph import Operand, Tensor, View
from .calls import FUNCTIONS
from .location import Place
from .tensor import NkiTensor
from .tracer import Tracer, author_error, author_loc, current

__all__ = ["VirtualRegister", "dynamic_range", "fori_loop", "register_alloc", "while_loop"]


class VirtualRegister:
    """A 32-bit register of a sequencer. frozen: a loop variable, which only the loop writes."""

    __slots__ = ("_view", "frozen", "tensor")

    def __init__(self, tensor: Tensor, frozen: bool = False) -> None:
        self.tensor, self.frozen = tensor, frozen
        self._view = View(tensor)

    @property
    def name(self) -> str:
        return self.tensor.name

    def writable(self) -> VirtualRegister:
        if self.frozen:
            raise FrozenError(
                "E804",
                f"%{self.name} is a loop variable",
                loc=author_loc(),
                limit="read only",
                hint="copy it into a register of your own with nisa.register_move",
            )
        return self

    def __bool__(self) -> bool:
        tracer = current("a register")
        place = tracer.place()
        if not place.in_while_test():
            hint = "only `while reg:`, with the register alone, is a loop (or nl.while_loop); predicate data with tiles"
            raise self._no_value("a condition", hint)
        return _while_turn(tracer, self, place)

    def _no_value(self, use: str, hint: str) -> RegisterUseError:
        return RegisterUseError(
            "E804",
            f"%{self.name}: a register has no value while the kernel is traced",
            loc=author_loc(),
            actual=f"used as {use}",
            hint=hint,
        )

    def __index__(self) -> int:
        raise self._no_value("a Python int", "pass it as scalar_offset, or loop with nl.dynamic_range / nl.fori_loop")

    __int__ = __float__ = __index__

    def _no_arithmetic(self, *_: object) -> Any:
        raise self._no_value(
            "a number in Python arithmetic",
            "index a view with it as it is, x[i] or ap(scalar_offset=i); compute in a (1,1) int32 tile with nisa.tensor_scalar",
        )

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _no_arithmetic
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = __neg__ = __pos__ = __abs__ = _no_arithmetic
    __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = __invert__ = _no_arithmetic
    __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = _no_arithmetic
    __lt__ = __le__ = __gt__ = __ge__ = _no_arithmetic
    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        """Kernels ask `reg == None`; what a register holds cannot be compared while tracing."""
        if isinstance(other, (int, float, VirtualRegister)) and other is not self:
            self._no_arithmetic()
        return self is other

    def __copy__(self) -> VirtualRegister:
        return self

    def __deepcopy__(self, memo: object) -> VirtualRegister:
        return self

    def __repr__(self) -> str:
        return f"VirtualRegister({self.name})"


def register_alloc(x: Any = None) -> VirtualRegister:
    """A new register: uninitialised, or holding an int, another register's value or a one-element tensor's."""
    tracer = current("nisa.register_alloc")
    register = VirtualRegister(tracer.new_register(tracer.place().assigned_name() or "r"))
    if isinstance(x, NkiTensor):
        FUNCTIONS["register_load"](register, x)
    elif x is not None:
        FUNCTIONS["register_move"](register, x)
    return register


# --- while reg: --------------------------------------------------------------------------------------------------


def _while_turn(tracer: Tracer, register: VirtualRegister, place: Place) -> bool:
    """The first question opens the loop, the second closes it."""
    scope = tracer.while_at(place)
    if scope is None:
        tracer.check_visible(register._view, "while")
        tracer.open_loop(place, register.tensor)
        return True
    if scope.register is not register.tensor:
        assert scope.register is not None
        raise author_error(
            "E804",
            f"`while` asks for %{register.name}, but the loop began with %{scope.register.name}",
            limit="one register for all trips",
            actual=f"%{register.name}",
            hint="write the new value into it with nisa.register_move or nisa.register_load",
        )
    tracer.close_loop(scope, "while", (register._view,), None)
    return False


def while_loop(init: Any, body_fun: Callable[[VirtualRegister], Any]) -> None:
    """Run `body_fun(r)` while r is not 0. r starts as `init`; the body returns the next condition register."""
    tracer = current("nl.while_loop")
    register = register_alloc(init)
    scope = tracer.open_loop(tracer.place())
    following = body_fun(register)
    if not isinstance(following, VirtualRegister):
        raise author_error(
            "E804",
            "the body of while_loop returned no register",
            limit="the next condition register",
            actual=type(following).__name__,
            hint="return the register that the body was given, or another",
        )
    if following is not register:
        FUNCTIONS["register_move"](register, following)
    tracer.close_loop(scope, "while", (register._view,), None)


# --- counted loops -----------------------------------------------------------------------------------------------


def _bound(tracer: Tracer, value: Any, what: str) -> Operand:
    if isinstance(value, VirtualRegister):
        tracer.check_visible(value._view, what)
        return value._view
    if isinstance(value, NkiTensor) or not hasattr(value, "__index__"):
        raise author_error(
            "E804",
            f"{what} {value!r}",
            limit="an int or a register",
            actual=type(value).__name__,
            hint="load it into a register with nisa.register_load",
        )
    return value.__index__()


class _Counted:
    """A counted loop of the machine while its body is traced."""

    def __init__(self, lower: Any, upper: Any, step: Any) -> None:
        self.tracer = tracer = current("a dynamic loop")
        if isinstance(step, VirtualRegister) or not hasattr(step, "__index__") or step.__index__() < 1:
            raise FrozenError(
                "E804",
                f"loop step {step!r}",
                loc=author_loc(),
                limit="a positive int known while tracing",
                actual=repr(step),
                hint="count in steps of 1 and compute the index in a (1,1) int32 tile",
            )
        self.bounds = (_bound(tracer, lower, "lower bound"), _bound(tracer, upper, "upper bound"), step.__index__())

    def open(self) -> VirtualRegister:
        place = self.tracer.place()
        self.register = VirtualRegister(self.tracer.new_register(place.loop_variable() or "i"), frozen=True)
        self.scope = self.tracer.open_loop(place)
        return self.register

    def close(self) -> None:
        self.tracer.close_loop(self.scope, "for", self.bounds, self.register.tensor)


def dynamic_range(start: Any, stop: Any = None, step: int = 1) -> Iterator[VirtualRegister]:
    """A loop that the machine runs, counting up; start and stop are ints or registers, step a positive int."""
    consumer = current("nl.dynamic_range").place().consumer("dynamic_range")
    if consumer is not None:
        raise author_error(
            "E804",
            f"{consumer}() of a dynamic_range",
            limit="`for i in nl.dynamic_range(...)`",
            actual=f"{consumer}(nl.dynamic_range(...))",
            hint="the body is traced once, so Python cannot count its trips; count in a (1,1) int32 tile",
        )
    lower, upper = (0, start) if stop is None else (start, stop)
    return _one_trip(_Counted(lower, upper, step))


def _one_trip(loop: _Counted) -> Iterator[VirtualRegister]:
    yield loop.open()
    loop.close()


def fori_loop(lower: Any, upper: Any, body_fun: Callable[[VirtualRegister], Any], step: int = 1) -> None:
    """Run `body_fun(i)` for i from lower up to below upper; i is a register that only the loop writes."""
    loop = _Counted(lower, upper, step)
    body_fun(loop.open())
    loop.close()
