"""The text of ``run --help``: what a user needs first, the rest by its name.

``--help`` shows the hyper-parameters that are the algorithm's own, the amount
of local work, and the flags that every first run has. ``--help=privacy`` shows
the flags of one group whole, ``--help=attack`` the alternatives of one flag with
their fields, and ``--helpfull`` all flags.
"""

from collections.abc import Iterable, Sequence
import dataclasses
import re
import shutil
import textwrap

from fedjax_alg import hparams, registry
from fedjax_alg.errors import OptionError, did_you_mean, with_names
from fedjax_alg.part import describe_parts, parts_of
from fedjax_alg.runs.methods import Method, method_of

from . import flags
from . import program as program_lib

#: The flags of every run that a first run needs.
ESSENTIALS = (
  "dataset",
  "partition",
  "num_clients",
  "model",
  "cohort_size",
  "rounds",
  "num_seeds",
  "out_dir",
)

_EXAMPLE = (
  "--dataset=digits --partition=classes",
  "--num_clients=60 --cohort_size=10 --rounds=60 --num_seeds=3",
)
_ALL_CLIENTS = ("--dataset=digits --partition=classes", "--num_clients=60")

#: Column at which the explanation of a flag begins.
_INDENT = 26


def help_text(program: str, algorithm: str | None, topic: str = "") -> str:
  """Makes the text of --help.

  Args:
    program: the command as the user types it, for example ``fedjax-alg run``.
    algorithm: the algorithm whose hyper-parameters are shown; None: show the
      flags of every run and the names of the algorithms.
    topic: what is shown: empty for the first screen, ``full`` for all flags, or
      the name of a group, such as ``privacy``.

  Raises:
    OptionError: there is no such algorithm or group.
  """
  page = _Page(program, algorithm)
  if topic == "full":
    return page.everything()
  if topic:
    return page.group(topic)
  return page.first_screen()


def _first_clause(sentence: str) -> str:
  """Shortens an explanation to the part before its first ";" or ":"."""
  return re.split(r"[;:] ", sentence, maxsplit=1)[0]


def wrap_paragraphs(text: str) -> str:
  """Fills the paragraphs of a text to the terminal's width.

  Args:
    text: paragraphs with empty lines between them. An indented one may be a list of
      names, each with its explanation after two spaces or more. Others that have an
      indented line, such as a command, keep their lines.

  Returns:
    The text, with the commands in it as the user would type them.
  """
  return "\n\n".join(map(_wrap_paragraph, text.strip("\n").split("\n\n")))


def _wrap_paragraph(part: str) -> str:
  lines = part.splitlines()
  if not any(line.startswith(" ") for line in lines):
    return "\n".join(_wrap(" ".join(part.split())))
  entries: list[tuple[str, list[str]]] = []
  for line in lines:
    entry = re.match(r"  (\S+) {2,}(\S.*)$", line)
    if entry:
      entries.append((entry[1], [entry[2]]))
    elif entries and line.startswith(" " * 6):
      entries[-1][1].append(line.strip())
    else:
      return program_lib.as_typed(part)
  return "\n".join(
    line for name, words in entries for line in definition_lines(name, " ".join(words))
  )


class _Wrapper(textwrap.TextWrapper):
  """Breaks lines at spaces, and after a | between values (a|b|c)."""

  wordsep_simple_re = re.compile(r"([\t\n ]+)|(?<=\w\|)(?=\w)")


def _wrap(words: str, indent: str = "") -> list[str]:
  """Breaks a text into lines of the terminal's width."""
  lines = _Wrapper(
    max(60, min(shutil.get_terminal_size().columns, 100)),
    initial_indent=indent,
    subsequent_indent=indent,
    break_on_hyphens=False,
    break_long_words=False,
  ).wrap(program_lib.as_typed(words, space="\N{NO-BREAK SPACE}"))
  return [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines]


def definition_lines(name: str, about: str) -> list[str]:
  """Writes a name and, in the next column, its explanation."""
  lines = _wrap(about, " " * _INDENT)
  head = f"  {name}"
  if lines and len(head) < _INDENT - 1:
    return [head.ljust(_INDENT) + lines[0].lstrip(), *lines[1:]]
  return [head, *lines]


