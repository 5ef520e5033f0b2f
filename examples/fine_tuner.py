"""A small language model, adapted to poems of two clients who share adapters alone."""

import jax
import numpy as np

import fedjax_alg as fa
from fedjax_alg import models
from fedjax_alg.data import characters

POEMS = (
  "Shall I compare thee to a summer's day? Thou art more lovely and more temperate.",
  "Let me not to the marriage of true minds admit impediments. Love is not love.",
)
ids = [characters.encode_text(poem) for poem in POEMS]
rows = np.stack([poem[t : t + 25] for poem in ids for t in range(40)])
clients = np.repeat([0, 1], 40)
poems = fa.federate(fa.from_arrays(rows[:, :-1], rows[:, 1:], clients, task="tokens"))
small = dict(model="transformer:d_model=32,blocks=1,heads=2", evaluate="global")
fit = dict(client_optimizer="adam", client_lr=0.01, local_epochs=2, participation=1.0)
base = fa.run("fedavg", poems, rounds=5, **small, **fit)
fit |= dict(lora=fa.FedExLoRA(4), roles="lora")
tuned = fa.run("fedavg", poems, rounds=15, init=base.client_params(0), **small, **fit)
print([run.metrics["global"]["perplexity"][0, -1] for run in (base, tuned)])
params = jax.tree.map(lambda leaf: leaf[0], tuned.global_params())
ids = characters.encode_text("Shall I ")
ids = models.generate(tuned.prepared.model, params, ids, 30, window=24)
print(characters.decode_text(ids))
