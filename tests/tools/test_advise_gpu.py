"""`gradcomp advise --gpu`: steps of DDP on NCCL, from times of a GPU."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gradcomp import load_config
from gradcomp.cli.app import app
from gradcomp.exchange.link import dense_link_bytes
from gradcomp.tools.advise.gpu import FP16_HOOK, GPU_SPECS, H100, NO_HOOK, GpuTimes, advise_gpu
from gradcomp.tools.advise.predict import Job
from gradcomp.tools.advise.wire import ENGINES
from gradcomp.tools.model_shapes import model_shapes
from gradcomp.tools.step_model import Link

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results" / "gpu" / "results.json"
SHAPES = model_shapes("resnet50")
BYTES = 4 * 25_557_032


def job(gbits: float, ranks: int = 8, compute: float = 0.1, per_node: int = 1) -> Job:
    return Job(SHAPES, ranks, Link(1e9 * gbits), ENGINES["torch"], compute, ranks_per_node=per_node)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["advise", "resnet50", *arguments])


def test_times_of_the_h100_are_those_of_the_results() -> None:
    found = GpuTimes.of(json.loads(RESULTS.read_text()))
    assert found.machine == H100.machine
    assert found.hooks == pytest.approx(H100.hooks, rel=1e-3)
    assert found.added == pytest.approx(H100.added, rel=1e-3)
    assert found.read == pytest.approx(H100.read, rel=1e-3)


@pytest.mark.parametrize("gbits", [10, 25, 100, 200, 400])
def test_a_step_without_a_hook_is_its_computation_and_what_it_does_not_hide(gbits: float) -> None:
    (alone,) = (row for row in advise_gpu(job(gbits), [], H100) if row.name == NO_HOOK)
    wire = dense_link_bytes(BYTES, 8) / (0.85 * gbits * 1e9 / 8)
    assert alone.prediction.stages["wire"] == pytest.approx(wire)
    assert alone.prediction.seconds == pytest.approx(0.1 + max(0, wire - 0.2 / 3))
    assert alone.speedup == 1


def test_compression_does_not_pay_where_the_backward_pass_hides_the_exchange() -> None:
    best, second, *_ = advise_gpu(job(100), GPU_SPECS, H100)
    assert best.name == NO_HOOK
    assert second.name == FP16_HOOK


def test_compression_pays_on_slow_links_from_device_to_device() -> None:
    advices = advise_gpu(job(1), GPU_SPECS, H100)
    best = advices[0]
    assert best.device == "direct"
    assert best.candidate is not None
    assert best.speedup > 5
    slower = [row.prediction.seconds for row in advices]
    assert slower == sorted(slower)


def test_messages_of_more_ranks_take_longer() -> None:
    def gathered(ranks: int) -> float:
        (row,) = (
            row
            for row in advise_gpu(job(1000, ranks), ["residual|int8"], H100)
            if row.device == "direct" and row.candidate and row.candidate.pattern == "gather"
        )
        return row.prediction.stages["hook"]

    assert gathered(64) - gathered(8) == pytest.approx(
        56 * 25_557_032 * H100.added["residual|int8"]
    )


def test_gpus_of_a_node_share_its_link_in_direct_messages() -> None:
    def scattered(per_node: int) -> float:
        (row,) = (
            row
            for row in advise_gpu(job(100, 64, per_node=per_node), ["residual|int8"], H100)
            if row.device == "direct" and row.candidate and row.candidate.pattern == "sra"
        )
        return row.prediction.link_bytes

    # Half of the bytes travel in a ring, and the other half goes from each GPU to 56 of 63 others.
    assert scattered(8) / scattered(1) == pytest.approx((1 + 8 * 56 / 63) / 2)
    assert scattered(64) == 0


def test_top_k_from_device_to_device_does_not_gather() -> None:
    """Bytes of a bucket's messages, which grow little with the nodes; slots to spare count once for a bucket."""

    def bytes_of(ranks: int, pattern: str) -> float:
        (row,) = (
            row
            for row in advise_gpu(job(25, ranks), ["residual|topk(ratio=0.01)"], H100)
            if row.device == "direct" and row.candidate and row.candidate.pattern == pattern
        )
        return row.prediction.link_bytes

    for ranks in (8, 64):
        kept = 0.01 * 25_557_032
        # 5.1 bytes of an element that is sent, and again of one that is chosen.
        expected = 2 * (ranks - 1) / ranks * 5.1 * kept
        assert expected < bytes_of(ranks, "sparse_allreduce") < 1.25 * expected
        assert bytes_of(ranks, "gather") > 3.2 * ranks / 8 * bytes_of(ranks, "sparse_allreduce")
    (first, *_) = (
        row
        for row in advise_gpu(job(25, 64, 0.05), ["residual|topk(ratio=0.01)"], H100)
        if row.device == "direct" and row.candidate
    )
    assert first.candidate is not None
    assert first.candidate.pattern == "sparse_allreduce"


