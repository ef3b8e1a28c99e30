"""The command line: every command, what goes where, and how each kind of bad input ends."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from typer.testing import CliRunner

from opennki.frontend.cli import main
from opennki.ir.graph import Stage
from opennki.ir.parser import parse
from opennki.kernels import LIBRARY

KERNELS = """
import nki
import nki.isa as nisa
import nki.language as nl

@nki.jit
def add(x, y, times: int = 1):
    print("tracing")
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    a, b = nl.ndarray(x.shape, x.dtype), nl.ndarray(x.shape, x.dtype)
    nisa.dma_copy(dst=a, src=x)
    nisa.dma_copy(dst=b, src=y)
    for _ in range(times):
        nisa.tensor_tensor(dst=a, data1=a, data2=b, op=nl.add)
    nisa.dma_copy(dst=out, src=a)
    return out

def add_golden(x, y, times=1):
    return x + times * y

def plain(x):
    tile = nl.ndarray(x.shape, x.dtype)
    nisa.dma_copy(dst=tile, src=x)
    nisa.dma_copy(dst=x, src=tile)

@nki.jit
def wrong(x):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=x)
    return out

def wrong_golden(x):
    return x + 1

@nki.jit
def broken(x):
    tile = nl.ndarray((256, 4), nl.float32)

@nki.jit
def gated(x, n):
    nki.kernel_assert(n % 2 == 0, "n must be even")

@nki.jit
def bad_golden(x):
    return x

def bad_golden_golden(x):
    raise ValueError("no reference")

