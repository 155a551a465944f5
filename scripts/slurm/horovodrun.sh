#!/usr/bin/env bash
# A training job of horovodrun under SLURM: Horovod, or gossip with --engine torch.
#
#   sbatch --nodes=4 scripts/slurm/horovodrun.sh --config configs/digits/cnn.yaml \
#       --config configs/dgc/wm5.yaml
#   sbatch --nodes=4 scripts/slurm/horovodrun.sh --engine torch --config configs/digits/cnn.yaml \
#       --config configs/gossip/sgp.yaml
#
# As torchrun.sh next to it. horovodrun starts ranks over ssh, from the first machine, which must
# reach the others without a password.
#SBATCH --job-name=gradcomp
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=4
#SBATCH --time=01:00:00
#SBATCH --signal=B:TERM@120
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
ranks_per_node=${RANKS_PER_NODE:-1}
hosts=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed "s/\$/:$ranks_per_node/" | paste -sd, -)

# exec: SLURM's signal reaches horovodrun itself.
exec "$venv/bin/horovodrun" --gloo -np $((SLURM_JOB_NUM_NODES * ranks_per_node)) -H "$hosts" \
  "$venv/bin/python" scripts/train.py --output "$output" "${resume[@]}" "$@"
