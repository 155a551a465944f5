"""Each spec in the decision table of docs/which-compressor.md trains as it stands there."""

from __future__ import annotations

import re

import pytest
from launch import ROOT, CaseJob
from workers import decisions

OF_BYTEPS = {"residual|topk(ratio=0.001)", "residual|sign"}
"""In `SPECS` of workers/byteps_cases.py, which tests/engines/test_byteps.py runs."""

OTHERS = {"the engine's own fp16", "none", "[outer steps](outer.md)"}
"""Nothing of gradcomp; outer steps, of which test_ddp.py runs the example of their page."""


@pytest.mark.parametrize("case", decisions.cases)
def test_the_specs_of_the_table_train(ddp2_horovod: CaseJob, case: str) -> None:
    ddp2_horovod.check(case)


def test_the_table_has_no_other_specs() -> None:
    page = (ROOT / "docs/which-compressor.md").read_text(encoding="utf-8")
    table = page[page.index("| your job | spec |") : page.index("\n\nThen put your spec")]
    cells = [re.split(r"(?<!\\)\|", row)[2].strip() for row in table.splitlines()[2:]]
    found = {spec.replace("\\|", "|") for cell in cells for spec in re.findall("`([^`]+)`", cell)}
    assert found == (set(decisions.ROWS) | OF_BYTEPS) - {"auto"}
    assert {cell for cell in cells if "`" not in cell} == OTHERS | {
        "none: [the preset](#the-preset)"
    }
    workers = (ROOT / "tests/engines/workers/byteps_cases.py").read_text(encoding="utf-8")
    assert [spec for spec in OF_BYTEPS if f'"{spec}"' not in workers] == []
