"""The gates that a kernel and the functions it can call declare, found without running anything."""

from functools import partial

import opennki as nki
from opennki import Gate, gates, kernel_assert
from opennki.frontend.declared_gates import declared_gates
from opennki.kernels import LIBRARY


@gates(Gate("x is not None"))
def leaf(x):
    kernel_assert(x.shape[0] <= 128, f"{x.shape[0]} rows")


@gates(Gate("x.shape[0] > 1"))
def other(x):
    return [leaf(row) for row in x]


@nki.jit
@gates(Gate("True"))
def inner(x):
    assert x.ndim == 2, "two dimensions"
    kernel_assert(condition=x.ndim, message="some")


def ungated_between(x):
    leaf(x)


def never_called(x):
    kernel_assert(False)


class Config:
    def check(self, x):
        kernel_assert(self.rows)


TABLE = {"a": other, "b": (never_called,)}


def names(kernel):
    return [each.function for each in declared_gates(kernel)]


def test_functions_are_listed_in_the_order_of_the_calls_each_once():
    def kernel(x):
        ungated_between(x)
        inner(x)
        other(x)
        leaf(x)

    assert names(kernel) == ["leaf", "inner", "other"] == names(nki.jit(kernel))


def test_functions_behind_tables_closures_classes_and_partials_are_found():
    local = partial(other, None)

    def kernel(x):
        Config().check(x)
        local()
        TABLE["a"](x)

    assert names(kernel) == ["Config.check", "other", "leaf"]
    assert names(lambda x: TABLE) == ["other", "leaf"]


def test_functions_of_modules_are_found_and_those_of_the_language_are_not():
    def kernel(x):
        nki.kernels.tp_broadcast(x, x, 0)
        nki.isa.dma_copy(x, x)

    assert names(kernel) == ["tp_broadcast"]


def test_a_recursion_ends():
    def kernel(x):
        leaf(x)
        kernel(x)

    assert names(kernel) == ["leaf"]


def test_assertions_say_how_what_and_where():
    (found,) = declared_gates(inner)
    first = inner.function.__code__.co_firstlineno
    assert [(a.by, a.condition, a.message, a.loc.line) for a in found.assertions] == [
        ("assert", "x.ndim == 2", "two dimensions", first + 3), ("kernel_assert", "x.ndim", "some", first + 4)]  # fmt: skip
    assert found.loc.line == first and found.table.gates[0].condition == "True"
    assert declared_gates(leaf)[0].assertions[0].message == "f'{x.shape[0]} rows'"


def test_a_lambda_has_no_source_to_read_assertions_from():
    assert declared_gates(lambda x: x) == []
    assert [each.assertions for each in declared_gates(gates(Gate("x"))(lambda x: x))] == [()]


def test_every_kernel_of_the_library_declares_gates():
    for entry in LIBRARY.values():
        assert declared_gates(entry.kernel)[0].table.gates, entry.name
