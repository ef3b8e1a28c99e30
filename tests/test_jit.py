"""Calling a kernel: signatures and the cache, arguments and results, targets and cores, what a fault looks like."""

import dataclasses
import itertools
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from functools import partial, wraps
from types import ModuleType, SimpleNamespace
from typing import NamedTuple

import ml_dtypes
import numpy as np
import pytest

import opennki as nki
from opennki import KernelError
from opennki import isa as nisa
from opennki import language as nl
from opennki.ir.errors import GateError
from opennki.ir.graph import Stage
from opennki.ir.parser import parse

X = np.arange(128 * 8, dtype=np.float32).reshape(128, 8)
SMALL = np.arange(8, dtype=np.float32).reshape(1, 8)


def fault(call, *args, **kwargs) -> KernelError:
    with pytest.raises(KernelError) as error:
        call(*args, **kwargs)
    return error.value


def line_of(error: KernelError) -> str:
    """The author's source line that the error names."""
    with open(error.loc.file) as file:
        return file.read().splitlines()[error.loc.line - 1].strip()


class Tally:
    """Counts how often a kernel is traced. (With slots, it is no value that the cache would look into.)"""

    __slots__ = ("count",)

    def __init__(self):
        self.count = 0


TRACED = Tally()


def scaled(x, scale=1.0, more=None):
    TRACED.count += 1
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, x.dtype)
    nisa.dma_copy(dst=tile, src=x)
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=float(scale))
    nisa.dma_copy(dst=out, src=tile)
    return out


def copied(x):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, x.dtype)
    nisa.dma_copy(dst=tile, src=x)
    nisa.dma_copy(dst=out, src=tile)
    return out


@nki.jit
def increment(x):
    tile = nl.ndarray(x.shape, x.dtype)
    nisa.dma_copy(dst=tile, src=x)
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.add, operand0=1.0)
    nisa.dma_copy(dst=x, src=tile)
    return x


def traces(kernel, *calls) -> int:
    """How often the calls, each (args, kwargs), trace the kernel."""
    TRACED.count = 0
    for args, kwargs in calls:
        kernel(*args, **kwargs)
    return TRACED.count


# --- making and launching ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [nki.jit, nki.jit(), nki.jit(mode="trace"), nki.jit(platform_target="trn3"), nki.simulate])
def test_every_way_to_make_a_kernel(make):
    np.testing.assert_array_equal(make(copied)(X), X)


def test_a_kernel_keeps_its_name_and_documentation():
    assert nki.jit(scaled).__name__ == "scaled" and repr(nki.jit(scaled)) == "Kernel(scaled)"
    assert nki.jit(nki.jit(scaled)).function is scaled


def test_attributes_of_the_function_do_not_change_the_kernel():
    def kernel(x):
        return x

    kernel.cores, kernel.schedule = 7, "mine"
    assert nki.jit(kernel)(X) is X


def test_a_decorated_function_is_a_kernel_at_its_own_line():
    @wraps(scaled)
    def wrapper(*args, **kwargs):
        return scaled(*args, **kwargs)

    assert nki.jit(wrapper)(SMALL, 3.0)[0, 1] == 3
    assert line_of(fault(nki.jit(wrapper))) == "def scaled(x, scale=1.0, more=None):"


def test_a_lambda_is_a_kernel_whose_text_parses():
    text = str(nki.jit(lambda x: x).trace(X))
    assert str(parse(text)) == text


@pytest.mark.parametrize("cores", [3, 0, -1, True, 1.0, "2", None, (1, 1)])
def test_a_wrong_number_of_cores_is_refused_at_the_launch(cores):
    error = fault(lambda: nki.jit(copied)[cores])
    assert error.code == "E701" and error.limit == "1 to 2 cores" and line_of(error).startswith("error = fault")


@nki.jit
def grid_facts(x):
    grid.append((nl.program_ndim(), nl.num_programs(axes=0), nl.program_id(axis=0), x.buffer))


