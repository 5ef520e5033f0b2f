"""Measures which page of the built pages a search shows first.

  python docs/check_search.py [docs/_build/html] [WORDS ...]

Without words it searches for ``search_words.QUERIES``, prints those that do not show
their page first, and fails if they are more than four. The scores are those of
Sphinx's searchtools.js and of docs/_css/scorer.js.
"""

import json
import pathlib
import re
import sys

DOCS = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS / "_extensions"))

import search_words  # noqa: E402  pylint: disable=wrong-import-position

DEFAULT = DOCS / "_build" / "html"
#: Of so many queries at most another page may be first.
MOST_WRONG = 4


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


def read_index(root):
  """Reads searchindex.js of the built pages in a folder."""
  text = (root / "searchindex.js").read_text("utf-8")
  return json.loads(text[text.index("(") + 1 : text.rindex(")")])


def search(index, scorer, stem, query):
  """The pages that a query finds, the best first.

  Args:
    index: of ``read_index``.
    scorer: of ``read_scorer``.
    stem: word -> its stem.
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
  results += _texts(index, score, [stem(word) for word in words])
  scored = []
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


def _texts(index, score, stems):
  """(page, score) of the pages whose texts and titles have all stems."""
  best = []  # of each stem: page -> score
  for stem in stems:
    points = {}
    for table, whole, part in (
      ("terms", "term", "partialTerm"),
      ("titleterms", "title", "partialTitle"),
    ):
      terms = index[table]
      if stem in terms:
        matches = [(terms[stem], score[whole])]
      else:
        matches = [
          (where, score[part])
          for term, where in terms.items()
          if len(stem) > 2 and stem in term
        ]
      for where, value in matches:
        for page in where if isinstance(where, list) else [where]:
          points[page] = value
    best.append(points)
  if not best:
    return []
  return [
    (page, max(points[page] for points in best))
    for page in set.intersection(*map(set, best))
  ]


def main():
  """Searches; returns 1 if too many queries show another page first."""
  import snowballstemmer

  words = sys.argv[1:]
  root = (
    pathlib.Path(words.pop(0)) if words and pathlib.Path(words[0]).is_dir() else None
  )
  index = read_index(root or DEFAULT)
  scorer = read_scorer((DOCS / "_css" / "scorer.js").read_text("utf-8"))
  stem = snowballstemmer.stemmer("english").stemWord
  if words:
    for page, points in search(index, scorer, stem, " ".join(words))[:8]:
      print(f"{points:4} {page}")
    return 0
  wrong = {
    query: [page for page, _ in search(index, scorer, stem, query)[:3]]
    for query, pages in search_words.QUERIES.items()
  }
  wrong = {
    query: first
    for query, first in wrong.items()
    if not first or first[0] not in search_words.QUERIES[query]
  }
  for query, first in wrong.items():
    print(f"search for '{query}': first is {first[:1]}", file=sys.stderr)
  total = len(search_words.QUERIES)
  print(f"searches that show their page first: {total - len(wrong)} of {total}")
  return int(len(wrong) > MOST_WRONG)


if __name__ == "__main__":
  sys.exit(main())
