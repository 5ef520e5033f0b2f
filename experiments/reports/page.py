"""One self-contained page about some runs: curves, tables, clients, groups.

The page holds the source of Plotly, so it needs no network when it is opened;
its content security policy forbids any request. page.js draws the curves and
sorts the tables, page.css is the style.
"""

from collections.abc import Mapping, Sequence
import html
import importlib
import json
import pathlib
from typing import Any

import numpy as np

from fedjax_alg import metrics
from fedjax_alg.errors import OptionError
from fedjax_alg.records import summary as summary_lib
from fedjax_alg.runs.result import RunResult
from . import comparison as comparison_lib
from . import plots, styles
from .comparison import Table

_HERE = pathlib.Path(__file__).parent

#: Number of points of the distribution of the clients' accuracies.
_QUANTILES = 201

#: Groups of at most so many cells (clients, runs and seeds) are drawn one by
#: one; the sizes of the groups are always there.
_MOST_CELLS = 200_000

#: The bands of more runs would hide each other; they can be switched on.
_MOST_BANDS = 4


def plotly_source(asked: str) -> str:
  """The JavaScript of Plotly.

  Args:
    asked: what asked for a page, for the error.

  Raises:
    OptionError: Plotly is not installed.
  """
  try:
    offline = importlib.import_module("plotly.offline")
  except ImportError:
    raise OptionError(
        f"{asked}: a page needs plotly, install it with pip install "
        "'fedjax_alg[report]'") from None
  return offline.get_plotlyjs()


def _numbers(values: Any) -> list[float | None]:
  """Numbers for JSON, with six digits; what is not finite becomes null."""
  return [float(f"{v:.6g}") if np.isfinite(v) else None
          for v in np.asarray(values, float).tolist()]


def _curves(result: RunResult) -> dict[str, dict[str, Any]]:
  """protocol -> metric -> mean and, with several seeds, the 95 % band."""
  out: dict[str, dict[str, Any]] = {}
  for protocol in result.protocols:
    out[protocol] = {}
    for metric, values in result.metrics[protocol].items():
      if not np.isfinite(values).any():
        continue
      values = summary_lib.factor(metric) * values
      mean, half = values.mean(0), metrics.half_width_95(values)
      curve = {"mean": _numbers(mean)}
      if np.isfinite(half).any():
        curve |= {"low": _numbers(mean - half), "high": _numbers(mean + half)}
      out[protocol][metric] = curve
  return out


def _run(label: str, result: RunResult, style: styles.Style) -> dict[str, Any]:
  """What the page draws of a run."""
  rows = comparison_lib.with_seconds(result)
  first = result.protocols[0]
  x = {}
  for axis, (column, _) in plots.X_AXES.items():
    values = summary_lib.by_seed(rows, first, column).mean(0)
    if np.isfinite(values).all():
      x[axis] = _numbers(values)
  clients = {}
  for protocol, of in result.clients.items():
    accuracy = of["accuracy"][np.isfinite(of["accuracy"])]
    if accuracy.size:
      clients[protocol] = _numbers(100 * np.quantile(
          accuracy, np.linspace(0, 1, _QUANTILES), method="inverted_cdf"))
  return {"label": _plain(label), "colour": style.colour, "dash": style.dash,
          "x": x, "curves": _curves(result), "clients": clients}


def _plain(label: str) -> str:
  """A label in which Plotly, which reads some HTML in texts, sees none."""
  return html.escape(label, quote=False)


def _groups(
    panels: Mapping[str, Mapping[str, RunResult]]) -> list[dict[str, Any]]:
  """Sizes and members of the groups of every run that has groups."""
  found = [(label if len(panels) == 1 else f"{title}: {label}", result)
           for title, runs in panels.items() for label, result in runs.items()
           if result.membership is not None]
  cells = sum(result.membership.size for _, result in found
              if result.membership is not None)
  out = []
  for label, result in found:
    members = np.asarray(result.membership)
    number = max(int(members.max()) + 1, 1)
    out.append({
        "label": _plain(label), "seeds": list(result.seeds),
        "sizes": [np.bincount(own[own >= 0], minlength=number).tolist()
                  for own in members],
        "membership": members.tolist() if cells <= _MOST_CELLS else None})
  return out


