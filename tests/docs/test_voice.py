"""The English of the pages, counted.

A page that talks to a person who wants something is read; one that lists
properties and exceptions is not. The first is what the documentation of flax
does, so the rates of flax are the measure: at most three times as much of each
idiom below, at least a quarter as much of each turn that speaks to the reader, and
no sentence above 35 words.

Paragraphs must not all open alike. A floor under "you can" and "you should" was
here once, and pages met it at the beginning of nearly every paragraph: 18 % of them
opened with such words, in flax's documentation 7.5 %. So the openings are measured,
and orders ("Pass a list") count as speaking to the reader without the word "you".

Pages of results are tables with short remarks, so no turns are asked of one of
them. All pages together have at most twice flax's rate of each idiom and at least
half of each turn.

``python tests/docs/test_voice.py`` prints all counts.
"""

import ast
import collections
import dataclasses
import inspect
import math
import pathlib
import re

import pytest

import fedjax_alg as fa
from fedjax_alg import registry
from fedjax_alg.data.options import DataOptions
from fedjax_alg.runs.options import RunOptions
from tests.each import each

ROOT = pathlib.Path(__file__).parents[2]
FOLDERS = {
  "guides": ("README.md", "docs/*.md"),
  "methods": ("docs/methods/*.md",),
  "papers": ("docs/papers/*.md",),
  "results": ("docs/results/*.md",),
}
#: Pages of which no turns are asked.
TABLES = "docs/results/"
#: Labels of methods in tables and pictures, and no idioms.
LABELS = re.compile(r"each client alone", re.I)
#: Lists that a program fills, and a registration that may only be added to.
LISTS = (
  "docs/api.md",
  "docs/changelog.md",
  "docs/evidence.md",
  "docs/options.md",
  "docs/papers/readings.md",
)
LONGEST = 35  # words of a sentence

#: idiom -> (pattern, how often 1,000 words of flax's documentation have it).
IDIOMS = {
  "who, nobody, whose": (
    r"\b(?:who|whom|whose|whoever|nobody|everybody|everyone|somebody)\b",
    0.2,
  ),
  "a bare What or Who as subject": (
    r"(?:^|[;:] |, (?:and|but) )(?:what(?:ever)?|who(?:ever)?)\b(?! \S*:)",
    0.06,
  ),
  "that of": (r"\b(?:that|those|the ones?) of\b", 0.0),
  "is that of": (r"\b(?:is|are|was|were) (?:that|those|the ones?) of\b", 0.0),
  "alone": (r"\balone\b", 0.1),
  "of its own": (r"\bof (?:its|your|their|our|one's) own\b", 0.02),
  "by, for according to": (
    r"\b(?:settings?|curves?|means?|groups?|weights?|tables?|methods?|figures?|"
    r"accuracy|lines?|chosen|drawn|weighted|named|counted|ordered|told|compared|"
    r"measured|judged) by (?:the |their |its |a )?(?:validation|rounds?|seeds?|"
    r"examples?|models?|gradients?|names?|numbers?|costs?|bytes|kinds?|loss(?:es)?|"
    r"clock|settings?)\b",
    0.04,
  ),
  "beside": (r"\bbesides?\b", 0.0),
  "to the bit, in turn": (
    r"\bto the (?:last )?(?:bit|digit)\b|\bword for word\b|\bbit for bit\b|"
    r"\bin turn\b|\bto and fro\b|\bby the clock\b",
    0.02,
  ),
  "comes out, gets there, goes on": (
    r"\b(?:comes?|came) out\b|\bgets? there\b|\b(?:goes|go|went) on\b",
    0.02,
  ),
  "so do, nor": (
    r"(?:^|[;,:] |\band )so (?:do|does|did|is|are|was|were|has|have|can|will)\b"
    r"|\bnor\b",
    0.2,
  ),
  "in the place of": (r"\bin the place of\b", 0.02),
  "as it was": (
    r"\bas (?:it|they) (?:was|were|is|are|has been|have been|stands?)\b",
    0.04,
  ),
  "British spelling": (
    r"\b\w*(?:personalis|quantis|normalis|optimis(?!t)|initialis|vectoris|regularis|"
    r"generalis|factoris|randomis|colour|behaviour|defence|centre(?:s|d)?\b)\w*",
    0.0,
  ),
}

#: turn -> (pattern, how often 1,000 words of flax's documentation have it).
TURNS = {
  "you": (r"\b(?:you|your|yours|yourself)\b", 10.9),
  "for example": (r"\bfor (?:example|instance)\b|\bsuch as\b|\be\.g\.", 1.9),
  "because, so that": (r"\b(?:because|since|so that|therefore)\b", 2.2),
}

