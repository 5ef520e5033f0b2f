"""One self-contained page about some runs: curves, tables, clients, groups.

Plotly draws. The page holds its source, so it needs no network when it is
opened; its content security policy forbids any request.
"""

from collections.abc import Callable, Mapping, Sequence
import html
import importlib
import itertools
import pathlib
from typing import Any

import numpy as np

from fedjax_alg import metrics
from fedjax_alg.errors import OptionError, one_line
from fedjax_alg.metrics.groups import UNDEFINED
from fedjax_alg.records import summary as summary_lib
from fedjax_alg.runs import styles, texts
from fedjax_alg.runs.compare import compare
from fedjax_alg.runs.result import RunResult

from ..drawing import plots
from . import comparison as comparison_lib
from .comparison import Cell, ComparisonTable

_CSS = pathlib.Path(__file__).with_name("page.css")

#: The page asks nothing of a network.
_POLICY = (
  "default-src 'none'; script-src 'unsafe-inline'; style-src "
  "'unsafe-inline'; img-src data: blob:; form-action 'none'; "
  "base-uri 'none'"
)

#: Plotly has buttons that share or upload the plot; none of these does.
_CONFIG = {
  "displaylogo": False,
  "responsive": True,
  "plotlyServerURL": "",
  "modeBarButtons": [
    ["toImage"],
    ["zoom2d", "pan2d"],
    ["zoomIn2d", "zoomOut2d", "resetScale2d"],
  ],
}

#: Title of a panel -> label -> run.
Panels = Mapping[str, Mapping[str, RunResult]]

#: Words of a menu -> its changes of traces and layout, and of which traces.
_Menu = dict[str, tuple[object, ...]]

#: Number of points of the distribution of the clients' accuracies.
_QUANTILES = 201

#: The most kinds that are named at an axis.
_MOST_TICKS = 24
#: Groups of at most so many cells (clients, runs and seeds) are drawn one by
#: one; the sizes of the groups are always there.
_MOST_CELLS = 200_000

#: The bands of more runs would hide each other; they can be switched on.
_MOST_BANDS = 4


def check_plotly(caller: str) -> None:
  """Refuses a page where Plotly is not installed.

  Args:
    caller: what asked for a page, for the error.

  Raises:
    OptionError: Plotly is not installed.
  """
  try:
    importlib.import_module("plotly")
  except ImportError:
    raise OptionError(
      f"{caller}: a page needs plotly, install it with pip install 'fedjax_alg[report]'"
    ) from None


def _numbers(values: object) -> list[float | None]:
  """Numbers for JSON, with six digits; what is not finite becomes null."""
  return [
    float(f"{v:.6g}") if np.isfinite(v) else None
    for v in np.asarray(values, float).tolist()
  ]


def _plain(label: str) -> str:
  """A label in which Plotly, which reads some HTML in texts, sees none."""
  return html.escape(one_line(label), quote=False)


def _label_runs(panels: Panels) -> dict[str, RunResult]:
  """The runs of all panels by labels of their own."""
  return {
    label if len(panels) == 1 else f"{title}: {label}": result
    for title, runs in panels.items()
    for label, result in runs.items()
  }


def _figure(traces: Sequence[Mapping[str, object]], **layout: object) -> Any:
  """A figure of Plotly with its legend below."""
  return importlib.import_module("plotly.graph_objects").Figure(
    traces,
    {
      "template": "plotly_white",
      "height": 460 + 10 * len(traces),
      "hovermode": "closest",
      "legend": {"orientation": "h", "y": -0.15, "yanchor": "top"},
    }
    | layout,
  )


def _menu(place: int, buttons: _Menu, active: int = 0) -> dict[str, object]:
  """A menu above a figure."""
  return {
    "x": 0.3 * place,
    "y": 1,
    "xanchor": "left",
    "yanchor": "bottom",
    "pad": {"b": 16},
    "active": active,
    "buttons": [
      {"label": words, "method": "update", "args": list(changes)}
      for words, changes in buttons.items()
    ],
  }


def _line(label: str, style: styles.Style, **options: object) -> dict[str, object]:
  """The trace of a run, without its numbers."""
  return {
    "type": "scatter",
    "mode": "lines",
    "name": _plain(label),
    "legendgroup": _plain(label),
    "line": {"color": style.colour, "dash": style.dash},
    **options,
  }


