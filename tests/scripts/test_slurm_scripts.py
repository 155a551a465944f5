"""The scripts for SLURM, with stand-ins of SLURM's programs and of the launchers."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = sorted((ROOT / "scripts" / "slurm").glob("*.sh"))
CONFIGS = sorted(path.name for path in (ROOT / "configs" / "gossip").glob("*.yaml"))

PRINTER = '#!/bin/sh\nfor one in "$(basename "$0")" "$@"; do echo "$one"; done\n'
PROGRAMS = {
    "bin/torchrun": PRINTER,
    "bin/horovodrun": PRINTER,
    "bin/python": PRINTER,
    # On the second of two machines.
    "srun": '#!/bin/sh\nshift\nSLURM_NODEID=1 exec "$@"\n',
    "scontrol": "#!/bin/sh\necho first\necho second\n",
}


def run(script, folder, *arguments, **variables):
    for name, text in PROGRAMS.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    job = {
        "SLURM_SUBMIT_DIR": str(folder),
        "SLURM_JOB_ID": "12345",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_JOB_NODELIST": "first,second",
        "VENV": str(folder),
        "PATH": f"{folder}:{os.environ['PATH']}",
        **variables,
    }
    command = ["bash", ROOT / "scripts" / "slurm" / script, *arguments]
    return subprocess.run(command, env=job, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_bash_reads_it(path):
    subprocess.run(["bash", "-n", path], check=True)
    assert os.access(path, os.X_OK)
    for option in ("--nodes=", "--time=", "--signal=", "--requeue", "--output="):
        assert f"#SBATCH {option}" in path.read_text()


def test_torchrun(tmp_path):
    found = run("torchrun.sh", tmp_path, "--config", "a b.yaml", RANKS_PER_NODE="4")
    assert found.stdout.split("\n") == [
        *("torchrun", "--node-rank", "1", "--nnodes", "2", "--nproc-per-node", "4"),
        *("--master-addr", "first", "--master-port", "22345"),
        *("scripts/train.py", "--engine", "torch", "--output", "runs/slurm-12345"),
        *("--config", "a b.yaml", ""),
    ]


def test_horovodrun(tmp_path):
    found = run("horovodrun.sh", tmp_path, "--config", "a b.yaml", RANKS_PER_NODE="4")
    assert found.stdout.split("\n") == [
        *("horovodrun", "--gloo", "-np", "8", "-H", "first:4,second:4", f"{tmp_path}/bin/python"),
        *("scripts/train.py", "--output", "runs/slurm-12345", "--config", "a b.yaml", ""),
    ]


@pytest.mark.parametrize("script", ["torchrun.sh", "horovodrun.sh"])
def test_a_requeued_job_goes_on(script, tmp_path):
    complete = tmp_path / "runs/slurm-12345/checkpoints/step-000000000001"
    complete.mkdir(parents=True)
    (complete / "manifest.json").touch()
    assert "--output\nruns/slurm-12345\n--resume\n" in run(script, tmp_path).stdout


def test_an_array_takes_each_config_once(tmp_path):
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    (tmp_path / "scripts").symlink_to(ROOT / "scripts")
    taken = []
    for at in range(len(CONFIGS)):
        found = run("gossip-array.sh", tmp_path, SLURM_ARRAY_TASK_ID=str(at))
        taken.append(found.stdout.split("\n")[-2])
    assert taken == [f"configs/gossip/{name}" for name in CONFIGS]
    assert (
        f"#SBATCH --array=0-{len(CONFIGS) - 1}\n"
        in (ROOT / "scripts/slurm/gossip-array.sh").read_text()
    )
    beyond = run("gossip-array.sh", tmp_path, SLURM_ARRAY_TASK_ID=str(len(CONFIGS)))
    assert beyond.returncode == 2
    assert f"--array must end with {len(CONFIGS) - 1}" in beyond.stderr


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_outside_of_slurm(path, tmp_path):
    found = run(path.name, tmp_path, SLURM_SUBMIT_DIR="")
    assert found.returncode != 0
    assert "start this with sbatch" in found.stderr
