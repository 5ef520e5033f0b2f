"""The pages of ``--help``: what a user needs first, the rest by its name.

``--help`` shows what the command is for, an example and the flags that are needed
first, on one screen. ``--help=WORD`` shows a section of the command's text, a group
of flags, or one flag whole. In commands that run methods it also shows a method or
an alternative of a choice with its fields. ``--help=all`` shows everything.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
import re

from fedjax_alg import hparams, registry
from fedjax_alg.errors import OptionError, did_you_mean
from fedjax_alg.part import Part, describe_parts
from fedjax_alg.runs.methods import Method, method_of

from . import flags, lines, tree
from . import program as program_lib
from .tree import Option

#: A first page has at most so many lines.
MOST_LINES = 40

#: The flags that a first run needs.
ESSENTIALS = (
  "algorithm",
  "dataset",
  "partition",
  "num_clients",
  "model",
  "client_lr",
  "batch_size",
  "local_epochs",
  "cohort_size",
  "rounds",
  "num_seeds",
  "out_dir",
)

#: The word after ``--help=`` that shows everything.
ALL = "all"

_EXAMPLE = [
  *("--dataset=digits", "--partition=classes", "--num_clients=60"),
  *("--cohort_size=10", "--rounds=60", "--num_seeds=3"),
]

#: The most lines of the explanation of each flag; None: whole.
Most = Sequence[int | None]

#: The most methods that are named of those with another text.
_MOST_NAMED = 6

#: What a field says of a flag, and may say otherwise with another method.
_TEXTS = ("help", "choices")

#: Columns of a list below an explanation, and of the facts of a flag.
_FACTS = 15


class Help:
  """The pages of one command.

  Args:
    command: its name, such as ``run``.
    about: the text above its flags; it may have sections (``lines.split_sections``).
    options: the flags that are its own.
    below: the text below them.
    of_runs: whether it also takes the flags of runs.
    essentials: flags of runs that the first page shows.
    algorithm: the method whose hyper-parameters are shown; None: those of all.
  """

  def __init__(
    self,
    command: str,
    about: str,
    options: Sequence[Option] = (),
    below: str = "",
    *,
    of_runs: bool = False,
    essentials: Sequence[str] = (),
    algorithm: str | None = None,
  ):
    self.program = f"python -m experiments.{command}"
    self.sections = lines.split_sections(about)
    self.options, self.below = list(options), below
    self.essentials = essentials
    self.algorithm = algorithm
    self.method: Method | None = None
    if of_runs and algorithm is not None:
      self.method = method_of(algorithm)
    self.groups = tree.run_groups(self.method) if of_runs else {}

  def page(self, topic: str) -> str:
    """Makes the text of a page.

    Args:
      topic: "" for the first page, ``ALL``, or a section, group, flag, method or
        part.

    Raises:
      OptionError: there is nothing of this name; the message says what was meant.
    """
    if not topic:
      if self.method is not None and self.essentials:
        return self._of_method(self.method)
      return self._first()
    if topic == ALL:
      return self._everything()
    pages = list(self._pages(topic))
    if not pages:
      self._refuse(topic)
    return "\n\n".join("\n".join(page) for page in pages)

  def headings(self) -> list[str]:
    """The words of sections and groups that ``--help=`` takes."""
    return [*map(_key, self._titles()), *self._group_names()]

  def _titles(self) -> list[str]:
    return [title for title in self.sections if title]

  def _is_shown(self, group: str) -> bool:
    """Whether a group is of the page: "method" needs one."""
    return group != tree.METHOD or self.method is not None

  def _all_options(self) -> list[Option]:
    return [*self.options, *(o for group in self.groups.values() for o in group)]

  def _first(self) -> str:
    """The first page of a command."""
    by_name = {option.name: option for option in self._all_options()}
    essentials = [by_name[name] for name in self.essentials if name in by_name]
    options = [*self.options, *essentials]
    return _fitting(self._first_lines(options, most) for most in _levels(len(options)))

  def _first_lines(self, options: Sequence[Option], most: Most) -> list[str]:
    about = lines.paragraphs(self.sections[""]).splitlines()
    below = lines.paragraphs(self.below).splitlines()
    is_cut = any(number is not None for number in most)
    return _join(about, _flag_lines(options, most), below, self._further_pages(is_cut))

  def _further_pages(self, is_cut: bool) -> list[str]:
    """Where the rest is; nothing if there is none."""
    rows = [(_key(title), f"{title[0].lower()}{title[1:]}") for title in self._titles()]
    if not (is_cut or rows or self.groups):
      return []
    if is_cut or self.groups:
      example = self.options[0].name if self.options else "partition"
      rows.append(("a flag", f"all about it, such as --help={example}"))
    if self.groups:
      part = next(
        part.WORD
        for options in self.groups.values()
        for option in options
        for part in option.parts
        if tree.part_options(part)
      )
      names = ", ".join(self._group_names())
      rows += [
        ("a group", f"flags of runs: {names}" if self.essentials else "flags of runs"),
        ("a method", "its hyper-parameters, such as --help=fedprox"),
        ("a value", f"its fields, such as --help={part}"),
      ]
    rows.append((ALL, "everything"))
    return [
      "More, by --help=WORD:",
      *(
        line
        for name, text in rows
        for line in lines.definition(name, text, indent=_FACTS)
      ),
    ]

  def _group_names(self) -> list[str]:
    return [group for group in self.groups if self._is_shown(group)]

  def _of_method(self, method: Method) -> str:
    """The first page of a method."""
    groups = tree.run_groups(method)
    options = groups.get(tree.METHOD, [])
    local = len(groups.get("local", ()))
    attempts = [(options, most) for most in _levels(len(options) + local)]
    attempts += [
      (options[:number], [1] * (number + local))
      for number in range(len(options) - 1, -1, -1)
    ]
    return _fitting(
      self._method_lines(method, groups, *attempt) for attempt in attempts
    )

  def _method_lines(
    self,
    method: Method,
    groups: Mapping[str, Sequence[Option]],
    options: Sequence[Option],
    most: Most,
  ) -> list[str]:
    title = f"{method.name}: {method.entry.label}"
    if method.entry.paper:
      title += f" ({flags.as_flags(method.entry.paper)})"
    example, every = _EXAMPLE, list(self.essentials or ESSENTIALS)
    if method.entry.all_clients:
      example = [word for word in example if not word.startswith("--cohort_size")]
      every.remove("cohort_size")
    if method.entry.rounds is not None:  # as many as the model has layers
      example = [word for word in example if not word.startswith("--rounds")]
    if method.entry.needs_validation(method.hparams):
      example = [*example, "--validation_clients=10"]
    program = program_lib.as_typed("experiments.run")
    own_lines = _flag_lines(options, most[: len(options)])
    number = len(groups.get(tree.METHOD, ())) - len(options)
    if number:
      others = f"and {number} more, for other values of these"
      own_lines.append(f"  {others}: --help={tree.METHOD}")
    local = groups.get("local", ())
    of_runs = {
      option.name
      for options_of_group in groups.values()
      for option in options_of_group
      if not option.is_hyper
    }
    names = [f"--{name}" for name in every if name in of_runs and name != "algorithm"]
    return _join(
      lines.wrap_text(title),
      lines.command_lines([program, f"--algorithm={method.name}", *example]),
      ["Hyper-parameters of the method:", *own_lines] if own_lines else [],
      ["Local work:", *_flag_lines(local, most[len(options) :])] if local else [],
      lines.wrap_text(
        f"Flags of every run: {', '.join(names)}, ... ({program} --help)"
      ),
      self._more_of_method(groups),
    )

  def _more_of_method(self, groups: Mapping[str, Sequence[Option]]) -> list[str]:
    return lines.wrap_text(
      f"More, by --help=WORD: a flag, such as --help=rounds; {ALL}; or a group, "
      f"one of {', '.join(groups)}."
    )

  def _everything(self) -> str:
    """All sections and flags, and the methods with their papers."""
    parts = [lines.paragraphs(self.sections[""])]
    if self.options:
      parts.append("\n".join(_whole_lines(self.options)))
    if self.below:
      parts.append(lines.paragraphs(self.below))
    parts += ["\n".join(self._section(title)) for title in self._titles()]
    for group in self._group_names():
      parts.append("\n".join(self._group(group)))
    if self.groups and self.method is None:
      parts.append("\n".join(_methods()))
    return "\n\n".join(parts)

  def _section(self, title: str) -> list[str]:
    return [f"{title}:", "", *lines.paragraphs(self.sections[title]).splitlines()]

  def _group(self, group: str, without: str = "") -> list[str]:
    """The flags of a group, whole."""
    if group == tree.METHOD and self.method is not None:
      title = f"Hyper-parameters of {self.method.entry.label}"
    else:
      title = hparams.GROUPS.get(group, group.capitalize())
    options = [option for option in self.groups[group] if option.name != without]
    return [f"{title}:", *_whole_lines(options)]

  def _pages(self, topic: str) -> Iterator[list[str]]:
    """What there is of a name: several pages where things share it."""
    for title in self._titles():
      if _key(title) == topic:
        yield self._section(title)
    of_command = [option for option in self.options if option.name == topic]
    of_runs = [
      (group, option)
      for group, options in self.groups.items()
      for option in options
      if option.name == topic and not of_command
    ]
    for option in of_command:
      yield _option_lines(option, [])
    for group, option in of_runs:
      yield _option_lines(option, self._facts(option, group))
      if topic == "algorithm":
        yield _methods()
    if topic in self.groups and self._is_shown(topic):
      yield self._group(topic, without=topic)
    elif self.groups and topic in registry.ALGORITHMS:
      yield self._of_method(method_of(topic)).splitlines()
    parts: dict[type[Part], list[Option]] = {}
    for options in self.groups.values():
      for option in options:
        for part in option.parts:
          if part.WORD == topic:
            parts.setdefault(part, []).append(option)
    for part, options in parts.items():
      yield _part_page(part, [option.name for option in options])

  def _facts(self, option: Option, group: str) -> list[tuple[str, str]]:
    """Facts of a flag of runs: its group, and the methods that read it."""
    facts = []
    if option.is_hyper:
      facts += _facts_of_methods(option.name) if self.method is None else []
      if not option.parts:
        facts.append(
          (
            "in a sweep",
            "its values share one program"
            if option.traced
            else "a program for each value",
          )
        )
    if self._is_shown(group):
      facts.append(("group", f"--help={group}"))
    return facts

  def _refuse(self, topic: str) -> None:
    kinds = [*self.headings(), ALL]
    words = [*kinds, *(option.name for option in self._all_options())]
    others = "a flag without its dashes"
    if self.groups:
      words += [*registry.ALGORITHMS, *tree.part_words(self.groups)]
      others += ", a method or a value"
    hint = did_you_mean(topic, words)
    listed = f" (one of {', '.join(kinds)}, or {others})"
    raise OptionError(
      f"`help`={topic}: unknown{f'{hint} (see --help)' if hint else listed}"
    )


def _key(title: str) -> str:
  """The word of ``--help=WORD`` for a section: the first one of its title."""
  return re.sub(r"\W.*", "", title).lower()


def _join(*blocks: Sequence[str]) -> list[str]:
  """Blocks of lines with an empty line between them; none of empty blocks."""
  page_lines: list[str] = []
  for block in filter(None, blocks):
    page_lines += ["", *block] if page_lines else block
  return page_lines


def _fitting(pages: Iterable[list[str]]) -> str:
  """The first page that fits a screen; the last one if none does."""
  page: list[str] = []
  for page in pages:
    if len(page) <= MOST_LINES:
      break
  return "\n".join(page)


def _flag_name(option: Option) -> str:
  return f"--{option.name}" + (f"={option.default}" if option.default else "")


def _levels(number: int) -> Iterator[Most]:
  """How much of the explanations of flags is shown, from all to the least."""
  yield [None] * number
  for long in range(number, -1, -1):
    yield [2] * long + [1] * (number - long)


def _flag_lines(options: Sequence[Option], most: Most) -> list[str]:
  """Flags with their explanations, of each at most so many lines."""
  texts = []
  for option, number in zip(options, most, strict=True):
    text = lines.first_clause(option.about) if number else _with_notes(option)
    texts += lines.definition(_flag_name(option), text, number)
  return texts


def _whole_lines(options: Sequence[Option]) -> list[str]:
  """Flags with their whole explanations."""
  return _flag_lines(options, [None] * len(options))


def _with_notes(option: Option) -> str:
  """The explanation of a flag with its range, condition and source."""
  notes = list(filter(None, (option.range, option.source)))
  return option.about + (f" ({'; '.join(notes)})" if notes else "")


def _option_lines(option: Option, facts: Sequence[tuple[str, str]]) -> list[str]:
  """A flag whole: its text, then a line for each fact."""
  # A default that depends on others is in the text.
  has_default = option.default or "default" not in option.about
  rows = {
    "values": ", ".join(filter(None, [option.kind, option.range])),
    "default": (option.default or "none") if has_default else "",
    "source": option.source,
    **dict(facts),
  }
  # This page is what the text points to.
  about = re.sub(rf" \(--help={option.name}\b[^)]*\)", "", option.about)
  texts = [f"--{option.name}", *lines.wrap_text(about, "  "), ""]
  for name, text in rows.items():
    if text:
      texts += lines.definition(name, text, indent=_FACTS)
  if option.parts:
    texts += ["", *_part_lines(option.parts)]
  return texts


def _part_lines(parts: Sequence[type[Part]]) -> list[str]:
  """The alternatives of a choice with their fields.

  A field that several have in the same words is explained at the first.
  """
  texts, explained = ["Values, with their fields:"], dict[Option, str]()
  for part in parts:
    ((form, about, _),) = describe_parts(part)
    texts += lines.definition(form, about)
    earlier: dict[str, list[str]] = {}
    for option in tree.part_options(part):
      if option in explained:
        earlier.setdefault(explained[option], []).append(_field_name(option))
      else:
        explained[option] = part.WORD
        texts += lines.definition(f"  {_field_name(option)}", _with_notes(option))
    for word, names in earlier.items():
      texts += lines.definition(f"  as of {word}", ", ".join(names))
  return texts


def _field_name(option: Option) -> str:
  return option.name + (f"={option.default}" if option.default else "")


def _part_page(part: type[Part], options: Sequence[str]) -> list[str]:
  """One alternative of a choice, or of several choices."""
  ((form, about, _),) = describe_parts(part)
  texts = [f"--{options[0]}={form}"]
  texts += lines.wrap_text(about.partition(" Example: ")[0], "  ")
  if len(options) > 1:
    texts += lines.wrap_text(
      f"Also of {', '.join(f'--{name}' for name in options[1:])}.", "  "
    )
  fields = tree.part_options(part)
  if fields:
    texts.append("")
  for option in fields:
    texts += lines.definition(_field_name(option), _with_notes(option))
  return [*texts, "", f"Example: --{options[0]}={part.EXAMPLE}"]


def _facts_of_methods(name: str) -> list[tuple[str, str]]:
  """The methods that read a hyper-parameter, and its default of each."""
  defaults: dict[str, list[str]] = {}
  readers = flags.readers(name)
  for algorithm in readers:
    field = registry.ALGORITHMS[algorithm].fields[name]
    defaults.setdefault(flags.default_text(field) or "none", []).append(algorithm)
  facts = []
  if len(defaults) > 1:
    usual, *others = sorted(defaults, key=lambda text: -len(defaults[text]))
    facts.append(
      (
        "default",
        "; ".join(
          [usual, *(f"{text} of {', '.join(defaults[text])}" for text in others)]
        ),
      )
    )
  texts = {
    algorithm: registry.ALGORITHMS[algorithm].fields[name].metadata
    for algorithm in readers
  }
  others = [
    algorithm
    for algorithm in readers
    if any(texts[algorithm][key] != texts[readers[0]][key] for key in _TEXTS)
  ]
  if others:
    readers_text = (
      ", ".join(others) if len(others) <= _MOST_NAMED else f"{len(others)} methods"
    )
    facts.append(
      ("differs", f"in {readers_text}, such as --algorithm={others[0]} --help={name}")
    )
  others = [algorithm for algorithm in registry.ALGORITHMS if algorithm not in readers]
  if len(others) >= len(readers):
    facts.append(("methods", ", ".join(readers)))
  else:
    facts.append(("methods", f"all but {', '.join(others)}" if others else "all"))
  return facts


def _methods() -> list[str]:
  """All methods with their papers."""
  return [
    "Methods (--help=NAME shows one):",
    *(
      line
      for name, entry in registry.ALGORITHMS.items()
      for line in lines.definition(
        name, f"{entry.label} ({flags.as_flags(entry.paper)})"
      )
    ),
  ]
