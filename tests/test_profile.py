"""`opennki profile` and its trace files."""

import json
from collections import defaultdict
from itertools import pairwise
from numbers import Real
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import opennki as nki
from opennki import isa as nisa
from opennki import language as nl
from opennki.backend.timeline import trace_events
from opennki.frontend.cli import main
from opennki.ir.timing import PARAMETERS

KERNEL = """
import opennki as nki
from opennki import isa as nisa, language as nl

@nki.jit
def twice(x):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, x.dtype)
    nisa.dma_copy(dst=tile, src=x)
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=2.0)
    nisa.dma_copy(dst=out, src=tile)
    return out
"""


@pytest.fixture
def opennki(tmp_path, monkeypatch):
    """opennki("profile ..."): a command in a folder with twice.py."""
    (tmp_path / "twice.py").write_text(KERNEL)
    monkeypatch.chdir(tmp_path)
    return lambda line: CliRunner().invoke(main, line.split())


PROFILE = "profile twice.py:twice --target gen3 --set x=float32[128,512]"


def test_the_report_names_times_bounds_engines_bytes_and_lines(opennki):
    result = opennki(PROFILE)
    assert result.exit_code == 0, result.output
    for text in ("the kernel itself", "as in a profile", "nki.benchmark", "the kernel reaches", "vector", "dma0", "sync",
                 "%x", "262144", "critical path, by line", "twice.py:9", "dma_copy issued", "a model, not a measurement"):
        assert text in result.stdout


def test_json_has_the_same_and_its_parts_add_up(opennki):
    facts = json.loads(opennki(f"{PROFILE} --json").stdout)
    assert sum(row["us"] for row in facts["critical_path"]) == pytest.approx(facts["kernel_us"])
    assert sum(row["percent"] for row in facts["critical_path"]) == pytest.approx(100)
    launch = facts["launch_us"]
    assert facts["total_us"] == pytest.approx(facts["kernel_us"] + launch["prologue"] + launch["epilogue"])
    assert {row["tensor"]: (row["read_bytes"], row["written_bytes"]) for row in facts["hbm"]} == {
        "x": (262144, 0), "out": (0, 262144)}
    assert facts["bounds"]["efficiency"] == pytest.approx(facts["bounds"]["dma_us"] / facts["kernel_us"])
    assert {row["name"] for row in facts["assumptions"]} == set(PARAMETERS)
    assert facts["critical_path"][0]["source"] in KERNEL


def test_a_parameter_can_be_assumed_otherwise(opennki):
    facts, slower = (json.loads(opennki(f"{PROFILE} --json {more}").stdout) for more in ("", "--assume semaphore=1050"))
    assert slower["kernel_us"] == pytest.approx(facts["kernel_us"] + 2)  # load to VectorE, VectorE to store
    assert {row["name"]: row["value"] for row in slower["assumptions"]}["semaphore"] == 1050


@pytest.mark.parametrize("text", ["semaphore", *(f"semaphore={value}" for value in ("fast", "-1", "0", "nan", "inf", "1e308"))])
def test_what_is_no_value_is_a_fault_of_usage(opennki, text):
    assert opennki(f"{PROFILE} --assume {text}").exit_code == 2


def test_the_parameters_are_listed_without_a_kernel(opennki):
    result = opennki("profile --assumptions --target gen4")
    assert result.exit_code == 0 and all(name in result.stdout for name in PARAMETERS)
    assert opennki("profile").exit_code == 2
    rows = json.loads(opennki("profile --assumptions --json --target gen4").stdout)["assumptions"]
    assert {row["name"]: row["value"] for row in rows}["dma_rate"] == 38.4


def test_a_trace_that_cannot_be_written_is_an_error(opennki):
    result = opennki(f"{PROFILE} --trace missing/x.json")
    assert result.exit_code == 1 and "E706" in result.stderr


# --- trace files -------------------------------------------------------------------------------------------------


def check_event(event):
    """The fields that the Trace Event Format asks for, by phase."""
    assert isinstance(event["name"], str) and event["name"]
    assert isinstance(event["pid"], int) and isinstance(event["tid"], int)
    phase = event["ph"]
    if phase == "M":
        assert event["name"] in ("process_name", "thread_name", "thread_sort_index")
        assert list(event["args"]) == ["sort_index" if event["name"] == "thread_sort_index" else "name"]
        return
    assert isinstance(event["cat"], str) and isinstance(event["ts"], Real) and event["ts"] >= 0
    if phase == "X":
        assert isinstance(event["dur"], Real) and event["dur"] >= 0 and isinstance(event["args"], dict)
    else:
        assert phase in ("s", "f") and isinstance(event["id"], int)
        assert phase == "s" or event["bp"] == "e"


