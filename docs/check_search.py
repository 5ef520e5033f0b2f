"""Measures which page of the built pages a search shows first.

  python docs/check_search.py [docs/_build/html] [WORDS ...]

Without words it searches for ``search_words.QUERIES`` and for the queries of
search_issues.csv. It prints how many show their page first, and those of the former
that do not; it fails if too many do not. The queries of issues are not printed: nobody
should write entries for them. The scores are those of Sphinx's searchtools.js with
docs/_css/scorer.js and docs/_css/search_rank.js.
"""

import json
import math
import pathlib
import re
import sys

DOCS = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS / "_extensions"))

import search_words  # noqa: E402  pylint: disable=wrong-import-position

DEFAULT = DOCS / "_build" / "html"
#: Another page may be first for so many queries: of ours, of titles of issues.
MOST_WRONG, MOST_WRONG_ISSUES = 4, 10
CSS = DOCS / "_css"


def read_scorer(text):
  """Reads docs/_css/scorer.js: (beginning of a page, by how much less), scores."""
  lowered = [
    (start, int(less)) for start, less in re.findall(r'\["(.*?)", (\d+)\]', text)
  ]
  scores = {name: int(n) for name, n in re.findall(r"^  (\w+): (\d+),$", text, re.M)}
  objects = dict(
    (int(key), int(n))
    for key, n in re.findall(
      r"(\d): (-?\d+)", re.search(r"objPrio: \{(.*?)\}", text)[1]
    )
  )
  return lowered, scores, objects


def read_rank(text):
  """Reads docs/_css/search_rank.js: (beginning of a page, factor), words, numbers."""
  priors = [
    (start, float(factor))
    for start, factor in re.findall(r'\["(.*?)", ([\d.]+)\]', text)
  ]
  words = re.findall(r'"(\w+)"', re.search(r"ABOUT_RESULTS = \[(.*?)\]", text, re.S)[1])
  numbers = re.search(r"RANK = \{(.*?)\}", text)[1]
  return (
    priors,
    set(words),
    {name: float(number) for name, number in re.findall(r"(\w+): ([\d.]+)", numbers)},
  )


def read_index(root):
  """Reads searchindex.js and search_counts.js of the built pages in a folder."""
  text = (root / "searchindex.js").read_text("utf-8")
  index = json.loads(text[text.index("(") + 1 : text.rindex(")")])
  text = (root / "_static" / "search_counts.js").read_text("utf-8")
  return index | {"texts": json.loads(text[text.index("{") : text.rindex("}") + 1])}


def search(index, scorer, rank, stems, query):
  """The pages that a query finds, the best first.

  Args:
    index: of ``read_index``.
    scorer: of ``read_scorer``.
    rank: of ``read_rank``.
    stems: words -> their stems, without words that are not searched for.
    query: what is typed.

  Returns:
    (page, score) of the results, a page once for each kind of result.
  """
  lowered, score, objects = scorer
  pages, results = index["docnames"], []
  query = query.lower().strip()
  for title, places in index["alltitles"].items():
    if query in title.lower() and len(query) >= len(title) / 2:
      for page, _ in places:
        is_whole = index["titles"][page] == title
        results.append(
          (page, round(score["title"] * len(query) / len(title)) + is_whole)
        )
  for entry, places in index["indexentries"].items():
    if query in entry and len(query) >= len(entry) / 2:
      results += [
        (page, round(100 * len(query) / len(entry)))
        for page, _, is_main in places
        if is_main
      ]
  words = re.findall(r"\w+", query)
  results += [
    result for word in words for result in _objects(index, score, objects, word, words)
  ]
  joined = re.sub(r"(?<=[a-z])-(?=\d)", "", query)  # cifar-10
  terms = list(dict.fromkeys(stems(re.findall(r"\w+", joined))))
  scored = list(_texts(index["texts"], rank, terms))
  for page, points in results:
    name = pages[page]
    less = next((less for start, less in lowered if name.startswith(start)), 0)
    scored.append((name, points - less))
  return sorted(scored, key=lambda result: -result[1])


