"""Registers and the loops that the machine runs, against the same loops in Python."""

import numpy as np
import pytest

import opennki as nki
from opennki import KernelError
from opennki import isa as nisa
from opennki import language as nl
from opennki.ir.errors import FrozenError, RegisterUseError
from opennki.ir.graph import Loop

ROWS = np.arange(16 * 8, dtype=np.float32).reshape(16, 8)


def number(value: int) -> np.ndarray:
    return np.array([[value]], np.int32)


class Machine:
    """What the loop bodies below share: two numbers of the caller in tiles and registers, and a counter in SBUF."""

    def __init__(self, n, m):
        self.n, self.m, self.counter = (nl.ndarray((1, 1), nl.int32) for _ in range(3))
        nisa.dma_copy(dst=self.n, src=n)
        nisa.dma_copy(dst=self.m, src=m)
        nisa.memset(self.counter, 0)
        self.rn, self.rm = nisa.register_alloc(self.n), nisa.register_alloc(self.m)

    def count(self, amount=1):
        return nisa.tensor_scalar(self.counter, self.counter, nl.add, amount)

    def countdown(self, register, tile):
        nisa.tensor_scalar(tile, tile, nl.subtract, 1)
        nisa.register_load(register, tile)


def run(body, n=2, m=3) -> int:
    """The counter after `body`."""

    @nki.jit
    def kernel(n, m):
        out = nl.ndarray((1, 1), nl.int32, buffer=nl.shared_hbm)
        machine = Machine(n, m)
        body(machine)
        nisa.dma_copy(dst=out, src=machine.counter)
        return out

    return kernel(number(n), number(m)).item()


def fault(body, kind=KernelError) -> KernelError:
    with pytest.raises(kind) as error:
        run(body)
    assert error.value.loc.file == __file__
    return error.value


# --- execution ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trips", [0, 1, 7])
def test_while_runs_until_the_register_is_zero(trips):
    def body(m):
        while m.rn:
            m.count()
            m.countdown(m.rn, m.n)

    assert run(body, n=trips) == trips


@pytest.mark.parametrize("start, stop, step", [(0, 0, 1), (0, 5, 1), (3, 3, 1), (5, 2, 1), (1, 8, 3), (1, 9, 3), (-2, 2, 1)])
@pytest.mark.parametrize("dynamic", [True, False])
def test_dynamic_range_counts_as_range_does(start, stop, step, dynamic):
    def body(m):
        bounds = (m.rn, m.rm) if dynamic else (start, stop)
        total = nl.ndarray((1, 1), nl.int32)
        for i in nl.dynamic_range(*bounds, step):
            nisa.register_store(total, i)
            nisa.tensor_tensor(m.counter, m.counter, total, nl.add)
            m.count(100)

    assert run(body, start, stop) == sum(i + 100 for i in range(start, stop, step))


def test_dynamic_range_of_one_bound_starts_at_zero():
    assert run(lambda m: [m.count() for _ in nl.dynamic_range(m.rn)], n=4) == 4


@pytest.mark.parametrize("n, m", [(0, 3), (2, 0), (2, 3), (1, 1)])
def test_a_while_in_a_while(n, m):
    def body(m):
        while m.rn:
            inner = nl.ndarray((1, 1), nl.int32)
            nisa.tensor_copy(inner, m.m)
            register = nisa.register_alloc(inner)
            while register:
                m.count()
                m.countdown(register, inner)
            m.countdown(m.rn, m.n)

    assert run(body, n, m) == n * m


