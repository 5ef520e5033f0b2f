"""TAB in real shells, on the scripts that the command completion prints."""

import os
import pty
import re
import select
import shutil
import subprocess
import time

import pytest

from experiments import __main__ as main
from experiments import completion as command
from experiments.cli import completion, flags, presets, tree
from fedjax_alg import registry
from fedjax_alg.part import only_field

FORMS = command.all_forms()
OPTIONS = {o.name: o for group in tree.run_groups().values() for o in group}
CHOICES = [option for option in OPTIONS.values() if option.parts]

pytestmark = pytest.mark.skipif(not shutil.which("bash"), reason="needs bash")


@pytest.fixture(scope="module", name="scripts")
def fixture_scripts(tmp_path_factory):
  """Shell -> the path of its script."""
  folder, paths = tmp_path_factory.mktemp("scripts"), {}
  for shell, make in completion.SCRIPTS.items():
    paths[shell] = folder / f"fedjax-alg.{shell}"
    paths[shell].write_text(make(main.commands(), FORMS), "utf-8")
  return paths


def output(words, folder=None, **options):
  return subprocess.run(
    words, capture_output=True, text=True, check=True, cwd=folder, **options
  ).stdout


@pytest.fixture(name="candidates")
def fixture_candidates(scripts, tmp_path):
  """A function of a shell and lines: of each, the words that may be in its place."""

  def in_bash(lines):
    # As readline calls it: what follows the last = or : is replaced.
    calls = "\n".join(
      f"COMP_LINE={line!r} COMP_POINT={len(line)}; _fedjax_alg; "
      'printf "%s\\n" "${COMPREPLY[@]}"; echo @'
      for line in lines
    )
    text = output(["bash", "-c", f"source {scripts['bash']}\n{calls}"], tmp_path)
    for line, replies in zip(lines, text.split("@\n")):
      word = line.rpartition(" ")[2]
      stem = re.match(r"(.*[=:])?", word)[0]
      yield {stem + reply.strip() for reply in replies.splitlines() if reply}

  def in_fish(lines):
    calls = "\n".join(f"complete -C '{line}'; echo @" for line in lines)
    text = output(["fish", "-c", f"source {scripts['fish']}\n{calls}"], tmp_path)
    for replies in text.split("@\n")[:-1]:
      yield {reply.partition("\t")[0] for reply in replies.splitlines()}

  def candidates(shell, lines):
    if not shutil.which(shell):
      pytest.skip(f"needs {shell}")
    return list({"bash": in_bash, "fish": in_fish}[shell](lines))

  return candidates


@pytest.mark.parametrize("shell", completion.SCRIPTS)
def test_the_script_is_of_its_shell(shell, scripts):
  if not shutil.which(shell):
    pytest.skip(f"needs {shell}")
  output([shell, "-n", str(scripts[shell])])


def test_the_data_are_of_any_sh(scripts):
  """Fish asks sh, which is dash or busybox on many machines."""
  text = scripts["bash"].read_text("utf-8").partition("\n_fedjax_alg() {")[0]
  ask = '_fedjax_alg_complete run "--attack=label_flip:sh"\n'
  assert output(["sh", "-s"], input=text + "\n" + ask) == (
    "--attack=label_flip:share=\n"
  )


def test_all_flags_of_all_commands_are_known(scripts):
  """One that the script lacks is thought not to exist."""
  calls = "\n".join(f"_fedjax_alg_flags {name}; echo @" for name in main.commands())
  text = output(["bash", "-c", f"source {scripts['bash']}\n{calls}"])
  for name, lines in zip(main.commands(), text.split("@\n")):
    forms = [form for form in FORMS if form.name == name]
    expected = {flag for form in forms for flag in form.values()}
    if any(form.passes_on for form in forms):
      expected |= {*flags.known_flags(), "flagfile"}
    offered = {line.partition("\t")[0] for line in lines.splitlines()}
    assert {word.strip("-=") for word in offered if not word.startswith("--no")} >= {
      name for name in expected if not name.startswith("no")
    }
    assert {word.strip("-=").removeprefix("no") for word in offered} <= {
      *expected,
      *(name.removeprefix("no") for name in expected),
    }
    assert {"--noprogress", "--progress"} <= offered or "progress" not in expected
    for line in lines.splitlines():
      assert len(line.partition("\t")[2]) > 4, line


