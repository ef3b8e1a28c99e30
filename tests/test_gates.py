"""Gates: declared in a table or asserted in the body, evaluated before anything runs, reported together."""

from dataclasses import dataclass
from enum import Enum

import numpy as np
import pytest

import opennki as nki
from opennki import Gate, KernelError, gates, kernel_assert
from opennki import isa as nisa
from opennki import language as nl
from opennki.ir.errors import GateError
from opennki.ir.parser import parse

X = np.ones((128, 8), np.float32)


class Mode(Enum):
    FAST = 1
    EXACT = 2


@nki.jit
@gates(
    Gate("T % chunk == 0", hint="choose a chunk that divides T"),
    Gate("C % 2 == 0", when="cores == 2", hint="pad the columns"),
    Gate("x.dtype in ('float32', 'bfloat16')"),
    Gate("mode.name != 'EXACT' or chunk is not None", when="mode is not None"),
    Gate("all(size > 0 for size in x.shape)"),
    let={"T": "x.shape[0]", "C": "x.shape[-1]", "chunk": "T if chunk is None else chunk"},
)
def table(x, chunk=None, mode=None):
    return x


def fault(call, *args, **kwargs) -> GateError:
    with pytest.raises(GateError) as error:
        call(*args, **kwargs)
    assert isinstance(error.value, AssertionError)
    return error.value


def line_of(error: KernelError) -> str:
    with open(error.loc.file) as file:
        return file.read().splitlines()[error.loc.line - 1].strip()


# --- the table ---------------------------------------------------------------------------------------------------


def test_gates_that_hold_let_the_kernel_run():
    assert table(X) is X and table(X, 32, Mode.FAST) is X and table[2](X, np.int64(64)) is X


def test_a_failing_gate_names_its_text_values_hint_and_kernel():
    error = fault(table, X, 48)
    assert error.code == "E401" and error.message == "gate of table: T % chunk == 0"
    assert (error.limit, error.actual, error.hint) == ("T % chunk == 0", "T=128, chunk=48", "choose a chunk that divides T")
    assert line_of(error).startswith("Gate(") and not error.notes


def test_every_failing_gate_of_a_call_is_reported():
    error = fault(table[2], np.ones((128, 7), np.int32), 48)
    first, second = error.notes
    assert error.limit == "T % chunk == 0" and "gate C % 2 == 0 (C=7); pad the columns" in first
    assert "float32" in second and "int32[128,7] @shared_hbm" in second


def test_a_gate_counts_only_where_its_when_holds():
    odd = np.ones((128, 7), np.float32)
    assert table(odd) is odd
    assert fault(table[2], odd).limit == "C % 2 == 0"


def test_gates_are_in_the_trace_and_its_text_parses():
    module = table.trace(X, 48, Mode.FAST)
    assert [gate.holds for gate in module.gates] == [False, True, True, True]
    assert module.gates[2].values == (("mode", "FAST"), ("chunk", 48)) and not module.cores[0].body
    assert str(parse(str(module))) == str(module)


@pytest.mark.parametrize(
    "condition, when, let, text",
    [("x.shape[5] == 1", "True", {}, "IndexError"), ("y > 1", "True", {}, "name 'y' is not defined"),
     ("x ==", "True", {}, "SyntaxError"), ("True", "x.foo", {}, "AttributeError"), ("open('a')", "True", {}, "NameError"),
     ("T", "True", {"T": "1 / 0"}, "ZeroDivisionError")],
)  # fmt: skip
def test_an_expression_that_cannot_be_evaluated(condition, when, let, text):
    kernel = nki.jit(gates(Gate("True"), Gate(condition, when=when), let=let)(lambda x: x))
    with pytest.raises(KernelError) as error:
        kernel[2](X)
    assert error.value.code == "E402" and text in error.value.message and error.value.loc.file == __file__


@pytest.mark.parametrize("x, actual", [(None, "x=None"), (3, "x=3"), ([1, 2], "x=(1, 2)")])
def test_an_argument_that_a_gate_cannot_read_is_shown(x, actual):
    kernel = nki.jit(gates(Gate("H % 2 == 0"), let={"H": "x.shape[-1]"})(lambda x: x))
    with pytest.raises(KernelError) as error:
        kernel(x)
    assert error.value.code == "E402" and error.value.actual == actual and error.value.limit and error.value.hint


