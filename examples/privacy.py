"""Private clients: the accuracy with three noises, and the epsilon that each spends."""

import fedjax_alg as fa

digits = fa.federate("digits", num_clients=100, partition="iid")
noises = fa.sweep(
  "fedavg",
  digits,
  grid={"private.noise": [0.5, 1.0, 2.0]},
  private=fa.FixedClipping(clip=1.0),
  sampling="poisson",
  participation=0.2,
  rounds=20,
  eval_every=20,
  evaluate="global",
)
for run in noises.results:
  accuracy = run.metrics["global"]["accuracy"][0, -1]
  print(f"epsilon {run.history['epsilon'][0, -1]:6.2f}  accuracy {accuracy:.3f}")