@pytest.mark.parametrize("n, m", [(0, 3), (2, 0), (2, 3)])
def test_a_compiled_kernel_says_how_many_trips_each_loop_made_in_the_last_run(n, m):
    @nki.jit
    def kernel(n, m):
        out = nl.ndarray((1, 1), nl.int32, buffer=nl.shared_hbm)
        machine = Machine(n, m)
        for _ in nl.dynamic_range(machine.rm):
            machine.count()
        while machine.rn:
            nl.fori_loop(0, machine.rm, lambda i: machine.count())
            machine.countdown(machine.rn, machine.n)
        nisa.dma_copy(dst=out, src=machine.counter)
        return out

    compiled = kernel.compile(number(0), number(0))
    for _ in range(2):  # counted anew in each run
        compiled.run({"n": number(n), "m": number(m)})
        assert [(core, trips) for core, _, trips in compiled.trips()] == [(0, m), (0, n), (0, n * m)]
    lines = [loc.line for _, loc, _ in compiled.trips()]
    assert lines == sorted(set(lines))


@pytest.mark.parametrize("n, m", [(0, 3), (2, 0), (2, 3)])
def test_fori_loops_nest(n, m):
    assert run(lambda k: nl.fori_loop(0, k.rn, lambda i: nl.fori_loop(0, k.rm, lambda j: k.count())), n, m) == n * m


@pytest.mark.parametrize("n", [0, 1, 4])
@pytest.mark.parametrize("same", [True, False])
def test_while_loop_takes_the_next_condition_from_its_body(n, same):
    def body(m):
        def trip(register):
            m.count()
            following = register if same else nisa.register_alloc()
            m.countdown(following, m.n)
            return following

        nl.while_loop(m.rn, trip)

    assert run(body, n) == n


def helper_loop(m, register):
    for _ in nl.dynamic_range(register):
        m.count()


def helper_generator(register):
    yield from nl.dynamic_range(register)


def test_loops_in_helpers_generators_and_comprehensions():
    assert run(lambda m: helper_loop(m, m.rn)) == 2
    assert run(lambda m: [m.count() for _ in helper_generator(m.rm)]) == 3
    assert run(lambda m: [helper_loop(m, m.rn) for _ in nl.dynamic_range(m.rm)]) == 6
    assert run(lambda m: [helper_loop(m, m.rn) for _ in range(3)]) == 6


def test_heads_of_several_lines():
    def body(m):
        for _ in nl.dynamic_range(
            0,
            m.rm,
        ):
            nisa.tensor_scalar(
                m.counter,
                m.counter,
                nl.add,
                1,
            )
        while (  # fmt: skip
            m.rn
        ):
            m.count(10)
            m.countdown(m.rn, m.n)

    assert run(body) == 23


def test_else_runs_once_after_the_loop():
    def body(m):
        while m.rn:
            m.count()
            m.countdown(m.rn, m.n)
        else:
            m.count(100)

    assert run(body) == 102


def test_a_range_that_nobody_walks_is_no_loop():
    def body(m):
        nl.dynamic_range(m.rn)
        m.count()

    assert run(body) == 1


def test_a_static_condition_may_continue():
    def body(m):
        for _ in nl.dynamic_range(m.rn):
            m.count()
            if m.n.shape == (1, 1):
                continue
            m.count(100)

    assert run(body) == 2


def test_registers_move_and_store():
    def body(m):
        copy = nisa.register_alloc(m.rm)
        nisa.register_move(m.rm, 0)
        nisa.register_store(m.counter, copy)
        constant = nisa.register_alloc(40)
        for _ in nl.dynamic_range(constant):
            m.count()

    assert run(body) == 43


@nki.jit
def gather(table, index, count):
    """Row index[k] of the table for each k < count, addressed by a counter in SBUF that the loop carries."""
    out = nl.ndarray((4, 8), nl.float32, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=nl.zeros((4, 8), nl.float32))
    indices, limit, position = nl.ndarray((1, 4), nl.int32), nl.ndarray((1, 1), nl.int32), nl.zeros((1, 1), nl.int32)
    nisa.dma_copy(dst=indices, src=index)
    nisa.dma_copy(dst=limit, src=count)
    for _ in nl.dynamic_range(nisa.register_alloc(limit)):
        row, tile = nl.ndarray((1, 1), nl.int32), nl.ndarray((1, 8), nl.float32)
        nisa.tensor_copy(row, indices.ap([[4, 1], [1, 1]], scalar_offset=position, indirect_dim=1))
        nisa.dma_copy(dst=tile, src=table.ap([[8, 1], [1, 8]], scalar_offset=row))
        nisa.dma_copy(dst=out.ap([[8, 1], [1, 8]], scalar_offset=position), src=tile)
        nisa.tensor_scalar(position, position, nl.add, 1)
    return out