def test_an_expression_that_computes_with_a_tensor_points_at_its_gate():
    with pytest.raises(KernelError) as error:
        nki.jit(gates(Gate("x + 1 > 0"))(lambda x: x))(X)
    assert error.value.code == "E402" and "Python arithmetic on a tensor" in error.value.message
    assert error.value.loc.file == __file__ and "x=" in error.value.actual


def test_a_failing_gate_explains_an_expression_that_cannot_be_evaluated():
    def kernel(x):
        return x

    three = Gate("len(x.shape) == 3", hint="pass three dimensions")
    declared = gates(three, Gate("depth % 2 == 0"), let={"depth": "x.shape[2]"})
    assert fault(nki.jit(declared(kernel)), X).hint == "pass three dimensions"


def test_gates_above_jit_count_too():
    kernel = gates(Gate("len(x.shape) == 3"))(nki.jit(lambda x: x))
    assert fault(kernel, X).limit == "len(x.shape) == 3"


def test_gates_of_a_kernel_in_a_kernel_count():
    @nki.jit
    def outer(x, chunk):
        return table(x, chunk)

    assert outer[2](X, 64) is X
    error = fault(outer[2], X, 48)
    assert error.message == "gate of table in outer: T % chunk == 0"
    assert error.actual == "T=128, chunk=48" and not error.notes  # once, though two cores ask


# --- functions without @jit --------------------------------------------------------------------------------------


LIMIT = 64


@dataclass(frozen=True)
class Config:
    mode: Mode
    rows: int = 32

    @gates(Gate("self.rows <= LIMIT", hint="use fewer rows"))
    def checked(self):
        return self.rows


@gates(
    Gate("x.shape[0] % config.rows == 0", hint="choose rows that divide x"),
    Gate("config.mode is not Mode.EXACT", hint="this function is fast only"),
    Gate("x.buffer in (nl.private_hbm, nl.shared_hbm) and x.dtype == nl.float32"),
    Gate("bias.shape == x.shape", when="bias is not None"),
)
@gates(Gate("x.shape[1] <= LIMIT"))
def rows_of(x, config, bias=None):
    return [config.checked() for _ in range(2)]


@nki.jit
def caller(x, config, times=1):
    for _ in range(times):
        rows_of(x, config)
    rows_of(x, bias=x, config=config)
    return x


def test_a_function_with_gates_is_just_the_function_outside_of_a_kernel():
    assert rows_of(None, Config(Mode.EXACT, 100)) == [100, 100]


def test_gates_of_a_called_function_are_in_the_trace_once_for_equal_arguments():
    module = caller[2].trace(X, Config(Mode.FAST), 3)
    assert [(gate.function, gate.text.split()[0]) for gate in module.gates] == [
        ("rows_of", "x.shape[0]"), ("rows_of", "config.mode"), ("rows_of", "x.buffer"), ("rows_of", "x.shape[1]"),
        ("Config.checked", "self.rows"), ("rows_of", "bias.shape"),
    ]  # fmt: skip
    assert all(gate.holds for gate in module.gates) and caller(X, Config(Mode.FAST)) is X
    again = parse(str(module))
    assert again == module and again.gates == module.gates


def test_a_failing_gate_of_a_called_function_names_both_the_values_that_it_reads_and_its_caller():
    error = fault(caller, X, Config(Mode.EXACT, 48))
    assert error.message == "gate of rows_of in caller: x.shape[0] % config.rows == 0"
    assert error.actual == 'x="float32[128,8] @private_hbm", config.rows=48' and error.hint == "choose rows that divide x"
    assert line_of(error).startswith('Gate("x.shape[0]')
    first = caller.function.__code__.co_firstlineno
    assert error.loc.callers == ((__file__, first + 3),)
    assert "gate of rows_of: config.mode is not Mode.EXACT (config.mode=EXACT); this function is fast only" in error.notes[0]


def test_a_method_may_have_gates():
    error = fault(caller, X, Config(Mode.FAST, 128))
    assert (error.message, error.actual) == ("gate of Config.checked in caller: self.rows <= LIMIT", "self.rows=128, LIMIT=64")


def test_a_kernel_with_gates_evaluates_them_once_where_it_is_called():
    seen = []
    watched = nki.jit(gates(Gate("x.seen()"))(lambda x: None))

    class Watcher:
        def seen(self):
            seen.append(1)
            return True

    @nki.jit
    def outer(x):
        watched(Watcher())
        return x

    assert outer(X) is X and len(seen) == 1


def test_a_call_that_does_not_fit_a_function_with_gates():
    @nki.jit
    def outer(x):
        rows_of(x)

    with pytest.raises(KernelError) as error:
        outer(X)
    assert error.value.code == "E701" and line_of(error.value) == "rows_of(x)"