def _objects(index, score, objects, word, words):
  """(page, score) of the objects with a word in their names."""
  for prefix, entries in index["objects"].items():
    for page, kind, priority, _, name in entries:
      whole = f"{prefix}.{name}" if prefix else name
      last = whole.lower().rsplit(".", 1)[-1]
      if word not in whole.lower():
        continue
      label = (
        f"{prefix} {name} {index['objnames'][str(kind)][2]} {index['titles'][page]}"
      )
      if any(other not in label.lower() for other in words if other != word):
        continue
      points = objects.get(priority, 0)
      if word in (whole.lower(), last):
        points += score["objNameMatch"]
      elif word in last:
        points += score["objPartialMatch"]
      yield page, points


def _texts(texts, rank, words):
  """(page, score) of the pages whose texts have a stem; those with all are best."""
  priors, about_results, constants = rank
  counts, lengths, titles = (texts[name] for name in ("counts", "lengths", "titles"))
  pages = list(lengths)
  mean = sum(lengths.values()) / max(len(pages), 1)
  scores, matches = {}, {}
  for word in words:
    numbers = counts.get(word)
    if numbers is None:
      numbers = {}
      for longer in counts if len(word) > 3 else ():
        if word in longer:
          for place, number in counts[longer].items():
            numbers[place] = numbers.get(place, 0) + constants["part"] * number
    rarity = math.log(1 + (len(pages) - len(numbers) + 0.5) / (len(numbers) + 0.5))
    for place, number in numbers.items():
      page = pages[int(place)]
      length = 1 - constants["length"] + constants["length"] * lengths[page] / mean
      saturation = constants["saturation"]
      score = rarity * number * (saturation + 1) / (number + saturation * length)
      scores[page] = scores.get(page, 0) + score
      matches[page] = matches.get(page, 0) + 1
  for page, score in scores.items():
    prior = next((factor for start, factor in priors if page.startswith(start)), 1.0)
    if page.startswith(("results/", "papers/")) and about_results & set(words):
      prior = 1.0
    share = len(set(titles[page]) & set(words)) / max(len(titles[page]), 1)
    factor = (matches[page] / len(words)) ** 2 * prior
    yield page, score * factor * (1 + constants["title"] * share)


def main():
  """Searches; returns 1 if too many queries show another page first."""
  words = sys.argv[1:]
  root = (
    pathlib.Path(words.pop(0)) if words and pathlib.Path(words[0]).is_dir() else None
  )
  index = read_index(root or DEFAULT)
  scorer = read_scorer((CSS / "scorer.js").read_text("utf-8"))
  rank = read_rank((CSS / "search_rank.js").read_text("utf-8"))

  def results_of(query):
    return search(index, scorer, rank, search_words.stems, query)

  if words:
    for page, points in results_of(" ".join(words))[:8]:
      print(f"{points:6.1f} {page}")
    return 0

  def wrong_of(queries):
    first = {query: results_of(query)[:1] for query in queries}
    return {
      query: best
      for query, best in first.items()
      if not best or best[0][0] not in queries[query]
    }

  ours, issues = search_words.QUERIES, search_words.issue_queries()
  wrong, wrong_issues = wrong_of(ours), wrong_of(issues)
  for query, first in wrong.items():
    print(f"search for '{query}': first is {first}", file=sys.stderr)
  for queries, missed, words in (
    (ours, wrong, "searches"),
    (issues, wrong_issues, "titles of issues"),
  ):
    total = len(queries)
    print(f"{words} that show their page first: {total - len(missed)} of {total}")
  return int(len(wrong) > MOST_WRONG or len(wrong_issues) > MOST_WRONG_ISSUES)


if __name__ == "__main__":
  sys.exit(main())
