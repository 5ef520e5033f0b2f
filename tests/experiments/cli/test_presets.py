"""Presets in tables: what they resolve to, and what a table must be."""

import collections
import concurrent.futures
import math

import pytest

from experiments.cli import config, flag_words, flags, presets
from fedjax_alg.errors import OptionError
from fedjax_alg.part import read_part
from tests.each import each

pytestmark = pytest.mark.fast

TABLES = sorted(presets.PRESETS.glob(f"*/{presets.TABLE}"))
HEADER = ",".join(presets.PresetRow._fields)


def is_number(text):
  try:
    return math.isfinite(float(text))
  except ValueError:
    return False


@each(
  "path",
  TABLES,
)
def test_a_table_is_well_formed(path):
  rows = presets.read_table(path)
  all_flags = {"flagfile", *flags.hyper_fields()}
  all_flags |= {flag.name for flag in flags.run_flags()}
  for row in rows:
    assert not row.flag or row.flag.partition(".")[0] in all_flags, row
    assert row.chosen_by in ("", *presets.ORIGINS), row
    if row.flag == "flagfile":
      assert presets.exists(row.value), row
    # What says how a search went is about a choice of it.
    if row.tried or row.score or row.stated_score or row.source:
      assert row.chosen_by in ("validation", "edge of grid"), row
    if row.chosen_by == "edge of grid":
      assert row.tried, row
  of_flag = collections.Counter(
    (row.preset, row.flag) for row in rows if row.value and row.flag != "flagfile"
  )
  assert set(of_flag.values()) <= {1}


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.parent.name)
def test_a_grid_has_the_choice_and_says_whether_it_is_at_the_edge(path):
  for row in presets.read_table(path):
    if "; " not in row.tried:
      continue
    scores = dict(pair.split(" ") for pair in row.tried.split("; "))
    words = config.expand_flagfiles([f"--flagfile={path.parent.name}/{row.preset}"])
    flag, dot, inner = row.flag.partition(".")
    value = [word for word in words if flag_words.name_of(word) == flag][-1]
    value = value.partition("=")[2] or "true"
    if dot:
      part = read_part(flag, value, flags.hyper_fields()[flag].type)
      value = str(getattr(part, inner))
    if is_number(value):
      scores = {f"{float(v):g}": score for v, score in scores.items()}
      value = f"{float(value):g}"
      ends = list(map(float, scores))
      at_edge = float(value) in (ends[0], ends[-1]) and float(value) > 0
      # Nothing lies beyond 0, nor beyond the least value there is.
      at_edge &= f"{value} is the least possible" not in row.remark
      assert (row.chosen_by == "edge of grid") == at_edge, row
    assert scores[value] == row.score, row


def write(tmp_path, monkeypatch, *lines, header=HEADER):
  monkeypatch.setattr(presets, "PRESETS", tmp_path)
  (tmp_path / "a").mkdir(exist_ok=True)
  path = tmp_path / "a" / presets.TABLE
  text = "".join(line + "," * (9 - line.count(",")) + "\n" for line in lines)
  path.write_text(f"{header}\n{text}", "utf-8")
  return path


def test_rows_are_the_flags_of_a_preset(tmp_path, monkeypatch):
  folder = tmp_path / "presets"
  (folder / "a").mkdir(parents=True)
  (folder / "a" / "base.flags").write_text("--rounds=3\n--l2=0\n")
  write(
    folder,
    monkeypatch,
    ",base,l2,,validation",
    "methods,fedavg,,,stated",
    "methods,fedavg,flagfile,a/base.flags",
    "methods,fedavg,l2,0.1,untuned",
    "methods,fedavg,nesterov,true",
    "methods,fedavg,mu,,validation",
    ",short,flagfile,a/methods/fedavg.flags",
  )
  expected = ["--rounds=3", "--l2=0", "--l2=0.1", "--nesterov"]
  path = folder / "a" / "methods" / "fedavg.flags"
  (tmp_path / "link").symlink_to(folder / "a")
  monkeypatch.chdir(folder / "a")
  for name in (
    "a/methods/fedavg.flags",
    path,
    "a/short.flags",
    "methods/fedavg.flags",  # from the folder of the paper
    tmp_path / "link" / "methods" / "fedavg.flags",
  ):
    assert config.expand_flagfiles([f"--flagfile={name}"]) == expected
  assert presets.names() == ["a/base.flags", "a/methods/fedavg.flags", "a/short.flags"]
  assert [row.flag for row in presets.load_preset("a/base.flags").settings] == ["l2"]
  assert presets.exists("a/short.flags") and not presets.exists("a/long.flags")
  # A user's file of that name comes first, and no table speaks of it.
  (tmp_path / "user" / "a").mkdir(parents=True)
  (tmp_path / "user" / "a" / "short.flags").write_text("--rounds=5\n")
  monkeypatch.chdir(tmp_path / "user")
  assert presets.load_preset("a/short.flags")[1:] == (["--rounds=5"], ())


