"""The synthetic(alpha, beta) data of FedProx."""

import numpy as np

from fedjax_alg.data.examples import Examples, check_memory
from fedjax_alg.data.sources import DataSet
from fedjax_alg.hparams import hyper

_DIM = 60
_CLASSES = 10
#: Copies of the examples in memory at once: as they are generated, as one
#: array, and in the order of the clients.
_COPIES = 3
_MOST_DEVIATION = 1e6


def client_sizes(num_clients: int, seed: int) -> np.ndarray:
  """n_k of the clients of ``synthetic``, training and test rows, [C] int64."""
  return _sizes(num_clients, np.random.default_rng(seed))


def _sizes(num_clients: int, rng: np.random.Generator) -> np.ndarray:
  return rng.lognormal(4.0, 2.0, num_clients).astype(np.int64) + 50


def synthetic(
  alpha: float, beta: float, num_clients: int, seed: int, iid: bool = False
) -> Examples:
  """Generates softmax-regression data with different models and inputs.

  This is the generator of the FedProx repository (Li et al. 2020). It differs
  from the paper: alpha and beta are standard deviations, not variances. Client
  k has n_k = int(LogNormal(4, 2)) + 50 examples; u_k ~ N(0, alpha); v_k ~ N(0,
  beta); the entries of m_k ~ N(v_k, 1); the entries of W_k [60, 10] and b_k
  [10] ~ N(u_k, 1); x ~ N(m_k, diag(j^-1.2)); y = argmax(x W_k + b_k). The
  first int(.9 n_k) rows are for training.

  Two warnings. First, u_k raises the logits of all classes equally and so does
  not change the argmax: alpha has no effect on the labels, in the published
  code as well. The clients' models differ because of the N(0, 1) entries of
  W_k, for every alpha. Second, the published generator sets no seed: our data
  have the same distribution as its files but are not equal to them.

  Args:
    alpha: standard deviation of u_k, >= 0; it has no effect, see above.
    beta: standard deviation of v_k, >= 0; decides how much the inputs differ.
    num_clients: C; 30 in FedProx, 100 in FedGroup.
    seed: seed of all random numbers.
    iid: whether all clients share one W and b ~ N(0, 1) and m_k = 0; alpha and
      beta are then not used.

  Returns:
    x float32 [n, 60], 10 classes, with client ids.

  Raises:
    DataError: more examples than fit into memory.
  """
  rng = np.random.default_rng(seed)
  size = _sizes(num_clients, rng)
  check_memory(
    f"`num_clients`={num_clients}: {size.sum():,} examples",
    _COPIES * 4 * (_DIM + 2) * float(size.sum()),
  )
  deviation = np.arange(1, _DIM + 1) ** -0.6  # square root of j^-1.2
  shared = rng.normal(size=(_DIM + 1, _CLASSES))
  train, test = [], []
  for client, n in enumerate(size):
    if iid:
      mean, weights = np.zeros(_DIM), shared
    else:
      mean = rng.normal(rng.normal(0, beta), 1, _DIM)
      weights = rng.normal(rng.normal(0, alpha), 1, (_DIM + 1, _CLASSES))
    x = mean + deviation * rng.normal(size=(n, _DIM))
    y = np.argmax(x @ weights[:-1] + weights[-1], axis=1).astype(np.int32)
    rows = x.astype(np.float32), y, np.full(n, client, np.int32)
    split = int(0.9 * n)
    train.append([part[:split] for part in rows])
    test.append([part[split:] for part in rows])
  x_train, y_train, client_train = map(np.concatenate, zip(*train))
  x_test, y_test, client_test = map(np.concatenate, zip(*test))
  name = "synthetic_iid" if iid else f"synthetic({alpha:g},{beta:g})"
  return Examples(
    x_train=x_train,
    y_train=y_train,
    x_test=x_test,
    y_test=y_test,
    num_classes=_CLASSES,
    client_train=client_train,
    client_test=client_test,
    name=name,
  )


class Synthetic(DataSet):
  """Synthetic(alpha, beta) of FedProx, generated for each client."""

  WORD, EXAMPLE = "synthetic", "synthetic:0.5,0.5"
  HAS_CLIENTS, CLIENTS, INPUTS = True, 30, 60
  READS = ("num_clients", "partition_seed")

  alpha: float = hyper(
    1.0, "how much the clients' models differ", minimum=0, maximum=_MOST_DEVIATION
  )
  beta: float = hyper(
    1.0, "how much the clients' inputs differ", minimum=0, maximum=_MOST_DEVIATION
  )
  iid: bool = hyper(
    False, "whether all clients share one model and one input distribution"
  )

  def load(self, num_clients: int, seed: int) -> Examples:
    """Generates the clients (``synthetic``)."""
    return synthetic(self.alpha, self.beta, num_clients, seed, self.iid)
