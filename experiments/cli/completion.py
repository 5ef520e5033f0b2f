"""Scripts for TAB in bash, zsh and fish, made from the flags of the commands.

A script is static, so TAB starts no Python: it has the commands, their flags, and
the values, as data (``tree.Option``). One function of POSIX sh finds what may follow
in all three shells, and a few lines for each shell ask it.

The function prints a candidate a line, with its explanation after a tab. A line
``:files`` says that the value may also name a file. Candidates are whole words of the
command line, so that no shell has to know where ``=`` and ``:`` break a word.
"""

from collections.abc import Iterable, Mapping, Sequence
import shlex

from fedjax_alg import registry
from fedjax_alg.part import Part, only_field

from . import lines, presets, tree
from . import program as program_lib
from .command import Command
from .tree import Option

#: An explanation has at most so many characters.
_MOST_LETTERS = 60

#: What may follow the word $2 of the command $1. Only what bash, zsh and dash share.
_ENGINE = r"""
_fedjax_alg_complete() {
  case $2 in
    --help=*) _fedjax_alg_topics "$1" | _fedjax_alg_filter --help= "${2#*=}" ;;
    --*=*) _fedjax_alg_value "$1" "${2%%=*}=" "${2#*=}" ;;
    -*) { printf '%s\n' --help --help=; _fedjax_alg_flags "$1"; } |
      _fedjax_alg_filter '' "$2" ;;
    *)
      local words="$(_fedjax_alg_positions "$1")"
      if [ -z "$words" ]; then echo :files; return; fi
      printf '%s\n' "$words" | _fedjax_alg_filter '' "$2" ;;
  esac
}

_fedjax_alg_value() {
  # What follows the text $2 of the flag in it, of whose value $3 is there.
  local flag="${2#--}" value="$3"
  flag="${flag%%=*}"
  case $flag,$value in
    sweep,*=*)
      _fedjax_alg_value "$1" "--${value%%=*}=" "${value#*=}" |
        while IFS= read -r line; do
          case $line in :*) ;; *) printf '%s\n' "--sweep=${line#--}" ;; esac
        done
      return ;;
    sweep,*) _fedjax_alg_flags "$1" | while IFS= read -r line; do
        case $line in *=*) printf '%s\n' "${line#--}" ;; esac
      done | _fedjax_alg_filter --sweep= "$value"
      return ;;
    flagfile,*) _fedjax_alg_words "$1" flagfile | _fedjax_alg_segments "$2" "$value" ;;
    *:*)
      local fields="$(_fedjax_alg_fields "$flag" "${value%%:*}")" head="${value%%:*}:"
      case $value in *,*) head="${value%,*}," ;; esac
      if [ -n "$fields" ]; then
        printf '%s\n' "$fields" | while IFS= read -r line; do
          case ",${head#*:}" in
            *,*,) case $line in *=*) ;; *) continue ;; esac ;;
          esac
          case ",${head#*:}" in
            *",${line%%=*}="*) ;;
            *) printf '%s\n' "$line" ;;
          esac
        done | _fedjax_alg_filter "$2$head" "${value#"$head"}"
        return
      fi
      _fedjax_alg_words "$1" "$flag" | _fedjax_alg_filter "$2" "$value" ;;
    *,*,*) _fedjax_alg_words "$1" "$flag" |
      _fedjax_alg_filter "$2${value%,*}," "${value##*,}" ;;
    *) _fedjax_alg_words "$1" "$flag" | _fedjax_alg_filter "$2" "$value" ;;
  esac
  _fedjax_alg_has_files "$flag" && echo :files
  return 0
}

_fedjax_alg_filter() {
  # The lines that begin with $2, each after $1; without a stem that is there.
  while IFS= read -r line; do
    case $line in
      "$2") case $line in *:) ;; *) printf '%s\n' "$1$line" ;; esac ;;
      "$2"*) printf '%s\n' "$1$line" ;;
    esac
  done
}

_fedjax_alg_segments() {
  # The same of paths in order, up to the next slash.
  local last=
  while IFS= read -r line; do
    case $line in "$2"*) ;; *) continue ;; esac
    case ${line#"$2"} in
      */*) line="${line#"$2"}"; line="$2${line%%/*}/" ;;
    esac
    if [ "$line" != "$last" ]; then printf '%s\n' "$1$line"; fi
    last="$line"
  done
}

_fedjax_alg_topics() {
  printf '%s\n' all
  _fedjax_alg_sections "$1"
  _fedjax_alg_flags "$1" | while IFS= read -r line; do
    line="${line%%	*}"
    line="${line#--}"
    printf '%s\n' "${line%=}"
  done
}
"""