grid: list = []


def test_a_launch_sees_its_grid():
    grid.clear()
    grid_facts(X), grid_facts[1](X), grid_facts[np.int64(2)](X), grid_facts[(2,)](X)
    private, shared = nl.hbm, nl.shared_hbm
    pair = [(1, 2, 0, shared), (1, 2, 1, shared)]
    assert grid == [(0, 1, 0, private), (1, 1, 0, private), *pair, *pair]


def test_simulate_takes_functions_kernels_and_launches():
    assert nki.simulate(copied)(X).shape == nki.simulate(nki.jit(copied))(X).shape == X.shape
    assert nki.simulate(grid_facts[2]).cores == 2


@pytest.mark.parametrize("thing", [3, None.__class__, X.sum, SimpleNamespace()])
def test_only_python_functions_become_kernels(thing):
    for make in (nki.jit, nki.simulate):
        assert fault(make, thing).code == "E701"


def test_an_unknown_option_of_jit_is_named():
    error = fault(nki.jit, foo=1)
    assert error.code == "E701" and error.actual == "foo" and "mode" in error.limit


# --- targets -----------------------------------------------------------------------------------------------------


@nki.jit
def version(x):
    versions.append(int(nisa.get_nc_version()))
    assert nisa.get_nc_sub_version() == 0


versions: list = []


def test_the_target_is_given_else_from_the_environment_else_gen3(monkeypatch):
    versions.clear()
    monkeypatch.delenv("NEURON_PLATFORM_TARGET_OVERRIDE", raising=False)
    version(X)
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn3")
    version(X)
    version.with_target("trn2")(X)
    nki.jit(version.function, target="gen3")(X)
    assert versions == [3, 4, 3, 3]
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn1")
    assert fault(version, X).code == "E705"


def test_an_unknown_target_is_refused_when_it_is_named():
    assert fault(nki.jit, target="gen9").code == "E705"
    assert fault(nki.jit(copied).with_target, "gen9").code == "E705"
    assert fault(nki.jit, copied, platform_target="inf1").code == "E705"


def test_the_default_target_is_said_once(monkeypatch, capsys):
    from opennki.frontend import target

    target._say_default.cache_clear()
    monkeypatch.delenv("NEURON_PLATFORM_TARGET_OVERRIDE", raising=False)
    nki.jit(copied, target="gen3")(X)
    assert capsys.readouterr().err == ""
    nki.jit(copied)(X), nki.jit(copied)(X)
    said = capsys.readouterr()
    assert said.err.count("gen3 is used") == 1 and said.out == ""


# --- the cache ---------------------------------------------------------------------------------------------------


class Color(Enum):
    RED = 1
    BLUE = 2


@dataclasses.dataclass
class Config:
    scale: float = 1.0
    note: object = None


@dataclasses.dataclass(frozen=True)
class Frozen(nl.NKIObject):
    scale: float = 1.0
    note: object = None


@dataclasses.dataclass(slots=True)
class Slotted:
    scale: float = 1.0
    note: object = None


class Plain(nl.NKIObject):
    def __init__(self, scale=1.0, note=None):
        self.scale, self.note = scale, note


class AllEqual(Plain):
    def __hash__(self):
        return 1

    def __eq__(self, other):
        return True


class Pair(NamedTuple):
    first: object
    second: object


OBJECTS = [Config, Frozen, Slotted, Plain, AllEqual]


@pytest.mark.parametrize(
    "value",
    [1, 1.0, True, "a", None, float("nan"), -0.0, (1, 2), [1, [2]], {"a": 1}, Color.RED, nl.float32, nl.add, nl.sbuf, np.int8,
     np.dtype("int8"), np.float32(2), range(3), Pair(1, 2), copied, Config(2.0), Frozen(note=(1,)), Plain(3.0), Slotted(2.0),
     SimpleNamespace(a=1)],
)  # fmt: skip
def test_the_same_value_compiles_once(value):
    kernel = nki.jit(scaled)
    assert traces(kernel, ((SMALL,), {"more": value}), ((SMALL + 1,), {"more": value}), ((SMALL, 1.0, value), {})) == 1