class _Page:
  """Texts about the flags of a run of one algorithm."""

  def __init__(self, program: str, algorithm: str | None):
    self.program, self.algorithm = program, algorithm
    self.method: Method | None = None
    self.hyper: dict[str, list[dataclasses.Field]] = {}
    if algorithm is not None:
      self.method = method_of(algorithm)
      self.hyper = hparams.fields_by_group(
        self.method.entry.hparams, self.method.entry.exchange
      )
      if self.method.source is not None:
        as_flags = {field.name for field in flags.own_fields(self.method)}
        self.hyper = {
          group: [field for field in fields if field.name in as_flags]
          for group, fields in self.hyper.items()
        }
    self.run = {
      group.lower(): [
        flag.field for options in classes for flag in flags.flags_of_options(options)
      ]
      for group, classes in flags.GROUPS.items()
    }
    self.names = {
      field.name
      for fields in (*self.hyper.values(), *self.run.values())
      for field in fields
    }

  @property
  def command(self) -> str:
    """The command as far as it is decided."""
    return f"{self.program} --algorithm={self.algorithm or 'NAME'}"

  def first_screen(self) -> str:
    """Returns the part of the help that a user needs for a first run."""
    lines = [f"usage: {self.command} [flags]", ""]
    for group in ("", "local"):
      if self.hyper.get(group):
        lines += self._section(self._title(group), self.hyper[group], sources=False)
    essentials = [
      field
      for fields in self.run.values()
      for field in fields
      if field.name in ESSENTIALS and (field.name != "cohort_size" or not self._is_full)
    ]
    essentials.sort(key=lambda field: ESSENTIALS.index(field.name))
    lines += self._section("Data and run", essentials, brief=True)
    lines += ["Example:", *self._example(), ""]
    if self.algorithm is None:
      lines += [
        "Algorithms (--algorithm=NAME --help shows one):",
        *_wrap(", ".join(registry.ALGORITHMS), "  "),
        "",
      ]
    lines += [
      "More flags, by group:",
      *_wrap(
        ", ".join(
          f"--help={group}"
          for group in [*self.hyper, *self.run]
          if group and group != "local"
        ),
        "  ",
      ),
      "",
    ]
    return "\n".join(
      [*lines, "--helpfull shows all of them. --flagfile=FILE reads flags from a file."]
    )

  def group(self, topic: str) -> str:
    """The flags of one group, whole."""
    groups = {**self.hyper, **self.run}
    choices = {
      field.name: field
      for fields in groups.values()
      for field in fields
      if parts_of(field.type)
    }
    groups.pop("", None)
    if topic in choices:
      return "\n".join(self._parts(choices[topic]))
    if topic not in groups:
      hint = (
        ""
        if self.algorithm or topic not in hparams.GROUPS
        else ("; with --algorithm=NAME also " + ", ".join(hparams.GROUPS))
      )
      raise OptionError(
        f"`help`={topic}: must be one of {', '.join((*groups, *choices))}"
        f"{hint}{did_you_mean(topic, [*groups, *choices])}"
      )
    return "\n".join(self._section(self._title(topic), groups[topic])).rstrip()

  def everything(self) -> str:
    """All flags, and the algorithms with their papers."""
    lines = [f"usage: {self.command} [flags]", ""]
    for group, fields in (*self.hyper.items(), *self.run.items()):
      if fields:
        lines += self._section(self._title(group), fields)
    if self.algorithm is None:
      lines.append("Algorithms (--algorithm=NAME --help shows one):")
      for name, entry in registry.ALGORITHMS.items():
        lines += definition_lines(
          name, f"{entry.label} ({flags.as_flags(entry.paper)})"
        )
      lines.append("")
    lines += _wrap(
      "--flagfile=FILE reads flags from a file; a name such as "
      "diversified/headline.flags also stands for a preset, a file that "
      "comes with the package."
    )
    return "\n".join(lines)

  @property
  def _is_full(self) -> bool:
    """Whether all clients take part in every round."""
    return bool(self.method and self.method.entry.all_clients)

  def _title(self, group: str) -> str:
    if group:
      return hparams.GROUPS.get(group, group.capitalize())
    assert self.method is not None
    entry = self.method.entry
    paper = f" ({flags.as_flags(entry.paper)})" if entry.paper else ""
    return f"{self.algorithm}: {entry.label}{paper}"

  def _example(self) -> list[str]:
    first, *others = _ALL_CLIENTS if self._is_full else _EXAMPLE
    words = [f"{self.program} --algorithm={self.algorithm or 'fedavg'}", first, *others]
    return [
      f"{'  ' if i == 0 else '      '}{word}" + (" \\" if i < len(words) - 1 else "")
      for i, word in enumerate(words)
    ]

  def _section(
    self,
    title: str,
    fields: Sequence[dataclasses.Field],
    *,
    brief: bool = False,
    sources: bool = True,
  ) -> list[str]:
    """A title and its flags; ``brief``: only the first clause of each."""
    lines = _wrap(f"{title}:")
    for field in _sort_by_dependency(fields):
      about = flags.as_flags(field.metadata.get("help", ""))
      if brief:
        about = _first_clause(about)
      else:
        notes = self._notes(field, sources)
        about += f" ({'; '.join(notes)})" if notes else ""
      default = flags.default_text(field)
      lines += definition_lines(
        f"--{field.name}" + (f"={default}" if default else ""), about
      )
    return [*lines, ""]

  def _parts(self, field: dataclasses.Field) -> list[str]:
    """The alternatives of a choice, each with its fields."""
    lines = _wrap(f"--{field.name}:")
    for form, about, fields in describe_parts(field.type):
      lines += definition_lines(form, about)
      names = {inner.name for inner in fields}
      for inner in fields:
        notes = self._notes(inner, True, names)
        about = inner.metadata["help"] + (f" ({'; '.join(notes)})" if notes else "")
        about = with_names(about)
        default = flags.default_text(inner)
        word = inner.name + (f"={default}" if default else "")
        lines += definition_lines(f"  {word}", about)
    return lines

  def _notes(
    self, field: dataclasses.Field, sources: bool, part: Iterable[str] = ()
  ) -> list[str]:
    """What else is to be said of an option, or of a field of a part.

    Args:
      field: the option or the field.
      sources: whether its source is among them.
      part: the names of the fields of its part.
    """
    notes = []
    if hparams.describe_range(field) and "one of" not in field.metadata["help"]:
      notes.append(hparams.describe_range(field))
    when = field.metadata.get("when")
    condition = when and when.about({*part} or self.names)
    if condition:
      words = str(condition)
      notes.append(f"only with {words if part else flags.as_flags(words)}")
    if sources and field.metadata.get("source"):
      notes.append(field.metadata["source"])
    return notes


def _sort_by_dependency(fields: Iterable[dataclasses.Field]) -> list[dataclasses.Field]:
  """Puts the fields that others of the group depend on before them."""
  fields = list(fields)
  deciding = {
    name
    for field in fields
    if field.metadata.get("when")
    for name in field.metadata["when"].names
  }
  return sorted(fields, key=lambda field: field.name not in deciding)