@pytest.mark.parametrize("spec", ["randomk(ratio=0.01)", "residual|topk(ratio=0.01,values=int8)"])
def test_codecs_that_do_not_go_to_peers_have_no_direct_rows(spec: str) -> None:
    assert {row.device for row in advise_gpu(job(25), [spec], H100) if row.candidate} <= {
        "auto",
        "host",
    }


def test_the_text_says_whose_times_they_are_and_when_to_leave_the_script() -> None:
    result = run("--ranks", "8", "--bandwidth", "400000", "--compute", "100", "--gpu", "h100")
    assert result.exit_code == 0, result.output
    text = " ".join(result.output.split())
    assert "Times of hooks: not of your GPU, but of one run on NVIDIA H100" in text
    assert "links of 400 Gbit/s" in text
    assert "Do not compress: leave the script as it is." in text


def test_another_hook_may_be_the_best() -> None:
    text = " ".join(
        run(
            "--ranks", "8", "--bandwidth", "25000", "--compute", "50", "--gpu", "h100"
        ).output.split()
    )
    assert f"Do not use gradcomp here: {FP16_HOOK} is predicted to be faster." in text


def test_times_of_a_file_are_measured_ones_and_the_configuration_is_valid(tmp_path: Path) -> None:
    result = run("--ranks", "64", "--bandwidth", "1000", "--gpu", str(RESULTS))
    assert result.exit_code == 0, result.output
    assert "Times of hooks: measured on NVIDIA H100" in " ".join(result.output.split())
    assert "With compress.device: host, the default" not in result.output
    path = tmp_path / "compress.yaml"
    path.write_text(result.output.split("compress.yaml:")[1])
    assert load_config([path]).compress.device == "direct"


def test_json_has_every_exchange() -> None:
    result = run("--ranks", "8", "--bandwidth", "100000", "--gpu", "h100", "--json")
    found = json.loads(result.output)
    assert (found["gpu"], found["measured"]) == (H100.machine, False)
    ways = {(row["spec"], row["device"], row["pattern"]) for row in found["candidates"]}
    assert {("residual|int8", "direct", "sra"), ("residual|int8", "direct", "gather")} <= ways


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--gpu", "missing.json"], "cannot be read (No such file or directory)"),
        (["--gpu", "h100", "--engine", "horovod"], "--engine is given, and --gpu predicts DDP"),
        (["--gpu", "h100", "--cores", "4"], "--cores is given, and --gpu predicts DDP"),
        (["--gpu", "h100", "--spec", "adaptive(rate=1)"], "no times on a GPU for adaptive"),
    ],
)
def test_wrong_input(arguments: list[str], message: str) -> None:
    result = run("--ranks", "4", "--bandwidth", "1000", *arguments)
    assert result.exit_code != 0
    assert message in " ".join(result.output.split())


def test_an_incomplete_file_is_refused(tmp_path: Path) -> None:
    results = json.loads(RESULTS.read_text())
    path = tmp_path / "results.json"
    path.write_text(json.dumps({**results, "steps": results["steps"][1:]}))
    text = " ".join(run("--ranks", "4", "--bandwidth", "1000", "--gpu", str(path)).output.split())
    assert "is no complete results.json" in text
    assert "no hook" in text


def test_a_spec_without_times_on_this_device_has_no_row() -> None:
    times = replace(H100, hooks={n: t for n, t in H100.hooks.items() if not n.endswith("direct")})
    assert not [row for row in advise_gpu(job(1), GPU_SPECS, times) if row.device == "direct"]
