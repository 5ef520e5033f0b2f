"""Command lines that a fuzz test makes of the options' own ranges."""

import re

from hypothesis import strategies as st

from experiments.cli import flags
from fedjax_alg import registry
from fedjax_alg.data.options import PARTITIONS
from fedjax_alg.models import MODELS
from fedjax_alg.part import parts_of

_PARTITIONS = [kind.EXAMPLE for kind in parts_of(PARTITIONS)]
_MODELS = [text for kind in parts_of(MODELS) for text in (kind.WORD, kind.EXAMPLE)]
#: Words that are a value of hardly any flag.
JUNK = (
  "",
  " ",
  "nan",
  "-nan",
  "inf",
  "-inf",
  "1e400",
  "-1e400",
  "1e-400",
  "1e308",
  "-0.0",
  "0x10",
  "1_000",
  "١٢",
  "½",
  "None",
  "null",
  "True",
  "[]",
  "{}",
  "a\0b",
  "a\nb",
  "\x1b[31m",
  "\udcff",
  "ü" * 20,
  "~",
  "~nobody/x",
  "/",
  ".",
  "..",
  "%s%n",
  "$(id)",
  "--",
  "-",
  "=",
  ",",
  ",,",
  ":",
  "1:2",
  "1,2",
  "2,1",
  "1:2,3",
  ";",
  "x.py:NAME",
  "no.module:NAME",
  "a:b:c",
  "x" * 5000,
  "9" * 400,
  "9" * 5000,
  "1," * 2000,
  "(" * 300,
)
_NUMBERS = (
  0,
  1,
  2,
  3,
  7,
  10,
  100,
  2**15,
  10**6,
  10**9,
  2**31 - 1,
  2**31,
  2**32 - 1,
  2**32,
  2**63,
  10**20,
  10**400,
)
_FLOATS = (
  0.0,
  5e-324,
  1e-30,
  1e-6,
  0.1,
  0.5,
  0.999999,
  1.0,
  1.000001,
  2.0,
  1e3,
  1e6,
  1e9,
  1e30,
  1.7e308,
)

#: What Python and its libraries say and no message of ours does.
RAW = re.compile(
  r"invalid literal|could not convert|has no attribute|object is not|"
  r"Traceback|unsupported operand|not supported between|codec can't|"
  r"embedded null|positional argument|out of bounds|list index|"
  r"cannot be interpreted|\[Errno|(?-i:[A-Z]\w*Error:)|<class|not foreseen|"
  r"Exceeds the limit|too large to convert|float division|"
  r"numpy\.|np\.|jnp\.|concretiz|broadcast",
  re.I,
)


def _near(meta, kind, step, usual):
  """Numbers about the bounds of a field, and the usual ones."""
  ends = [meta.get(key) for key in ("minimum", "maximum", "above", "below")]
  near = [
    kind(end) + sign * step for end in ends if end is not None for sign in (-1, 0, 1)
  ]
  return st.sampled_from(
    [*near, *(sign * number for number in usual for sign in (1, -1))]
  )


def _integers(meta):
  return _near(meta, int, 1, _NUMBERS) | st.integers(1, 30)


def _real(meta):
  return _near(meta, float, 1e-6, _FLOATS) | st.floats(0, 1)


def values(kind, items, meta):
  """The texts that a flag of a type and range is given.

  Args:
    kind: int, float, bool, str or tuple.
    items: the types of a tuple's entries.
    meta: the metadata of the ``hyper`` field.
  """
  if kind is bool:
    good = st.sampled_from(("true", "false", "1", "0"))
  elif kind is int:
    good = _integers(meta).map(str)
  elif kind is float:
    good = _real(meta).map(repr)
  elif kind is tuple:
    item = items[0]
    if item is int:
      element = _integers(meta).map(str)
    elif item is float:
      element = _real(meta).map(repr)
    elif item is str:
      element = st.sampled_from(
        (
          "dense8",
          "conv3-4",
          "max2",
          "avg9",
          "flatten",
          "conv0-1",
          "dense999999999",
          "conv3-999999999",
          "dense" + "9" * 30,
          "global",
          "local",
          "validation",
          "copy",
          "train",
          "x",
        )
      )
    else:
      element = st.tuples(_integers({}), _integers({})).map(
        lambda pair: f"{pair[0]}:{pair[1]}"
      )
    good = st.lists(element, max_size=3).map(",".join)
  elif meta.get("choices"):
    good = st.sampled_from([*meta["choices"], "nosuch", "auto"])
  else:
    good = st.sampled_from(
      (
        *_PARTITIONS,
        *_MODELS,
        "uniform",
        "size",
        "availability",
        "global:accuracy:0.5",
        "global:loss:0",
        "train:loss:5",
        "::",
        "global:accuracy:nan",
        "file",
      )
    )
  junk = st.sampled_from(JUNK) | st.text(max_size=8)
  return st.one_of(good, good, good, junk)


