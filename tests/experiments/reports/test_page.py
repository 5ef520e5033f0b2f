"""The page of some runs: its figures, its sources, and in a browser."""

import html
import importlib
import re
import shutil
import subprocess

import numpy as np
import pytest
from scipy import stats

from experiments.drawing import plots
from experiments.reports import comparison, page
import fedjax_alg as fa
from fedjax_alg.errors import OptionError
from fedjax_alg.runs import styles
from tests import made_runs

#: A label that must stay text wherever it stands.
EVIL = "</script><img src=x onerror=alert(1)> %{x} <b>&amp;"
FIRST = [[0.5, 0.7, 0.83], [0.4, 0.8, 0.71]]
SECOND = [[0.6, 0.9, 0.9], [0.7, 0.9, 0.75]]
MEMBERS = [[0, 1, 1, -1], [0, 0, 0, 1]]


@pytest.fixture(name="runs", scope="module")
def _runs(tmp_path_factory):
  root = tmp_path_factory.mktemp("runs")
  clients = [[0.0, 0.5, 1.0, np.nan], [0.25, 0.5, 0.75, 1.0]]
  options = {
    "FedAvg": dict(accuracy=FIRST),
    EVIL: dict(
      accuracy=SECOND,
      algorithm="ifca",
      clients=clients,
      membership=MEMBERS,
      floats=30_000,
    ),
    "single": dict(accuracy=[[0.2, 0.3, 0.4]]),
  }
  return {
    label: fa.load_run(
      made_runs.write(root / str(i), protocols=("global", "local"), **of_run)
    )
    for i, (label, of_run) in enumerate(options.items())
  }


@pytest.fixture(name="written", scope="module")
def fixture_written(runs, tmp_path_factory):
  tables = comparison.all_tables(fa.compare(runs, targets=(0.7,)))
  path = tmp_path_factory.mktemp("page") / "page.html"
  page.write_page(
    path,
    f"Title {EVIL}",
    {EVIL: runs, "b": runs},
    tables,
    metric="accuracy",
    protocol="global",
    command_line=f"me {EVIL}",
  )
  return path


@pytest.fixture(name="figure")
def _figure(runs):
  return page._curves(runs, styles.line_styles(runs), "accuracy", "global", "rounds")


def test_a_band_ends_where_its_metric_does(tmp_path):
  """One of negative numbers ended above its mean."""
  values = [[-0.5], [-0.25]]
  result = fa.load_run(made_runs.write(tmp_path, [[0.25], [0.75]], loss=values))
  result.metrics["global"] |= {"r2": np.array(values), "mse": np.array([[0.1], [3]])}
  for metric, end in (("r2", -0.375), ("mse", 0.155), ("accuracy", 0)):
    band, _ = page._curve(result, "global", metric)
    low = band[-1]
    if metric == "r2":
      assert low < end
    else:
      assert low == pytest.approx(end)


def choose(figure, menu, words):
  """Does what Plotly does at a choice from a menu."""
  (button,) = [
    button
    for button in figure.layout.updatemenus[menu].buttons
    if button.label == words
  ]
  assert button.method == "update"
  figure.plotly_update(*button.args)


def test_a_panel_may_have_a_metric_of_its_own(runs, tmp_path):
  run = {"FedAvg": runs["FedAvg"]}
  page.write_page(
    tmp_path / "page.html",
    "Title",
    {"a": run, "b": run},
    metric="accuracy",
    protocol="global",
    panel_metrics={"b": "loss"},
  )
  first, second = made_runs.read_traces(tmp_path / "page.html")[:2]
  accuracy = np.mean(FIRST, 0)
  assert first[1]["y"] == pytest.approx(list(100 * accuracy))
  assert second[1]["y"] == pytest.approx(list(1 - accuracy))


def test_every_run_has_a_line_and_a_band(figure):
  bands, lines = figure.data[::2], figure.data[1::2]
  assert [html.unescape(line.name) for line in lines] == ["FedAvg", EVIL, "single"]
  values = 100 * np.array(FIRST)
  mean, half = values.mean(0), stats.t.ppf(0.975, 1) * stats.sem(values)
  np.testing.assert_allclose(lines[0].y, mean, rtol=1e-5)
  high, low = np.split(np.array(bands[0].y, float), 2)
  np.testing.assert_allclose(high, mean + half, rtol=1e-4)
  np.testing.assert_allclose(low[::-1], np.maximum(mean - half, 0), rtol=1e-4)
  assert bands[2].y == ()  # one seed has no interval
  assert lines[0].x == (5, 10, 15) and bands[0].x == (5, 10, 15, 15, 10, 5)
  for band, line in zip(bands, lines):  # a click on a name switches both
    assert band.legendgroup == line.legendgroup and not band.showlegend
    assert band.fill == "toself"


def test_the_menus_change_the_curves(figure, runs):
  choose(figure, 0, "local: loss")
  np.testing.assert_allclose(
    figure.data[3].y, runs[EVIL].metrics["local"]["loss"].mean(0), rtol=1e-5
  )
  assert figure.layout.yaxis.type == "log"
  assert figure.layout.yaxis.title.text == "loss"
  choose(figure, 1, plots.X_AXES["floats"][1])
  assert figure.data[3].x == (150_000, 300_000, 450_000)
  choose(figure, 1, plots.X_AXES["seconds"][1])
  assert figure.data[1].x == (0.5, 1.0, 1.5)
  choose(figure, 2, "no bands")
  assert {trace.fill for trace in figure.data[::2]} == {"none"}
  assert {trace.fill for trace in figure.data[1::2]} == {None}


