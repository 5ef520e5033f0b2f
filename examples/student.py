"""Two methods on clients of unlike labels: intervals, a picture, a table for LaTeX."""

import fedjax_alg as fa

digits = fa.federate("digits", num_clients=20, partition="dirichlet")
setting = dict(cohort_size=5, rounds=20, seeds=3, eval_every=2, evaluate="global")
comparison = fa.compare(
  {
    "FedAvg": fa.run("fedavg", digits, **setting),
    "SCAFFOLD": fa.run("scaffold", digits, **setting),
  }
)
(pair,) = comparison.pairs
print(f"SCAFFOLD - FedAvg: {pair.difference.mean:+.3f}, p = {pair.p:.3f}")
comparison.save("curves.png")
print(comparison.to_latex(["accuracy", "macro_f1"]))