def _values_of(
  runs: Mapping[str, RunResult], protocol: str, metric: str
) -> list[np.ndarray]:
  """The values [seeds, evaluations] of every run that has the metric."""
  return [
    result.metrics[protocol][metric]
    for result in runs.values()
    if metric in result.metrics.get(protocol, {})
  ]


def _curve(
  result: RunResult, protocol: str, metric: str
) -> tuple[list[float | None], list[float | None]]:
  """The outline of the 95 % band of the mean over the seeds, and the mean.

  The band of a loss ends at a tenth of the mean, so that a logarithmic axis has it,
  and that of a share at 0. A run of one seed has none, one without the metric has
  neither.
  """
  values = result.metrics.get(protocol, {}).get(metric)
  if values is None or not np.isfinite(values).any():
    return [], []
  values = metrics.factor(metric) * values
  mean, half = values.mean(0), metrics.half_width_95(values)
  low = mean - half
  if metrics.is_cost(metric):
    low = np.maximum(low, mean / 10)
  elif metrics.metric(metric).share:
    low = np.maximum(low, 0.0)
  band = np.concatenate([mean + half, low[::-1]])
  return _numbers(band) if np.isfinite(half).any() else [], _numbers(mean)


def _y_axis(metric: str, curves: Sequence[np.ndarray]) -> dict[str, object]:
  """The y axis of some curves, see ``comparison.shown_range``."""
  share = metrics.metric(metric).share
  title = {"text": metric.replace("_", " ") + ", %" * share}
  ends = comparison_lib.shown_range(curves, metric)
  if metrics.is_cost(metric) or np.isnan(ends).any():
    return {"title": title, "type": "log"}
  if not share:
    return {"title": title}
  return {"title": title, "range": [100 * end for end in ends]}


def _curves(
  runs: Mapping[str, RunResult],
  style: Mapping[str, styles.Style],
  metric: str,
  protocol: str,
  x_axis: str,
) -> Any:
  """The curves of some runs, with menus of the metric, the x axis and bands.

  Args:
    runs: label -> run.
    style: label -> style.
    metric: the metric at first.
    protocol: its protocol.
    x_axis: the x axis at first, one of ``plots.X_AXES``.

  Returns:
    A figure of Plotly: of every run the band and then the line.
  """
  measures = {
    f"{name}: {measure.replace('_', ' ')}": (name, measure)
    for result in runs.values()
    for name in result.protocols
    for measure, values in result.metrics[name].items()
    if np.isfinite(values).any()
  }
  metric_menu: _Menu = {}
  over: _Menu = {}
  for words, measure in measures.items():
    pairs = [_curve(result, *measure) for result in runs.values()]
    metric_menu[words] = (
      {"y": [y for pair in pairs for y in pair]},
      {"yaxis": _y_axis(measure[1], _values_of(runs, *measure))},
    )
  for column, words in plots.X_AXES.values():
    x = []
    for result in runs.values():
      values = result.costs(column)
      places = _numbers(values.mean(0)) if np.isfinite(values).all() else []
      x += [places + places[::-1], places]
    over[words] = {"x": x}, {"xaxis": {"title": {"text": words}, "rangemode": "tozero"}}
  bands = list(range(0, 2 * len(runs), 2))
  # That of a single evaluation has no area, so its outline is drawn.
  outlines = [5 * (len(result.rounds) == 1) for result in runs.values()]
  fill: _Menu = {
    "95 % bands": ({"fill": "toself", "line.width": outlines}, {}, bands),
    "no bands": ({"fill": "none", "line.width": 0}, {}, bands),
  }
  choices = [
    list(measures.values()).index((protocol, metric)),
    list(plots.X_AXES).index(x_axis),
  ]
  menus = [metric_menu, over]
  if any(len(result.seeds) > 1 for result in runs.values()):
    choices.append(len(runs) > _MOST_BANDS)
    menus.append(fill)
  figure = _figure(
    [
      trace
      for label in runs
      for trace in (
        _line(
          label,
          style[label],
          showlegend=False,
          hoverinfo="skip",
          opacity=0.15,
          line={"width": 0, "color": style[label].colour},
          fillcolor=style[label].colour,
        ),
        _line(label, style[label], hovertemplate="%{x:.4~g}: %{y:.5~g}"),
      )
    ],
    updatemenus=list(map(_menu, range(len(menus)), menus, choices)),
  )
  for menu, choice in zip(menus, choices):
    figure.plotly_update(*list(menu.values())[choice])
  return figure


