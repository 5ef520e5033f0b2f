"""What people type into the search, and the page that they should see first.

The words are main entries of the index. The search puts such an entry before words
of a text, the nearer the entry is to the whole of what is typed.
"""

import pathlib
import zlib

#: page -> words, which need not stand on it
WORDS = {
  "installation": "install, pip, gpu, cuda, tpu, jax version, out of memory",
  "tutorials": "tutorial, notebook, examples, colab",
  "notebooks/first_run": "quickstart, getting started, first run",
  "command_line": "command line, flags, presets, figures of a paper",
  "coming_from": "flower, pfllib, fedjax, pfl-research, migrate",
  "glossary": "glossary, terms, symbols",
  "data": (
    "dirichlet, non-iid, partition, own data, custom data, data set, mnist, cifar10, "
    "femnist, leaf, shakespeare, pandas, hugging face, torchvision, label skew, "
    "newcomers"
  ),
  "kinds": "feature skew, rotation, concept drift, label permutation, label noise",
  "models": (
    "custom model, own model, flax, nnx, batchnorm, running statistics, "
    "pretrained model, dropout layers, transformer, resnet, class imbalance"
  ),
  "tasks": (
    "regression, binary, multi-label, segmentation, tokens, auc, metrics, "
    "per-client accuracy"
  ),
  "personal": "personalization, personalized, fine-tuning, lora, frozen, private head",
  "optimizers": (
    "client optimizer, learning rate, learning rate schedule, momentum of clients, "
    "weight decay, gradient clipping, optax, adam"
  ),
  "server_steps": "server optimizer, server momentum, server learning rate",
  "hypergradient": "hypergradient, tune by gradient",
  "add_an_algorithm": "custom algorithm, own algorithm, new method, client update",
  "compare": (
    "confidence interval, paired test, significance, latex table, compare runs, "
    "seeds, plot"
  ),
  "run_folder": "checkpoint, resume, results file, csv, save model, load model",
  "recipes": (
    "wandb, weights & biases, mlflow, tensorboard, optuna, hyperparameter tuning, "
    "early stopping, callback"
  ),
  "hostile": (
    "byzantine, attack, robust aggregation, krum, poisoning, trimmed mean, label flip"
  ),
  "private": (
    "differential privacy, epsilon, noise multiplier, audit, secure aggregation"
  ),
  "compression": "compression, quantization, sparsification, topk, error feedback",
  "late": (
    "stragglers, dropout of clients, asynchronous, simulated clock, "
    "availability, client sampling"
  ),
  "forget": "unlearning, forget, shapley, contribution of a client",
  "speed": "speed, benchmark, memory, multi-gpu, lanes, jit, compile time",
  "distributed": "multi-host, several processes, multi-node",
  "cluster": "slurm, preemption, job array, sge",
  "deploy": "deployment, real devices, export, grpc",
  "methods": "algorithms, list of methods, baselines, which method",
  "options": "options, keywords, hyper-parameters",
  "papers": "results, reproduction, papers",
  "results/claims": "claims, verdicts",
  "checked": "mistakes, bugs of other libraries, correctness",
}

#: What researchers may type -> the pages that may come first.
QUERIES = {
  "quickstart": ("notebooks/first_run",),
  "install": ("installation",),
  "gpu": ("installation",),
  "tpu": ("installation",),
  "dirichlet": ("data",),
  "non-iid": ("data",),
  "own data": ("data", "notebooks/data_and_model"),
  "custom model": ("models",),
  "batchnorm": ("models",),
  "regression": ("tasks",),
  "personalization": ("personal",),
  "fine-tuning": ("personal",),
  "learning rate schedule": ("optimizers",),
  "server momentum": ("server_steps",),
  "custom algorithm": ("add_an_algorithm",),
  "confidence interval": ("compare",),
  "wandb": ("recipes",),
  "hyperparameter tuning": ("recipes",),
  "byzantine": ("hostile",),
  "differential privacy": ("private",),
  "quantization": ("compression",),
  "stragglers": ("late",),
  "asynchronous": ("late",),
  "unlearning": ("forget",),
  "resume": ("run_folder",),
  "slurm": ("cluster",),
}


def words_of(page):
  return [word.strip() for word in WORDS.get(page, "").split(",") if word.strip()]


def matches(query):
  """The pages whose words match a query, as Sphinx's search scores them.

  An entry of the index counts if the query is in it and has half of its length.

  Returns:
    page -> score, the best first.
  """
  scores = {}
  for page in WORDS:
    for word in words_of(page):
      if query in word and 2 * len(query) >= len(word):
        score = round(100 * len(query) / len(word))
        scores[page] = max(score, scores.get(page, 0))
  return dict(sorted(scores.items(), key=lambda item: -item[1]))


def _add(app, doctree):
  from docutils import nodes
  from sphinx import addnodes

  page = app.env.current_document.docname
  section = next(doctree.findall(nodes.section), None)
  if section is None or not words_of(page):
    return
  entries = [
    ("single", word, section["ids"][0], "main", None) for word in words_of(page)
  ]
  section.insert(1, addnodes.index(entries=entries, inline=False))
  app.env.domains.index_domain.entries.setdefault(page, []).extend(entries)


def _check(app):
  missing = [
    page for page in WORDS if not list(pathlib.Path(app.srcdir).glob(f"{page}.[im]*"))
  ]
  if missing:
    raise ValueError(f"search_words.WORDS: no page {missing}")


def setup(app):
  app.connect("builder-inited", _check)
  app.connect("doctree-read", _add)
  # Pages are read again where the words have changed.
  return {"parallel_read_safe": True, "env_version": zlib.crc32(repr(WORDS).encode())}
