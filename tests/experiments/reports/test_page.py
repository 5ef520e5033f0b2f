"""The page of some runs: in a browser, without a network, and its sources."""

import html
import importlib

import numpy as np
import pytest
from scipy import stats

import fedjax_alg as fa
from experiments.reports import comparison, page, plots
from fedjax_alg.errors import OptionError
from tests import browser, made_runs

#: A label that must stay text wherever it stands.
EVIL = "</script><img src=x onerror=alert(1)> %{x} <b>&amp;"
ONE = [[0.5, 0.7, 0.83], [0.4, 0.8, 0.71]]
TWO = [[0.6, 0.9, 0.9], [0.7, 0.9, 0.75]]


@pytest.fixture(name="runs", scope="module")
def _runs(tmp_path_factory):
  root = tmp_path_factory.mktemp("runs")
  members = [[0, 1, 1, -1], [0, 0, 0, 1]]
  clients = [[0.0, 0.5, 1.0, np.nan], [0.25, 0.5, 0.75, 1.0]]
  protocols = ("global", "local")
  made = {
      "FedAvg": dict(accuracy=ONE),
      EVIL: dict(accuracy=TWO, algorithm="ifca", clients=clients,
                 membership=members, floats=30_000),
      "single": dict(accuracy=[[0.2, 0.3, 0.4]])}
  return {label: fa.load_run(made_runs.write(
      root / str(i), protocols=protocols, **options))
          for i, (label, options) in enumerate(made.items())}


@pytest.fixture(name="written", scope="module")
def _written(runs, tmp_path_factory):
  found = fa.compare(runs, targets=(0.7,))
  path = tmp_path_factory.mktemp("page") / "page.html"
  page.write(path, f"Title {EVIL}", {EVIL: runs}, comparison.all_tables(found),
             metric="accuracy", protocol="global", command_line=f"me {EVIL}")
  return path


def test_the_numbers_of_a_page(written):
  first, second, single = browser.page_data(written)["panels"][0]["runs"]
  curve = first["curves"]["global"]["accuracy"]
  values = 100 * np.array(ONE)
  np.testing.assert_allclose(curve["mean"], values.mean(0), rtol=1e-5)
  half = stats.t.ppf(0.975, 1) * stats.sem(values)
  np.testing.assert_allclose(curve["low"], values.mean(0) - half, rtol=1e-4)
  np.testing.assert_allclose(curve["high"], values.mean(0) + half, rtol=1e-4)
  assert set(single["curves"]["local"]["loss"]) == {"mean"}  # no interval
  assert first["x"]["rounds"] == [5, 10, 15]
  assert second["x"]["floats"] == [150_000, 300_000, 450_000]
  assert first["x"]["seconds"] == [0.5, 1.0, 1.5]
  # Seven clients were tested; the middle one of them has an accuracy of 50 %.
  distribution = second["clients"]["local"]
  assert (distribution[0], distribution[100], distribution[-1]) == (0, 50, 100)
  assert first["clients"] == {}
  (groups,) = browser.page_data(written)["groups"]
  assert groups["sizes"] == [[1, 2], [3, 1]]
  assert groups["membership"] == [[0, 1, 1, -1], [0, 0, 0, 1]]


def test_what_users_write_stays_text(written):
  text = written.read_text("utf-8")
  body = text[text.index("<body>"):text.index("/**\n* plotly.js")]
  assert "<img" not in body and "<b>" not in body
  assert html.escape(EVIL) in body


def test_without_plotly_there_is_one_line(tmp_path, runs, monkeypatch):
  def missing(name):
    raise ImportError(name)

  monkeypatch.setattr(importlib, "import_module", missing)
  with pytest.raises(OptionError, match=r"pip install 'fedjax_alg\[report\]'"):
    page.write(tmp_path / "page.html", "", {"": runs}, [], metric="accuracy",
               protocol="global")
  assert not (tmp_path / "page.html").exists()


