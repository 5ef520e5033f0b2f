#!/usr/bin/env bash
# A sweep as a Slurm array: every task plays a part of the settings, then one
# job without an array makes the tables.
#
#   tasks=$(sbatch --parsable --array=1-8 sweep_array.sh)
#   sbatch --dependency=afterok:$tasks sweep_array.sh
#
#SBATCH --job-name=rates
#SBATCH --cpus-per-task=2
#SBATCH --time=04:00:00
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
set -euo pipefail
trap 'kill -USR1 $(jobs -p) || true' USR1 TERM  # the shell hands it on
out="${OUT:-$HOME/out/rates}"
# One folder for all tasks: what one has compiled, the others load.
export JAX_COMPILATION_CACHE_DIR="${JAX_COMPILATION_CACHE_DIR:-$HOME/.cache/fedjax_alg/jax}"

part=()
if [ -n "${SLURM_ARRAY_TASK_ID:-}" ]; then
  part=("--part=$SLURM_ARRAY_TASK_ID/$SLURM_ARRAY_TASK_COUNT")
fi
fedjax-alg sweep --algorithm=fedavg --dataset=digits --partition=classes \
  --num_clients=60 --validation_clients=10 --rounds=60 --num_seeds=3 \
  --sweep=client_lr=0.01,0.02,0.03,0.05,0.1,0.2,0.3,0.5 --noprogress \
  "$@" --out_dir="$out" ${part[@]+"${part[@]}"} &
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
