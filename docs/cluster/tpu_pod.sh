#!/usr/bin/env bash
# One run on all hosts of a TPU pod slice, which find each other by themselves.
#
#   TPU=my-v5e-32 ZONE=us-west4-a OUT=/mnt/shared/out/cifar10 ./tpu_pod.sh
#
# OUT and the cache lie on a file system with locks that all hosts mount, such as
# Filestore. A bucket (gcsfuse) is refused: copy OUT into it when the run is finished.
# On every host: pip install 'fedjax_alg[tpu]'.
set -euo pipefail
: "${TPU:?name of the slice}" "${ZONE:?zone of the slice}" "${OUT:?shared folder}"

command="JAX_COMPILATION_CACHE_DIR=${CACHE:-$(dirname "$OUT")/jax_cache} \
  fedjax-alg run --distributed --algorithm=scaffold --dataset=cifar10 \
  --model=cnn --rounds=2000 --eval_every=50 --noprogress \
  --out_dir=$OUT"

# 75: saved, not finished. A slice that is preempted has to be made anew first.
while :; do
  status=0
  gcloud compute tpus tpu-vm ssh "$TPU" --zone="$ZONE" --worker=all \
    --command="$command" || status=$?
  [ "$status" -eq 75 ] || exit "$status"
done
