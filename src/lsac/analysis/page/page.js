"use strict";
// Draws the plots of the page with Plotly, as the controls ask for. The data are in the element "data".
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const form = document.getElementById("controls");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const plots = new Map(data.plots.map((plot) => [plot.id, plot]));
  const near = new Set(); // plots that have been on the screen, and are kept up to date

  function chosen() {
    const given = new FormData(form);
    return {
      x: given.get("x"), scale: given.get("scale"), statistic: given.get("statistic"),
      seeds: given.has("seeds"), published: given.has("published"), labels: new Set(given.getAll("label")),
    };
  }

  function isShown(item, state) {
    if (item.role === "published") return state.published && (item.x || item[state.x]).length > 0;
    if (!state.labels.has(item.label)) return false;
    if (item.role === "seed") return state.seeds;
    return item.statistic === "" || item.statistic === state.statistic;
  }

  function traceOf(plot, item, state) {
    const where = state.x === "steps" ? "step %{x:,}" : "%{x:.3f} h";
    const hovertemplate = item.trace.hover && `${item.trace.hover}<br>${where}<br>%{y:.6~g}<extra></extra>`;
    const { hover, ...style } = item.trace;
    const trace = {
      type: "scatter", showlegend: false, hovertemplate, ...style,
      x: plot.over_time ? item[state.x] : item.x, y: item.y, visible: isShown(item, state),
      meta: { label: item.label, role: item.role },
    };
    if (item.role === "published" && !trace.line.color) {
      trace.line = { ...trace.line, color: css("--fore") };
      trace.marker = { ...trace.marker, color: css("--fore") };
    }
    return trace;
  }

  function css(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  }

  function axis(more) {
    return { gridcolor: css("--line"), zerolinecolor: css("--line"), linecolor: css("--line"), automargin: true, ...more };
  }

  function layoutOf(plot, state) {
    const time = state.x === "steps" ? "environment steps per seed" : "hours since the start of the run";
    const x = plot.over_time ? { title: { text: time }, rangemode: "tozero" } : plot.layout.xaxis;
    const y = plot.over_time ? { title: { text: plot.y }, type: state.scale } : { title: { text: plot.y }, ...plot.layout.yaxis };
    return {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: css("--fore"), size: 12 },
      margin: { l: 50, r: 14, t: 32, b: 44 }, hovermode: "closest", dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom",
      hoverlabel: { bgcolor: css("--card"), font: { color: css("--fore") }, align: "left" },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: css("--soft"), activecolor: css("--accent") },
      xaxis: axis(x), yaxis: axis(y),
    };
  }

  function draw(div) {
    const plot = plots.get(div.dataset.plot);
    const state = chosen();
    const traces = plot.items.map((item) => traceOf(plot, item, state));
    const config = { displaylogo: false, responsive: true, modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]] };
    return Plotly.react(div, traces, layoutOf(plot, state), config).then(() => { div.dataset.drawn = "yes"; });
  }

  function redraw() {
    near.forEach(draw);
    document.querySelectorAll("[data-label]").forEach((row) => {
      row.hidden = !chosen().labels.has(row.dataset.label);
    });
  }

  const watcher = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) {
      if (isIntersecting && !near.has(target)) { near.add(target); draw(target); }
    }
  }, { rootMargin: "300px" });

  // what was chosen survives the reload of a page that is watched
  const KEY = "lsac-report";
  function restore() {
    const kept = sessionStorage.getItem(KEY);
    if (!kept || !data.reload) return;
    const { fields, known, top } = JSON.parse(kept);
    for (const field of form.elements) {
      const id = `${field.name}=${field.value}`;
      if (field.type === "checkbox" || field.type === "radio") { if (known.includes(id)) field.checked = fields.includes(id); }
      else if (fields.some(([name]) => name === field.name)) field.value = fields.find(([name]) => name === field.name)[1];
    }
    scrollTo(0, top);
  }
  function keep() {
    const boxes = [...form.elements].filter((field) => field.type === "checkbox" || field.type === "radio");
    const selects = [...form.elements].filter((field) => field.tagName === "SELECT");
    const id = (field) => `${field.name}=${field.value}`;
    const fields = [...boxes.filter((box) => box.checked).map(id), ...selects.map((field) => [field.name, field.value])];
    sessionStorage.setItem(KEY, JSON.stringify({ fields, known: boxes.map(id), top: scrollY }));
  }

  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("change", redraw);
  dark.addEventListener("change", redraw);
  restore();
  redraw();
  document.querySelectorAll(".plot").forEach((div) => watcher.observe(div));
  if (data.reload) setTimeout(() => { keep(); location.reload(); }, 1000 * data.reload);
})();
