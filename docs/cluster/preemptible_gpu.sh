#!/usr/bin/env bash
# A run on a GPU that may be taken away at any time. Two minutes before the end,
# or when the job is preempted, the run is saved, and the job queued again.
#
#   sbatch preemptible_gpu.sh
#
#SBATCH --job-name=femnist
#SBATCH --partition=preemptible
#SBATCH --gres=gpu:1
#SBATCH --cpus-per-task=8
#SBATCH --mem=32G
#SBATCH --time=08:00:00
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
set -euo pipefail
trap 'kill -USR1 $(jobs -p) || true' USR1 TERM  # the shell hands it on
out="${OUT:-$HOME/out/femnist_cnn}"
export JAX_COMPILATION_CACHE_DIR="${JAX_COMPILATION_CACHE_DIR:-$HOME/.cache/fedjax_alg/jax}"

# starts the first time. Every 5 minutes a checkpoint: a node that dies
# gives no signal. 60 s for the rounds that are being computed, 60 to save.
fedjax-alg run --algorithm=fedavg --dataset=femnist --model=cnn \
  --rounds=2000 --eval_every=50 --noprogress --checkpoint_every_s=300 \
  --grace_s=60 "$@" --out_dir="$out" &
job=$!
while :; do  # a signal ends `wait`, not the job
  status=0
  wait "$job" || status=$?
  kill -0 "$job" 2>/dev/null || break
done
if [ "$status" -eq 75 ]; then  # saved, not finished
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