@pytest.mark.parametrize("count", [0, 1, 4])
def test_a_counter_in_sbuf_addresses_what_the_loop_reads_and_writes(count):
    index = np.array([[3, 15, 0, 7]], np.int32)
    expected = np.zeros((4, 8), np.float32)
    expected[:count] = ROWS[index[0, :count]]
    np.testing.assert_array_equal(gather(ROWS, index, number(count)), expected)


def test_a_dynamic_address_out_of_range_is_found_when_it_is_used():
    with pytest.raises(KernelError) as error:
        gather(ROWS, np.array([[3, 16, 0, 0]], np.int32), number(2))
    assert error.value.code == "E308" and error.value.actual == 16


def test_a_loop_variable_is_an_index():
    @nki.jit
    def kernel(table, count):
        out = nl.ndarray((16, 8), nl.float32, buffer=nl.shared_hbm)
        limit = nl.ndarray((1, 1), nl.int32)
        nisa.dma_copy(dst=out, src=table)
        nisa.dma_copy(dst=limit, src=count)
        for i in nl.dynamic_range(1, nisa.register_alloc(limit)):
            tile = nl.ndarray((1, 8), nl.float32)
            nisa.dma_copy(dst=tile, src=table[i])
            nisa.tensor_scalar(tile, tile, nl.multiply, 2.0)
            nisa.dma_copy(dst=out.select(0, i), src=tile)
        return out

    expected = ROWS.copy()
    expected[1:5] *= 2
    np.testing.assert_array_equal(kernel(ROWS, number(5)), expected)


# --- registers are no numbers ------------------------------------------------------------------------------------

USES = {
    "+": lambda r: r + 1, "r+": lambda r: 1 + r, "-": lambda r: r - 1, "*": lambda r: 2 * r, "/": lambda r: r / 2,
    "//": lambda r: 8 // r, "%": lambda r: r % 2, "**": lambda r: 2**r, "neg": lambda r: -r, "abs": abs, "<<": lambda r: 1 << r,
    "&": lambda r: r & 1, "~": lambda r: ~r, "<": lambda r: r < 3, ">=": lambda r: r >= 3, "==": lambda r: r == 0,
    "!=": lambda r: r != 0, "int": int, "float": float, "range": range, "index": lambda r: [1, 2][r], "not": lambda r: not r,
    "bool": bool, "and": lambda r: r and 1, "max": lambda r: max(r, 1),
    "ds": lambda r: nl.ds(r, 2), "size": lambda r: nl.ds(0, r),
    "shape": lambda r: nl.ndarray((r, 2), nl.int32),
}  # fmt: skip


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_a_register_has_no_value_while_tracing(use):
    error = fault(lambda m: use(m.rn), TypeError)
    assert isinstance(error, RegisterUseError) and error.code == "E804" and error.hint


def test_a_register_is_not_none_and_equal_to_itself():
    def body(m):
        assert m.rn != None and (m.rn == None) is False and m.rn in [m.rn] and m.rn == m.rn  # noqa: E711
        assert {m.rn: 1}[m.rn] and f"{m.rn}".startswith("VirtualRegister")

    assert run(body) == 0


def branch(m):
    if m.rn:
        m.count()


def both(m):
    while m.rn and m.rm:
        m.count()


def negated(m):
    while not m.rn:
        m.count()


def compared(m):
    while m.rn > 0:
        m.count()