def test_bands_are_where_there_are_some(tmp_path):
  """A menu offered bands to runs of one seed; one evaluation showed none."""
  single = fa.load_run(made_runs.write(tmp_path / "alone", [[0.2, 0.3]]))
  figure = page._curves(
    {"a": single}, styles.line_styles("a"), "accuracy", "global", "rounds"
  )
  assert len(figure.layout.updatemenus) == 2
  once = fa.load_run(made_runs.write(tmp_path / "once", [[0.2], [0.4]]))
  figure = page._curves(
    {"a": once}, styles.line_styles("a"), "accuracy", "global", "rounds"
  )
  band, _ = figure.data
  half = stats.t.ppf(0.975, 1) * stats.sem([20, 40])
  assert band.x == (5, 5) and band.line.width > 0  # its outline
  np.testing.assert_allclose(band.y, [30 + half, 0], rtol=1e-4)
  low, high = figure.layout.yaxis.range
  assert low == 0 and high == 100  # the interval is wider than all shares
  choose(figure, 2, "no bands")
  assert figure.data[0].line.width == 0


def test_the_axis_has_the_range_of_the_picture(figure, runs, monkeypatch):
  seen = []
  monkeypatch.setattr(plots, "save_figure", lambda figure, *_: seen.append(figure))
  comparison.draw_comparison([], fa.compare(runs), "")
  np.testing.assert_allclose(
    np.array(figure.layout.yaxis.range) / 100, seen[0].axes[0].get_ylim(), rtol=1e-4
  )
  plots.plt.close(seen[0])


def test_clients_and_groups(runs):
  figure = page._clients(runs, styles.line_styles(runs))
  choose(figure, 0, "local")
  first, second, _ = figure.data
  # Seven clients were tested; the middle one of them has an accuracy of 50 %.
  assert [second.x[i] for i in (0, 100, -1)] == [0, 50, 100]
  assert first.x == ()
  assert page._clients({"FedAvg": runs["FedAvg"]}, styles.line_styles(runs)) is None
  sizes, members = page._group_figures({"": runs})
  assert [bar.x for bar in sizes.data] == [(1, 3), (2, 1)]
  assert [list(row) for row in members.data[0].z] == MEMBERS
  table = page._group_table({"": runs})  # of made runs each holds another class
  assert "A dash: not defined: all clients are of one kind" in table.note
  assert "dash" not in page._group_table({"": {}}).note
  assert page._group_figures({"": {"FedAvg": runs["FedAvg"]}}) == []


def test_clients_are_called_by_their_names():
  """Not by their places, which are the names of others where data number clients."""
  row = {"FedAvg": np.array([1, 0])}
  cells = page._cells(row, {"FedAvg": None}, {"FedAvg": ["2", "<1>"]})
  assert cells["customdata"] == [["client 2", "client &lt;1&gt;"]]
  assert "customdata" not in page._cells(row, {"FedAvg": None}, {"FedAvg": ["0", "1"]})


def test_what_users_write_stays_text(written):
  text = written.read_text("utf-8")
  source = text.index("/**\n* plotly.js")
  markup = text[:source] + text[text.index("</script>", source) :]
  assert "<img" not in markup and "<b>" not in markup
  assert html.escape(EVIL) in markup


def test_without_plotly_there_is_one_line(tmp_path, runs, monkeypatch):
  def missing(name):
    raise ImportError(name)

  monkeypatch.setattr(importlib, "import_module", missing)
  with pytest.raises(OptionError, match=r"pip install 'fedjax_alg\[report\]'"):
    page.write_page(
      tmp_path / "page.html", "", {"": runs}, [], metric="accuracy", protocol="global"
    )
  assert not (tmp_path / "page.html").exists()


def test_a_browser_draws_it_without_a_network(written, tmp_path):
  program = next(
    filter(
      None,
      map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome")),
    ),
    None,
  )
  if program is None:
    pytest.skip("no browser is installed (chromium, chrome)")
  opened = subprocess.run(
    [
      program,
      "--headless=new",
      "--no-sandbox",
      "--disable-gpu",
      "--host-resolver-rules=MAP * ~NOTFOUND",
      "--enable-logging=stderr",
      f"--user-data-dir={tmp_path}",
      "--virtual-time-budget=20000",
      "--dump-dom",
      written.resolve().as_uri(),
    ],
    capture_output=True,
    text=True,
    timeout=120,
    check=False,
  )
  if opened.returncode:
    pytest.skip(f"{program} does not start")  # a stub that would install one
  assert "CONSOLE" not in opened.stderr  # no error, and no request refused
  assert "default-src 'none'" in opened.stdout
  assert len(re.findall('class="js-line"', opened.stdout)) >= 2 * (3 + 2)
  assert opened.stdout.count('class="hm"') == 1
  assert set(
    re.findall(r'modebar-btn[^>]* data-title="([^"]*)"', opened.stdout)
  ) == {  # none that uploads
    "Download plot as a PNG",
    "Zoom",
    "Pan",
    "Zoom in",
    "Zoom out",
    "Reset axes",
  }
  assert len(re.findall('class="legendtext"[^>]*>single<', opened.stdout)) >= 2