_BASH = r"""
_fedjax_alg() {
  local line="${COMP_LINE:0:COMP_POINT}" word about files= breaks= stem=
  local current="${line##*[[:space:]]}"
  local -a before
  read -ra before <<< "${line%"$current"}"
  # Readline puts a candidate in the place of what follows the last break.
  [[ $COMP_WORDBREAKS == *=* ]] && breaks+='='
  [[ $COMP_WORDBREAKS == *:* ]] && breaks+=':'
  [[ -n $breaks ]] && stem="${current%"${current##*[$breaks]}"}"
  COMPREPLY=()
  while IFS=$'\t' read -r word about; do
    if [[ $word == :files ]]; then
      files=yes
      continue
    fi
    [[ $word == *[=:/] ]] || word+=' '
    COMPREPLY+=("${word#"$stem"}")
  done < <(
    if (( ${#before[@]} < 2 )); then
      _fedjax_alg_commands | _fedjax_alg_filter '' "$current"
    else
      _fedjax_alg_complete "${before[1]}" "$current"
    fi
  )
  if (( ${#COMPREPLY[@]} == 0 )); then
    if [[ -n $files ]]; then
      compopt +o nospace 2> /dev/null
    else
      compopt +o default 2> /dev/null
    fi
  fi
  return 0
}

complete -o nospace -o default -F _fedjax_alg fedjax-alg
"""

_ZSH = r"""
_fedjax_alg() {
  # As sh counts the elements of arrays, words[2] would be another word.
  local command="${words[2]}" output line word about files=
  local -a open open_about closed closed_about
  if (( CURRENT == 2 )); then
    output="$(emulate sh; _fedjax_alg_commands)"
  else
    output="$(emulate sh; _fedjax_alg_complete "$command" "$PREFIX")"
  fi
  for line in "${(@f)output}"; do
    word="${line%%$'\t'*}"
    about="$word"
    [[ $line == *$'\t'* ]] && about="${(r:28:)word}  ${line#*$'\t'}"
    case $word in
      '') ;;
      :files) files=yes ;;
      *[=:/]) open+=("$word") open_about+=("$about") ;;
      *) closed+=("$word") closed_about+=("$about") ;;
    esac
  done
  if (( ${#open} + ${#closed} )); then
    compadd -Q -l -S '' -d open_about -a open
    compadd -Q -l -d closed_about -a closed
  elif [[ -n $files ]]; then
    compset -P '--*='
    [[ $PREFIX =~ '^[a-z0-9_]+:' ]] && compset -P '*:'
    _files
  fi
}

if [[ ${funcstack[1]} == _fedjax-alg ]]; then
  _fedjax_alg "$@"
else
  compdef _fedjax_alg fedjax-alg
fi
"""

_FISH = r"""
function __fedjax_alg
  set -l before (commandline -opc)
  set -l current (commandline -ct)
  set -l call _fedjax_alg_commands
  if test (count $before) -gt 1
    set call '_fedjax_alg_complete "$1" "$2"'
  end
  set -l found (printf '%s\n' $__fedjax_alg_sh $call | sh -s -- "$before[2]" "$current")
  if test "$found" = :files
    set -l flag (string match -r -- '^--[^=]*=(?:[a-z0-9_]+:)?' "$current")
    for path in (__fish_complete_path (string replace -- "$flag" '' "$current"))
      echo -- "$flag$path"
    end
    return
  end
  for line in $found
    test "$line" = :files; or echo -- $line
  end
end

complete -c fedjax-alg -f -a '(__fedjax_alg)'
"""