@pytest.mark.parametrize(
    "one, other",
    [*itertools.combinations([1, 1.0, True, np.int32(1), Color.RED, "1", (1,), [1], {1: 1}, {True: 1}, {1.0: 1}], 2),
     (0.0, -0.0), (nl.float32, "float32"), (None, False), (nl.add, nl.multiply), (Color.RED, Color.BLUE), ((), []),
     ({"a": 1, "b": 2}, {"b": 2, "a": 1}), (X, X.astype(np.int32)), (X, X[:64]), (X, X[None]), (Pair(1, 2), (1, 2)),
     *((kind(1.0), kind(2.0)) for kind in OBJECTS), *((kind(1.0), kind(1)) for kind in OBJECTS), (Config(), Frozen()),
     (Config(note=[1]), Config(note=[2])), (X, ml_dtypes.bfloat16(1))],
)  # fmt: skip
def test_different_values_compile_apart(one, other):
    kernel = nki.jit(scaled)
    assert traces(kernel, ((SMALL,), {"more": one}), ((SMALL,), {"more": other}), ((SMALL,), {"more": one})) == 2


def test_shapes_dtypes_cores_and_targets_compile_apart():
    kernel = nki.jit(scaled)
    calls = [((SMALL,), {}), ((SMALL[:, :4],), {}), ((SMALL.astype(np.float16),), {})]
    assert traces(kernel, *calls, *calls) == 3
    assert traces(kernel.with_target("gen4"), *calls) == 3
    assert traces(kernel[1], *calls, *calls) == 3


def test_a_value_that_cannot_be_told_apart_is_never_cached():
    kernel = nki.jit(scaled)
    same = {1, 2}
    assert traces(kernel, ((SMALL, 1.0, same), {}), ((SMALL, 1.0, same), {})) == 2


@pytest.mark.parametrize("kind", OBJECTS)
def test_a_changed_object_is_another_signature(kind):
    kernel, config = nki.jit(lambda x, config: scaled(x, config.scale)), kind(2.0)
    assert kernel(SMALL, config)[0, 1] == 2
    object.__setattr__(config, "scale", 3.0)
    assert kernel(SMALL, config)[0, 1] == 3


FACTOR, TABLE = 2.0, np.array([[1.0, 2.0]], np.float32)


def scaled_by_global(x):
    return scaled(x, FACTOR)


def test_a_changed_global_is_another_signature(monkeypatch):
    kernel = nki.jit(lambda x: scaled_by_global(x))  # read in a helper
    assert [kernel(SMALL)[0, 1], kernel(SMALL)[0, 1]] == [2, 2]
    monkeypatch.setitem(globals(), "FACTOR", 5.0)
    assert kernel(SMALL)[0, 1] == 5
    monkeypatch.undo()
    assert traces(kernel, ((SMALL,), {})) == 0 and kernel(SMALL)[0, 1] == 2


def test_a_changed_global_array_is_another_signature():
    kernel = nki.jit(lambda x: nl.shared_constant(TABLE))
    assert kernel(SMALL).tolist() == [[1, 2]]
    TABLE[0, 0] = 7
    assert kernel(SMALL).tolist() == [[7, 2]]


class Settings:
    factor = 2.0

    def scale(self, x):
        return scaled(x, FACTOR)


def with_default(x, factor=[2.0]):  # noqa: B006
    return scaled(x, factor[0])