#: Openings that pages repeat when they are written by a formula.
OPENING = re.compile(
  r"(?:you (?:can(?:not)?|should|need|must|may|find|choose|get)\b|if you\b"
  r"|to [a-z]+ [^.]*?, |for example\b)",
  re.I,
)
#: Percent of the paragraphs and items of flax's documentation (64 pages, July 2026)
#: that have such an opening, and the most of a page that begin with the same two
#: words.
OPENINGS, SAME_WORDS = 7.5, 15.6

_CODE = (
  r"<!--.*?-->|^(```+|~~~+).*?^\1[ \t]*$|\$\$.*?\$\$"  # blocks
  r"|^:{3,}.*?$|^:[\w-]+:.*?$|^\(\S+\)=$"  # directives, their options, targets
  r"|^(?: {4}|\t)(?![-*\d]).*?$"  # indented code
  r"|!\[[^\]]*\]\([^)]*\)"  # pictures
)
_PROSE = r"^```\{(?:glossary|note|tip|warning|important)\}.*?$(.*?)^```[ \t]*$"
_ABBREVIATIONS = re.compile(r"\b(e\.g|i\.e|et al|Fig|Figs|Eq|cf|vs|resp|no|sec)\.")


def sentences(text):
  """The sentences of a page in markdown, without code, formulas and links.

  A cell of a table, a heading and an item of a list begin a sentence.
  """
  text = re.sub(
    _PROSE, lambda m: re.sub(r"^  ", "\n", m[1], flags=re.M), text, flags=re.S | re.M
  )
  text = re.sub(_CODE, "", text, flags=re.S | re.M)
  text = re.sub(r"``.+?``|`[^`]+`|\$[^$\n]+\$", "x", text)
  text = LABELS.sub("x", re.sub(r"\b\w+_\w+\b", "x", text))
  text = re.sub(r"<br ?/?>", "\n\n", text)
  text = re.sub(r"\bx(?:, x){3,}\b", "x", text)  # names in a row are read as one
  text = re.sub(r"\{\w+\}x|\[([^\]]*)\]\([^)]*\)", lambda m: m[1] or "x", text)
  text = re.sub(r"https?://\S+|</?\w[^>]*>|\*\*?|(?<!\w)_|_(?!\w)", "", text)
  text = _ABBREVIATIONS.sub(r"\1", text)
  text = re.sub(r"^#+ (.*)$", r"\n\n\1\n\n", text, flags=re.M)
  text = re.sub(r"^\s*(?:[-*+]|\d+\.) ", "\n\n", text, flags=re.M)
  text = re.sub(r"^\|.*$", lambda m: m[0].replace("|", "\n\n"), text, flags=re.M)
  for part in re.split(r"\n\s*\n", text):
    for sentence in re.split(r"(?<=[.!?])[)\"']?\s+", " ".join(part.split())):
      if re.search("[a-zA-Z]", sentence):
        yield sentence


def paragraphs(text):
  """The paragraphs and items of a page that have eight words, without bold heads."""
  text = re.sub(_CODE, "", text, flags=re.S | re.M)
  for part in re.split(r"\n\s*\n", text):
    if re.match(r"\s*(?:#|\||\$\$|:::|\(|```|$)", part):
      continue
    for item in re.split(r"\n(?=\s*(?:[-*+]|\d+\.) )", part.strip()):
      item = re.sub(r"^\s*(?:[-*+]|\d+\.) ", "", item)
      item = re.sub(r"^\*\*[^*]+\*\*:? ?", "", item)
      if number_of_words(item) >= 8:
        yield item


def openings(text):
  """How many paragraphs open by a formula, with the same two words, and there are."""
  parts = list(paragraphs(text))
  words = collections.Counter(
    " ".join(re.findall(r"[\w']+", part.lower())[:2]) for part in parts
  )
  most = max(words.values(), default=0)
  return sum(bool(OPENING.match(part)) for part in parts), most, len(parts)


def number_of_words(text):
  return len(re.findall(r"[A-Za-z][\w'-]*", text))


def counts(text):
  """How often a page has each idiom, long sentence and turn, and its words."""
  parts = list(sentences(text))
  number = {name: 0 for name in (*IDIOMS, "long", *TURNS)}
  for part in parts:
    if number_of_words(part) > LONGEST:
      number["long"] += 1
    for name, (pattern, _) in IDIOMS.items():
      if name.startswith("a bare") and (
        part.endswith("?") or number_of_words(part) < 6
      ):
        continue  # a question, a heading, the head of a column
      number[name] += len(re.findall(pattern, part, re.I))
    for name, (pattern, _) in TURNS.items():
      number[name] += len(re.findall(pattern, part, re.I))
  return number, sum(map(number_of_words, parts))


