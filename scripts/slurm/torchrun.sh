#!/usr/bin/env bash
# A training job of torchrun under SLURM: gossip, or DDP with a compress section.
#
#   sbatch --nodes=4 scripts/slurm/torchrun.sh --config configs/digits/cnn.yaml \
#       --config configs/gossip/sgp.yaml
#
# Submit it in the checkout, which all machines share. Arguments go to scripts/train.py; options of
# sbatch win over those below. RANKS_PER_NODE (default 1), VENV (default .venv) and PORT (default
# by the job's number) are taken from the environment. The job continues from its newest checkpoint
# when SLURM has requeued it, and writes one when its time is nearly up.
#SBATCH --job-name=gradcomp
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=4
#SBATCH --time=01:00:00
#SBATCH --signal=TERM@120
#SBATCH --requeue
#SBATCH --output=slurm-%j.log
set -euo pipefail
cd "${SLURM_SUBMIT_DIR:?start this with sbatch}"

venv=${VENV:-.venv}
output=runs/slurm-$SLURM_JOB_ID
resume=()
if compgen -G "$output/checkpoints/step-*/manifest.json" >/dev/null; then
  resume=(--resume)
fi
mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")

# One torchrun on each machine, which starts the ranks there; SLURM_NODEID differs between them.
# shellcheck disable=SC2016
srun --kill-on-bad-exit=1 bash -c 'exec "$0" --node-rank "$SLURM_NODEID" "$@"' \
  "$venv/bin/torchrun" \
  --nnodes "$SLURM_JOB_NUM_NODES" \
  --nproc-per-node "${RANKS_PER_NODE:-1}" \
  --master-addr "${hosts[0]}" \
  --master-port "${PORT:-$((20000 + SLURM_JOB_ID % 10000))}" \
  scripts/train.py --engine torch --output "$output" "${resume[@]}" "$@"