@pytest.mark.parametrize("body", [branch, both, negated, compared])
def test_only_a_register_alone_is_a_condition(body):
    assert fault(body, TypeError).code == "E804"


def test_the_register_of_a_while_stays_the_same():
    def body(m):
        register = m.rn
        while register:
            m.count()
            register = nisa.register_alloc(m.m)

    error = fault(body)
    assert error.code == "E804" and "register_move" in error.hint


def test_a_while_loop_body_has_to_return_a_register():
    assert fault(lambda m: nl.while_loop(m.rn, lambda r: None)).code == "E804"


# --- loop variables and steps ------------------------------------------------------------------------------------


@pytest.mark.parametrize("write", [lambda m, i: nisa.register_move(i, 0), lambda m, i: nisa.register_load(i, m.n)])
@pytest.mark.parametrize("loop", [lambda m, f: nl.fori_loop(0, 3, f), lambda m, f: [f(i) for i in nl.dynamic_range(3)]])
def test_a_loop_variable_is_frozen(write, loop):
    error = fault(lambda m: loop(m, lambda i: write(m, i)), AssertionError)
    assert isinstance(error, FrozenError) and error.code == "E804"


@pytest.mark.parametrize("step", [0, -1, 1.5, "1", None, "register"])
def test_a_step_is_a_positive_int(step):
    error = fault(lambda m: list(nl.dynamic_range(0, 3, m.rn if step == "register" else step)), AssertionError)
    assert error.code == "E804"


@pytest.mark.parametrize("bound", [1.5, "3", None, "tile"])
def test_a_bound_is_an_int_or_a_register(bound):
    error = fault(lambda m: nl.fori_loop(0, m.n if bound == "tile" else bound, lambda i: None))
    assert error.code == "E804" and "register_load" in error.hint


# --- what cannot leave a loop ------------------------------------------------------------------------------------


def break_out(m):
    while m.rn:
        m.count()
        break


def break_in_a_static_loop(m):
    for _ in range(2):
        while m.rn:
            m.count()
            break
        m.count()


def break_the_inner(m):
    while m.rn:
        while m.rm:
            m.count()
            break


def break_the_inner_range(m):
    for _ in nl.dynamic_range(3):
        for _ in nl.dynamic_range(3):
            m.count()
            break


def helper_returns(m):
    for _ in nl.dynamic_range(m.rn):
        m.count()
        return


def return_from_a_helper(m):
    helper_returns(m)
    m.count()


def exception_that_is_caught(m):
    try:
        for _ in nl.dynamic_range(3):
            raise ValueError
    except ValueError:
        m.count()


ESCAPES = [break_out, break_in_a_static_loop, break_the_inner, break_the_inner_range, helper_returns, return_from_a_helper,
           exception_that_is_caught]  # fmt: skip


@pytest.mark.parametrize("body", ESCAPES)
def test_nothing_leaves_a_loop_of_the_machine_early(body):
    error = fault(body)
    assert error.code == "E802" and "left before its end" in error.message and "break" in error.hint
    with open(__file__) as file:
        assert file.read().splitlines()[error.loc.line - 1].strip().startswith(("while", "for"))


def test_an_exception_in_a_loop_is_the_authors():
    def body(m):
        for _ in nl.dynamic_range(3):
            raise ValueError("mine")

    error = fault(body)
    assert error.code == "E805" and "mine" in error.message


def tile_after(m):
    for _ in nl.dynamic_range(3):
        tile = nl.zeros((1, 1), nl.int32)
    nisa.tensor_copy(m.counter, tile)


def variable_after(m):
    for _i in nl.dynamic_range(3):
        m.count()
    nisa.register_store(m.counter, _i)


def bound_after(m):
    for _i in nl.dynamic_range(3):
        m.count()
    nl.fori_loop(0, _i, lambda j: m.count())


def condition_after(m):
    for _ in nl.dynamic_range(3):
        register = nisa.register_alloc(3)
    while register:
        m.count()


