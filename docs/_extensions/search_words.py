"""What people type into the search, and the page that they should see first.

The words are main entries of the index. The search puts such an entry before words
of a text, the nearer the entry is to the whole of what is typed. Names of the public
interface are such entries, too.

Texts are ranked by how often a page has a word (``docs/_css/search_rank.js``). The
numbers are counted here when Sphinx reads a page: a word in a heading counts several
times, and so does a word of the page in WORDS.

search_issues.csv has searches that were made of titles of public issues before anybody
saw what they find. Nothing here may be written for them.
"""

import collections
import csv
import functools
import json
import pathlib
import re
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
  "large": ("large data, larger than memory, disk, streaming, inaturalist, landmarks"),
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


#: How often a word counts besides: in bold or the first cell of a row, in a heading,
#: in the title, in WORDS.
LEAD, HEADING, TITLE, LISTED = 0.5, 6, 16, 20


def issue_queries():
  """What is typed -> the pages that may come first, from titles of public issues."""
  path = pathlib.Path(__file__).with_name("search_issues.csv")
  with path.open(encoding="utf-8", newline="") as file:
    return {row["query"]: row["pages"].split() for row in csv.DictReader(file)}


def entries_of(page):
  """The main entries of the index of a page."""
  name = re.fullmatch(r"_api/fedjax_alg\.(\w+)", page)
  return [f"fa.{name[1].lower()}"] if name else words_of(page)


def split_words(words):
  """Words, and the parts of those with an underscore."""
  for word in words:
    yield word
    if "_" in word:
      yield from filter(None, word.split("_"))


@functools.cache
def _language():
  from sphinx.search.en import SearchEnglish

  return SearchEnglish({})


@functools.cache
def _stem(word):
  return _language().stem(word.lower()).lower()


def stems(words):
  """The stems of words, without those that are too frequent to be searched for."""
  for word in words:
    stem = _stem(word)
    if _language().word_filter(stem) and not word.isdigit():
      yield stem


def _counts(app):
  """page -> its words, those of its headings and of its title, as stems."""
  if not hasattr(app.env, "search_counts"):
    app.env.search_counts = {}
  return app.env.search_counts


def count_words(doctree):
  """Counts the stems of a page.

  Returns:
    Its words, those in bold and in the first cell of a row (which say what the
    following is about), those of its headings, and the different stems of its title.
  """
  from docutils import nodes
  from sphinx import search

  language, store = _language(), search.WordStore()
  search._feed_visit_nodes(
    doctree, word_store=store, split=language.split, language="en"
  )
  leads = [row.next_node(nodes.entry) for row in doctree.findall(nodes.row)]
  leads += doctree.findall(nodes.strong)
  lead_words = [word for node in leads for word in language.split(node.astext())]
  title = next(doctree.findall(nodes.title), None)
  return (
    *(
      collections.Counter(stems(split_words(words)))
      for words in (store.words, lead_words, store.title_words)
    ),
    list(dict.fromkeys(stems(language.split(title.astext() if title else "")))),
  )


def _count(app, doctree):
  _counts(app)[app.env.current_document.docname] = count_words(doctree)


def _forget(app, env, page):
  del env
  _counts(app).pop(page, None)


def _merge(app, env, pages, other):
  del env
  for page in pages:
    if page in getattr(other, "search_counts", {}):
      _counts(app)[page] = other.search_counts[page]


def numbers_of(page, words, leads, headings, title):
  """stem -> how much a page is about it.

  Args:
    page: its name.
    words: stem -> how often it is in the text.
    leads: stem -> how often it is in bold or in the first cell of a row.
    headings: stem -> how often it is in a heading.
    title: the stems of the title.
  """
  numbers = collections.Counter(words)
  for weight, of in ((LEAD, leads), (HEADING, headings)):
    for stem, count in of.items():
      numbers[stem] += weight * count
  listed = stems(word for entry in words_of(page) for word in re.findall(r"\w+", entry))
  for stem in dict.fromkeys(title):
    numbers[stem] += TITLE
  for stem in dict.fromkeys(listed):
    numbers[stem] += LISTED
  return numbers


def search_counts(counts):
  """What ``search_rank.js`` reads, of ``_counts``.

  Returns:
    counts: stem -> place of a page -> number; lengths: page -> its number of words;
    titles: page -> stems.
  """
  pages = sorted(counts)
  table = collections.defaultdict(dict)
  for place, page in enumerate(pages):
    for stem, number in numbers_of(page, *counts[page]).items():
      table[stem][place] = number
  return {
    "counts": dict(sorted(table.items())),
    "lengths": {page: sum(counts[page][0].values()) for page in pages},
    "titles": {page: counts[page][-1] for page in pages},
  }


def _write(app, exception):
  if exception is not None or app.builder.format != "html":
    return
  text = json.dumps(search_counts(_counts(app)), separators=(",", ":"))
  path = pathlib.Path(app.outdir) / "_static" / "search_counts.js"
  path.write_text(f"const SEARCH_COUNTS = {text};\n", "utf-8")


def _load(app, pagename, templatename, context, doctree):
  del templatename, context, doctree
  if pagename == "search":  # both run before the search begins
    app.add_js_file("search_counts.js", loading_method="defer")
    app.add_js_file("search_rank.js", loading_method="defer")


def _add(app, doctree):
  from docutils import nodes
  from sphinx import addnodes

  page = app.env.current_document.docname
  section = next(doctree.findall(nodes.section), None)
  if section is None or not entries_of(page):
    return
  entries = [
    ("single", word, section["ids"][0], "main", None) for word in entries_of(page)
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
  app.connect("doctree-read", _count)
  app.connect("doctree-read", _add)
  app.connect("env-purge-doc", _forget)
  app.connect("env-merge-info", _merge)
  app.connect("html-page-context", _load)
  app.connect("build-finished", _write)
  # Pages are read again where the words have changed, or what is counted of them.
  version = zlib.crc32(repr((WORDS, 1)).encode())
  return {"parallel_read_safe": True, "env_version": version}