def bash_script(commands: Mapping[str, str], forms: Sequence[Command]) -> str:
  """The script for bash.

  Args:
    commands: the name of every command -> its summary.
    forms: the commands; one may have several forms with other flags.
  """
  return f"# TAB for fedjax-alg in bash.\n{_sh(commands, forms)}{_BASH}"


def zsh_script(commands: Mapping[str, str], forms: Sequence[Command]) -> str:
  """The script for zsh, a file _fedjax-alg of ``fpath`` or to be sourced."""
  return f"#compdef fedjax-alg\n{_sh(commands, forms)}{_ZSH}"


def fish_script(commands: Mapping[str, str], forms: Sequence[Command]) -> str:
  """The script for fish."""
  quoted = _sh(commands, forms).replace("\\", "\\\\").replace("'", "\\'")
  return f"# TAB for fedjax-alg in fish.\nset -g __fedjax_alg_sh '{quoted}'\n{_FISH}"


#: Name of a shell -> what makes its script.
SCRIPTS = {"bash": bash_script, "zsh": zsh_script, "fish": fish_script}


def _sh(commands: Mapping[str, str], forms: Sequence[Command]) -> str:
  """The data and the function of POSIX sh."""
  groups = tree.run_groups()
  run_options = [option for options in groups.values() for option in options]
  by_command: dict[str, list[Option]] = {}
  positions: dict[str, tuple[str, ...]] = {}
  sections: dict[str, tuple[str, ...]] = {}
  for form in forms:
    by_command.setdefault(form.name, []).extend(tree.flag_options(form.values()))
    positions[form.name] = tuple(form.positions)
    sections[form.name] = tuple(form.help().headings())
  with_runs = {form.name for form in forms if form.passes_on}
  options = [
    *run_options,
    *(option for members in by_command.values() for option in members),
  ]
  flag_cases = {
    name: _print(_flag_lines(members))
    + ("; _fedjax_alg_run_flags" if name in with_runs else "")
    for name, members in by_command.items()
  }
  flagfile = "--flagfile=\tflags in a file, or a preset"
  return "\n".join(
    [
      _function("commands", _print(_explained(commands.items()))),
      _function("run_flags", _print([flagfile, *_flag_lines(run_options)])),
      _case_function("flags", "$1", flag_cases),
      _case_function("positions", "$1", _prints(positions)),
      _case_function("sections", "$1", _prints(sections)),
      _case_function(
        "words", "$1,$2", _words_of_commands(by_command) | _words_of_runs(run_options)
      ),
      _case_function("fields", "$1,$2", _prints(_fields(options))),
      _case_function(
        "has_files",
        "$1",
        {"|".join(["flagfile", *_with_files(options)]): "return 0", "*": "return 1"},
      ),
      _ENGINE.strip("\n"),
      "",
    ]
  )


def _explained(rows: Iterable[tuple[str, str]]) -> list[str]:
  """Names with their explanations, which are short."""
  texts = []
  for name, about in rows:
    text = " ".join(program_lib.as_typed(lines.first_clause(about)).split())
    if len(text) > _MOST_LETTERS:
      text = text[: _MOST_LETTERS - 4].rpartition(" ")[0] + " ..."
    texts.append(f"{name}\t{text}")
  return texts


def _flag_lines(options: Iterable[Option]) -> list[str]:
  """The words of flags with their explanations."""
  rows = []
  for option in options:
    if not option.is_switch:
      rows.append((f"--{option.name}=", option.about))
      continue
    rows.append((f"--{option.name}", option.about))
    if option.default == "true":
      rows.append((f"--no{option.name}", f"not: {option.about}"))
  return _explained(rows)