@st.composite
def command_lines(draw, data_path):
  """Words for experiments.run; most are of flags that the algorithm reads.

  Args:
    draw: hypothesis's.
    data_path: an .npz.
  """
  name = draw(st.sampled_from(sorted(registry.ALGORITHMS)))
  entry = registry.ALGORITHMS[name]
  words = {
    "algorithm": name,
    "num_clients": "10",
    "rounds": "3",
    "participation": "0.5",
    "dataset": draw(st.sampled_from(("digits", "digits", "synthetic", "npz"))),
  }
  if entry.all_clients:
    del words["participation"]
  if words["dataset"] == "npz":
    words["dataset"] = f"npz:{data_path}"
  if entry.rounds is not None:
    del words["rounds"]
  specs = {
    flag.name: (flag.kind, flag.items, flag.field.metadata)
    for flag in flags.run_flags()
    if flag.name != "data_dir"
  }
  specs |= {
    field.name: (type(field.default), (), field.metadata)
    for field in entry.fields.values()
  }
  if draw(st.booleans()):
    words["model"] = draw(st.sampled_from(sorted(_MODELS)))
  if draw(st.booleans()):
    words["partition"] = draw(st.sampled_from(sorted(_PARTITIONS)))
  for flag_name in draw(
    st.lists(st.sampled_from(sorted(specs)), max_size=3, unique=True)
  ):
    words[flag_name] = draw(values(*specs[flag_name]))
  for field in list(words):  # what a flag needs in order to be read
    when = specs[field][2].get("when")
    for clause in when.clauses if when else ():
      first = clause.values[0]
      if clause.name in specs and draw(st.integers(0, 3)):
        words.setdefault(clause.name, str(getattr(first, "example", first)))
  return [f"--{name}={value}" for name, value in words.items()]


@st.composite
def damage(draw, raw):
  """A file with a few bytes changed, cut out, put in, repeated or moved.

  Args:
    draw: hypothesis's.
    raw: the content of a file that is whole.
  """
  content = bytearray(raw)
  for _ in range(draw(st.integers(1, 3))):
    at = draw(st.integers(0, max(len(content) - 1, 0)))
    if draw(st.booleans()):
      at = min(at % 150, len(content))  # headers come first
    size = draw(st.integers(1, 40))
    piece = bytes(content[at : at + size])
    content[at : at + size] = draw(
      st.sampled_from(
        (
          b"",
          b"\xff" * 4,
          b"\x7f\xff\xff\xff",
          b"\xff\xff\xff\x7f",
          b"\0" * 8,
          b"9" * 30,
          b"9" * 5000,
          b"1e999",
          b"NaN",
          b"null",
          b"[" * 100_000,
          b"-1",
          b"3.5",
          b'""',
          b"{}",
          piece * 3,
          piece[::-1],
          bytes(byte ^ 1 for byte in piece),
        )
      )
      | st.binary(max_size=20)
    )
    if draw(st.integers(0, 5)) == 0:
      del content[at:]
  return bytes(content)


#: Names of runs, methods, data sets, clients and values that mean something in a
#: format in which names are written.
NAMES = (
  "FedAvg client_lr=0.1",
  "\udcff",
  "\udcc3\udca9",  # the bytes of a letter in UTF-8, undecoded
  "nul\0x",
  "new\nline",
  "a\rb",
  "tab\tx",
  "\x1b[31m",
  "\u202eevil",
  "a\u2028b",
  "a|b",
  "|",
  "<script>alert(1)</script>",
  "<!--",
  "&amp;",
  "a & b",
  "[x]",
  "*",
  "**bold**",
  "a\\",
  "\\begin{x}",
  "\\\\[1cm]",
  "under_score _ _x_",
  "_hidden",
  "$x$",
  "$\\frac$",
  "50%",
  "#1 #",
  "{x",
  "}",
  "{}",
  "~^",
  "~~x~~",
  "`code`",
  "![i](j)",
  "[a](b)",
  "'\"''",
  "-1",
  "--",
  "---",
  "+-",
  "a+-b",
  "=1+1",
  "@x",
  "- x",
  "1. x",
  "10\u00b3",
  "x" * 300,
  "a/b",
  "..",
  "a,b;c",
  "\U0001f600",
  "\u05e9\u05dc\u05d5\u05dd",
  "\u65e5\u672c\u8a9e",
  "e\u0301",
)
