"""PowerSGD: the reference's data, its laws, its state; see docs/algorithms/powersgd.md."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gradcomp import Config, Loopback
from gradcomp.aggregators.powersgd import PowerSGD

REFERENCE = Path(__file__).resolve().parents[1] / "golden" / "reference"
LIBRARY = [f"powersgd-0{number}" for number in range(1, 6)]
PAPER = [f"powersgd-rankk-0{number}" for number in range(1, 4)]

Array = npt.NDArray[Any]


def config_of(spec: str, seed: int = 0) -> Config:
    """The spec for every tensor, small ones too."""
    rules = [{"match": {}, "use": spec}]
    return Config.from_mapping(
        {"version": 1, "seed": seed, "compress": {"default": spec, "rules": rules}}
    )


def reference(case: str) -> tuple[dict[str, Any], dict[str, Array]]:
    folder = REFERENCE / case
    return json.loads((folder / "case.json").read_text()), dict(np.load(folder / "arrays.npz"))


def matrix_shape(shape: list[int]) -> tuple[int, int]:
    return shape[0], int(np.prod(shape[1:]))


def vectors(factor: Array) -> Array:
    """The reference's factor, [n, rank], as the state has it."""
    return np.ascontiguousarray(factor.T, np.float32).reshape(-1)


def inject(loop: Loopback, factors: dict[str, dict[str, Array]]) -> None:
    for pipeline in loop.ranks:
        pipeline.load_state_dict({**pipeline.state_dict(), **factors})


# ----------------------------------------------------------------------------- the reference's data


def library_spec(config: dict[str, Any], orthogonalization: str) -> str:
    return (
        f"powersgd(rank={config['rank']},iters_per_step={config['num_iters_per_step']},"
        f"min_compression_rate={config.get('min_compression_rate', 0)},"
        f"start_step={config.get('start_compressing_after_num_steps', 0)},"
        f"orthogonalization={orthogonalization})"
    )


def initial_factors(about: dict[str, Any], arrays: dict[str, Array]) -> dict[str, Any]:
    """Of the reference's flat buffers: groups of matrices of one shape."""
    factors: dict[str, Any] = {"powersgd_p": {}, "powersgd_q": {}}
    for kind, buffer, side in (("powersgd_p", "p_init", 0), ("powersgd_q", "q_init", 1)):
        at = 0
        for group in about["config"]["groups"]:
            n, rank = group["matrix_shape"][side], group["rank"]
            for name in group["tensors"]:
                factors[kind][name] = vectors(arrays[buffer][at : at + n * rank].reshape(n, rank))
                at += n * rank
        assert at == arrays[buffer].size
    return factors


@pytest.mark.parametrize("orthogonalization", ["gram_schmidt", "qr", "cholesky"])
@pytest.mark.parametrize("case", LIBRARY)
def test_the_library_variant_is_the_reference_one(case: str, orthogonalization: str) -> None:
    about, arrays = reference(case)
    loop = Loopback(
        config_of(library_spec(about["config"], orthogonalization)), about["world_size"]
    )
    inject(loop, initial_factors(about, arrays))
    names = list(about["tensors"])
    # Where the reference normalises matrices of one shape together, ours is right instead; see
    # test_matrices_of_one_shape_do_not_disturb_each_other.
    if about["defect"]:
        assert about["config"]["groups"][0]["group_size"] > 1
        names = [*about["config"]["groups"][1]["tensors"], "bias"]
    # Case 05 was computed in float64.
    rtol = max(about["tolerance"]["rtol"], 1e-4)
    atol = max(about["tolerance"]["atol"], 1e-5)
    for step in range(about["steps"]):
        sent = [rank.stats.total_bytes for rank in loop.ranks]
        grads = {name: list(arrays[f"grad.{name}"][step]) for name in about["tensors"]}
        averages = loop.step(grads)
        for name in names:
            for rank, average in enumerate(averages[name]):
                expected = arrays[f"avg.{name}"][step]
                np.testing.assert_allclose(average, expected, rtol=rtol, atol=atol)
                residuals = loop.ranks[rank].state_dict()["residual"]
                residual = residuals.get(name, np.zeros(average.size, np.float32))
                np.testing.assert_allclose(
                    residual.reshape(average.shape),
                    arrays[f"residual.{name}"][step, rank],
                    rtol=rtol,
                    atol=atol,
                )
        if "floats_sent" in arrays:
            for before, rank in zip(sent, loop.ranks, strict=True):
                assert rank.stats.total_bytes - before == 4 * arrays["floats_sent"][step]