NUMBER = 3
"""
ADD = ["--set", "x=float32[128,8]", "--set", "y=float32[128,8]"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "my.py").write_text(KERNELS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NEURON_PLATFORM_TARGET_OVERRIDE", raising=False)
    return tmp_path


def opennki(*args, stdin=None):
    return CliRunner().invoke(main, list(args), input=stdin, catch_exceptions=False)


def fine(*args, stdin=None):
    result = opennki(*args, stdin=stdin)
    assert result.exit_code == 0, result.output
    return result.stdout


def at_fault(code, *args, stdin=None):
    """The message of an error that is the kernel's or the text's."""
    result = opennki(*args, stdin=stdin)
    assert result.exit_code == 1, result.output
    assert f"error[{code}]" in result.stderr and "Traceback" not in result.stderr
    assert result.stdout == ""
    return result.stderr


def misused(*args):
    """The message of wrong usage."""
    result = opennki(*args)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    return result.stderr


# --- commands ----------------------------------------------------------------------------------------------------


def test_list_has_a_line_for_each_kernel():
    assert any(line.split()[0] == "tp_broadcast" for line in fine("list").splitlines() if line.strip())


def test_run_of_a_library_kernel_compares_with_its_golden_reference():
    text = fine("run", "tp_broadcast")
    assert "equal to its golden reference" in text and "sbuf, bytes a partition" in text and "gates:" in text


def test_run_counts_semaphores_beside_the_dependences_that_they_cover():
    counts = json.loads(fine("run", "router_topk", "--json"))["semaphores"][0]
    assert counts == json.loads(fine("check", "router_topk", "--json"))["semaphores"][0]
    assert 0 < counts["signals"] <= counts["waits"] < counts["dependences"]
    text = fine("check", "router_topk")
    assert f"waits that cover them       {counts['waits']}" in text


def test_run_in_other_orders_gives_the_same_results():
    texts = {fine("run", "router_topk", "--json", *more).partition('"results"')[2] for more in ((), ("--shuffle", "1"))}
    assert len(texts) == 1


def test_exec_in_other_orders_gives_the_same_results():
    text = fine("dump", "router_topk", "--stage", "bir")
    assert len({fine("exec", "-", *more, stdin=text) for more in ((), ("--shuffle", "1"), ("--shuffle", "2"))}) == 1
    assert opennki("exec", "-", "--shuffle", "-1", stdin=text).exit_code == 2


def test_run_of_a_file_compares_with_the_golden_function_beside_it(folder):
    assert "out: equal to its golden reference" in fine("run", "my.py:add", *ADD, "--set", "times=3")


@pytest.mark.parametrize("cores", [1, 2])
def test_a_golden_reference_is_told_the_cores_where_it_asks(cores):
    assert "equal to its golden reference" in fine("run", "rmsnorm_tkg", "--cores", cores)


def test_run_ends_with_1_where_the_result_differs(folder):
    result = opennki("run", "my.py:wrong", "--set", "x=float32[128,8]")
    assert result.exit_code == 1
    assert "DIFFERS" in result.stdout and "max error 1" in result.stdout


def test_run_takes_a_tolerance(folder):
    assert "equal" in fine("run", "my.py:wrong", "--set", "x=float32[128,8]", "--rtol", "1")


def test_run_json_is_json_alone(folder):
    facts = json.loads(fine("run", "my.py:add", *ADD, "--json"))
    assert facts["equal"] is True and facts["target"] == "gen3" and facts["cores"] == 1
    assert facts["instructions"] == {"trace": [4], "penguin": [4], "bir": [4]}
    assert facts["results"]["out"]["shape"] == [128, 8] and facts["memory"][0]["sbuf_bytes"] == 64


def test_json_has_words_for_infinities(folder):
    np.save("x.npy", np.full((128, 8), np.inf, np.float32))
    text = fine("run", "my.py:add", "--set", "x=@x.npy", "--set", "y=float32[128,8]", "--json")
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


def test_run_without_golden_shows_the_arguments_that_the_kernel_wrote(folder):
    result = opennki("run", "my.py:plain", "--set", "x=int32[4,4]")
    assert result.exit_code == 0 and "x: int32[4,4]" in result.stdout and "no golden reference" in result.stderr


def test_a_kernel_without_results_is_told_so(folder):
    Path("lost.py").write_text("import nki\n\n@nki.jit\ndef lost(x):\n    pass\n")
    result = opennki("run", "lost.py:lost", "--set", "x=int32[4,4]")
    assert result.exit_code == 0 and "returns nothing and writes no argument" in result.stderr


def test_settings_reach_sizes_of_the_example_and_arguments_of_the_kernel():
    text = fine("run", "tp_broadcast", "--set", "P=64", "--set", "src_offset=2")
    assert "float32[64," in text and "src_offset  2" in text


def test_seed_changes_the_inputs_and_nothing_else_does(folder):
    one, same, other = (fine("run", "my.py:wrong", "--rtol", "9", "--set", "x=float32[8,8]", "--seed", seed) for seed in "112")
    line = [[row for row in text.splitlines() if row.startswith("out: float32")] for text in (one, same, other)]
    assert line[0] == line[1] != line[2]


def test_two_cores_and_targets(folder):
    text = fine("check", "my.py:plain", "--set", "x=float32[8,8]", "--target", "trn3")
    assert "target gen4" in text
    assert "cores 2" in fine("check", "find_nonzero_indices", "--cores", "2", "--target", "gen3")


def test_check_says_ok_with_the_facts_and_runs_nothing(folder):
    text = fine("check", "my.py:add", *ADD)
    assert text.startswith("ok\n") and "instructions:" in text and "ran in" not in text
    assert json.loads(fine("check", "my.py:add", *ADD, "--json"))["ok"] is True


def test_a_kernel_of_the_library_is_found_by_its_file_too():
    file = Path(sys.modules["opennki"].__file__).parent / "kernels" / "tp_broadcast.py"
    assert "equal to its golden reference" in fine("run", f"{file}:tp_broadcast")


def test_gates_lists_what_the_kernel_and_its_functions_declare_and_runs_nothing(folder):
    Path("two.py").write_text(
        "import nki\n"
        "@nki.gates(nki.Gate('n < 9', when='n', hint='fewer'), let={'n': 'x.shape[0]'})\n"
        "def inner(x): nki.kernel_assert(x.shape[1] == 2, 'two columns')\n"
        "@nki.jit\n"
        "def outer(x): inner(x)\n"
    )
    text = fine("gates", "two.py:outer")
    assert "inner, two.py:2:" in text and "n < 9  n     fewer  two.py:2" in text and "two columns  two.py:3" in text
    (facts,) = json.loads(fine("gates", "two.py:inner", "--json"))
    assert facts["function"] == "inner" and facts["let"] == {"n": "x.shape[0]"}
    assert [gate["condition"] for gate in facts["gates"]] == ["n < 9"] and facts["gates"][0]["line"] == 2
    assert facts["in_the_body"][0]["condition"] == "x.shape[1] == 2"
    assert "declares no gates" in fine("gates", "my.py:add") and json.loads(fine("gates", "my.py:add", "--json")) == []
    assert "src_offset is a column of src" in fine("gates", "tp_broadcast")
    assert "did you mean tp_broadcast?" in at_fault("E708", "gates", "tp_brodcast")


def test_residency_shows_how_often_each_byte_of_hbm_is_touched(folder):
    text = fine("residency", "my.py:add", *ADD)
    assert "%x      float32[128,8] @private_hbm  input   4096   4096  1      0        0" in text
    assert "sbuf 8192 bytes in 2 tensors, 0 of them in 0 that never meet HBM" in text and "declares no residency" in text
    assert any(line.split()[:5] == ["%out", "written", "0", "dma_copy", "dst"] for line in text.splitlines())
    facts = json.loads(fine("residency", "find_nonzero_indices", "--cores", "2", "--json"))
    tensor = facts["tensors"][0]
    assert tensor["role"] == "input" and tensor["reads"]["most"] == 1 and len(tensor["reads"]["by_core"]) == 2
    assert facts["declared"] is None and facts["cores"] == 2


def test_residency_shows_what_it_refuses(folder):
    Path("once.py").write_text(KERNELS.replace("@nki.jit\ndef add", "@nki.jit\n@nki.residency(read_once=['y'])\ndef add"))
    assert "declared residency: read_once y; handed_over nothing" in fine("residency", "once.py:add", *ADD)
    twice = KERNELS.replace("nisa.dma_copy(dst=a, src=x)", "nisa.dma_copy(dst=a, src=y)")
    Path("twice.py").write_text(twice.replace("@nki.jit\ndef add", "@nki.jit\n@nki.residency(read_once=['y'])\ndef add"))
    result = opennki("residency", "twice.py:add", *ADD)
    assert result.exit_code == 1 and "error[E403]: %y is read 2 times" in result.stderr and "%y" in result.stdout
    assert "E403" in at_fault("E403", "check", "twice.py:add", *ADD)
    trace = fine("dump", "twice.py:add", *ADD, "--stage", "trace")
    at_fault("E403", "opt", "-", "--passes", "fold-layouts,check-residency", stdin=trace)


@pytest.mark.parametrize("stage", ["trace", "penguin", "bir"])
def test_dump_prints_what_parses_back(folder, stage):
    module = parse(fine("dump", "my.py:add", *ADD, "--stage", stage))
    assert module.stage is Stage(stage)


def test_dump_loc_names_the_authors_lines(folder):
    assert "tensor_tensor dst=%a data1=%a data2=%b op=add in (" not in fine("dump", "my.py:add", *ADD, "--stage", "trace")
    assert "// my.py:15" in fine("dump", "my.py:add", *ADD, "--stage", "trace", "--loc")


def test_dump_of_the_trace_shows_a_failing_gate(folder):
    text = fine("dump", "my.py:gated", "--set", "x=float32[8,8]", "--set", "n=3", "--stage", "trace")
    assert 'gate "n must be even" fails' in text


def test_opt_reads_what_dump_writes(folder):
    trace = fine("dump", "my.py:add", *ADD, "--stage", "trace")
    penguin = fine("dump", "my.py:add", *ADD, "--stage", "penguin")
    assert fine("opt", "-", stdin=trace) == trace
    assert fine("opt", "-", "--passes", "to-penguin", stdin=trace) == penguin
    Path("add.ir").write_text(trace)
    assert fine("opt", "add.ir", "--passes", "to-penguin,to-bir") == fine("dump", "my.py:add", *ADD, "--stage", "bir")


def test_opt_prints_the_modules_between_on_stderr(folder):
    trace = fine("dump", "my.py:add", *ADD, "--stage", "trace")
    result = opennki("opt", "-", "--passes", "check-gates, fold-layouts", "--print-between", stdin=trace)
    assert "// after check-gates" in result.stderr and "// after" not in result.stdout
    parse(result.stdout)


def test_exec_runs_a_text_of_any_stage_alike(folder):
    outputs = {fine("exec", "-", "--seed", "4", stdin=fine("dump", "my.py:add", *ADD, "--stage", stage)) for stage in (
        "trace", "penguin", "bir")}
    assert len(outputs) == 1 and "%out: float32[128,8]" in outputs.pop()


def test_exec_loads_and_saves_arrays(folder):
    x = np.arange(1024, dtype=np.float32).reshape(128, 8)
    np.save("x.npy", x)
    Path("add.ir").write_text(fine("dump", "my.py:add", *ADD, "--stage", "penguin"))
    fine("exec", "add.ir", "--set", "x=@x.npy", "--set", "y=@x.npy", "--out", "out=sum.npy")
    np.testing.assert_array_equal(np.load("sum.npy"), 2 * x)
    assert "min 0 " in fine("exec", "add.ir", "--set", "x=@x.npy", "--set", "y=@x.npy")
    assert json.loads(fine("exec", "add.ir", "--json"))["%out"]["dtype"] == "float32"


def test_arrays_of_small_floats_survive_npy_files(folder):
    x = np.arange(32, dtype=np.float32).reshape(4, 8).astype(ml_dtypes.bfloat16)
    np.save("x.npy", x)
    assert "max 31" in fine("run", "my.py:wrong", "--set", "x=bfloat16@x.npy", "--rtol", "9")
    Path("w.ir").write_text(fine("dump", "my.py:wrong", "--set", "x=bfloat16@x.npy"))
    fine("exec", "w.ir", "--set", "x=@x.npy", "--out", "out=y.npy")
    np.testing.assert_array_equal(np.load("y.npy").view(ml_dtypes.bfloat16), x)


def test_demo_of_one_kernel():
    text = fine("demo", "tp_broadcast", "--target", "gen3")
    assert "equal to its golden reference" in text
    assert text.endswith("1 kernels, all equal to their golden references\n")


def test_passes_lists_each_with_what_it_does():
    text = fine("passes")
    assert "fold-layouts" in text and "to-bir" in text and "None" not in text


# --- where things go ---------------------------------------------------------------------------------------------


def test_what_the_kernels_python_prints_is_no_part_of_the_result(folder):
    result = opennki("dump", "my.py:add", *ADD)
    assert "tracing" in result.stderr and "tracing" not in result.stdout


def test_the_default_target_is_said_once_where_nobody_chose_one(folder, monkeypatch):
    note = "no --target given, gen3 is used"
    assert opennki("check", "my.py:add", *ADD).stderr.count(note) == 1
    assert note not in opennki("check", "my.py:add", *ADD, "--target", "gen3").stderr
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn3")
    result = opennki("check", "my.py:add", *ADD)
    assert note not in result.stderr and "target gen4" in result.stdout


def test_an_example_brings_the_target_that_its_sizes_need(monkeypatch):
    entry = replace(LIBRARY["tp_broadcast"], target=lambda sizes: "gen4" if sizes["P"] == 32 else None)
    monkeypatch.setitem(LIBRARY, "tp_broadcast", entry)
    monkeypatch.delenv("NEURON_PLATFORM_TARGET_OVERRIDE", raising=False)
    needs = opennki("check", "tp_broadcast", "--set", "P=32")
    assert "target gen4" in needs.stdout and needs.stderr == ""
    assert "target gen3" in fine("check", "tp_broadcast", "--set", "P=32", "--target", "gen3")
    free = opennki("check", "tp_broadcast", "--set", "P=16")
    assert "target gen3" in free.stdout and "gen3 is used" in free.stderr


def _process(command):
    script = command.replace("opennki", f"{sys.executable} -m opennki")
    return subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60)


def test_a_pipe_of_processes(folder):
    dump = "opennki dump tp_broadcast --stage trace --target gen3"
    result = _process(f"{dump} | opennki opt - --passes to-penguin,to-bir | opennki exec -")
    assert result.returncode == 0 and "%dst: float32" in result.stdout and result.stderr == ""


def test_a_reader_that_leaves_early_is_no_error(folder):
    result = _process("opennki dump find_nonzero_indices --stage bir --target gen3 | head -1")
    assert result.stdout.startswith("kernel @find_nonzero_indices") and result.stderr == ""


def test_a_result_that_cannot_be_written(folder):
    result = _process("opennki list > /dev/full")
    assert result.returncode == 1 and "cannot write" in result.stderr and "Traceback" not in result.stderr
    result = _process("opennki opt - <&-")
    assert result.returncode == 1 and "E706" in result.stderr


def test_python_dash_m_is_the_command(folder):
    result = _process("opennki runn tp_broadcast")
    assert result.returncode == 2 and "Did you mean 'run'" in result.stderr and result.stdout == ""


# --- bad inputs --------------------------------------------------------------------------------------------------


def test_a_kernel_that_breaks_a_limit(folder):
    message = at_fault("E102", "run", "my.py:broken", "--set", "x=float32[8,8]")
    line = 1 + KERNELS.splitlines().index("    tile = nl.ndarray((256, 4), nl.float32)")
    assert f"my.py:{line}" in message and "tile = nl.ndarray" in message


def test_a_gate_that_does_not_hold(folder):
    assert "n must be even" in at_fault("E401", "check", "my.py:gated", "--set", "x=float32[8,8]", "--set", "n=3")


def test_a_golden_reference_that_raises(folder):
    assert "no reference" in at_fault("E805", "run", "my.py:bad_golden", "--set", "x=float32[8,8]")


def test_parameters_without_names(folder):
    Path("bare.py").write_text("def first(x, /, n): return x\ndef spread(*xs): return xs[0]\n")
    fine("check", "bare.py:first", "--set", "x=float32[2,2]", "--set", "n=3")
    misused("check", "bare.py:spread", "--set", "xs=float32[2,2]")


def test_too_many_cores(folder):
    assert opennki("run", "my.py:add", *ADD, "--cores", "3").exit_code == 2


def test_exec_proves_the_order_of_a_bir_text(folder):
    text = fine("dump", "tp_broadcast", "--stage", "bir")
    wait = next(line for line in text.splitlines(keepends=True) if "wait" in line)
    assert "no semaphore orders them" in at_fault("E505", "exec", "-", stdin=text.replace(wait, "", 1))


def test_exec_checks_a_penguin_text_as_a_kernel_is_checked(folder):
    text = fine("dump", "my.py:add", *ADD, "--stage", "penguin")
    load = next(line for line in text.splitlines(keepends=True) if "dma_copy" in line)
    assert "never-written" in at_fault("E501", "exec", "-", stdin=text.replace(load, "", 1))


PREDICATED = """kernel @holes stage=trace target=gen3 {
  param %x: float32[128,8] @private_hbm
  shared %y: float32[128,8] @shared_hbm
  core 0 {
    %a: float32[128,8] @sbuf
    %m: uint8[128,8] @sbuf
    %t: float32[128,8] @sbuf
    dma_copy dst=%a src=%x
    memset dst=%m value=MASK
    tensor_copy_predicated dst=%t src=%a predicate=%m
    dma_copy dst=%y src=%t
  }
  return %y
}
"""


def test_exec_asks_what_only_a_run_can_tell(folder):
    assert "never-written bytes decide" in at_fault("E501", "exec", "-", stdin=PREDICATED.replace("MASK", "0"))
    fine("exec", "-", stdin=PREDICATED.replace("MASK", "1"))


def test_passes_in_an_order_that_cannot_be_are_the_author_s_fault(folder):
    text = fine("opt", "-", "--passes", "fold-layouts", stdin=fine("dump", "tp_broadcast", "--stage", "trace"))
    assert "run the pass assign-engines first" in at_fault("E603", "opt", "-", "--passes", "allocate,synchronise", stdin=text)
    assert "allocate at stage bir" in at_fault("E603", "opt", "-", "--passes", "allocate",
                                               stdin=fine("dump", "tp_broadcast", "--stage", "bir"))
    fine("exec", "-", stdin=text)  # exec runs what is missing itself


def test_sizes_that_the_example_cannot_have():
    at_fault("E401", "run", "tp_broadcast", "--set", "src_offset=100")


def test_unknown_library_kernel():
    assert "did you mean tp_broadcast?" in at_fault("E708", "run", "tp_brodcast")


def test_missing_file():
    assert "nowhere.py" in at_fault("E706", "check", "nowhere.py:add")


def test_folder_in_place_of_a_file(folder):
    at_fault("E706", "check", f"{folder}:add")
    at_fault("E706", "opt", str(folder))


def test_unreadable_file(folder):
    (folder / "secret.py").write_text("")
    (folder / "secret.py").chmod(0)
    if os.access(folder / "secret.py", os.R_OK):
        pytest.skip("this user reads everything")
    at_fault("E706", "check", "secret.py:add")


def test_file_that_is_no_text(folder):
    Path("binary.py").write_bytes(b"\xff\xfe\x00")
    at_fault("E706", "check", "binary.py:add")
    at_fault("E706", "exec", "binary.py")


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("def add(x:\n", "SyntaxError"),
        ("x = 1 / 0\n", "ZeroDivisionError"),
        ("import nothing_like_this\n", "nothing_like_this"),
        ("raise SystemExit(3)\n", "__main__"),
        ("import nki\nnki.baremetal\n", "call the kernel itself"),
        ("import neuronxcc.nki.language as nl\n", "import nki.language"),
        ("from nki.isa import not_there\n", "not_there"),
        ("x = 1\0\n", "null bytes"),
    ],
)
def test_python_file_that_fails_when_imported(folder, source, says):
    Path("bad.py").write_text(source)
    assert says in at_fault("E706", "check", "bad.py:add")


def test_error_of_the_language_when_imported_keeps_its_code(folder):
    Path("bad.py").write_text("import nki.language as nl\nt = nl.ndarray((1, 1), nl.float32)\n")
    assert "bad.py:2" in at_fault("E801", "check", "bad.py:add")


def test_function_that_the_file_does_not_have(folder):
    assert "did you mean add?" in at_fault("E708", "check", "my.py:ad")


def test_name_that_is_no_function(folder):
    at_fault("E708", "check", "my.py:NUMBER")


def test_file_with_several_kernels_and_no_name(folder):
    assert "add" in at_fault("E708", "check", "my.py")


def test_argument_that_the_kernel_does_not_have(folder):
    assert "did you mean times?" in misused("run", "my.py:add", *ADD, "--set", "time=3")
    assert "it has P, F" in misused("run", "tp_broadcast", "--set", "zzz=3")


def test_argument_that_is_missing(folder):
    assert "needs y" in misused("run", "my.py:add", "--set", "x=float32[8,8]")


@pytest.mark.parametrize(
    ("setting", "says"), [("x", "name=value"), ("x=float33[8,8]", "float32"), ("x=[1,", "literal"), ("=3", "name=value")]
)
def test_setting_that_means_nothing(folder, setting, says):
    assert says in misused("run", "my.py:plain", "--set", setting)


def test_setting_given_twice(folder):
    assert "twice" in misused("run", "my.py:plain", "--set", "x=float32[8,8]", "--set", "x=float32[8,8]")


def test_array_file_that_is_missing_or_none(folder):
    at_fault("E706", "run", "my.py:plain", "--set", "x=@none.npy")
    Path("text.npy").write_text("hello")
    at_fault("E706", "run", "my.py:plain", "--set", "x=@text.npy")
    np.savez("two.npz", a=np.zeros(2), b=np.zeros(2))
    at_fault("E706", "run", "my.py:plain", "--set", "x=@two.npz")


def test_array_of_a_dtype_that_the_machine_lacks(folder):
    np.save("wide.npy", np.zeros((8, 8)))
    at_fault("E704", "run", "my.py:plain", "--set", "x=@wide.npy")


def test_array_larger_than_any_memory(folder):
    at_fault("E701", "run", "my.py:plain", "--set", "x=float32[1000000000000,1000000]")


def test_value_where_a_tensor_belongs(folder):
    at_fault("E805", "run", "my.py:plain", "--set", "x=3")


def test_unknown_options_commands_stages_targets_and_passes(folder):
    misused("run", "tp_broadcast", "--nothing")
    misused("dump", "tp_broadcast", "--stage", "hlo")
    misused("run", "tp_broadcast", "--target", "gen9")
    misused("run", "tp_broadcast", "--cores", "0")
    assert "did you mean dead-code?" in misused("opt", "-", "--passes", "dead-cod")


def test_target_of_the_environment_that_is_not_modelled(folder, monkeypatch):
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn1")
    at_fault("E705", "run", "my.py:add", *ADD)


@pytest.mark.parametrize("text", ["", "\n\n", "kernel", "not a kernel at all", "kernel @k stage=trace target=gen3 {\n"])
def test_text_that_does_not_parse(text):
    at_fault("E601", "opt", "-", stdin=text)


def test_error_in_a_text_from_stdin_shows_its_line():
    text = "kernel @k stage=trace target=gen3 {\n  core 0 {\n    memset dst=%t value=0.0\n  }\n}\n"
    assert "|  memset dst=%t value=0.0" in at_fault("E602", "exec", "-", stdin=text)


def test_exec_with_inputs_and_results_that_do_not_fit(folder):
    Path("add.ir").write_text(fine("dump", "my.py:add", *ADD))
    at_fault("E701", "exec", "add.ir", "--set", "x=float32[4,4]")
    at_fault("E701", "exec", "add.ir", "--set", "x=3")
    assert "did you mean x?" in misused("exec", "add.ir", "--set", "xx=float32[128,8]")
    assert "it has out" in misused("exec", "add.ir", "--out", "sum=x.npy")
    at_fault("E706", "exec", "add.ir", "--out", "out=no/such/folder/x.npy")


# --- completion --------------------------------------------------------------------------------------------------


def _completions(words, monkeypatch):
    monkeypatch.setenv("_OPENNKI_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split(" ")) - 1))
    return CliRunner().invoke(main, [], prog_name="opennki").stdout.split()


def test_completion_knows_kernels_stages_and_passes(folder, monkeypatch):
    assert "tp_broadcast" in _completions("opennki run tp", monkeypatch)
    assert "my.py:" in _completions("opennki run m", monkeypatch)
    assert {"trace", "penguin", "bir"} <= set(_completions("opennki dump x --stage ", monkeypatch))
    assert "check-gates,dead-code" in _completions("opennki opt x --passes check-gates,dead", monkeypatch)


# --- import aliases ----------------------------------------------------------------------------------------------


def test_aliases_give_the_public_import_paths(folder):
    program = (
        "from opennki.frontend.aliases import install_aliases; install_aliases(); install_aliases()\n"
        "import nki, nki.isa as nisa, nki.language as nl, nki.typing as nt, neuronxcc.nki.typing as old, opennki\n"
        "from nki.isa.constants import dge_mode, engine, matmul_perf_mode, oob_mode, reduce_cmd\n"
        "assert nki.jit is opennki.jit and nki.dtype is opennki.dtype and nki.simulate is opennki.simulate\n"
        "assert nisa.constants.oob_mode is nisa.oob_mode is oob_mode and old.tensor is nt.tensor and nki.isa is nisa\n"
        "for name in ('baremetal', 'benchmark', 'profile', 'simulate_kernel', 'nothing'):\n"
        "    try: getattr(nki, name)\n"
        "    except AttributeError as error: assert name in str(error)\n"
        "    else: raise SystemExit(name)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_check_tells_which_instructions_have_no_effect(folder):
    """A sum declared inside the loop over K is a new one in each trip: all but the last are lost."""
    (folder / "lost.py").write_text(
        "import nki.language as nl\nimport nki.isa as nisa\n"
        "def gemm(a, b):\n"
        "    out = nl.ndarray((128, 64), nl.float32, buffer=nl.shared_hbm)\n"
        "    for k in range(4):\n"
        "        acc = nl.ndarray((128, 64), nl.float32, buffer=nl.psum)\n"
        "        x, y = nl.ndarray((32, 128), a.dtype), nl.ndarray((32, 64), b.dtype)\n"
        "        nisa.dma_copy(dst=x, src=a[k * 32 : k * 32 + 32])\n"
        "        nisa.dma_copy(dst=y, src=b[k * 32 : k * 32 + 32])\n"
        "        nisa.nc_matmul(dst=acc, stationary=x, moving=y)\n"
        "    result = nl.ndarray((128, 64), nl.float32)\n"
        "    nisa.tensor_copy(dst=result, src=acc)\n"
        "    nisa.dma_copy(dst=out, src=result)\n"
        "    return out\n"
    )
    call = ("check", "lost.py:gemm", "--set", "a=bfloat16[128,128]", "--set", "b=bfloat16[128,64]")
    dropped = json.loads(fine(*call, "--json"))["without_effect"]
    assert [(each["op"], each["count"], each["loc"].rpartition(":")[2]) for each in dropped] == [
        ("dma_copy", 3, "8"), ("dma_copy", 3, "9"), ("nc_matmul", 3, "10"),
    ]
    assert "nothing observes what they do" in fine(*call)
    assert "without_effect" in json.loads(fine("check", "tp_broadcast", "--json"))
    assert "nothing observes" not in fine("check", "tp_broadcast")


def test_many_gates_are_counted():
    text = fine("check", "moe_block_tkg")
    assert "gates: all hold: " in text and " of router_topk" in text and len(text.splitlines()) < 60
