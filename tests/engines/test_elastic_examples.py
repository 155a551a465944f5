"""Scripts in the structure of Horovod's elastic examples, with one line changed and a worker killed."""

from __future__ import annotations

from pathlib import Path

import pytest
from elastic_checks import rank_0_dies
from launch import ENVIRONMENT, HERE, HOROVODRUN

from elastic.job import ElasticJob
from elastic.laws import check_replicas, complete, sizes_of
from support.forks import python

SPEC = "residual|topk(ratio=0.05)"
CHANGES = {
    "stock_elastic_example.py": (
        "compression = hvd.Compression.none",
        f"compression = Compression('{SPEC}', model.named_parameters())",
    ),
    "stock_tf_elastic_example.py": (
        "tape = hvd.DistributedGradientTape(tape)",
        "tape = hvd.DistributedGradientTape("
        f"tape, compression=Compression('{SPEC}', model.trainable_variables))",
    ),
}
IMPORTS = {
    "stock_elastic_example.py": "from horovod_compressors.torch import Compression",
    "stock_tf_elastic_example.py": "from horovod_compressors.tensorflow import Compression",
}


@pytest.mark.parametrize(
    "name",
    [
        "stock_elastic_example.py",
        pytest.param("stock_tf_elastic_example.py", marks=pytest.mark.full),
    ],
)
def test_example_with_one_line_changed(name: str, tmp_path: Path) -> None:
    text = (HERE / "workers" / name).read_text()
    old, new = CHANGES[name]
    assert text.count(old) == 1
    imports = "from elastic.job import log_row\n"
    script = tmp_path / name
    script.write_text(text.replace(old, new).replace(imports, imports + IMPORTS[name] + "\n"))
    (tmp_path / "last").write_text("1000000")
    hosts = {"localhost": 1, "127.0.0.1": 1}
    environment = {**ENVIRONMENT, "TF_USE_LEGACY_KERAS": "1"}
    job = ElasticJob(tmp_path, [str(script)], hosts, HOROVODRUN, environment, python())
    try:
        lives = rank_0_dies(job, tmp_path / "last")
    finally:
        job.stop()
    assert {1, 2} == set(sizes_of(lives))
    check_replicas(lives)
    for life in lives:
        for rows in complete(life).values():
            sent, size = rows[0]["sent"], rows[0]["size"]
            # A rank that is alone applies all of its gradient.
            assert 0 < sent <= 0.05 * size + 1e-3 if size > 1 else sent > 0.2
