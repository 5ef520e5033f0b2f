"use strict";
// The page of page.py: draws the curves with Plotly, sorts the tables.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const config = {
    responsive: true, displaylogo: false,
    // Plotly has a button that uploads the plot; none of these does.
    showSendToCloud: false, plotlyServerURL: "",
    modeBarButtons: [["toImage"], ["zoom2d", "pan2d"],
                     ["zoomIn2d", "zoomOut2d", "resetScale2d"]],
    toImageButtonOptions: {format: "svg"},
  };
  const font = {family: "system-ui, 'DejaVu Sans', sans-serif", size: 13};
  const find = (id) => document.getElementById(id);

  function layout(xTitle, yTitle, more) {
    const axis = {gridcolor: "#e3e7eb", zeroline: false, linecolor: "#8894a0",
                  ticks: "outside", automargin: true};
    // Below the plot: long names beside it would squeeze it.
    const below = {orientation: "h", x: 0, y: -0.2, yanchor: "top"};
    return {
      font, height: 420, margin: {l: 64, r: 16, t: 34, b: 56},
      paper_bgcolor: "#fff", plot_bgcolor: "#fff", hovermode: "closest",
      legend: {traceorder: "normal", uirevision: "kept", itemwidth: 44,
               ...more.barmode ? {} : below},
      ...more,
      xaxis: {...axis, title: {text: xTitle}, ...more.xaxis},
      yaxis: {...axis, title: {text: yTitle}, ...more.yaxis},
    };
  }

  // The traces of one run: the band first, so that the line lies on it.
  function traces(run, choice) {
    const curve = (run.curves[choice.protocol] || {})[choice.metric];
    const x = run.x[choice.x];
    if (!curve || !x) return [];
    const out = [];
    const band = {x, type: "scatter", mode: "lines", line: {width: 0},
                  legendgroup: run.label, showlegend: false, hoverinfo: "skip"};
    if (curve.low && choice.bands) {
      // A logarithmic axis has no place for what is not positive.
      const low = choice.log ? curve.low.map((value, i) =>
        value > 0 ? value : curve.mean[i] / 10) : curve.low;
      out.push({...band, y: low});
      out.push({...band, y: curve.high, fill: "tonexty",
                fillcolor: run.colour + "26"});
    }
    out.push({
      x, y: curve.mean, type: "scatter", name: run.label,
      mode: x.length > 1 ? "lines" : "markers", legendgroup: run.label,
      line: {color: run.colour, dash: run.dash, width: 2},
      marker: {color: run.colour},
      hovertemplate: "%{x:.4~g}: %{y:.5~g}",
    });
    return out;
  }

  // The range of the means, as in the picture: wide bands would squeeze them.
  function fitted(panel, choice) {
    const means = panel.runs.flatMap((run) =>
      ((run.curves[choice.protocol] || {})[choice.metric] || {mean: []}).mean)
      .filter((y) => y !== null && (y > 0 || !choice.log));
    if (!means.length || choice.metric === "loss" && !choice.log) return {};
    const low = means.reduce((a, b) => Math.min(a, b));
    const high = means.reduce((a, b) => Math.max(a, b));
    if (choice.log) {
      return {range: [Math.log10(low / 1.2), Math.log10(high * 1.2)]};
    }
    const margin = 0.12 * (high - low || 10);
    return {range: [Math.max(low - margin, 0), Math.min(high + margin, 100)]};
  }

  function drawCurves() {
    const [protocol, metric] = find("measure").value.split(":");
    const choice = {protocol, metric, x: find("x_axis").value,
                    bands: find("bands").checked, log: find("log_y").checked};
    const share = metric === "loss" ? {} : {minallowed: 0, maxallowed: 101};
    data.panels.forEach((panel, i) => {
      Plotly.react(
        "curves_" + i, panel.runs.flatMap((run) => traces(run, choice)),
        layout(data.axes[choice.x], data.metrics[metric], {
          height: 420 + 20 * panel.runs.length,
          xaxis: {uirevision: choice.x, rangemode: "tozero"},
          yaxis: {uirevision: metric + choice.log,
                  ...choice.log ? {type: "log"} : share,
                  ...fitted(panel, choice)},
        }), config);
    });
  }

  // The share of clients (and seeds) with at most an accuracy.
  function drawClients() {
    const protocol = find("clients_protocol").value;
    data.panels.forEach((panel, i) => {
      const shares = Array.from({length: data.quantiles},
                                (_, k) => 100 * k / (data.quantiles - 1));
      const drawn = panel.runs.filter((run) => run.clients[protocol]);
      Plotly.react("clients_" + i, drawn.map((run) => ({
        x: run.clients[protocol], y: shares, name: run.label, mode: "lines",
        line: {color: run.colour, dash: run.dash, width: 2, shape: "hv"},
        hovertemplate: "%{y:.0f} % of the clients have at most %{x:.1f} %",
      })), layout("accuracy on the client's own test data, %",
                  "clients with at most this, %",
                  {height: 420 + 20 * drawn.length,
                   xaxis: {range: [-2, 102]}, yaxis: {range: [0, 101]}}),
      config);
    });
  }

  function drawGroups() {
    const rows = data.groups.flatMap((run) => run.seeds.map((seed, i) => ({
      name: run.label + ", seed " + seed, sizes: run.sizes[i],
      groups: run.membership && run.membership[i]})));
    const most = Math.max(...rows.map((row) => row.sizes.length));
    const names = rows.map((row) => row.name);
    const colour = (k) => k < data.palette.length ? data.palette[k] :
      "#" + hex(k);
    const height = 130 + 24 * rows.length;
    const yaxis = {autorange: "reversed", title: {text: ""}, ticks: ""};
    Plotly.newPlot("sizes", Array.from({length: most}, (_, k) => ({
      type: "bar", orientation: "h", name: "group " + k, y: names,
      x: rows.map((row) => k < row.sizes.length ? row.sizes[k] : null),
      marker: {color: colour(k), line: {color: "#fff", width: 1}},
      hovertemplate: "%{x} clients",
    })), layout("clients at the end", "", {
      barmode: "stack", height, yaxis, showlegend: most <= 24}), config);
    const assigned = rows.filter((row) => row.groups);
    if (!assigned.length) return;
    // Level 0 is "no group yet"; every group has a flat colour of its own.
    const steps = ["#eceff2", ...Array.from({length: most}, (_, k) =>
      colour(k))];
    const scale = steps.flatMap((c, k) =>
      [[k / steps.length, c], [(k + 1) / steps.length, c]]);
    Plotly.newPlot("assignment", [{
      type: "heatmap", y: assigned.map((row) => row.name),
      z: assigned.map((row) => row.groups), zmin: -1.5, zmax: most - 0.5,
      colorscale: scale, showscale: false, ygap: 2,
      hovertemplate: "client %{x}: group %{z}<extra>%{y}</extra>",
    }], layout("client", "", {height: 130 + 24 * assigned.length, yaxis}),
    config);
  }

  // A colour for groups beyond the palette.
  function hex(k) {
    return ((k * 2654435761 >>> 8) & 0xffffff | 0x404040).toString(16)
      .padStart(6, "0").slice(-6);
  }

  // The number that a cell starts with; text without one sorts by itself.
  function key(cell) {
    const number = parseFloat(cell.textContent.replace(/^[<\s]+/, ""));
    return Number.isNaN(number) ? cell.textContent : number;
  }

  function compare(a, b) {
    if (typeof a === typeof b) {
      return typeof a === "number" ? a - b : a.localeCompare(b);
    }
    return typeof a === "number" ? -1 : 1;
  }

  function sortable(table) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      head.firstElementChild.addEventListener("click", () => {
        const up = head.getAttribute("aria-sort") !== "ascending";
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", up ? "ascending" : "descending");
        const body = table.tBodies[0];
        const rows = [...body.rows].map(
          (row) => [key(row.cells[column]), row]);
        // What has no number ("-") stays at the end both ways.
        rows.sort(([a], [b]) => {
          const mixed = typeof a !== typeof b;
          return compare(a, b) * (up || mixed ? 1 : -1);
        });
        body.append(...rows.map(([, row]) => row));
      });
    });
  }

  document.querySelectorAll("table.sort").forEach(sortable);
  for (const id of ["measure", "x_axis", "bands", "log_y"]) {
    find(id).addEventListener("change", drawCurves);
  }
  drawCurves();
  if (find("clients_protocol")) {
    find("clients_protocol").addEventListener("change", drawClients);
    drawClients();
  }
  if (data.groups.length) drawGroups();
  find("only").addEventListener("change", () =>
    find("flags_table").classList.toggle("only", find("only").checked));
})();