def _json(value: Any) -> str:
  """JSON that can stand between the tags of a script."""
  text = json.dumps(value, separators=(",", ":"), allow_nan=False)
  return text.replace("<", "\\u003c")


def _text(words: str) -> str:
  """Escaped text; "+-" becomes the sign."""
  return html.escape(words).replace("+-", "\N{PLUS-MINUS SIGN}")


def _table(table: Table, *, kind: str = "", name: str = "",
           rows: Sequence[str] = ()) -> str:
  """A table whose heads sort it; ``rows`` are the classes of the rows."""
  out = []
  if table.title:
    out.append(f"<h2>{_text(table.title)}</h2>")
  if table.rows:
    classes = list(rows) or [""] * len(table.rows)
    out.append(f'<div class="scroll"><table class="sort {kind}"'
               + (f' id="{name}"' if name else "") + "><thead><tr>")
    out += [f'<th><button type="button">{_text(head)}</button></th>'
            for head in table.head]
    out.append("</tr></thead><tbody>")
    for row, of_row in zip(table.rows, classes, strict=True):
      out.append(f'<tr class="{of_row}">' + "".join(
          f"<td>{_text(cell)}</td>" for cell in row) + "</tr>")
    out.append("</tbody></table></div>")
  if table.note:
    out.append(f'<p class="note">{_text(table.note)}</p>')
  return "\n".join(out)


def _choice(name: str, label: str, values: Mapping[str, str], chosen: str
            ) -> str:
  """A menu."""
  options = "".join(
      f'<option value="{html.escape(value)}"'
      f'{" selected" * (value == chosen)}>{html.escape(words)}</option>'
      for value, words in values.items())
  return f'<label>{label} <select id="{name}">{options}</select></label>'


def _box(name: str, label: str, checked: bool) -> str:
  return (f'<label><input type="checkbox" id="{name}"'
          f'{" checked" * checked}> {label}</label>')


def _plots(kind: str, titles: Sequence[str]) -> str:
  """The places of one plot per panel."""
  many = len(titles) > 1
  return f'<div class="plots{" many" * many}">' + "".join(
      f"<div>{f'<h3>{html.escape(title)}</h3>' * many}"
      f'<div id="{kind}_{i}"></div></div>'
      for i, title in enumerate(titles)) + "</div>"


def group_table(panels: Mapping[str, Mapping[str, RunResult]]) -> Table:
  """The last rows of groups.csv of every run that has groups."""
  rows = []
  for title, runs in panels.items():
    for label, result in runs.items():
      table = result.records.tables.get("groups", [])
      for row in table:
        if row["round"] == table[-1]["round"]:
          rows.append((
              *([title] if len(panels) > 1 else []), label, str(row["seed"]),
              str(row["assigned"]), str(row["used"]), *(
                  "-" if np.isnan(row[name]) else f"{row[name]:.3f}"
                  for name in ("purity", "ari"))))
  return Table(
      "", (*(["panel"] if len(panels) > 1 else []), "run", "seed",
           "clients in a group", "groups used", "purity",
           "adjusted Rand index"), tuple(rows),
      "Purity and adjusted Rand index: how the groups agree with the kinds of "
      "clients, which hold the same classes.")


def _measures(
    panels: Mapping[str, Mapping[str, RunResult]]) -> dict[str, str]:
  """"protocol:metric" -> words, of all that any run has."""
  out: dict[str, str] = {}
  for runs in panels.values():
    for result in runs.values():
      for protocol in result.protocols:
        for metric, values in result.metrics[protocol].items():
          if np.isfinite(values).any():
            out[f"{protocol}:{metric}"] = (
                f"{protocol}: {metric.replace('_', ' ')}")
  return out