def test_what_else_a_kernel_reads_is_part_of_its_signature(monkeypatch):
    def after(kernel, change, *args):
        """A result before and after a change."""
        first = kernel(SMALL, *args)[0, 1]
        change()
        return first, kernel(SMALL, *args)[0, 1]

    def by_module(x):
        return scaled(x, this_module.FACTOR)  # noqa: F821

    module = ModuleType("this_module")
    module.FACTOR = 2.0
    monkeypatch.setitem(globals(), "this_module", module)
    change = partial(monkeypatch.setitem, globals(), "FACTOR", 5.0)
    assert after(nki.jit(lambda x, function: function(x)), change, scaled_by_global) == (2, 5)
    monkeypatch.setitem(globals(), "FACTOR", 2.0)
    assert after(nki.jit(lambda x: Settings().scale(x)), change) == (2, 5)
    assert after(nki.jit(lambda x: scaled(x, Settings.factor)), partial(monkeypatch.setattr, Settings, "factor", 3.0)) == (2, 3)
    assert after(nki.jit(by_module), partial(setattr, module, "FACTOR", 4.0)) == (2, 4)
    assert after(nki.jit(lambda x: with_default(x)), partial(with_default.__defaults__[0].insert, 0, 6.0)) == (2, 6)


class Factors(NamedTuple):
    factor: float
    other: float


def test_a_class_method_is_the_same_at_each_look_up():
    kernel = nki.jit(lambda x: scaled(x, Factors._make([2.0, 3.0]).factor))
    assert [kernel(SMALL)[0, 1], kernel(SMALL)[0, 1]] == [2, 2] and len(kernel._cache) == 1


def test_a_changed_closure_variable_is_another_signature():
    factor = 2.0
    kernel = nki.jit(lambda x: scaled(x, factor))
    assert kernel(SMALL)[0, 1] == 2
    factor = 3.0
    assert kernel(SMALL)[0, 1] == 3


# --- arguments ---------------------------------------------------------------------------------------------------

DTYPES = ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "float32", "float16", "bfloat16", "float8_e4m3",
          "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu"]  # fmt: skip


@pytest.mark.parametrize("name", DTYPES)
def test_arrays_of_every_dtype_come_back_as_they_went_in(name):
    array = X.astype(getattr(ml_dtypes, name, name))
    result = nki.jit(copied)(array)
    assert result.dtype == array.dtype and result.tobytes() == array.tobytes()


def test_packed_words_travel_as_uint32():
    words = np.arange(64, dtype=np.uint32).reshape(4, 16) * 0x01020304
    result = nki.jit(lambda x: copied(x.view(nl.float8_e4m3fn_x4)), target="gen4")(words)
    assert result.dtype == np.uint32 and result.tobytes() == words.tobytes()


@pytest.mark.parametrize(
    "array, code",
    [(np.array(1, np.float32), "E701"), (X[:0], "E701"), (X.astype(np.float64), "E704"), (X.astype(np.int64), "E704"),
     (X.astype(">f4"), "E704"), (np.array([[None]]), "E704"), (X.astype(complex), "E704"), (np.array([["a"]]), "E704"),
     (np.ma.masked_array(X, X > 3), "E701")],
)  # fmt: skip
def test_arrays_that_the_machine_does_not_have(array, code):
    error = fault(nki.jit(copied), array)
    assert error.code == code and "argument x" in error.message and error.loc.file == __file__


@pytest.mark.parametrize("view", [X[:, ::2], X.T[:, :64], X[::-1], X[3:5], np.broadcast_to(X[:1], (4, 8))])
def test_views_of_arrays_are_read(view):
    np.testing.assert_array_equal(nki.jit(copied)(view), view)


def test_an_argument_is_updated_in_place_and_returned_itself():
    array = X.copy()
    assert increment(array) is array
    np.testing.assert_array_equal(array, X + 1)


def test_a_view_is_updated_in_place():
    array = X.copy()
    result = increment(array[:, ::2])
    np.testing.assert_array_equal(array[:, ::2], X[:, ::2] + 1)
    np.testing.assert_array_equal(array[:, 1::2], X[:, 1::2])
    np.testing.assert_array_equal(result, X[:, ::2] + 1)