@pytest.fixture(name="opened", scope="module")
def _opened(written, tmp_path_factory):
  program = browser.find()
  if program is None:
    pytest.skip("no browser is installed (chromium, chrome)")
  try:
    found = browser.Browser(program, tmp_path_factory.mktemp("profile"))
  except (EOFError, OSError) as error:  # a stub that would install one
    pytest.skip(f"{program} does not start: {error}")
  try:
    found.open(written)
    found.wait("document.querySelectorAll('#sizes .point').length > 0")
    yield found
  finally:
    found.close()


def drawn(opened):
  """Names of the lines of the curves that are to be seen."""
  return opened.evaluate(
      "document.getElementById('curves_0')._fullData"
      ".filter(t => t.visible === true && t.showlegend).map(t => t.name)")


def test_every_run_has_a_line_and_a_band(opened):
  lines = opened.evaluate(
      "[...document.querySelectorAll('#curves_0 .legendtext')]"
      ".map(e => e.textContent)")
  assert lines == ["FedAvg", EVIL, "single"] == [
      html.unescape(name) for name in drawn(opened)]
  assert opened.evaluate("document.querySelectorAll("
                         "'#curves_0 .scatterlayer .js-fill').length") == 2
  assert opened.evaluate("document.querySelectorAll("
                         "'#curves_0 .scatterlayer .js-line').length") == 7
  assert opened.evaluate("document.title") == f"Title {EVIL}"
  assert opened.evaluate("document.querySelectorAll("
                         "'#assignment .heatmaplayer image').length") == 1


def test_the_axis_has_the_range_of_the_picture(opened, runs, monkeypatch):
  seen = []
  monkeypatch.setattr(plots, "save", lambda figure, *_: seen.append(figure))
  comparison.draw([], fa.compare(runs), "")
  low, high = opened.evaluate(
      "document.getElementById('curves_0')._fullLayout.yaxis.range")
  np.testing.assert_allclose(
      (low / 100, high / 100), seen[0].axes[0].get_ylim(), rtol=1e-4)
  plots.plt.close(seen[0])


def test_a_click_on_a_name_switches_its_run(opened):
  toggle = "document.querySelectorAll('#curves_0 .legendtoggle')[0]"
  lines = ("document.querySelectorAll('#curves_0 .scatterlayer .js-line')"
           ".length")
  opened.click(toggle)
  opened.wait(f"{lines} == 4")  # its band is gone, too
  assert len(drawn(opened)) == 2
  # Another metric keeps the run switched off.
  opened.evaluate(
      "(() => {const menu = document.getElementById('measure');"
      "menu.value = 'local:loss';"
      "menu.dispatchEvent(new Event('change'));})()")
  opened.wait("document.querySelector('#curves_0 .ytitle').textContent"
              " == 'loss'")
  assert len(drawn(opened)) == 2
  opened.click(toggle)
  opened.wait(f"{lines} == 7")


def test_dragging_zooms(opened):
  axis = "document.getElementById('curves_0')._fullLayout.xaxis.range"
  before = opened.evaluate(axis)
  x, y = opened.middle("document.querySelector('#curves_0 .nsewdrag')")
  opened.drag((x, y - 60), (x + 150, y + 60))
  opened.wait(f"{axis}[0] > {before[0]} + 1")
  after = opened.evaluate(axis)
  assert before[0] < after[0] < after[1] < before[1]


def test_a_click_on_a_head_sorts(opened):
  def column(number):
    return opened.evaluate(
        "[...document.querySelector('table.sort').tBodies[0].rows].map("
        f"row => row.cells[{number}].textContent)")

  def click(number):
    opened.click("document.querySelector('table.sort').tHead.rows[0]"
                 f".cells[{number}].firstElementChild")

  click(3)
  numbers = [float(text.split()[0]) for text in column(3)]
  assert numbers == sorted(numbers) == [40.0, 77.0, 82.5]
  click(3)
  assert [float(t.split()[0]) for t in column(3)] == numbers[::-1]
  click(0)
  assert column(0) == [EVIL, "FedAvg", "single"]


def test_nothing_is_asked_of_a_network(opened):
  assert opened.requests == [] and opened.errors == []
  # The page's policy refuses what a script might try.
  assert opened.evaluate(
      "fetch('https://example.org').then(() => 1, () => 0)") == 0
  assert any("Content Security Policy" in text for text in opened.errors)
