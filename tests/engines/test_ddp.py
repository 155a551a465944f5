"""Our communication hook in DistributedDataParallel; see the cases."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from launch import HERE, CaseJob, run
from workers import compiled, conservation, ddp, ddp_damaged, ddp_device, ddp_features, ddp_thread
from workers.replicas import SPECS


@pytest.mark.parametrize("case", ddp.cases)
def test_ddp(torchrun2: CaseJob, case: str) -> None:
    torchrun2.check(case)


@pytest.mark.parametrize(
    "case", {**ddp.with_horovod, **compiled.with_horovod, **conservation.with_horovod}
)
def test_with_horovod(ddp2_horovod: CaseJob, case: str) -> None:
    ddp2_horovod.check(case)


FEATURES = {
    **ddp_features.cases,
    **ddp_device.cases,
    **ddp_thread.cases,
    **compiled.cases,
    **conservation.cases,
}


@pytest.mark.parametrize("case", FEATURES)
def test_features(ddp2: CaseJob, case: str) -> None:
    ddp2.check(case)


@pytest.mark.parametrize("case", ddp.three)
def test_ddp_on_three_ranks(ddp3: CaseJob, case: str) -> None:
    ddp3.check(case)


@pytest.mark.parametrize("case", ddp.four)
def test_ddp_on_four_ranks(ddp4: CaseJob, case: str) -> None:
    ddp4.check(case)


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("name", ["torchrun2", "ddp3"])
def test_replicas(name: str, spec: str, request: pytest.FixtureRequest) -> None:
    job: CaseJob = request.getfixturevalue(name)
    of_ranks = [values[spec] for values in job.check("ddp_replicas")]
    assert all(values["identical"] and values["moved"] > 0 for values in of_ranks)
    assert of_ranks[0]["differences"] == []


def test_damaged_messages_of_another_rank() -> None:
    """A false size allocates nothing, and a short message is never read beyond its end. What Gloo itself refuses is
    no lost rank."""
    job = run(["-m", "workers.ddp_damaged"], 2, "torchrun", limit=120)
    assert job.status == 0, job.output
    refused = re.findall(r"^refused: (.*)$", job.output, re.MULTILINE)
    assert len(refused) == 2, job.output
    for text in refused:
        assert "refuses the exchange 'int16': Invalid scalar type" in text
        assert "answer" not in text
    for name in ddp_damaged.DAMAGED:
        for kind in ("allgather", "broadcast"):
            found = re.search(rf"^{kind} {re.escape(name)}: (.*)$", job.output, re.MULTILINE)
            assert found, job.output
            assert found[1].startswith(f"rank 1 sent a damaged message in the exchange '{name}'")
    for name in ddp_damaged.PAIRS:
        found = re.search(rf"^pair {re.escape(name)}: (.*)$", job.output, re.MULTILINE)
        assert found, job.output
        assert found[1].startswith(f"rank 1 sent a damaged message in the exchange '{name}+1'")


PAGES = [
    *("torch.md", "from-powersgd-hook.md", "outer.md", "fsdp.md"),
    *("algorithms/dion.md", "algorithms/demo.md"),
]


def test_examples_of_the_documentation() -> None:
    job = run(["-m", "workers.pages", *PAGES], limit=120)
    assert job.status == 0, job.output
    for page in PAGES:
        found = rf"^{page}: [1-9]\d*\.\d times fewer bytes"
        assert re.search(found, job.output, re.MULTILINE), job.output


@pytest.mark.parametrize(
    "page", [PAGES[0], *(pytest.param(page, marks=pytest.mark.full) for page in PAGES[1:])]
)
def test_an_example_as_its_page_starts_it(page: str, tmp_path: Path) -> None:
    """With the package alone on the path."""
    root = HERE.parents[1]
    example = tmp_path / "example.py"
    text = (root / "docs" / page).read_text()
    example.write_text(re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0])
    job = run([example], 2, "torchrun", {"PYTHONPATH": str(root)}, limit=120)
    assert job.status == 0, job.output
    assert re.search(r"[1-9]\d*\.\d times fewer bytes", job.output), job.output