def test_a_read_only_array_may_be_read_but_not_written():
    array = X.copy()
    array.flags.writeable = False
    np.testing.assert_array_equal(nki.jit(copied)(array), X)
    assert fault(increment, array).code == "E701"


def move(x, y):
    tile = nl.ndarray(y.shape, y.dtype)
    nisa.dma_copy(dst=tile, src=y)
    nisa.dma_copy(dst=x, src=tile)


def test_one_array_given_twice_is_one_tensor():
    array = X.copy()
    nki.jit(move)(array, array)
    np.testing.assert_array_equal(array, X)
    assert [tensor.name for tensor in nki.jit(move).trace(array, array).params] == ["x"]


def test_one_array_given_twice_is_another_signature():
    def kernel(x, y):
        increment(x)
        return copied(y)

    kernel, one, other = nki.jit(kernel), SMALL.copy(), SMALL.copy()
    assert kernel(one, other)[0, 1] == 1 and kernel(other, other)[0, 1] == 2 and kernel(SMALL.copy(), one)[0, 1] == 2


def test_arrays_that_overlap_may_not_be_written():
    array = X.copy()
    error = fault(nki.jit(move), array[:64], array[32:96])
    assert error.code == "E701" and "x and y share memory" in error.message
    nki.jit(move)(array[:64], array[64:])
    np.testing.assert_array_equal(array[:64], X[64:])


WRAPS = [tuple, list, lambda items: {"a": items[0], "b": items[1]}, lambda items: Plain(*items), lambda items: Slotted(*items),
         lambda items: Pair(*items), lambda items: ([items[0]], items[1])]  # fmt: skip


@pytest.mark.parametrize("wrap", WRAPS)
def test_arrays_inside_containers_and_objects(wrap):
    @nki.jit
    def kernel(given, given_0=None):
        items = list(given.values()) if isinstance(given, dict) else given
        first, second = (items.scale, items.note) if hasattr(items, "scale") else items
        out = nl.ndarray((2, 8), nl.float32, buffer=nl.shared_hbm)
        for row, part in enumerate((first[0] if isinstance(first, list) else first, second)):
            nisa.dma_copy(dst=out[row : row + 1], src=part)
        return out

    assert kernel(wrap((SMALL, SMALL + 8))).tolist() == [SMALL[0].tolist(), (SMALL[0] + 8).tolist()]
    assert len(kernel._cache) == 1 and kernel(wrap((SMALL, SMALL))).tolist() == 2 * SMALL.tolist()


def test_names_of_parts_do_not_clash_with_parameters():
    def kernel(x, x_0, x_1):
        return copied(x[0]), copied(x_0), copied(x_1[0])

    results = nki.jit(kernel)((SMALL, 5), SMALL + 1, (SMALL + 2,))
    assert [result[0, 0] for result in results] == [0, 1, 2]


@pytest.mark.parametrize(
    "args, kwargs, text",
    [((), {}, "missing a required argument"), ((X, X, X, X), {}, "too many"), ((X,), {"scal": 1}, "unexpected keyword")],
)
def test_a_call_that_does_not_fit_names_the_signature(args, kwargs, text):
    error = fault(nki.jit(scaled), *args, **kwargs)
    assert error.code == "E701" and text in error.message and error.limit == "scaled(x, scale=1.0, more=None)"


def test_keyword_only_parameters_varargs_and_defaults():
    @nki.jit
    def kernel(x, *others, scale, power=2, **more):
        assert (len(others), power, sorted(more)) == (1, 2, ["extra"]) and others[0].shape == (1, 8)
        return scaled(x, scale)

    assert kernel(SMALL, SMALL + 1, scale=3.0, extra=None)[0, 1] == 3