def _words_of_commands(by_command: Mapping[str, Iterable[Option]]) -> dict[str, str]:
  """Pattern of COMMAND,FLAG -> a command that prints the values.

  Commands have other values of a flag of one name, as papers of their figures. A flag
  of a command that has none hides one of runs with its name.
  """
  values: dict[str, tuple[str, ...]] = {}
  for command, options in by_command.items():
    for option in options:
      values.setdefault(f"{command},{option.name}", _values(option))
  return _prints(values) | {name: ":" for name, texts in values.items() if not texts}


def _words_of_runs(options: Iterable[Option]) -> dict[str, str]:
  """Pattern of FLAG in any command -> a command that prints the values."""
  values: dict[str, tuple[str, ...]] = {
    "algorithm": tuple(registry.ALGORITHMS),
    "flagfile": tuple(presets.names()),
  }
  for option in options:
    values.setdefault(option.name, _values(option))
  return _prints({f"*,{name}": texts for name, texts in values.items()})


def _values(option: Option) -> tuple[str, ...]:
  """The values that a flag may have, and beginnings of values."""
  if option.is_switch:
    return "true", "false"
  if option.parts:
    return tuple(word for part in option.parts for word in _part_texts(part))
  return option.words


def _part_texts(part: type[Part]) -> list[str]:
  """The word of a part where it may stand alone, and before its fields."""
  if ":" in part.WORD:  # a form of texts, such as FILE.py:NAME
    return [*part.BARE, *([part.WORD.removesuffix("NAME")] if part.BARE else [])]
  fields = tree.part_options(part)
  single = [] if any(field.is_needed for field in fields) else [part.WORD]
  return [*single, *([f"{part.WORD}:"] if fields else [])]


def _fields(options: Iterable[Option]) -> dict[str, tuple[str, ...]]:
  """OPTION,WORD -> the fields of the part of this word, in its text."""
  return {
    f"{option.name},{part.WORD}": tuple(
      text
      for field in tree.part_options(part)
      for text in _field_texts(field, bool(only_field(part)))
    )
    for option in options
    for part in option.parts
    if ":" not in part.WORD
  }


def _field_texts(field: Option, is_only: bool) -> list[str]:
  """A field of a part with its values; of a switch the one that is no default.

  Args:
    field: the field.
    is_only: whether its value is all that follows the colon, without its name; a text
      is the name of a file.
  """
  if is_only:
    return [text for part in field.parts for text in _part_texts(part)]
  if field.is_switch:
    return [f"{field.name}={'false' if field.default == 'true' else 'true'}"]
  return [f"{field.name}={word}" for word in field.words or ("",)]


def _with_files(options: Iterable[Option]) -> list[str]:
  """The flags whose value may name a file."""
  return sorted({option.name for option in options if option.has_files})


def _print(texts: Sequence[str]) -> str:
  """A command of sh that prints lines."""
  return "printf '%s\\n' " + " ".join(map(shlex.quote, texts)) if texts else ":"


def _prints(table: Mapping[str, Sequence[str]]) -> dict[str, str]:
  """pattern -> a command that prints its lines; of equal lines one pattern."""
  patterns: dict[tuple[str, ...], list[str]] = {}
  for name, texts in table.items():
    if texts:
      patterns.setdefault(tuple(texts), []).append(name)
  return {"|".join(names): _print(texts) for texts, names in patterns.items()}


def _function(name: str, body: str) -> str:
  return f"_fedjax_alg_{name}() {{ {body}; }}"


def _case_function(name: str, word: str, cases: Mapping[str, str]) -> str:
  """A function that does what the case of its arguments says."""
  branches = "\n".join(f"    {pattern}) {body} ;;" for pattern, body in cases.items())
  return f'_fedjax_alg_{name}() {{\n  case "{word}" in\n{branches}\n  esac\n}}'
