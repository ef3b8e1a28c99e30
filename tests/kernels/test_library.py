"""Every kernel of the library has what `opennki` needs of it."""

import inspect
from dataclasses import replace

import pytest

from opennki import kernels
from opennki.kernels import LIBRARY
from opennki.kernels.library import LibraryKernel

ALL = pytest.mark.parametrize("name", LIBRARY)


def targets(name):
    """The generations that the example may run on."""
    needed = LIBRARY[name].target(LIBRARY[name].sizes())
    return [needed] if needed else ["gen3", "gen4"]


@ALL
def test_entry_is_complete(name):
    entry = LIBRARY[name]
    assert isinstance(entry, LibraryKernel) and entry.name == name
    assert getattr(kernels, name) is entry.kernel and name in kernels.__all__
    assert entry.summary.endswith(".") or len(entry.summary) > 20
    assert entry.why and entry.tolerance() >= 0
    for part in ("returns:", "gates:", "engines:"):
        assert part in entry.kernel.__doc__, part


@ALL
def test_golden_takes_the_arguments_of_the_kernel(name):
    entry = LIBRARY[name]
    kernel, golden = (dict(inspect.signature(f).parameters) for f in (entry.kernel.function, entry.golden))
    golden.pop("cores", None)  # of the call
    assert list(kernel) == list(golden)
    assert {n: p.default for n, p in kernel.items()} == {n: p.default for n, p in golden.items()}


@ALL
def test_example_fits_and_repeats(name):
    entry = LIBRARY[name]
    arguments = entry.example()
    inspect.signature(entry.kernel.function).bind(**arguments)
    assert set(entry.scale) <= set(inspect.signature(entry.example).parameters)
    for key, value in entry.example(seed=0).items():
        first = arguments[key]
        assert first.tobytes() == value.tobytes() if hasattr(first, "tobytes") else first == value


@pytest.mark.parametrize(("name", "target"), [(name, target) for name in LIBRARY for target in targets(name)])
def test_example_runs_on_every_generation_it_may(matches, name, target):
    entry = LIBRARY[name]
    matches(entry, entry.cores, entry.example(), target)


@ALL
def test_sizes_of_the_example_have_defaults(name):
    parameters = inspect.signature(LIBRARY[name].example).parameters
    assert next(iter(parameters)) == "seed"
    assert all(p.default is not p.empty for p in parameters.values())


def test_an_example_says_which_target_its_sizes_need():
    entry = replace(LIBRARY["tp_broadcast"], target=lambda sizes: "gen4" if sizes["P"] > 64 else None)
    assert entry.sizes(P=128) == {**entry.sizes(), "P": 128}
    assert str(entry.launched(P=128).target) == "gen4"
    assert entry.launched(P=16).target == entry.kernel.target