@pytest.mark.parametrize("kind", [Config, Plain, Slotted, Frozen])
def test_a_kernel_changes_its_own_copy_of_an_object(kind):
    @nki.jit
    def kernel(config, again):
        assert config is again and config.note is again.note
        seen.append((config.scale, list(config.note)))
        object.__setattr__(config, "scale", config.scale + 1)
        config.note.append(1)

    seen, config = [], kind(1.0, [])
    kernel[2](config, config)
    kernel.trace(config, config)
    assert seen == [(1.0, [])] * 3 and config.scale == 1.0 and config.note == []


def test_a_missing_field_and_an_unannotated_one():
    @dataclasses.dataclass
    class Lenient(nl.NKIObject):
        size: int
        rest: int
        section = 0

    @nki.jit
    def kernel(x):
        part = Lenient(size=4, section=3)
        assert (part.size, part.section) == (4, 3) and not hasattr(part, "rest")
        return part.rest

    error = fault(kernel, X)
    assert error.code == "E805" and "'Lenient' object has no attribute 'rest'" in error.message


# --- results -----------------------------------------------------------------------------------------------------


def test_the_structure_of_a_result_comes_back():
    def kernel(x, make):
        return make(copied(x), x)

    two, pair = nki.jit(kernel)(X, lambda a, b: [a, b]), nki.jit(kernel)(X, Pair)
    assert isinstance(two, list) and two[1] is X and isinstance(pair, Pair) and pair.second is X
    assert nki.jit(kernel)(X, lambda a, b: ()) == () and nki.jit(kernel)(X, lambda a, b: None) is None
    assert nki.jit(kernel)(X, lambda a, b: b[0:4, ::2]).tolist() == X[:4, ::2].tolist()


def test_results_are_new_arrays_on_every_call():
    kernel = nki.jit(copied)
    first, second = kernel(X), kernel(X + 1)
    np.testing.assert_array_equal(first, X)
    np.testing.assert_array_equal(second, X + 1)


def _private(x):
    return nl.ndarray(x.shape, x.dtype, buffer=nl.hbm)


@pytest.mark.parametrize(
    "result, code",
    [(lambda x: 3, "E702"), (lambda x: {"a": x}, "E702"), (lambda x: (x, (x,)), "E702"), (lambda x: (x for _ in "a"), "E702"),
     (lambda x: nl.zeros((4, 4), nl.float32), "E702"), (_private, "E702"), (lambda x: X, "E702"),
     (lambda x: nl.ndarray((4, 4), nl.int32, buffer=nl.shared_hbm), "E501")],
)  # fmt: skip
def test_results_that_are_no_written_hbm_tensors(result, code):
    error = fault(nki.jit(lambda x: result(x)), X)
    assert error.code == code and error.loc.file == __file__


def test_cores_that_return_different_tensors_are_refused():
    @nki.jit
    def kernel(x, y):
        return x if nl.program_id() == 0 else y

    error = fault(kernel[2], X, X.copy())
    assert error.code == "E702" and error.actual == "core 0 returns x; core 1 returns y"


def test_cores_may_give_one_name_to_different_tensors():
    @nki.jit
    def kernel(x, first):
        same = nl.ndarray((4, 4), nl.float32, buffer=nl.shared_hbm if nl.program_id() == first else nl.hbm)
        nisa.dma_copy(dst=same, src=nl.zeros((4, 4), nl.float32))

    for first in (0, 1):
        assert kernel[2](X, first) is None
        module = kernel[2].trace(X, first)
        assert [tensor.name for tensor in module.shared] == ["same"]
        assert "same#2" in [tensor.name for tensor in module.cores[1 - first].tensors]


def test_threads_may_share_a_kernel():
    kernel = nki.jit(scaled)
    arrays = [np.full((1, 8), number, np.float32) for number in range(40)]
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(kernel, arrays))
    assert [result[0, 0] for result in results] == list(range(40))


# --- kernels in kernels ------------------------------------------------------------------------------------------


