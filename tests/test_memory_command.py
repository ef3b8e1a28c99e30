"""`opennki memory`: charts, tables and JSON, of kernels that fit and of those that do not."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from opennki.frontend.cli import main
from opennki.frontend.cli_chart import Chart

KERNELS = """
import opennki as nki
from opennki import isa as nisa, language as nl

@nki.jit
def turned(x):
    out = nl.ndarray((64, 128), nl.float32, buffer=nl.shared_hbm)
    kept = nl.ndarray((64, 128), nl.float32, buffer=nl.private_hbm)
    a = nl.ndarray((128, 64), nl.float32)
    nisa.dma_copy(dst=a, src=x)
    p = nl.ndarray((64, 128), nl.float32, buffer=nl.psum)
    nisa.nc_transpose(dst=p, data=a)
    b = nl.ndarray((64, 128), nl.float32)
    nisa.tensor_copy(dst=b, src=p)              # line 14
    nisa.dma_copy(dst=kept, src=b)
    nisa.dma_copy(dst=out, src=kept)
    return out

@nki.jit
def too_large(x):
    out = nl.ndarray((128, 24576), nl.float32, buffer=nl.shared_hbm)
    tiles = [nl.zeros((128, 24576), nl.float32) for _ in range(3)]
    for tile in tiles:
        nisa.dma_copy(dst=out, src=tile)
    return out

@nki.jit
def too_many_banks(x):
    a = nl.ndarray((128, 64), nl.float32)
    nisa.dma_copy(dst=a, src=x)
    out = nl.ndarray((64, 128), nl.float32, buffer=nl.shared_hbm)
    tiles = [nl.ndarray((64, 128), nl.float32, buffer=nl.psum) for _ in range(9)]
    for tile in tiles:
        nisa.nc_transpose(dst=tile, data=a)
    for tile in tiles:
        nisa.tensor_copy(dst=a[0:64, :], src=tile[:, 0:64])
    nisa.dma_copy(dst=out[:, 0:64], src=a[0:64, :])
    nisa.dma_copy(dst=out[:, 64:128], src=a[0:64, :])
    return out
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    Path("k.py").write_text(KERNELS)


def memory(kernel: str, *options: str):
    return CliRunner().invoke(main, ["memory", kernel, "--target", "gen3", *options])


def of_file(name: str, *options: str):
    return memory(f"k.py:{name}", "--set", "x=float32[128,64]", *options)


def test_it_shows_what_is_alive_when():
    result = of_file("turned")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert any(re.fullmatch(r"  0     sbuf, bytes a partition  2 +512 +512 +768 +212984", line) for line in lines)
    assert any(re.fullmatch(r"  0     psum, banks +1 +1 +1 +1 +8", line) for line in lines)
    banks = [line.split("|")[1] for line in lines if re.match(r" +bank \d \|", line)]
    assert len(banks) == 8 and "#" in banks[0] and set("".join(banks[1:])) == {"."}
    (peak,) = {line for line in lines if "peak at k.py:14 (tensor_copy)" in line}
    assert peak.index("^") == 13 + banks[0].rindex("#")  # %a is dead when %b is written
    assert any(re.fullmatch(r"  %p +float32\[64,128\] @psum +1 +512 +0x0000 +k.py:11 +k.py:12 +k.py:14", row) for row in lines)
    assert any(re.match(r"  %kept +float32\[64,128\] @private_hbm +of core 0 +32768 ", line) for line in lines)
    assert any(re.match(r"  %out +float32\[64,128\] @shared_hbm +shared +32768 ", line) for line in lines)


def test_the_same_as_json():
    facts = json.loads(of_file("turned", "--json").stdout)
    sbuf, psum = facts["memories"][0]["sbuf"], facts["memories"][0]["psum"]
    assert facts["error"] is None and sbuf["limit"] == 212984 and psum["most_live"] == 2048
    assert sbuf["steps"][0] == [1, 256] and max(height for _, height in sbuf["steps"]) == sbuf["most_live"]
    assert [(each["tensors"], each["places"]) for each in psum["alive"]] == [(["p"], [[0, 0]])]
    assert [bank for bank in psum["banks"] if bank] == [[[psum["alive"][0][end]["position"] for end in ("first", "last")]]]


def test_a_kernel_that_does_not_fit_is_drawn_too():
    result = of_file("too_large")
    assert result.exit_code == 1 and "error[E201]: sbuf is too small: 294912 bytes" in result.stderr
    lines = result.stdout.splitlines()
    assert any("!" in line and line.startswith("     294912 |") for line in lines)
    assert any(re.match(r"  %\w+ +float32\[128,24576\] @sbuf +3 +294912 ", line) for line in lines)
    facts = json.loads(of_file("too_large", "--json").stdout)
    sbuf = facts["memories"][0]["sbuf"]
    assert facts["error"].startswith("error[E201]") and (sbuf["most_live"], sbuf["packed"], sbuf["end"]) == (294912, None, None)


def test_banks_that_psum_does_not_have_are_drawn_as_such():
    result = of_file("too_many_banks")
    assert result.exit_code == 1 and "9 banks are live at once, there are 8" in result.stderr
    rows = {line.split("|")[0].strip(): line.split("|")[1] for line in result.stdout.splitlines() if " bank " in line}
    assert len(rows) == 9 and "!" in rows["bank 8"] and not any("!" in rows[f"bank {bank}"] for bank in range(8))


def test_each_core_has_its_charts():
    result = memory("find_nonzero_indices", "--cores", "2")
    assert result.exit_code == 0
    for core in (0, 1):
        assert f"sbuf, core {core}: live bytes" in result.stdout and f"alive at the peak of psum, core {core}:" in result.stdout


def test_columns_hold_the_highest_of_their_part():
    chart = Chart(length=10, terminal=19)  # five columns
    assert chart.highest([(1, 4), (2, 1), (3, 0), (8, 6), (9, 2)]) == [4, 0, 0, 6, 2]
    assert Chart(length=3, terminal=80).highest([(2, 7)]) == [0, 7, 7]


def test_the_limit_is_drawn_where_the_curve_comes_near_it():
    rows = Chart(length=4, terminal=80).heights([(1, 50), (2, 100), (3, 200), (4, 0)], 100)
    assert [row.split("|")[1] for row in rows] == ["  !"] * 5 + ["-##-", " ##"] + ["###"] * 3
    assert rows[0].split("|")[0].strip() == "200" and rows[5].split("|")[0].strip() == "100"
    far = Chart(length=2, terminal=80).heights([(1, 10), (2, 5)], 1000)
    assert "-" not in "".join(far) and far[0].strip() == "10 |#"