def test_a_changed_global_that_a_gate_reads_is_seen(monkeypatch):
    kernel = nki.jit(caller.function)
    assert kernel(X, Config(Mode.FAST)) is X
    monkeypatch.setitem(globals(), "LIMIT", 4)
    assert "x.shape[1] <= LIMIT" in fault(kernel, X, Config(Mode.FAST)).message


def test_the_line_of_an_instruction_in_a_function_with_gates_is_the_authors():
    @gates(Gate("x is not None"))
    def load(x):
        tile = nl.ndarray(x.shape, x.dtype)
        nisa.dma_copy(dst=tile, src=x)

    @nki.jit
    def kernel(x):
        load(x)

    (copy,) = kernel.trace(X).cores[0].body
    first = load.__wrapped__.__code__.co_firstlineno
    assert (copy.loc.file, copy.loc.line) == (__file__, first + 3)
    assert copy.loc.callers == ((__file__, kernel.function.__code__.co_firstlineno + 2),)


@pytest.mark.parametrize("what", [staticmethod(lambda: None), 3, Mode])
def test_gates_of_what_is_no_function(what):
    with pytest.raises(KernelError) as error:
        gates(Gate("True"))(what)
    assert error.value.code == "E701" and error.value.loc.file == __file__


# --- the body ----------------------------------------------------------------------------------------------------


def helper(x, rows):
    kernel_assert(x.shape[0] == rows, f"{rows} rows, not {x.shape[0]}")


@nki.jit
def body(x, rows=128, columns=8, dtype="float32"):
    kernel_assert(x.shape[1] == columns, f"columns == {columns}")
    helper(x, rows)
    kernel_assert(x.dtype == dtype, f"dtype is {dtype}")
    tile = nl.ndarray((rows, columns), x.dtype)  # impossible, where the first gate fails
    nisa.dma_copy(dst=tile, src=x)
    return x


def test_asserts_that_hold_are_in_the_trace():
    assert [(gate.text, gate.holds) for gate in body.trace(X).gates] == [
        ("columns == 8", True), ("128 rows, not 128", True), ("dtype is float32", True)]  # fmt: skip


def test_failing_asserts_are_reported_together_and_before_their_consequences():
    error = fault(body, X, 256, 0, "int32")
    assert error.message == "gate of body: columns == 0" and line_of(error).startswith("kernel_assert(x.shape[1]")
    assert len(error.notes) == 2 and "256 rows, not 128" in error.notes[0] and "dtype is int32" in error.notes[1]


def test_an_assert_in_a_helper_names_the_helpers_line_and_its_caller():
    error = fault(body, X, rows=64)
    assert error.message == "gate of helper in body: 64 rows, not 128" and line_of(error).startswith("kernel_assert(x.shape[0]")
    assert error.loc.callers == ((__file__, body.function.__code__.co_firstlineno + 3),)


def test_two_cores_report_a_gate_once_and_each_its_own():
    @nki.jit
    def kernel(x, limit):
        kernel_assert(limit > 0, "limit > 0")
        kernel_assert(nl.program_id() < limit, f"core {nl.program_id()} below {limit}")
        return x

    assert fault(kernel[2], X, 0).notes == (fault(kernel[2], X, 0).notes[0],)
    assert fault(kernel[2], X, 1).message == "gate of kernel: core 1 below 1"
    assert [gate.text for gate in kernel[2].trace(X, 2).gates] == ["limit > 0", "core 0 below 2", "core 1 below 2"]


def test_a_failing_assert_hides_an_open_loop_behind_it():
    @nki.jit
    def kernel(x):
        kernel_assert(False, "never")
        for _ in nl.dynamic_range(3):
            return x

    assert fault(kernel, X).message == "gate of kernel: never"


def test_a_failed_call_leaves_nothing_in_the_cache():
    kernel = nki.jit(body.function)
    fault(kernel, X, 64)
    assert not kernel._cache and kernel(X) is X


def test_an_assert_outside_a_kernel_raises_at_once():
    kernel_assert(True, "fine")
    assert fault(kernel_assert, False, "host code").message == "host code"


def test_what_has_no_value_cannot_be_asserted():
    def on_register(x):
        kernel_assert(nisa.register_alloc(1), "a register")

    for function in (on_register, lambda x: kernel_assert(x, "a tensor")):
        with pytest.raises(KernelError) as error:
            nki.jit(function)(X)
        assert error.value.code in ("E803", "E804") and error.value.loc.file == __file__
