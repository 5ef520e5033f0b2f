"""A method of one's own: the server moves along the sign of the mean update.

As flags: fedjax-alg run --algorithm=examples/method_author.py:signs --server_lr=0.01
"""

import optax

import fedjax_alg as fa
from fedjax_alg.central.steps import ServerStep
from fedjax_alg.client.minibatches import LocalWork
from fedjax_alg.client.sgd import sgd_update
from fedjax_alg.hparams import hyper
from fedjax_alg.rounds.two_halves import compose


class SignsHParams(LocalWork):
  client_lr: float = hyper(0.1, "learning rate of the local steps", above=0.0)
  server_lr: float = hyper(0.01, "step of every parameter", above=0.0)


def signs(model, hparams: SignsHParams, *, map_clients):
  step = ServerStep(optax.sign_sgd(hparams.server_lr), "aggregate")
  client = sgd_update(model, hparams, hparams.client_lr)
  return compose(model, client, step, map_clients=map_clients)


if __name__ == "__main__":
  digits = fa.federate("digits", num_clients=20, partition="dirichlet")
  result = fa.run(
    signs, digits, cohort_size=5, rounds=20, eval_every=10, evaluate="global"
  )
  print(result.metrics["global"]["accuracy"][0])
