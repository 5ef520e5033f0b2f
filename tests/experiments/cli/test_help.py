"""What --help shows first, and how the rest is reached."""

import re

import pytest

from experiments import __main__ as main
from experiments import completion, run
from experiments.cli import config, flags, help, tree
from fedjax_alg import hparams, registry
from fedjax_alg.errors import OptionError
from tests.each import each

FORMS = completion.all_forms()
NAMES = [
  f"{form.name}{' --paper' * (form.name in seen)}"
  for number, form in enumerate(FORMS)
  for seen in [{before.name for before in FORMS[:number]}]
]
RUN = run.main.help()


@pytest.fixture(autouse=True, name="terminal")
def fixture_terminal(monkeypatch):
  """Sets the width of the terminal; 80 at first."""

  def columns(number):
    monkeypatch.setenv("COLUMNS", str(number))

  columns(80)
  return columns


def fits(text, columns=80):
  """Whether no line is broken by a terminal of this width."""
  return max(map(len, text.splitlines())) <= columns


def shown_flags(text):
  return re.findall(r"^  --(\w+)", text, re.M)


def page_of(*argv):
  """The page that a command line of ``run`` asks for."""
  with pytest.raises(config.HelpRequested) as caught:
    run.main.command(argv)
  return str(caught.value)


def commands_in(text):
  """The command lines of a text, each as its words."""
  text_lines = re.sub(r" \\\n +", " ", text)
  matches = re.findall(
    r"^  (?:python -m experiments|fedjax-alg)[. ](.*)$", text_lines, re.M
  )
  return [line.partition(" > ")[0].split() for line in matches]


@each(
  "form",
  FORMS,
)
def test_the_first_page_of_a_command_fits_a_screen(form, terminal):
  """A longer one scrolls its purpose and its example away."""
  text = form.help().page("")
  assert fits(text) and len(text.splitlines()) <= help.MOST_LINES
  assert commands_in(text), "no example"
  flag_names = {option.name for option in tree.flag_options(form.values())}
  assert flag_names <= {*shown_flags(text)} and "(default )" not in text
  everything = form.help().page(help.ALL)
  assert fits(everything) and flag_names <= {*shown_flags(everything)}
  terminal(60)
  assert fits(form.help().page(""), 60)
  assert fits(form.help().page(help.ALL), 60)


@each(
  "form",
  FORMS,
)
def test_the_examples_of_a_command_are_read(form):
  """A newcomer types them first."""
  for name, *words in commands_in(form.help().page(help.ALL)):
    forms = [candidate for candidate in FORMS if candidate.name == name]
    words = [word for word in words if word != "--help"]
    if words:
      of_word = forms[-1 if any(word.startswith("--paper") for word in words) else 0]
      _, others = of_word.read(words)
      if of_word.passes_on:
        config.read_layers([word for word in others if word.startswith("--")])


def test_the_example_of_a_run_is_a_run():
  for algorithm in (None, *registry.ALGORITHMS):
    ((_, *words),) = commands_in(run.main.help(algorithm).page(""))
    assert config.parse_config(words).algorithm == algorithm or algorithm is None


def test_the_list_of_commands_fits_a_screen(monkeypatch, capsys, terminal):
  monkeypatch.setattr("sys.argv", ["/usr/bin/fedjax-alg"])
  for columns in (80, 60):
    terminal(columns)
    assert main.main(["--help"]) == 0
    text = capsys.readouterr().out
    assert fits(text, columns)
    assert columns == 60 or len(text.splitlines()) <= help.MOST_LINES
  assert {*re.findall(r"\w+", text)} >= {*main.commands()}


@each("algorithm", registry.ALGORITHMS)
def test_the_first_page_of_a_method_fits_a_screen(algorithm, terminal):
  """It has the method's own, and not privacy, of which a first run knows nothing."""
  page = run.main.help(algorithm)
  text = page.page("")
  assert fits(text) and len(text.splitlines()) <= help.MOST_LINES
  names = shown_flags(text)
  flag_names = [option.name for option in page.groups.get(tree.METHOD, [])]
  assert "private" not in names and "--dataset" in text
  left_out = re.search(r"and (\d+) more, .*--help=method", text)
  number = int(left_out[1]) if left_out else 0
  assert len({*flag_names} & {*names}) == len(flag_names) - number
  assert ("cohort_size" in text) is not page.method.entry.all_clients
  terminal(60)
  assert fits(page.page(""), 60)


def test_groups_share_out_the_hyper_parameters_of_every_method():
  for entry in registry.ALGORITHMS.values():
    groups = hparams.fields_by_group(entry.hparams, entry.exchange)
    names = [field.name for fields in groups.values() for field in fields]
    assert sorted(names) == sorted(entry.fields)
    assert list(groups)[1:] == [name for name in hparams.GROUPS if name in groups]
    assert list(hparams.ordered_values(*entry.parts())) == names