def target(words, most=3, turns=True, least=0.25):
  """What a page of so many words should have: most of the idioms, least of turns."""
  limits = {
    name: math.ceil(most * rate * words / 1000) for name, (_, rate) in IDIOMS.items()
  }
  limits["long"] = 0
  for name, (_, rate) in TURNS.items():
    limits[name] = math.floor(rate * least * words / 1000) if turns else 0
  return limits


def distance(number, limits):
  """How far a page is from limits: kind -> by how much, positive if beyond them."""
  return {
    name: (limit - number[name]) if name in TURNS else (number[name] - limit)
    for name, limit in limits.items()
  }


def faults(text, turns=True):
  """Lists the limits that a page breaks.

  Args:
    text: the page.
    turns: whether the turns are asked of the page.
  """
  number, words = counts(text)
  limits = target(words, turns=turns)
  lines = [
    f"{name}: {number[name]}, at {'least' if name in TURNS else 'most'} {limits[name]}"
    for name, gap in distance(number, limits).items()
    if gap > 0
  ]
  return lines


def opening_faults(text):
  """Lists the limits that the openings of a page's paragraphs break."""
  by_formula, same, total = openings(text)
  lines = []
  if by_formula > max(2, 3 * OPENINGS / 100 * total):
    lines.append(f"openings by a formula: {by_formula} of {total} paragraphs")
  if same > max(4, SAME_WORDS / 100 * total):
    lines.append(f"openings with the same words: {same} of {total} paragraphs")
  return lines


def pages(folders=tuple(FOLDERS)):
  return sorted(
    name
    for folder in folders
    for pattern in FOLDERS[folder]
    for path in ROOT.glob(pattern)
    if (name := path.relative_to(ROOT).as_posix()) not in LISTS
  )


def text_of(page):
  """The text of a page; lists of runs in the tables' notes end at semicolons.

  Generated parts are left out: their words are those of options and docstrings.
  """
  text = (ROOT / page).read_text("utf-8")
  text = re.sub(r"<!-- generated:.*?<!-- end of generated -->", "", text, flags=re.S)
  if not page.startswith(TABLES):
    return text
  # A row stays in one line, because its cells are split where a line begins with |.
  rows = re.sub(r"^\|.*$", lambda m: m[0].replace("; ", ";|"), text, flags=re.M)
  return rows.replace("; ", ";\n\n")


@pytest.mark.fast
@pytest.mark.parametrize("folder", FOLDERS)
def test_a_page_talks_to_its_reader(folder):
  lines = {
    page: faults(text_of(page)) + opening_faults(text_of(page))
    if not page.startswith(TABLES)
    else faults(text_of(page), turns=False)
    for page in pages([folder])
  }
  lines = [
    f"{page}: {'; '.join(of_page)}" for page, of_page in lines.items() if of_page
  ]
  assert not lines, "\n".join(
    [*lines, "python tests/docs/test_voice.py shows the counts"]
  )


def add_up(texts):
  """The counts and the words of several texts."""
  number, words = collections.Counter(), 0
  for text in texts:
    of_text, more = counts(text)
    number.update(of_text)
    words += more
  return number, words


def totals():
  """The counts and the words of all pages, notes in the pages made of them."""
  return add_up(text_of(page) for page in pages() if not page.endswith(".notes.md"))


@pytest.mark.program
def test_all_pages_together_talk_as_those_of_flax():
  number, words = totals()
  gaps = distance(number, target(words, most=2, least=0.5))
  assert not {name: gap for name, gap in gaps.items() if gap > 0}


@pytest.mark.fast
def test_guides_open_their_paragraphs_as_variously_as_those_of_flax():
  counted = [openings(text_of(page)) for page in pages(["guides"])]
  by_formula, total = (sum(of[i] for of in counted) for i in (0, 2))
  assert total > 900 and 100 * by_formula / total <= 1.25 * OPENINGS


@pytest.mark.fast
def test_a_page_that_opens_by_a_formula_is_refused():
  """The floors under "you" and "can" were met by such pages."""
  formula = "You can do this because it is yours, for example here.\n\n"
  various = (
    "Pass a list of your names to it, for example here.\n\n"
    "A list is a good choice because your code stays short.\n\n"
    "Why does it work that way, and for which of your runs?\n\n"
  )
  assert not faults(various * 3) and not opening_faults(various * 3)
  assert not faults(formula * 9)  # so the counts of words do not see it
  lines = opening_faults(various * 3 + formula * 4)
  assert [line.split(":")[0] for line in lines] == ["openings by a formula"]
  same = "A list of names is what you pass, for example here.\n\n" * 3
  lines = opening_faults(various * 4 + same)
  assert [line.split(":")[0] for line in lines] == ["openings with the same words"]


