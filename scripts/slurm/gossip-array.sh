#!/usr/bin/env bash
# One job of torchrun.sh for each file of configs/gossip, as a job array.
#
#   sbatch --nodes=4 scripts/slurm/gossip-array.sh --config configs/digits/cnn.yaml
#
# --array=0-3 takes the first four of them; see torchrun.sh for all else.
#SBATCH --job-name=gradcomp-gossip
#SBATCH --array=0-10
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=4
#SBATCH --time=01:00:00
#SBATCH --signal=TERM@120
#SBATCH --requeue
#SBATCH --output=slurm-%A-%a.log
set -euo pipefail
cd "${SLURM_SUBMIT_DIR:?start this with sbatch}"

configs=(configs/gossip/*.yaml)
at=${SLURM_ARRAY_TASK_ID:?start this with sbatch}
if [ "$at" -ge "${#configs[@]}" ]; then
  echo "there are ${#configs[@]} files in configs/gossip; --array must end with $((${#configs[@]} - 1))" >&2
  exit 2
fi
# Called, not run by exec: SLURM sends its signal to the steps, and bash waits for them.
bash scripts/slurm/torchrun.sh "$@" --config "${configs[at]}"