def _clients(runs: Mapping[str, RunResult], style: Mapping[str, styles.Style]) -> Any:
  """The share of clients (and seeds) with at most an accuracy.

  Of another task it is its main metric.

  Returns:
    A figure of Plotly with a menu of the protocols; None if no run has its
    clients' accuracies.
  """
  main = next(iter(runs.values())).records.metrics.main
  factor = metrics.factor(main)
  unit = " %" if factor == 100 else ""
  shares = np.linspace(0, 1, _QUANTILES)
  quantiles: dict[str, dict[str, object]] = {}
  for label, result in runs.items():
    for protocol, of in result.clients.items():
      accuracies = of.get(main, np.zeros(0))
      accuracies = accuracies[np.isfinite(accuracies)]
      if accuracies.size:
        quantiles.setdefault(protocol, {})[label] = _numbers(
          factor * np.quantile(accuracies, shares, method="inverted_cdf")
        )
  menu: _Menu = {
    protocol: ({"x": [of.get(label, []) for label in runs]}, {})
    for protocol, of in quantiles.items()
  }
  if not menu:
    return None
  figure = _figure(
    [
      _line(
        label,
        style[label],
        y=_numbers(100 * shares),
        hovertemplate=("%{y:.0f} % of the clients have at most %{x:.1f}" + unit),
      )
      for label in runs
    ],
    updatemenus=[_menu(0, menu)],
    xaxis={
      "title": {
        "text": f"{main.replace('_', ' ')} on the client's own "
        f"test data{',' * bool(unit)}{unit}"
      }
    },
    yaxis={"title": {"text": "clients with at most this, %"}},
  )
  figure.plotly_update(*next(iter(menu.values())))
  return figure


def _group_figures(panels: Panels) -> list[Any]:
  """Sizes and members of the groups of every run that has groups.

  Returns:
    Figures of Plotly: the sizes, and the members unless they are too many; []
    if no run has groups.
  """
  members, kinds, clients = {}, {}, {}
  for label, result in _label_runs(panels).items():
    if result.membership is not None:
      for seed, row in zip(result.seeds, result.membership):
        name = f"{_plain(label)}, seed {seed}"
        members[name], kinds[name] = np.asarray(row), _kind_names(result)
        clients[name] = result.client_names.tolist()
  if not members:
    return []
  names, number = (
    list(members),
    max(1, *(int(row.max()) + 1 for row in members.values())),
  )
  sizes = np.array(
    [np.bincount(row[row >= 0], minlength=number) for row in members.values()]
  )
  palette = importlib.import_module("plotly.colors").qualitative.Dark24
  colours = [palette[k % len(palette)] for k in range(number)]
  layout = {"height": 180 + 24 * len(names), "yaxis": {"autorange": "reversed"}}
  figures = [
    _figure(
      [
        {
          "type": "bar",
          "orientation": "h",
          "name": f"group {k}",
          "y": names,
          "x": sizes[:, k].tolist(),
          "marker": {"color": colours[k]},
        }
        for k in range(number)
      ],
      **layout,
      barmode="stack",
      xaxis={"title": {"text": "clients at the end"}},
    )
  ]
  if sum(row.size for row in members.values()) <= _MOST_CELLS:
    # Level 0 is "no group yet"; every group has a flat color of its own.
    scale = [
      (share, colour)
      for k, colour in enumerate(["#eceff2", *colours])
      for share in (k / (number + 1), (k + 1) / (number + 1))
    ]
    figures.append(
      _figure(
        [
          {
            "type": "heatmap",
            "y": names,
            "zmin": -1.5,
            "zmax": number - 0.5,
            "ygap": 2,
            "colorscale": scale,
            "showscale": False,
            **_cells(members, kinds, clients),
          }
        ],
        **layout,
        xaxis=_client_axis(list(kinds.values())),
      )
    )
  return figures


def _kind_names(result: RunResult) -> list[str] | None:
  """The name of each client's kind; None if the clients are of one kind."""
  if result.kinds is None:
    return None
  names = result.summary()["kinds"]
  if len(names) < 2:
    return None
  return [_plain(names[kind]) for kind in result.kinds.tolist()]