@pytest.mark.parametrize("case", [case for case in LIBRARY if reference(case)[0]["defect"]])
def test_matrices_of_one_shape_do_not_disturb_each_other(case: str) -> None:
    """What the reference gets wrong: each matrix has the results that it has by itself."""
    about, arrays = reference(case)
    spec = library_spec(about["config"], "gram_schmidt")
    together = Loopback(config_of(spec), about["world_size"])
    factors = initial_factors(about, arrays)
    inject(together, factors)
    group = about["config"]["groups"][0]["tensors"]
    alone = {}
    for name in group:
        alone[name] = Loopback(config_of(spec), about["world_size"])
        inject(alone[name], {kind: {name: factors[kind][name]} for kind in factors})
    differs = False
    for step in range(about["steps"]):
        averages = together.step({name: list(arrays[f"grad.{name}"][step]) for name in group})
        for name in group:
            (expected, *_) = alone[name].step({name: list(arrays[f"grad.{name}"][step])})[name]
            np.testing.assert_array_equal(averages[name][0], expected)
            differs |= not np.allclose(expected, arrays[f"avg.{name}"][step], rtol=1e-2)
    assert differs


def paper_spec(config: dict[str, Any], orthogonalization: str) -> str:
    return (
        f"powersgd(rank={config['rank']},min_compression_rate=0,start_step=0,variant=paper,"
        f"warm_start={str(config['reuse_query']).lower()},orthogonalization={orthogonalization})"
    )


@pytest.mark.parametrize("orthogonalization", ["gram_schmidt", "qr", "cholesky"])
@pytest.mark.parametrize("case", PAPER)
def test_the_papers_variant_is_the_reference_one(
    case: str, orthogonalization: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    about, arrays = reference(case)
    config = about["config"]
    monkeypatch.setattr(  # the reference's draws in place of ours
        PowerSGD,
        "draw",
        lambda self, kind, one: vectors(
            arrays[f"q_draw.{0 if config['reuse_query'] else one.step}.{one.key.name}"]
        ),
    )
    loop = Loopback(config_of(paper_spec(config, orthogonalization)), about["world_size"])
    rtol, atol = about["tolerance"]["rtol"], about["tolerance"]["atol"]
    for step in range(about["steps"]):
        averages = loop.step(
            {name: list(arrays[f"grad.{name}"][step]) for name in about["tensors"]}
        )
        for name in about["tensors"]:
            for rank, average in enumerate(averages[name]):
                np.testing.assert_allclose(average, arrays[f"out.{name}"][step], rtol, atol)
                residuals = loop.ranks[rank].state_dict()["residual"]
                residual = residuals.get(name, np.zeros(average.size, np.float32))
                expected = arrays[f"memory.{name}"][step, rank]
                np.testing.assert_allclose(residual.reshape(average.shape), expected, rtol, atol)
        if orthogonalization != "qr":  # whose signs are free
            state = loop.ranks[0].state_dict()
            for kind, buffer, side in (("powersgd_p", "p_state", 0), ("powersgd_q", "q_state", 1)):
                flat = []
                for name, rank in about["matrix_rank_per_tensor"].items():
                    n = matrix_shape(about["tensors"][name])[side]
                    flat.append(state[kind][name].reshape(rank, n).T.reshape(-1))
                np.testing.assert_allclose(
                    np.concatenate(flat), arrays[buffer][step], rtol=1e-3, atol=10 * atol
                )