def texts_of_the_api():
  """Docstrings of the public names and texts of all options, without examples."""
  for name in fa.__all__:
    value = getattr(fa, name)
    members = vars(value).values() if inspect.isclass(value) else ()
    for part in (value, *(getattr(m, "fget", m) for m in members)):
      if callable(part) and "fedjax_alg" in (getattr(part, "__module__", "") or ""):
        text = (inspect.getdoc(part) or "").partition("\nExamples:")[0]
        text = re.sub(r"^ *(?=[\w*]+:)", "\n\n", text, flags=re.M)
        yield re.sub(r"^ +", "", text, flags=re.M)
  kinds = {entry.hparams for entry in registry.ALGORITHMS.values()} | {
    DataOptions,
    RunOptions,
  }
  yield from {
    re.sub(r"\b\w+ = ", "x = ", field.metadata["help"])
    for kind in kinds
    for field in dataclasses.fields(kind)
    if "help" in field.metadata
  }


def texts_of_the_commands():
  """Docstrings of the commands, which --help shows, without examples."""
  for path in sorted((ROOT / "experiments").glob("*.py")):
    text = ast.get_docstring(ast.parse(path.read_text("utf-8")))
    text = re.sub(r"^  (?:python -m|fedjax-alg) .*(?:\n {6}.*)*", "", text, flags=re.M)
    text = re.sub(r"^  (\S+) {2,}(?=\S)", r"\n\n\1: ", text, flags=re.M)
    yield re.sub(r"^ +", "", text, flags=re.M)


@pytest.mark.fast
def test_docstrings_and_help_have_as_few_idioms():
  commands = "\n\n".join(texts_of_the_commands())
  assert number_of_words(commands) > 1_500 and not faults(commands)
  number, words = add_up([*texts_of_the_api(), commands])
  assert words > 10_000
  gaps = distance(number, target(words, turns=False))
  # Texts of options are questions ("what a client sends: x = ...") and lists.
  others = {"long", "a bare What or Who as subject"}
  assert not {name: gap for name, gap in gaps.items() if gap > 0}.keys() - others


@pytest.mark.fast
def test_no_sentence_of_the_changelog_is_long():
  parts = sentences(text_of("CHANGELOG.md"))
  assert not [part for part in parts if number_of_words(part) > LONGEST]


@pytest.mark.fast
@each(
  "sentence, name",
  [
    ("Who does not arrive has no weight.", "who, nobody, whose"),
    ("What is finished is not run again.", "a bare What or Who as subject"),
    ("The mean is that of the round.", "that of"),
    ("The mean is that of the round.", "is that of"),
    ("The client map alone decides.", "alone"),
    ("Every client has a stream of its own.", "of its own"),
    ("The table has settings by validation.", "by, for according to"),
    ("The checksum stands beside the file.", "beside"),
    ("Both runs are equal to the bit.", "to the bit, in turn"),
    ("The run goes on.", "comes out, gets there, goes on"),
    ("SCAFFOLD keeps a state, and so does FedDyn.", "so do, nor"),
    ("A median acts in the place of the mean.", "in the place of"),
    ("The state stays as it was.", "as it was"),
    ("An optimiser moves the centre.", "British spelling"),
    (" ".join(["word"] * 36) + ".", "long"),
  ],
)
def test_a_sentence_of_each_kind_is_refused(sentence, name):
  # Around it a page that has every turn often enough.
  page = "For example, you can add `x`, because you want it. " * 3
  assert not faults(page)
  number = counts(page + f"{sentence} " * 2)[0]
  assert number[name] >= 2
  # Few words allow one of an idiom that flax has at all.
  assert any(line.startswith(name) for line in faults(page + f"{sentence} " * 2))


@pytest.mark.fast
def test_a_page_that_describes_an_object_is_refused():
  page = "The object has a property of some length. " * 400
  assert [line.split(":")[0] for line in faults(page)] == list(TURNS)


@pytest.mark.fast
def test_code_formulas_and_tables_are_no_sentences():
  text = (
    "# Whose page\n\n```python\nwho = alone  # nobody\n```\n\n    fa.run(alone)\n\n"
    "| who | `alone` |\n|---|---|\n| $alone$ | [two words](alone.md) |\n\n"
    "$$\nalone\n$$\n\n- an item, e.g. this one\n- another\n"
  )
  assert list(sentences(text)) == [
    "Whose page",
    "who",
    "x",
    "x",
    "two words",
    "an item, e.g this one",
    "another",
  ]


def main():
  for page in (*pages(), "all"):
    number, words = totals() if page == "all" else counts(text_of(page))
    turns = not page.startswith(TABLES)
    gaps = distance(number, target(words, 2 if page == "all" else 3, turns))
    print(f"{page}: {words} words, idioms {sum(number[i] for i in IDIOMS)}")
    print("  ", {name: number[name] for name in number if number[name]})
    print("   beyond the target:", {n: gap for n, gap in gaps.items() if gap > 0})


if __name__ == "__main__":
  main()