def _by_kind(of_client: Sequence[str]) -> list[int]:
  """The clients kind by kind, in the order of the kinds' first clients."""
  first = {kind: place for place, kind in reversed(list(enumerate(of_client)))}
  return sorted(range(len(of_client)), key=lambda client: first[of_client[client]])


def _cells(
  members: Mapping[str, np.ndarray],
  kinds: Mapping[str, list[str] | None],
  clients: Mapping[str, list[str]],
) -> dict[str, object]:
  """The groups of the clients, those of one kind side by side."""
  are_positions = all(
    name == str(place) for names in clients.values() for place, name in enumerate(names)
  )
  if are_positions and not any(kinds.values()):
    return {
      "z": [row.tolist() for row in members.values()],
      "hovertemplate": "client %{x}: group %{z}<extra>%{y}</extra>",
    }
  z, words = [], []
  for name, row in members.items():
    of_client = kinds[name]
    order = _by_kind(of_client) if of_client else range(len(row))
    z.append([int(row[client]) for client in order])
    words.append(
      [
        f"client {_plain(clients[name][client])}"
        + (f", kind {of_client[client]}" if of_client else "")
        for client in order
      ]
    )
  return {
    "z": z,
    "customdata": words,
    "hovertemplate": "%{customdata}: group %{z}<extra>%{y}</extra>",
  }


def _client_axis(kinds: Sequence[list[str] | None]) -> dict[str, object]:
  """The axis of the clients; with the kinds' names if all runs have the same."""
  of_client = kinds[0]
  if not of_client or any(other != of_client for other in kinds):
    words = "client" + ", those of one kind side by side" * any(map(bool, kinds))
    return {"title": {"text": words}}
  order = _by_kind(of_client)
  sizes = {
    kind: len(list(clients))
    for kind, clients in itertools.groupby(of_client[client] for client in order)
  }
  ends = list(itertools.accumulate(sizes.values()))
  if len(sizes) > _MOST_TICKS:
    return {"title": {"text": "client, those of one kind side by side"}}
  return {
    "title": {"text": "clients by kind"},
    "tickvals": [end - 0.5 - size / 2 for end, size in zip(ends, sizes.values())],
    "ticktext": list(sizes),
  }


def _cell(cell: Cell) -> str:
  """A cell of a table in HTML."""
  if isinstance(cell, str):
    return texts.html_text(cell)
  return cell.write(" \N{PLUS-MINUS SIGN} ")


def _table(table: ComparisonTable, kind: str = "") -> str:
  """A table with its title and note."""
  out = []
  if table.title:
    out.append(f"<h2>{texts.html_text(table.title)}</h2>")
  if table.rows:
    out.append(f'<div class="scroll"><table class="{kind}"><thead>')
    out += [
      "<tr>"
      + "".join(f"<{tag}>{_cell(cell)}</{tag}>" for cell in row)
      + "</tr>"
      + "</thead><tbody>" * (tag == "th")
      for tag, row in (("th", table.head), *(("td", row) for row in table.rows))
    ]
    out.append("</tbody></table></div>")
  if table.note:
    out.append(f'<p class="note">{texts.html_text(table.note)}</p>')
  return "\n".join(out)


def _group_table(panels: Panels) -> ComparisonTable:
  """The last rows of groups.csv of every run that has groups."""
  rows, undefined = [], False
  for title, runs in panels.items():
    for label, result in runs.items():
      table = result.records.tables.get("groups", [])
      for row in table:
        if row["round"] == table[-1]["round"]:
          undefined |= bool(row["assigned"] and np.isnan(row["purity"]))
          rows.append(
            (
              *([title] if len(panels) > 1 else []),
              label,
              str(row["seed"]),
              str(row["assigned"]),
              str(row["used"]),
              *(
                "-" if np.isnan(row[name]) else f"{row[name]:.3f}"
                for name in ("purity", "ari")
              ),
            )
          )
  return ComparisonTable(
    "",
    (
      *(["panel"] if len(panels) > 1 else []),
      "run",
      "seed",
      "clients in a group",
      "groups used",
      "purity",
      "adjusted Rand index",
    ),
    tuple(rows),
    "Purity and adjusted Rand index: how the groups agree with the kinds of "
    "the clients (--kinds); without kinds, with the clients of equal classes."
    + (f" A dash: {UNDEFINED}." if undefined else ""),
  )