#: What is typed -> the words that may follow, and other words that may not.
LINES = {
  "fedjax-alg ": ("run sweep completion", "--rounds="),
  "fedjax-alg swe": ("sweep", "run"),
  "fedjax-alg run --round": ("--rounds= --rounding_seed=", "--dataset="),
  "fedjax-alg compare --b": ("--baseline=", "--batch_size="),
  "fedjax-alg run --algorithm=fedp": (
    "--algorithm=fedprox --algorithm=fedper",
    "--algorithm=fedavg",
  ),
  "fedjax-alg sweep --dataset=di": (
    "--dataset=digits --dataset=diabetes",
    "--dataset=mnist",
  ),
  "fedjax-alg run --noprog": ("--noprogress", "--progress"),
  "fedjax-alg run --overwrite=": ("--overwrite=true --overwrite=false", ""),
  "fedjax-alg run --eval_protocols=global,lo": ("--eval_protocols=global,local", ""),
  "fedjax-alg run --server=co": ("--server=conjugate_gradient", "--server=adam"),
  "fedjax-alg run --compress_up=topk:0.05,f": (
    "--compress_up=topk:0.05,feedback=false",
    "--compress_up=topk:0.05,share=",
  ),
  "fedjax-alg run --attack=label_flip:share=0.3,s": (
    "--attack=label_flip:share=0.3,seed=",
    "--attack=label_flip:share=0.3,share=",
  ),
  "fedjax-alg run --attack=sign_flip:": (
    "--attack=sign_flip:share= --attack=sign_flip:scale=",
    "--attack=sign_flip:feedback=",
  ),
  "fedjax-alg run --client_update=mime:": (  # the only field has no name in a text
    "--client_update=mime:sgd --client_update=mime:adam:",
    "--client_update=mime:base=adam",
  ),
  "fedjax-alg run --client_update=mime:adam:0.9,": (
    "",
    "--client_update=mime:adam:0.9,sgd",
  ),
  "fedjax-alg run --dataset=npz:": ("", "--dataset=npz:path= --dataset=npz:"),
  "fedjax-alg diversified --figure=": (  # of this paper
    "--figure=fig1 --figure=fig10",
    "--figure=dirichlet",
  ),
  "fedjax-alg analytic --figure=": ("--figure=dirichlet", "--figure=fig1"),
  "fedjax-alg run --flagfile=": ("--flagfile=demo/", "--flagfile=demo/ga_fsvrg.flags"),
  "fedjax-alg run --flagfile=demo/ga": ("--flagfile=demo/ga_fsvrg.flags", ""),
  "fedjax-alg sweep --sweep=client_l": ("--sweep=client_lr=", "--sweep=rounds="),
  "fedjax-alg sweep --sweep=server=adam,s": ("--sweep=server=adam,sgd", ""),
  "fedjax-alg compare --score=l": ("--score=last_10", "--score=best"),
  "fedjax-alg completion ": ("bash zsh fish", "--rounds="),
  "fedjax-alg prepare cifar": ("cifar10 cifar100", "mnist"),
  "fedjax-alg run --help=compress": ("--help=compress_up --help=compression", ""),
  "fedjax-alg judge --help=": ("--help=columns --help=all --help=out", "--help=run"),
  "fedjax-alg run --rounds=": ("", "--rounds=data.npz"),
}


@pytest.mark.parametrize("shell", ["bash", "fish"])
def test_what_may_follow_is_offered(shell, candidates):
  for (line, (some, others)), offered in zip(LINES.items(), candidates(shell, LINES)):
    assert {*some.split()} <= offered, line
    assert not {*others.split()} & offered, line


@pytest.mark.parametrize("shell", ["bash", "fish"])
def test_a_choice_of_parts_is_offered_with_its_fields(shell, candidates):
  """Of any choice, also those that come later."""
  start = {}
  for option in CHOICES:
    words = set()
    for part in option.parts:
      if ":" in part.WORD:  # a form of texts: files are offered
        continue
      fields = tree.part_options(part)
      words.add(f"--{option.name}={part.WORD}{':' * bool(fields)}")
      if only_field(part):
        assert {field.name for field in fields} == {only_field(part)}
        if fields[0].parts:
          start[f"fedjax-alg run --{option.name}={part.WORD}:"] = {
            f"--{option.name}={part.WORD}:{of.WORD}" for of in fields[0].parts
          }
      elif fields:
        start[f"fedjax-alg run --{option.name}={part.WORD}:"] = {
          f"--{option.name}={part.WORD}:{field.name}" for field in fields
        }
    start[f"fedjax-alg run --{option.name}="] = words
  for (line, words), offered in zip(start.items(), candidates(shell, start)):
    stems = {word.rpartition("=")[0] for word in offered if line.endswith(":")}
    assert words <= stems | offered, line


