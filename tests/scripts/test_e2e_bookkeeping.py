"""The sweep's own bookkeeping, without hosts."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from e2e.contenders import CONTENDERS, Contender, chosen
from e2e.machine import machine
from e2e.report import bookkeeping, draw, groups, machines, overheads, peers, stages, table
from e2e.simulated import simulate
from e2e.sweep import Results
from netlab import Lab, LabError, bits_per_second


def row(contender: str, rate: str, seconds: float, **others: Any) -> dict[str, Any]:
    cell = {"model": "resnet20", "compute_ms": 0.0, "ranks": 2, "rate": rate}
    measured = {"median_seconds": seconds, "sent_bytes": None, "interface_bytes": 1e6}
    return {**cell, "contender": contender, **measured, **others}


@pytest.mark.parametrize(
    ("rate", "bits"), [("100kbit", 1e5), ("10mbit", 1e7), ("2.5gbit", 2.5e9), ("100gbit", 1e11)]
)
def test_rates(rate: str, bits: float) -> None:
    assert bits_per_second(rate) == bits


@pytest.mark.parametrize("rate", ["", "10", "10 mbit", "mbit", "99kbit", "101gbit", "-1mbit"])
def test_other_rates_are_refused(rate: str) -> None:
    with pytest.raises(LabError, match=r"between 100kbit and 100gbit"):
        bits_per_second(rate)


@pytest.mark.parametrize("hosts", [1, 65])
def test_labs_have_2_to_64_hosts(hosts: int) -> None:
    with pytest.raises(LabError, match=f"hosts is {hosts}; it must be between 2 and 64"):
        Lab(hosts)


def test_contenders_are_chosen_by_name_and_engine() -> None:
    assert chosen(None, None) == list(CONTENDERS)
    assert {one.engine for one in chosen(None, ["torch"])} == {"torch"}
    assert [one.name for one in chosen(["DDP", "Horovod"], None)] == ["Horovod", "DDP"]
    beside, apart = chosen(["top-k 0.1% beside", "top-k 0.1% apart"], None)
    assert beside.spec == "residual|topk(ratio=0.001) encoder_thread=always"
    assert apart.spec == "residual|topk(ratio=0.001) encoder_thread=never"
    with pytest.raises(ValueError, match="there is no contender 'ours'; there are Horovod alone, "):
        chosen(["ours"], None)
    names = [one.name for one in CONTENDERS]
    assert len(set(names)) == len(names)
    assert {one.same_as for one in CONTENDERS} - {""} <= set(names)


def test_newer_results_replace_older_ones(tmp_path: Path) -> None:
    path = tmp_path / "new" / "results.json"
    first = Results(path)
    first.add([row("Horovod", "1gbit", 1.0), row("DDP", "1gbit", 2.0)])
    again = Results(path)
    again.add([row("DDP", "1gbit", 3.0), row("DDP", "10gbit", 4.0)])
    found = [(one["contender"], one["rate"], one["median_seconds"]) for one in again.rows]
    assert found == [("Horovod", "1gbit", 1.0), ("DDP", "1gbit", 3.0), ("DDP", "10gbit", 4.0)]
    assert json.loads(path.read_text()) == again.rows
    assert list(groups(again.rows)) == [("resnet20", 0.0, 2)]


def test_overheads_are_what_neither_the_model_nor_the_link_takes() -> None:
    measured = {"measured_bits_per_second": 8e7}  # 100 ms for a million bytes
    rows = [
        row("DDP alone", "100mbit", 0.2, **measured),
        row("DDP fp16", "100mbit", 1.0, **measured),
        row("Horovod fp16", "100mbit", 2.0, **measured),
        row("DDP with our top-k 0.1%", "100mbit", 0.45, **measured),
        row("top-k 0.1%", "100mbit", 0.45, **measured),  # nobody knows its engine's step
    ]
    assert overheads(rows).splitlines()[2:] == [
        "| DDP with our top-k 0.1% | 100mbit | 450 | 200 | 100 | 150 | 15% |"
    ]
    assert overheads(rows[2:]) == ""


def test_stages_add_up_to_the_step() -> None:
    phases = {"compensate": 0.01, "encode": 0.04, "wait": 0.05, "decode": 0.02, "copy": 0.03}
    profiled = {"measured_bits_per_second": 8e7, "phases": {**phases, "error": 0.0}}
    rows = [
        row("DDP alone", "100mbit", 0.2),
        row("DDP with our top-k 0.1%", "100mbit", 0.45, **profiled),
        row("top-k 0.1%", "100mbit", 0.45, **profiled),  # nobody knows its engine's step
    ]
    head, _, *found = stages(rows).splitlines()
    assert found == [
        "| DDP with our top-k 0.1% | 100mbit | 450 | 200 | 10 | 40 | 50 | 20 | 30 | 100 | 100 |"
    ]
    names = "step | nothing sent | compensate | encode | wait | decode | copy | rest | wire"
    assert head == f"| ms | link | {names} |"
    assert stages(rows[:1]) == ""


def test_contenders_stand_beside_the_same_algorithm() -> None:
    rows = [
        *[row("plain top-k 0.1%", "1gbit", 1.0), row("plain top-k 0.1%", "100mbit", 3.0)],
        *[row("DDP with our top-k 0.1%", "1gbit", 0.25), row("top-k 1%", "1gbit", 0.25)],
    ]
    assert peers(rows).splitlines() == [
        "| | beside | 100mbit | 1gbit |",
        "|---|---|---:|---:|",
        "| DDP with our top-k 0.1% | plain top-k 0.1% |  | 4.0x |",
    ]
    assert peers(rows[:2]) == ""
    assert peers([{**one, "machine": str(at)} for at, one in enumerate(rows)]) == ""


def test_speed_ups_are_over_the_better_baseline_and_the_engine_s_own(tmp_path: Path) -> None:
    rows = [
        *[row("Horovod", "1gbit", 1.0), row("Horovod fp16", "1gbit", 0.5)],
        *[row("Horovod", "100mbit", 4.0), row("top-k 1%", "1gbit", 0.1)],
        *[row("MPI fp16", "1gbit", 0.2), row("MPI top-k 0.1%", "1gbit", 0.1)],
    ]
    lines = table(rows).splitlines()
    assert lines[0].startswith("| | MB a step | 100mbit, ms | speed-up | own | 1gbit, ms |")
    assert lines[2:] == [
        "| Horovod | 1.00 | 4000 | 1.0x | 1.0x | 1000 | 0.5x | 0.5x |",
        "| Horovod fp16 | 1.00 |  |  |  | 500 | 1.0x | 1.0x |",
        "| top-k 1% | 1.00 |  |  |  | 100 | 5.0x | 5.0x |",
        "| MPI fp16 | 1.00 |  |  |  | 200 | 2.5x | 1.0x |",
        "| MPI top-k 0.1% | 1.00 |  |  |  | 100 | 5.0x | 2.0x |",
    ]
    elsewhere = [{**one, "machine": "B"} for one in rows if one["contender"] == "MPI top-k 0.1%"]
    assert table([*rows[:5], *elsewhere]).endswith("| MPI top-k 0.1% | 1.00 |  |  |  | 100 |  |  |")
    draw(rows, "a title", tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 10_000
    draw([row("DDP", "1gbit", 1.0)], "no baseline", tmp_path / "other.png")
    assert (tmp_path / "other.png").exists()


def test_tables_say_where_they_were_measured() -> None:
    assert re.fullmatch(r".+, (scalar|avx2|avx512|neon), \d+ cores", machine())
    rows = [
        row("DDP", "1gbit", 1.0, engine="torch", machine="A"),
        row("DDP fp16", "1gbit", 1.0, engine="torch", machine="A"),
        row("Horovod", "100mbit", 1.0, engine="horovod", machine="A"),
    ]
    assert machines(rows) == "On A."
    rows.append(row("MPI", "100mbit", 1.0, engine="mpi", machine="B"))
    assert machines(rows).splitlines() == [
        "- horovod at 100mbit, torch at 1gbit: on A",
        "- mpi at 100mbit: on B",
    ]
    assert machines([row("DDP", "1gbit", 1.0)]) == ""


def test_miscounted_bytes_are_named() -> None:
    right = row("top-k 1%", "1gbit", 1.0, sent_bytes=1e6, interface_bytes=1.04e6)
    dense = row("Horovod", "1gbit", 1.0, interface_bytes=4.1e6)
    assert bookkeeping([right, dense], 4_000_000) == []
    wrong = {**right, "interface_bytes": 1.06e6}
    (line,) = bookkeeping([wrong, {**wrong, "ranks": 4}], 4_000_000)
    assert line == "top-k 1%: 1000000 bytes counted a step, the interface sent 1060000"


def test_simulated_links_are_token_buckets() -> None:
    horovod = Contender("Horovod", "horovod", "none")
    four = simulate(horovod, "resnet20", 100.0, 4, "1mbit")
    assert four is not None
    nbytes = 4 * 269_722
    assert four["interface_bytes"] == 1.5 * nbytes
    assert four["median_seconds"] == pytest.approx(0.1 + 1.5 * nbytes * 8 / 1e6)
    ours = Contender("top-k 1%", "horovod", "ours", "residual|topk(ratio=0.01)")
    sparse = simulate(ours, "resnet20", 0.0, 2, "1mbit")
    assert sparse is not None
    assert sparse["simulated"]
    assert sparse["interface_bytes"] < nbytes / 10
    assert sparse["median_seconds"] > sparse["interface_bytes"] * 8 / 1e6
    assert simulate(Contender("DDP", "torch", "none"), "resnet20", 0.0, 2, "1mbit") is None
