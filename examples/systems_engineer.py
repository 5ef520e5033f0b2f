"""A run that is interrupted, goes on from its folder, and ends with the same bits."""

import contextlib

import fedjax_alg as fa

digits = fa.federate("digits", num_clients=20, partition="dirichlet")
setting = dict(cohort_size=5, rounds=20, eval_every=5, evaluate="global")


def preempt(step):
  if step.round == 10:  # as a scheduler would
    raise KeyboardInterrupt


with contextlib.suppress(KeyboardInterrupt):
  fa.run("fedavg", digits, out_dir="out/run", callbacks=preempt, **setting)
resumed = fa.run("fedavg", digits, out_dir="out/run", **setting)
print("rounds:", resumed.rounds[-1], "bytes up:", resumed.history["bytes_up"].sum())
whole = fa.run("fedavg", digits, **setting)
print("same bits:", resumed.state_hash() == whole.state_hash())