def index_after(m):
    for _i in nl.dynamic_range(3):
        m.count()
    nisa.tensor_copy(m.counter, nl.zeros((1, 8), nl.int32)[:, _i])


@pytest.mark.parametrize("body", [tile_after, variable_after, bound_after, condition_after, index_after])
def test_what_a_loop_body_made_is_gone_after_it(body):
    error = fault(body)
    assert error.code == "E802" and "belongs to a loop that has ended" in error.message


# --- order -------------------------------------------------------------------------------------------------------


def loop_without_reorder(m):
    with nl.no_reorder():
        for _ in nl.dynamic_range(3):
            m.count()


def depends_across(m):
    before = m.count()
    for _ in nl.dynamic_range(3):
        m.count().depends_on(before)


def depends_on_a_sibling(m):
    for _ in nl.dynamic_range(3):
        before = m.count()
    for _ in nl.dynamic_range(3):
        m.count().depends_on(before)


def depends_on_a_later_one(m):
    first, second = m.count(), m.count()
    first.depends_on(second)


def depends_on_itself(m):
    first = m.count()
    first.depends_on(first)


ORDERS = [loop_without_reorder, depends_across, depends_on_a_sibling, depends_on_a_later_one, depends_on_itself]


@pytest.mark.parametrize("body", ORDERS)
def test_order_does_not_cross_a_loop_or_run_backwards(body):
    error = fault(body)
    assert error.code == "E802" and error.hint


def test_depends_on_takes_instructions():
    assert fault(lambda m: m.count().depends_on(3)).code == "E105"


def afters(body):
    """`after` of each named or ordered instruction of the body of a loop."""

    @nki.jit
    def kernel(n, m):
        machine = Machine(n, m)
        for _ in nl.dynamic_range(2):
            body(machine)
        return n

    (core,) = kernel.trace(number(1), number(1)).cores
    (loop,) = (statement for statement in core.body if isinstance(statement, Loop))
    return [instr.after for instr in loop.body]


def test_no_reorder_keeps_everything_inside_in_order_blocks_in_it_too():
    def body(m):
        with nl.no_reorder():
            m.count()
            m.count()
            with nl.no_reorder():
                m.count()
            m.count()
        m.count()

    assert afters(body) == [(), ("#1",), ("#2",), ("#3",), ()]


def test_depends_on_chains_and_names():
    def body(m):
        first = nisa.memset(m.n, 1, name="first")
        second = m.count()
        m.count().depends_on(first, second).depends_on(first)

    assert afters(body) == [(), (), ("first", "#1")]


def test_instruction_names_are_unique():
    error = fault(lambda m: [nisa.memset(m.n, 1, name="same") for _ in range(2)])
    assert error.code == "E602" and error.actual == "same"
    assert fault(lambda m: nisa.memset(m.n, 1, name=3)).code == "E105"


@pytest.mark.parametrize("consumer", ["enumerate", "zip", "list", "sum"])
def test_python_cannot_count_the_trips_of_a_dynamic_range(consumer):
    @nki.jit
    def enumerated(x):
        for _ in enumerate(nl.dynamic_range(3)):
            pass
        return x

    @nki.jit
    def zipped(x):
        for _ in zip(range(2), nl.dynamic_range(3), strict=False):
            pass
        return x

    @nki.jit
    def listed(x):
        list(nl.dynamic_range(3))
        return x

    @nki.jit
    def summed(x):
        sum(nl.dynamic_range(3))
        return x

    kernel = {"enumerate": enumerated, "zip": zipped, "list": listed, "sum": summed}[consumer]
    with pytest.raises(KernelError) as error:
        kernel(np.ones((1, 1), np.float32))
    assert error.value.code == "E804" and f"{consumer}() of a dynamic_range" in error.value.message
    assert error.value.loc.file == __file__ and "int32 tile" in error.value.hint