def write(
    path: pathlib.Path, title: str,
    panels: Mapping[str, Mapping[str, RunResult]], tables: Sequence[Table], *,
    metric: str, protocol: str, x_axis: str = "rounds",
    command_line: str = "") -> None:
  """Writes a page.

  Args:
    path: the file.
    title: the heading.
    panels: title of a panel -> label -> run.
    tables: tables between the curves and the clients.
    metric: the metric that is drawn at first.
    protocol: its protocol.
    x_axis: the x axis at first, one of ``plots.X_AXES``.
    command_line: the command that makes the page; "": it is not shown.

  Raises:
    OptionError: Plotly is not installed.
  """
  source = plotly_source(f"{path.name}")
  style = styles.of(label for runs in panels.values() for label in runs)
  drawn: list[dict[str, Any]] = [{"title": name, "runs": [
      _run(label, result, style[label]) for label, result in runs.items()]}
                                 for name, runs in panels.items()]
  groups = _groups(panels)
  axes = {name: words for name, (_, words) in plots.X_AXES.items()}
  data = {
      "panels": drawn, "groups": groups, "quantiles": _QUANTILES,
      "palette": styles.COLOURS[:4] + styles.COLOURS[5:],
      "axes": axes,
      "metrics": {name: name.replace("_", " ") + (
          "" if name == "loss" else ", %") for name in metrics.METRICS}}
  titles = list(panels)
  several = any(len(result.seeds) > 1
                for runs in panels.values() for result in runs.values())
  parts = [
      f"<h1>{html.escape(title)}</h1>",
      "<h2>Curves</h2>", '<div class="choose">',
      _choice("measure", "show", _measures(panels), f"{protocol}:{metric}"),
      _choice("x_axis", "over", axes, x_axis),
      _box("bands", "95 % bands", several and max(
          map(len, panels.values())) <= _MOST_BANDS),
      _box("log_y", "logarithmic", metric == "loss"), "</div>",
      _plots("curves", titles),
      '<p class="note">Lines are means over the seeds' + (
          ", bands their 95 % Student-t intervals (none for a run of one "
          "seed)" if several else "; every run has one seed, so there is no "
          "band") + ". Drag to zoom, double-click to see all again; a click on "
      "a name switches the run off and on, a double click shows it "
      "alone.</p>",
      *(_table(table) for table in tables)]
  protocols = dict.fromkeys(
      name for panel in drawn for run in panel["runs"]
      for name in run["clients"])
  if protocols:
    parts += [
        "<h2>Accuracy of the clients</h2>", '<div class="choose">',
        _choice("clients_protocol", "protocol", {p: p for p in protocols},
                next(iter(protocols))), "</div>",
        _plots("clients", titles),
        '<p class="note">At the end, the clients of all seeds together; the '
        "further right a curve, the more clients are well served.</p>"]
  if groups:
    parts += ["<h2>Groups of clients</h2>", '<div id="sizes"></div>']
    if groups[0]["membership"] is not None:
      parts += ['<div id="assignment"></div>',
                '<p class="note">A column for each client; grey: in no group '
                "yet.</p>"]
    parts.append(_table(group_table(panels)))
  table, differs = comparison_lib.options({
      label if len(panels) == 1 else f"{name}: {label}": result
      for name, runs in panels.items() for label, result in runs.items()})
  parts += [
      f"<h2>{_text(table.title)}</h2>",
      '<div class="choose">' + _box(
          "only", "only those that differ", any(differs)) + "</div>",
      _table(table._replace(title=""), kind="text" + " only" * any(differs),
             name="flags_table",
             rows=["differs" if one else "same" for one in differs])]
  if command_line:
    parts.append(f'<p class="note">Made by <code>{html.escape(command_line)}'
                 "</code></p>")
  body = "\n".join(parts)
  policy = ("default-src 'none'; script-src 'unsafe-inline'; style-src "
            "'unsafe-inline'; img-src data: blob:; form-action 'none'; "
            "base-uri 'none'")
  css, own = ((_HERE / name).read_text("utf-8")
              for name in ("page.css", "page.js"))
  summary_lib.write_text(path, f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html.escape(title)}</title>
<style>{css}</style>
</head>
<body>
{body}
<script id="data" type="application/json">{_json(data)}</script>
<script>{source}</script>
<script>{own}</script>
</body>
</html>
""")