def test_a_kernel_in_a_kernel_is_inlined():
    inner = nki.jit(scaled)

    @nki.jit
    def outer(x):
        return inner(inner(x, 2.0), scale=3.0)

    assert outer(SMALL)[0, 1] == 6 and len(outer.trace(SMALL).shared) == 2


def test_a_launch_inside_a_kernel_has_to_agree_with_the_callers():
    inner = nki.jit(lambda x: x)
    assert nki.jit(lambda x: inner[2](x))[2](X) is X
    error = fault(nki.jit(lambda x: inner[2](x)), X)
    assert error.code == "E701" and "in a kernel that runs on 1 core" in error.message and "inner[2](x)" in line_of(error)


def test_a_call_of_an_inner_kernel_that_does_not_fit():
    inner = nki.jit(lambda x: x)
    error = fault(nki.jit(lambda x: inner()), X)
    assert error.code == "E701" and "missing" in error.message and "inner()" in line_of(error)


# --- orders by name ----------------------------------------------------------------------------------------------


def fill(out):
    """Two writes of separate tiles, in the order in which the kernel gives them."""
    one, two = nl.ndarray((1, 4), nl.float32), nl.ndarray((1, 4), nl.float32)
    nisa.memset(one, 1.0, engine=nisa.engine.vector, name="one")
    nisa.memset(two, 2.0, engine=nisa.engine.gpsimd, name="two")
    nisa.dma_copy(dst=out[0:1], src=one, name="store")
    nisa.dma_copy(dst=out[1:2], src=two)
    return out


OUT = np.zeros((2, 4), np.float32)


def after_of(kernel) -> dict:
    (core,) = kernel.trace(OUT).cores
    return {instr.label: instr.after for instr in core.body if instr.label}


def test_a_schedule_adds_edges_by_name():
    kernel = nki.jit(fill).with_schedule([("two", "one"), ("store", ["one", "two"])])
    assert after_of(kernel) == {"one": (), "two": ("one",), "store": ("one", "two")}
    assert after_of(nki.jit(fill)) == {"one": (), "two": (), "store": ()}
    assert kernel(OUT.copy()).tolist() == [[1] * 4, [2] * 4]
    assert "wait vector" in str(kernel.compile(OUT).modules[Stage.BIR])


def test_a_schedule_compiles_apart_and_adds_up():
    kernel = nki.jit(fill)
    kernel(OUT.copy())
    both = kernel.with_schedule([("two", "one")]).with_schedule([("store", "two")])
    both(OUT.copy())
    assert len(kernel._cache) == 2 and after_of(both)["store"] == ("two",)


@pytest.mark.parametrize(
    "edges, code, text",
    [([("two", "oen")], "E602", "did you mean 'one'?"), ([("tow", "one")], "E602", "did you mean 'two'?"),
     ([("one", "two")], "E802", "move the producer's line"), ([("one", "one")], "E802", "move"),
     ([("one",)], "E701", ""), ([("one", 3)], "E701", ""), ("ab", "E701", ""), ([(1, "one")], "E701", "")],
)  # fmt: skip
def test_a_schedule_that_cannot_be(edges, code, text):
    error = fault(lambda: nki.jit(fill).with_schedule(edges)(OUT.copy()))
    assert error.code == code and text in (error.hint or "") and error.loc.file == __file__


# --- faults of the kernel's Python -------------------------------------------------------------------------------


def deep(x, what):
    what(x)


@nki.jit
def calls(x, what):
    deep(x, what)
    return x


@pytest.mark.parametrize(
    "what, text",
    [(lambda x: 1 / 0, "ZeroDivisionError"), (lambda x: {}["key"], "KeyError"), (lambda x: x.nothing, "AttributeError"),
     (lambda x: nl.arange(4), "nl.arange was removed in NKI 0.2"), (lambda x: nl.lod(x), "did you mean load"),
     (lambda x: deep(x, lambda y: deep(y, None)), "TypeError"), (lambda x: nl.zeros((1, 1), typ=3), "typ")],
)  # fmt: skip
def test_an_exception_names_the_line_and_the_callers(what, text):
    error = fault(calls, X, what)
    assert error.code == "E805" and text in error.message and error.loc.file == __file__
    assert [line for _, line in error.loc.callers][-1] == calls.function.__code__.co_firstlineno + 2
    assert error.__cause__ is not None