def test_every_preset_of_a_table_is_named_and_others_are_answered_with_a_near_name():
  names = presets.names()
  assert "diversified/methods/fedavg.flags" in names
  with pytest.raises(
    config.UsageError,
    match=r"^--flagfile=diversified/methods/fedavgs.flags: no such file, nor a "
    r"preset.*diversified/methods/fedavg.flags",
  ):
    config.parse_config(["--flagfile=diversified/methods/fedavgs.flags"])


@each(
  "line, message",
  [
    ("m,x,l2,1,luck", "column chosen_by: 'luck': must be one of stated, valid"),
    ("../m,x,l2,1", "column folder: '../m': must be a folder such as methods"),
    ("m,,l2,1", "column name: '': must be letters"),
    ("m,x,--l2,1", "column flag: '--l2': must be a flag without dashes"),
    ("m,x,l2", "column value: '': must be that of the flag"),
    ("m,x,,1", "column value: '1': must be empty where there is no flag"),
    ("m,x,private.clip,1", "column value: '1': must be in that of private"),
    ("m,x,l2,1,,,nan", "column score: 'nan': must be a number"),
    ("m,x,l2,1,,,,much", "column stated_score: 'much': must be a number"),
    (
      "m,fedavg,mu,2",
      "column value: '2': must be in one row of a preset's flag, row 2",
    ),
    ("m,fedavg,mu,,test", "column chosen_by: 'test': must be in one row"),
    ("m,none,mu,,test", "column name: 'none': must have values, as there is no file"),
    (",base,l2,1", "column value: '1': must be empty, base.flags is a file"),
    ("m,x,l2,1,,,,,,,,", "12 columns: must be 10"),
  ],
)
def test_a_wrong_row_is_refused_in_one_line(line, message, tmp_path, monkeypatch):
  path = write(tmp_path, monkeypatch, "m,fedavg,mu,1,validation", line)
  (tmp_path / "a" / "base.flags").write_text("--rounds=3\n")
  with pytest.raises(config.UsageError) as error:
    config.parse_config(["--flagfile=a/m/fedavg.flags"])
  assert str(error.value).startswith(f"{path}, row 3")
  assert message in str(error.value) and "\n" not in str(error.value)


def test_other_columns_are_refused(tmp_path, monkeypatch):
  write(tmp_path, monkeypatch, header=HEADER.replace("tried", "grid"))
  with pytest.raises(OptionError, match="row 1: columns folder,.*: must be folder,na"):
    presets.exists("a/x.flags")


def test_rows_of_a_preset_take_the_place_of_those_before(tmp_path, monkeypatch):
  path = write(tmp_path, monkeypatch, "m,a,l2,1", "m,b,l2,2", "m,a,mu,3", "m,c,l2,4")

  def setting(name, *rest, **columns):
    return presets.PresetRow("m", name, *rest, **columns)

  presets.replace("a/m/b.flags", [setting("b", "l2", "5", remark="a, b")])
  presets.replace("a/m/a.flags", [setting("a", "mu", "6")])
  presets.replace("a/m/d.flags", [setting("d", "mu", "7")])
  assert [row[1:4] for row in presets.read_table(path)] == [
    ("a", "mu", "6"),
    ("b", "l2", "5"),
    ("c", "l2", "4"),
    ("d", "mu", "7"),
  ]
  before = path.read_bytes()
  with pytest.raises(OptionError, match="column chosen_by: 'luck'"):
    presets.replace("a/m/d.flags", [setting("d", "mu", "7", "luck")])
  assert path.read_bytes() == before
  assert presets.load_preset("a/m/d.flags").words == ["--mu=7"]


def test_who_write_at_once_lose_nothing(tmp_path, monkeypatch):
  monkeypatch.setattr(presets, "PRESETS", tmp_path)

  def write_some(name):
    for value in range(20):
      setting = presets.PresetRow("m", f"{name}{value}", "l2", str(value))
      presets.replace(f"a/m/{name}{value}.flags", [setting])

  with concurrent.futures.ThreadPoolExecutor() as pool:
    list(pool.map(write_some, "xyz"))
  assert len(presets.read_table(tmp_path / "a" / presets.TABLE)) == 60