def _note(words: str) -> str:
  return f'<p class="note">{words}</p>'


def _comparison_tables(
  panels: Panels, metric_of: Mapping[str, str], protocol: str
) -> list[ComparisonTable]:
  """The scores and the costs of every panel's runs, in all and to targets."""
  out = []
  for title, runs in panels.items():
    comparison = compare(runs, metric=metric_of[title], protocol=protocol)
    out += [
      table._replace(title=f"{title}: {table.title}".removeprefix(": "))
      for table in (
        comparison_lib.scores(comparison),
        *([comparison_lib.target_table(comparison)] if comparison.targets else ()),
        comparison_lib.cost_table(comparison),
      )
    ]
  return out


def write_page(
  path: pathlib.Path,
  title: str,
  panels: Panels,
  tables: Sequence[ComparisonTable] = (),
  *,
  metric: str,
  protocol: str,
  panel_metrics: Mapping[str, str] | None = None,
  x_axis: str = "rounds",
  command_line: str = "",
) -> None:
  """Writes a page.

  Args:
    path: the file.
    title: the heading.
    panels: title of a panel -> label -> run.
    tables: tables between the curves and the clients; by default the scores
      and costs of every panel.
    metric: the metric that is drawn at first.
    protocol: its protocol.
    panel_metrics: title of a panel -> its metric, if that is another one.
    x_axis: the x axis at first, one of ``plots.X_AXES``.
    command_line: the command that makes the page; "": it is not shown.

  Raises:
    OptionError: Plotly is not installed.
  """
  check_plotly(path.name)
  style = styles.line_styles(label for runs in panels.values() for label in runs)
  embedded = itertools.chain([True], itertools.repeat(False))

  def to_html(figure: Any) -> str:
    text: str = figure.to_html(
      full_html=False, include_plotlyjs=next(embedded), config=_CONFIG
    )
    return text

  metric_of = dict.fromkeys(panels, metric) | dict(panel_metrics or {})

  def draw_each(draw: Callable[[str], object]) -> list[str]:
    figures = {name: draw(name) for name in panels}
    return [
      f"<h3>{texts.html_text(name)}</h3>" * (len(panels) > 1) + to_html(figure)
      for name, figure in figures.items()
      if figure is not None
    ]

  parts = [
    f"<h1>{texts.html_text(title)}</h1>",
    "<h2>Curves</h2>",
    *draw_each(
      lambda name: _curves(panels[name], style, metric_of[name], protocol, x_axis)
    ),
    _note(
      (
        "Lines are means over the seeds, bands their 95 % Student-t intervals (none "
        "for a run of one seed). "
        if any(len(run.seeds) > 1 for runs in panels.values() for run in runs.values())
        else "Every run has one seed, so there are no intervals. "
      )
      + "Drag to zoom, double-click to see all again; a click on a name switches the "
      "run off and on, a double click only shows this run."
    ),
    *map(_table, tables or _comparison_tables(panels, metric_of, protocol)),
  ]
  distributions = draw_each(lambda name: _clients(panels[name], style))
  if distributions:
    parts += [
      "<h2>Accuracy of the clients</h2>",
      *distributions,
      _note(
        "At the end, the clients of all seeds together; the further right a "
        "curve, the more clients are well served."
      ),
    ]
  grouped = _group_figures(panels)
  if grouped:
    parts += [
      "<h2>Groups of clients</h2>",
      *map(to_html, grouped),
      _note(
        "A column for each client, those of one kind side by side. Gray clients "
        "have no group yet."
        if any(result.kinds is not None for result in _label_runs(panels).values())
        else "A column for each client. Gray clients have no group yet."
      )
      * (len(grouped) > 1),
      _table(_group_table(panels)),
    ]
  table, differing = comparison_lib.flag_tables(_label_runs(panels))
  parts += [
    _table(differing, "text") if differing.rows else "",
    f"<details><summary>{texts.html_text(table.title)}</summary>",
    _table(table._replace(title=""), "text"),
    "</details>",
  ]
  if command_line:
    parts.append(_note(f"Made by <code>{texts.html_text(command_line)}</code>"))
  body = "\n".join(parts)
  summary_lib.write_text(
    path,
    f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{texts.html_text(title)}</title>
<style>{_CSS.read_text("utf-8")}</style>
</head>
<body>
{body}
</body>
</html>
""",
  )