def test_a_group_is_shown_whole_with_and_without_a_method():
  for words in ((), ("--algorithm=fedavg",)):
    text = page_of(*words, "--help=privacy")
    assert "private" in shown_flags(text)
    assert "McMahan et al., ICLR 2018" in text and "--client_lr=" not in text


OPTIONS = {option.name: option for group in RUN.groups.values() for option in group}


@pytest.mark.parametrize("group", RUN.groups)
def test_a_flag_is_shown_with_its_facts(group):
  for option in RUN.groups[group]:
    text = RUN.page(option.name)
    assert fits(text) and text.startswith(f"--{option.name}\n")
    plain = " ".join(text.split()).replace("| ", "|")
    for fact in (option.range, option.source, option.default):
      assert " ".join(fact.split()) in plain, option.name
    assert bool(re.search(r"^  methods ", text, re.M)) is option.is_hyper


@each("name", [n for n, option in OPTIONS.items() if option.parts])
def test_a_choice_lists_its_parts_with_their_fields(name):
  """Each with its default, range and help, once, and an example."""
  text = RUN.page(name)
  for part in OPTIONS[name].parts:
    part_page = RUN.page(part.WORD)
    assert fits(part_page) and f"={part.EXAMPLE}" in part_page
    of_part = re.search(
      rf"^  {part.WORD}(?:[:\s].*)?\n((?:    .*\n|\n)*)",
      text.partition("Values, with their fields:\n")[2] + "\n",
      re.M,
    )
    for field in tree.part_options(part):
      word = field.name + (f"={field.default}" if field.default else "")
      assert word in of_part[0], (part, word)
      assert re.search(rf"^  {re.escape(word)}\b", part_page, re.M)
      assert field.range in " ".join(part_page.split())
  assert f"(--help={name}" not in text  # it is this page


def test_defaults_of_methods_are_told_apart():
  text = " ".join(RUN.page("client_lr").split())
  assert "0.1; 12.0 of fsvrg, ma_fsvrg, ga_fsvrg" in text
  assert "methods all but fedacnnl" in text
  of_one = page_of("--algorithm=ga_fsvrg", "--help=client_lr")
  assert re.search(r"^  default +12.0$", of_one, re.M) and "methods" not in of_one


def test_a_name_of_several_things_shows_all_of_them():
  """ "partition" is a flag and the group that it is in."""
  text = RUN.page("partition")
  assert text.startswith("--partition\n") and "num_clients" in shown_flags(text)
  assert shown_flags(text).count("partition") == 0
  assert RUN.page("fedprox") == page_of("--algorithm=fedprox", "--help")
  assert "FedProx" in RUN.page("algorithm")


@each(
  "words, parts",
  [
    ("--algorithm=fedavg --help=privcy", "--help=privcy: unknown & 'privacy'?"),
    ("--help=client_lrr", "--help=client_lrr & 'client_lr'?"),
    ("--help=lr", "--help=lr & 'client_lr'?"),
    ("--help=topkk", "--help=topkk & 'topk'?"),
    ("--help=FedProx", "--help=FedProx & 'fedprox'?"),
    ("--help=method", "--help=method"),
    ("--helpfull", "--helpfull & --help=all"),
  ],
)
def test_an_unknown_word_is_one_line(words, parts, capsys):
  assert run.main(words.split()) == 2
  (line,) = capsys.readouterr().err.splitlines()
  for part in parts.split(" & "):
    assert part in line


def test_commands_with_other_flags_take_words_of_theirs_and_of_runs():
  by_name = {form.name: form.help() for form in reversed(FORMS)}
  assert by_name["compare"].page("score").startswith("--score\n")
  assert "compare.html" in by_name["compare"].page("files")
  assert "Columns" in by_name["judge"].page("columns")
  assert by_name["sweep"].page("sweep").startswith("--sweep\n")
  assert by_name["audit"].page("privacy") == RUN.page("privacy")
  with pytest.raises(OptionError) as caught:
    by_name["compare"].page("scor")
  assert "'score'?" in str(caught.value)
  with pytest.raises(OptionError):
    by_name["compare"].page("privacy")


def test_all_flags_of_a_run_are_in_everything():
  text = RUN.page(help.ALL)
  assert fits(text) and {f.name for f in flags.run_flags()} <= {*shown_flags(text)}
  assert not [line for line in text.splitlines() if "| " in line]
  for line in text.splitlines():
    assert not (line.startswith("  --") and line.split()[0].endswith("="))