def test_names_of_methods_and_presets_are_all_there(candidates):
  folders = [f"fedjax-alg run --flagfile={name}" for name in presets.names()]
  methods, *offered = candidates(
    "bash", ["fedjax-alg run --algorithm=", *folders[::20]]
  )
  assert methods == {f"--algorithm={name}" for name in registry.ALGORITHMS}
  for line, words in zip(folders[::20], offered):
    assert words == {line.rpartition(" ")[2]}


#: Starts of interactive shells, in which a key writes the line to $BUFFER_FILE.
START = {
  "bash": (
    ["bash", "--norc", "--noprofile", "-i"],
    "bind 'set enable-bracketed-paste off'; source \"$SCRIPT\"; "
    'bind -x \'"\\C-x\\C-d": printf "%s." "$READLINE_LINE" > "$BUFFER_FILE"\'',
  ),
  "zsh": (
    ["zsh", "-f", "-i"],
    'fpath=("$FOLDER" $fpath); autoload -Uz compinit; compinit -u -D; '
    'dump() { print -rn -- "$BUFFER." > "$BUFFER_FILE" }; zle -N dump; '
    "bindkey '^X^D' dump",
  ),
}


@pytest.mark.program
@pytest.mark.parametrize("shell", START)
def test_a_key_completes_the_line(shell, scripts, tmp_path):
  """= and : break words in bash, and a candidate must not be put in twice."""
  if not shutil.which(shell):
    pytest.skip(f"needs {shell}")
  (tmp_path / "data.npz").touch()
  # Zsh takes it from a folder, as the help of the command says.
  folder = tmp_path / "folder"
  folder.mkdir()
  shutil.copy(scripts[shell], folder / "_fedjax-alg")
  words, start = START[shell]
  buffer = tmp_path / "buffer"
  master, slave = pty.openpty()
  process = subprocess.Popen(
    words,
    stdin=slave,
    stdout=slave,
    stderr=slave,
    cwd=tmp_path,
    start_new_session=True,
    env={
      **os.environ,
      "TERM": "xterm",
      "HOME": str(tmp_path),
      "SCRIPT": str(scripts[shell]),
      "FOLDER": str(folder),
      "BUFFER_FILE": str(buffer),
    },
  )
  os.close(slave)

  screen = ""

  def wait_for(awaited, is_there):
    nonlocal screen
    until = time.monotonic() + 60
    while not is_there():
      assert time.monotonic() < until, (awaited, screen[-500:])
      if select.select([master], [], [], 0.05)[0]:
        screen += os.read(master, 65536).decode("utf-8", "replace")

  def typed(text):
    """The line after this text and a TAB."""
    buffer.unlink(missing_ok=True)
    os.write(master, f"{text}\t\x18\x04".encode())
    wait_for(text, lambda: buffer.exists() and buffer.read_text().endswith("."))
    os.write(master, b"\x15")  # the next line begins empty
    return buffer.read_text()[:-1]

  try:
    # Keys that come before the shell edits lines are not those of a line.
    os.write(master, f"{start}; PS1='rea''dy> '\n".encode())
    wait_for("the prompt", lambda: "ready> " in screen)
    assert typed("fedjax-alg compl") == "fedjax-alg completion "
    assert typed("fedjax-alg run --data_d") == "fedjax-alg run --data_dir="
    start = "fedjax-alg run --data_dir="
    assert typed(f"{start}da").rstrip() == f"{start}data.npz"
    start = "fedjax-alg run --dataset=npz:"
    assert typed(f"{start}da").rstrip() == f"{start}data.npz"
    start = "fedjax-alg run --attack=label_flip:"
    assert typed(f"{start}sh") == f"{start}share="
    assert typed(f"{start}0.3,se") == f"{start}0.3,seed="
    start = "fedjax-alg run --rounds=3 --compress_up=topk:0.05,"
    assert typed(f"{start}fe") == f"{start}feedback=false "
    start = "fedjax-alg run --algorithm="
    assert typed(f"{start}fedpr") == f"{start}fedprox "
    assert typed("fedjax-alg run --rounds=") == "fedjax-alg run --rounds="
  finally:
    process.kill()
    process.wait()
    os.close(master)


@pytest.mark.parametrize("words, parts", [([], "bash"), (["csh"], "csh & fish")])
def test_an_unknown_shell_is_one_line(words, parts, capsys):
  assert command.main(words) == 2
  (line,) = capsys.readouterr().err.splitlines()
  assert not [part for part in parts.split(" & ") if part not in line]


def test_the_command_prints_the_script(scripts, capsys):
  assert command.main(["zsh"]) == 0
  assert capsys.readouterr().out == scripts["zsh"].read_text("utf-8")