def check_trace(trace):
    events = trace["traceEvents"]
    for event in events:
        check_event(event)
    named = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    slices = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            slices[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    assert set(slices) <= named
    for own in slices.values():  # slices of a thread that overlapped without being nested would not be shown
        assert all(one[1] <= other[0] + 1e-6 for one, other in pairwise(sorted(own)))
    arrows = defaultdict(dict)
    for event in events:
        if event["ph"] in "sf":
            arrows[event["id"]][event["ph"]] = event
            assert any(low <= event["ts"] <= high for low, high in slices[event["pid"], event["tid"]])
    assert all(set(ends) == {"s", "f"} and ends["s"]["ts"] <= ends["f"]["ts"] for ends in arrows.values())
    return slices, arrows


def test_a_trace_file_is_in_the_trace_event_format(opennki):
    assert opennki(f"{PROFILE} --trace out.json").exit_code == 0
    trace = json.loads(Path("out.json").read_text())
    slices, arrows = check_trace(trace)
    names = {event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "thread_name"}
    assert names == {"vector", "sync issues", "dma0", "dma1"} and len(slices) == 4
    assert len(arrows) == 2  # load to VectorE, VectorE to store
    load = next(event for event in trace["traceEvents"] if event["ph"] == "X" and event["cat"] == "move")
    assert load["name"] == "dma_copy" and load["args"]["line"] == "twice.py:9" and load["args"]["bytes"] == 262144


def test_a_trace_of_two_cores_has_a_process_each():
    timeline = everything(2)
    trace = trace_events(timeline)
    check_trace(json.loads(json.dumps(trace)))
    assert {e["pid"] for e in trace["traceEvents"]} == {0, 1}
    assert sum(e["ph"] == "X" for e in trace["traceEvents"]) == len(timeline.spans)


# --- every parameter matters -------------------------------------------------------------------------------------


@nki.jit(target="gen3")
def of_all_kinds(x, count):
    """Something of everything that has a parameter."""
    core, both = nl.program_id(0), nl.num_programs() > 1
    shared = nl.ndarray((2, 128, 512), x.dtype, buffer=nl.shared_hbm)
    tile, other, half = nl.ndarray((128, 512), x.dtype), nl.ndarray((128, 512), x.dtype), nl.ndarray((128, 512), nl.bfloat16)
    bank, turned = nl.ndarray((128, 512), x.dtype, buffer=nl.psum), nl.ndarray((128, 128), nl.bfloat16)
    number = nl.ndarray((1, 1), nl.int32)
    nisa.dma_copy(dst=tile, src=x)
    nisa.dma_copy(dst=half, src=x)  # casts
    nisa.dma_copy(dst=other[:, 0:64], src=x[:, 0:64], dge_mode=nisa.dge_mode.swdge)
    nisa.dma_copy(dst=number, src=count)
    nisa.dma_copy(dst=other[:, 64:512], src=x[:, 64:512])
    for step in range(3):
        nisa.nc_matmul(dst=bank, stationary=tile[:, 128 * step : 128 * (step + 1)], moving=tile, accumulate=step > 0)
    nisa.nc_matmul(dst=bank[:, 0:16], stationary=tile[:, 384:512], moving=tile[:, 0:16], accumulate=True)
    nisa.activation(dst=other, op=nl.exp, data=bank)
    nisa.activation(dst=other, op=nl.silu, data=other)
    nisa.activation(dst=other, op=nl.silu, data=other)
    nisa.activation(dst=other, op=nl.copy, data=other)
    nisa.tensor_tensor(dst=tile, data1=tile, data2=other, op=nl.add)
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.add, operand0=1.0)
    nisa.reciprocal(dst=tile, data=tile)
    nisa.tensor_copy(dst=tile, src=tile)
    nisa.tensor_copy(dst=tile, src=tile)
    nisa.tensor_copy(dst=tile[:, 0:8], src=tile[:, 8:16], engine=nisa.engine.gpsimd)
    nisa.dma_transpose(dst=turned, src=half[:, 0:128])
    nisa.dma_transpose(dst=other[:, 0:128], src=x[:, 0:128])
    nisa.tensor_tensor(dst=tile[:, 128:256], data1=tile[:, 128:256], data2=other[:, 0:128], op=nl.add)
    nisa.tensor_copy(dst=tile[:, 0:128], src=turned)
    if both:
        for engine in (nisa.dma_engine.dma, nisa.dma_engine.gpsimd_dma):
            nisa.sendrecv(src=tile[:, 0:256], dst=other[:, 0:256], send_to_rank=1 - core, recv_from_rank=1 - core, pipe_id=0,
                          dma_engine=engine)
            nisa.tensor_copy(dst=tile[:, 0:256], src=other[:, 0:256])
    for _ in nl.dynamic_range(nisa.register_alloc(number)):
        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.add, operand0=1.0)
    nisa.dma_copy(dst=shared[core], src=tile)
    if not both:
        nisa.dma_copy(dst=shared[1], src=tile)
    return shared


def everything(cores, **assume):
    x, count = np.zeros((128, 512), np.float32), np.full((1, 1), 2, np.int32)
    kernel = of_all_kinds[cores]
    return kernel.compile(x, count).timeline({"x": x, "count": count}, assume)


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_parameter_changes_the_time_of_something(name):
    """No parameter is dead: with another value of it, some instruction starts or ends at another time."""

    def times(**assume):
        timeline = everything(2, **assume)
        return timeline.total_ns, timeline.benchmark_ns, [(s.start_ns, s.issue_ns, s.end_ns) for s in timeline.spans]

    value = PARAMETERS[name].value
    # Bandwidths and the longest packet are made smaller, for a larger one may bind nothing; so are clocks.
    assert times(**{name: value / 8 if PARAMETERS[name].unit in ("B", "B/ns", "GHz") else value * 16}) != times()