def test_a_fault_in_a_helper_names_the_line_and_the_chain_of_callers():
    error = fault(calls, X, lambda x: nisa.tensor_copy(dst=x, src=x))
    assert error.code == "E101" and "tensor_copy" in line_of(error)
    first, second = deep.__code__.co_firstlineno + 1, calls.function.__code__.co_firstlineno + 2
    assert error.loc.callers == ((__file__, first), (__file__, second))
    assert str(error).count("called from") == 2


def test_an_endless_recursion_is_short():
    def again(x):
        again(x)

    error = fault(calls, X, again)
    assert error.code == "E805" and "RecursionError" in error.message and len(error.loc.callers) < 5


def test_an_assert_is_a_gate():
    def check(x):
        assert x.shape[0] == 3, "three rows"

    with pytest.raises(AssertionError) as error:
        calls(X, check)
    assert isinstance(error.value, GateError) and "three rows" in error.value.message
    assert "assert x.shape" in line_of(error.value)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_passes_through(kind):
    def interrupt(x):
        raise kind

    with pytest.raises(kind):
        calls(X, interrupt)
    np.testing.assert_array_equal(nki.jit(copied)(X), X)  # and leaves nothing behind


def test_functions_comprehensions_and_unpacking_in_a_kernel():
    @nki.jit
    def kernel(x):
        def load(row):
            tile = nl.ndarray((1, 8), nl.float32)
            nisa.dma_copy(dst=tile, src=x[row : row + 1])
            return tile

        tiles = [load(row) for row in range(4)]
        tiles[0], tiles[1] = tiles[1], tiles[0]
        out = nl.ndarray((4, 8), nl.float32, buffer=nl.shared_hbm)
        for row, tile in enumerate(tiles):
            nisa.dma_copy(dst=out[row : row + 1], src=tile)
        return out

    np.testing.assert_array_equal(kernel(X), X[[1, 0, 2, 3]])


def keep(kept, new):
    """The tensor or register that the first call (or core) kept."""
    kept.append(new)
    return kept[0]


LEAKS = {
    "sbuf": lambda x, kept: nisa.memset(keep(kept, nl.ndarray((4, 4), nl.float32)), 0.0),
    "argument": lambda x, kept: nisa.dma_copy(dst=nl.ndarray((128, 8), nl.float32), src=keep(kept, x)),
    "register": lambda x, kept: nisa.register_move(keep(kept, nisa.register_alloc()), 1),
    "index": lambda x, kept: nisa.dma_copy(nl.ndarray((1, 8), nl.float32), x.select(0, keep(kept, nisa.register_alloc(1)))),
    "bound": lambda x, kept: list(nl.dynamic_range(keep(kept, nisa.register_alloc(1)))),
    "result": lambda x, kept: keep(kept, nl.zeros((4, 4), nl.float32, buffer=nl.shared_hbm)),
}


@pytest.mark.parametrize("use", LEAKS.values(), ids=LEAKS)
def test_tensors_of_another_call_are_refused(use):
    kept: list = []
    kernel = nki.jit(lambda x: use(x, kept) if isinstance(use(x, kept), nl.ndarray) else x)
    kernel(X)
    error = fault(kernel, X)
    assert error.code == "E801" and "is of another kernel, call or core" in error.message


def test_tensors_of_the_other_core_are_refused():
    kept: list = []
    error = fault(nki.jit(lambda x: LEAKS["sbuf"](x, kept))[2], X)
    assert error.code == "E801" and "another kernel, call or core" in error.message
