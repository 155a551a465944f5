"""BytePS jobs with error feedback that follows learning rates and loss scales."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_byteps import BytepsJob, run, run_cases

CASES = [
    *("rates", "optimizer_rates", "rates_without_plugin", "loss_scales", "grad_scaler"),
    "wrong_values",
]


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> BytepsJob:
    """Two workers, two servers."""
    folder = tmp_path_factory.mktemp("rates")
    return run_cases(folder, 2, 2, CASES, "workers.byteps_rates")


@pytest.mark.parametrize("case", CASES)
def test_two_workers_two_servers(job: BytepsJob, case: str) -> None:
    job.check(case)


def test_an_unknown_rate_ends_the_job(tmp_path: Path) -> None:
    script = (
        "import byteps.torch as bps, torch\n"
        "from byteps.torch import ops\n"
        "from byteps_compressors.torch import attach\n"
        "bps.init()\n"
        "grad = torch.zeros(100, 100)\n"
        "attach([('w', grad)], 'residual(lr=scale)|sign')\n"
        "ops.synchronize(ops.push_pull_async_inplace(grad, name='Gradient.w'))\n"
    )
    done = run(tmp_path, 2, 1, "-c", script)
    assert done.returncode == 1
    assert "the learning rate, which is unknown" in done.stdout + done.stderr
    assert "or call set_lr(lr) on the result of attach" in done.stdout + done.stderr
