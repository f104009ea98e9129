/* How is a figure of figures.py drawn, and redrawn when its controls, the systems shown or the theme change? */

const DASH_ARRAYS = { solid: "", dash: "7 4", dot: "2 3", dashdot: "7 3 2 3", longdash: "11 4", longdashdot: "11 3 2 3" };
const MARKER_PATHS = {
  circle: "M14 6m-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0",
  square: "M10.5 2.5h7v7h-7z",
  diamond: "M14 1l5 5l-5 5l-5 -5z",
  "triangle-up": "M14 1.5l4.5 8h-9z",
  pentagon: "M14 1.5l4.5 3.3l-1.7 5.2h-5.6l-1.7 -5.2z",
  "triangle-down": "M14 10.5l4.5 -8h-9z",
  star: "M14 1l1.4 3.2l3.5 .3l-2.7 2.3l.8 3.4l-3 -1.8l-3 1.8l.8 -3.4l-2.7 -2.3l3.5 -.3z",
};
const PLOT_HEIGHT = 340;
const MARGIN = { top: 18, bottom: 48, left: 60, right: 14 };
const LANE_HEIGHT = 0.045;
const LABEL_GAP = 14;
const NOTE_HEIGHT = 15;
const TICKS = [1, 2, 5];
/* What a point is marked for: the mark of stats.py, its sign in the picture, and what it means. */
const SIGNS = [
  ["cache full", "†", "fewer sequences at once than asked for"],
  ["few samples", "*", "fewer than six samples"],
  ["loaded machine", "‡", "others used the machine"],
];
/* Cases that were not tried at all; every other without a result failed. */
const UNTRIED = ["skipped", "unstarted"];
const LATENCIES = ["latency_ms", "us_per_token"];
const RATES = ["tokens_per_s", "tflops", "gbs"];
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });

const probe = document.body.appendChild(element("span", { hidden: true }));

/* What a colour of style.css is in the theme of the moment. */
function themed(name) {
  probe.style.color = `var(${name})`;
  return getComputedStyle(probe).color;
}

/* Plotly reads a part of HTML in its texts; words from records are shown as they are. */
function neutral(text) {
  return String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}

function axisLabel(value) {
  return typeof value === "number" && value >= 1024 && value % 1024 === 0 ? `${value / 1024}k` : String(value);
}

/* The colour of a line: its system's, or for a floor that of the axes. */
function tone(line) {
  return line.y ? "--muted" : `--tone-${line.tone}`;
}

/* The picture of a line for legends: its dash and marker in its colour. */
function swatch(line) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const part = (tag, attributes) => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    svg.append(node);
  };
  const colour = `var(${tone(line)})`;
  svg.setAttribute("viewBox", "-3 0 34 12");
  svg.setAttribute("aria-hidden", "true");
  part("path", { d: "M-3 6H31", stroke: colour, "stroke-width": 2, "stroke-dasharray": DASH_ARRAYS[line.dash] });
  if (!line.y) part("path", { d: MARKER_PATHS[line.marker], stroke: colour, "stroke-width": 1.5, fill: line.hollow ? "var(--paper)" : colour });
  return svg;
}

/* The largest of 1, 2 and 5 of any decade that is at most `value`, and the smallest that is at least it. */
function tickBelow(value) {
  const decade = 10 ** Math.floor(Math.log10(value));
  return decade * TICKS.filter((tick) => tick * decade <= value).at(-1);
}

function tickAbove(value) {
  const decade = 10 ** Math.floor(Math.log10(value));
  return decade * (TICKS.find((tick) => tick * decade >= value) ?? 10);
}

/* A list of buttons with one stop for the tab key; arrow keys move within it. */
function roving(list) {
  const shownButtons = () => [...list.querySelectorAll("button")].filter((button) => !button.closest("[hidden]"));
  const reach = (button) => {
    for (const other of list.querySelectorAll("button")) other.tabIndex = other === button ? 0 : -1;
  };
  const [first] = list.querySelectorAll("button");
  if (first) reach(first);
  list.addEventListener("focusin", (event) => reach(event.target.closest("button")));
  list.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const buttons = shownButtons();
    buttons.at((buttons.indexOf(event.target) + step) % buttons.length).focus();
  });
}

class Figure {
  /* `cell(row, column)`: a value of the table; `scales`: what columns are divided by to be shown; `hiddenSystems`: the
     set that the page's checkboxes keep. */
  constructor(host, data, cell, scales, hiddenSystems) {
    Object.assign(this, { host, data, cell, scales, hiddenSystems, hiddenLines: new Set(), ratio: null, more: false });
    this.plot = host.querySelector(".plot");
    this.xLog = host.querySelector("[data-role=x-log]");
    this.yLog = host.querySelector("[data-role=y-log]");
    this.yLog.checked = data.y_log;
    this.xLog.onchange = this.yLog.onchange = () => this.draw();
    this.measured = data.lines.filter((line) => line.rows.some((row, at) => this.ownPoint(line, at)));
    this.offerRatios();
    this.buildLegend();
    const save = host.querySelector("[data-role=save]");
    save.disabled = !this.measured.length;
    save.onclick = () => this.save();
  }

  offerRatios() {
    const select = this.host.querySelector("[data-role=ratio]");
    if (!select) return;
    select.append(...this.measured.map((line, index) => element("option", { value: index, textContent: line.name })));
    select.onchange = () => {
      this.ratio = select.value === "" ? null : this.measured[Number(select.value)];
      this.draw();
    };
  }

  buildLegend() {
    const entries = this.data.lines.map((line) => {
      if (!this.measured.includes(line)) return this.missingEntry(line);
      const name = element("span", { textContent: line.name });
      const button = element("button", { type: "button", title: "Hide or show this line" }, swatch(line), name);
      if (this.data.best) button.append(element("small", { textContent: this.bestWords(line) }));
      button.setAttribute("aria-pressed", "true");
      button.onclick = () => this.toggle(line, button);
      return element("li", {}, button);
    });
    this.entries = entries;
    const legend = this.host.querySelector(".legend");
    legend.replaceChildren(...entries, ...this.moreEntry());
    roving(legend);
  }

  /* What shows the lines that do not answer the figure's question. */
  moreEntry() {
    const others = this.data.lines.filter((line) => !line.primary);
    if (!others.length) return [];
    const button = element("button", { type: "button", className: "more", textContent: `More backends (${others.length})` });
    button.setAttribute("aria-pressed", "false");
    button.onclick = () => {
      this.more = !this.more;
      button.setAttribute("aria-pressed", String(this.more));
      button.textContent = this.more ? "Fewer backends" : `More backends (${others.length})`;
      this.draw();
    };
    return [element("li", {}, button)];
  }

  bestWords(line) {
    const points = this.points(line);
    const { x, y } = this.best(points);
    const words = `${compact.format(y.value)} at batch ${x}`;
    return this.turns(points) ? `best ${words}` : `${words}, the largest tried`;
  }

  /* A line without any result stays in the legend, with the reason. */
  missingEntry(line) {
    const statuses = [...new Set(line.rows.map((row) => this.cell(row, "status")))].join(", ");
    const reasons = [...new Set(line.rows.map((row) => this.cell(row, "reason")))].filter(Boolean);
    return element("li", { className: "missing", title: reasons.join("\n"), textContent: `${line.name}: no result (${statuses})` });
  }

  toggle(line, button) {
    const hide = !this.hiddenLines.has(line);
    if (hide) this.hiddenLines.add(line);
    else this.hiddenLines.delete(line);
    button.setAttribute("aria-pressed", String(!hide));
    this.draw();
  }

  /* Value, low and high of `column` in its unit; the interval is that of the latency, which a rate divides by. */
  value(row, column = this.data.y) {
    const raw = this.cell(row, column);
    if (raw === null) return null;
    const value = raw / (this.scales[column] ?? 1);
    const [median, low, high] = ["latency_ms", "latency_ms_low", "latency_ms_high"].map((name) => this.cell(row, name));
    if (LATENCIES.includes(column) && median > 0) return { value, low: (value * low) / median, high: (value * high) / median };
    if (RATES.includes(column) && low > 0) return { value, low: (value * median) / high, high: (value * median) / low };
    return { value, low: value, high: value };
  }

  /* The widest interval that a ratio of the two can have. */
  quotient(over, under) {
    if (!over || !under) return null;
    return { value: over.value / under.value, low: over.low / under.high, high: over.high / under.low };
  }

  ownPoint(line, at) {
    const own = this.value(line.rows[at], line.y || this.data.y);
    return line.base_rows.length ? this.quotient(own, this.value(line.base_rows[at])) : own;
  }

  points(line) {
    const bases = this.ratio && new Map(this.ratio.rows.map((row, at) => [this.cell(row, this.data.x), this.ownPoint(this.ratio, at)]));
    return line.rows.map((row, at) => {
      const x = this.cell(row, this.data.x);
      const own = this.ownPoint(line, at);
      return { row, x, failed: !own, y: bases ? this.quotient(own, bases.get(x)) : own };
    });
  }

  visibleLines() {
    return this.measured.filter((line) => this.isOffered(line) && !this.hiddenLines.has(line));
  }

  isOffered(line) {
    return (this.more || line.primary) && !this.hiddenSystems.has(line.system);
  }

  yTitle() {
    if (!this.ratio) return this.data.y_title;
    return `${neutral(this.data.y_label)} relative to<br>${neutral(this.ratio.name)} (ratio)`;
  }

  hover(line, point) {
    const parts = [`<b>${neutral(line.name)}</b>`, `${this.data.x_title}: ${neutral(point.x)}`];
    if (point.failed) return [...parts, neutral(`${this.cell(point.row, "status")}: ${this.cell(point.row, "reason")}`.slice(0, 160))].join("<br>");
    const { value, low, high } = point.y;
    const throttled = this.cell(point.row, "throttled");
    if (line.y) return [...parts, `${shown(value)}, bound by ${neutral(this.cell(point.row, "bound"))}`].join("<br>");
    parts.push(`${this.yTitle()}: <b>${shown(value)}</b> [${shown(low)}, ${shown(high)}]`);
    parts.push(`${this.cell(point.row, "samples")} samples${throttled ? `, ${throttled} while throttled` : ""}`);
    const note = this.cell(point.row, "notes");
    const profiled = profileOf(point.row) ? ["<b>Profiled</b>: click or Enter shows where its time goes"] : [];
    return [...parts, ...this.work(point.row), ...(note ? [neutral(note)] : []), ...profiled].join("<br>");
  }

  /* What the latency is made of, where the record says it. */
  work(row) {
    const [share, tflops, gbs] = ["floor_share", "tflops", "gbs"].map((name) => this.cell(row, name));
    if (share === null) return [];
    const bound = neutral(this.cell(row, "bound"));
    return [`${Math.round(100 * share)}% of the floor (${bound}): ${Math.round(gbs)} GB/s, ${shown(tflops)} TFLOP/s`];
  }

  lineTrace(line, points) {
    const drawn = points.filter((point) => point.y);
    const colour = themed(tone(line));
    return {
      type: "scatter",
      mode: "lines+markers",
      name: neutral(line.name),
      x: drawn.map((point) => point.x),
      y: drawn.map((point) => point.y.value),
      error_y: {
        type: "data",
        visible: !line.y,
        symmetric: false,
        array: drawn.map((point) => point.y.high - point.y.value),
        arrayminus: drawn.map((point) => point.y.value - point.y.low),
        color: colour,
        thickness: 1.2,
        width: 3,
      },
      line: { color: colour, width: 2, dash: line.dash },
      marker: this.marker(line, colour),
      hovertext: drawn.map((point) => this.hover(line, point)),
      hoverinfo: "text",
      customdata: drawn.map((point) => profileOf(point.row)),
    };
  }

  marker(line, colour) {
    const edge = { color: colour, width: 1.5 };
    if (line.y) return { symbol: "line-ew", size: 10, line: edge }; // a floor at a single x is a dash
    return { symbol: line.marker, size: line.marker.startsWith("triangle") ? 10 : 8, color: line.hollow ? themed("--paper") : colour, line: edge };
  }

  best(points) {
    return points.filter((point) => point.y).reduce((a, b) => (b.y.value > a.y.value ? b : a));
  }

  /* Was a larger batch than the best tried, be it without a result? */
  turns(points) {
    const { x } = this.best(points);
    return points.some((point) => point.x > x);
  }

  bestTrace(line, points) {
    const best = this.best(points);
    const colour = themed(`--tone-${line.tone}`);
    return {
      type: "scatter",
      mode: "markers",
      x: [best.x],
      y: [best.y.value],
      marker: { symbol: "circle-open", size: 17, color: colour, line: { width: 2 } },
      hoverinfo: "skip",
      cliponaxis: false,
      showlegend: false,
    };
  }

  signs(row) {
    const marks = String(this.cell(row, "marks") ?? "").split(", ");
    return SIGNS.filter(([mark]) => marks.includes(mark)).map(([, sign]) => sign).join("");
  }

  /* The signs above marked points; none where there are none. */
  signTraces(line, points) {
    const marked = points.filter((point) => point.y && !line.y && this.signs(point.row));
    if (!marked.length) return [];
    return [{
      type: "scatter",
      mode: "text",
      x: marked.map((point) => point.x),
      y: marked.map((point) => point.y.value),
      text: marked.map((point) => this.signs(point.row)),
      textposition: "top center",
      textfont: { size: 14, color: themed(tone(line)) },
      hoverinfo: "skip",
      cliponaxis: false,
      showlegend: false,
    }];
  }

  /* What the signs of the picture mean, a line of words each. */
  footnotes(lines) {
    const points = lines.flatMap(([line, all]) => (line.y ? [] : all));
    const signs = new Set(points.filter((point) => point.y).flatMap((point) => [...this.signs(point.row)]));
    const failed = points.filter((point) => point.failed).map((point) => this.isTried(point));
    return [
      ...SIGNS.filter(([, sign]) => signs.has(sign)).map(([, sign, meaning]) => `${sign} ${meaning}`),
      ...(failed.includes(true) ? ["× no result"] : []),
      ...(failed.includes(false) ? ["○ not tried"] : []),
    ];
  }

  isTried(point) {
    return !UNTRIED.includes(this.cell(point.row, "status"));
  }

  failedTrace(line, points, lane) {
    const failed = points.filter((point) => point.failed);
    return {
      type: "scatter",
      mode: "markers",
      yaxis: "y2",
      x: failed.map((point) => point.x),
      y: failed.map(() => lane),
      marker: {
        symbol: failed.map((point) => (this.isTried(point) ? "x-thin" : "circle-open")),
        size: 7,
        color: themed(tone(line)),
        line: { color: themed(tone(line)), width: 2 },
      },
      hovertext: failed.map((point) => this.hover(line, point)),
      hoverinfo: "text",
      cliponaxis: false,
      showlegend: false,
    };
  }

  traces() {
    const lines = this.visibleLines().map((line) => [line, this.points(line)]);
    const broken = lines.filter(([, points]) => points.some((point) => point.failed));
    const best = this.data.best && !this.ratio ? lines.filter(([, points]) => this.turns(points)) : [];
    return {
      lines,
      lanes: broken.length,
      notes: this.footnotes(lines),
      data: [
        ...lines.map(([line, points]) => this.lineTrace(line, points)),
        ...best.map(([line, points]) => this.bestTrace(line, points)),
        ...broken.map(([line, points], lane) => this.failedTrace(line, points, lane)),
        ...lines.flatMap(([line, points]) => this.signTraces(line, points)),
      ],
    };
  }

  xAxis(shared) {
    const rows = this.data.lines.flatMap((line) => line.rows);
    const values = [...new Set(rows.map((row) => this.cell(row, this.data.x)))].sort((a, b) => a - b);
    const log = this.xLog.checked && values[0] > 0;
    // One value alone would leave the axis a single tick.
    if (values.length === 1) values.splice(0, 1, ...(log ? [values[0] / 2, values[0], 2 * values[0]] : [0, values[0] || 1]));
    const place = log ? Math.log10 : Number;
    const [first, last] = [place(values[0]), place(values.at(-1))];
    const pad = 0.05 * (last - first);
    const gap = 0.055 * (last - first);
    const ticks = [];
    for (const value of values) if (!ticks.length || place(value) - place(ticks.at(-1)) >= gap) ticks.push(value);
    return {
      ...shared,
      type: log ? "log" : "linear",
      range: [log ? first - pad : Math.min(0, first), last + pad],
      tickvals: ticks,
      ticktext: ticks.map(axisLabel),
      title: { text: this.data.x_title, standoff: 8 },
      anchor: "y2",
    };
  }

  /* From where to where the values of the lines reach, in the axis's own measure, and at least two ticks. */
  yRange(lines) {
    const ends = lines.flatMap(([, points]) => points).flatMap((point) => (point.y ? [point.y.low, point.y.value, point.y.high] : []));
    if (!this.yLog.checked) return [0, 1.08 * Math.max(...ends, 0) || 1];
    const values = ends.filter((value) => value > 0);
    if (!values.length) return [0, 1];
    return [Math.log10(tickBelow(0.97 * Math.min(...values))), Math.log10(tickAbove(1.03 * Math.max(...values)))];
  }

  yAxis(shared, strip, range) {
    const log = this.yLog.checked;
    const rate = this.data.y === "tokens_per_s" && !this.ratio;
    // 1, 2 and 5 of each decade, or where these would crowd the decades alone.
    const ticks = log ? { dtick: range[1] - range[0] > 2.5 ? 1 : "D2" } : { nticks: 7 };
    return {
      ...shared,
      type: log ? "log" : "linear",
      range,
      tickformat: rate ? "~s" : "~g",
      ...ticks,
      domain: [strip, 1],
      title: { text: this.yTitle(), standoff: 8 },
    };
  }

  /* The name of each line at its end, moved apart where they would lie on each other. */
  endLabels(lines, range, xLog, pixels) {
    const shorts = lines.map(([line]) => line.short);
    const labels = lines.flatMap(([line, points]) => {
      const end = points.filter((point) => point.y).at(-1);
      if (!end) return [];
      const alone = shorts.filter((short) => short === line.short).length === 1;
      const text = alone ? line.short : line.name.split(" · ").slice(1).join(" · ");
      const y = this.yLog.checked ? Math.log10(end.y.value) : end.y.value;
      const at = (pixels * (y - range[0])) / (range[1] - range[0]);
      return [{ text: text.length > 24 ? `${text.slice(0, 23)}…` : text, x: xLog ? Math.log10(end.x) : end.x, y, at, to: at }];
    });
    labels.sort((a, b) => a.at - b.at);
    for (let round = 0; round < 40; round += 1) {
      for (let i = 1; i < labels.length; i += 1) {
        const short = LABEL_GAP - (labels[i].to - labels[i - 1].to);
        if (short > 0) {
          labels[i].to += short / 2;
          labels[i - 1].to -= short / 2;
        }
      }
    }
    return labels.map(({ text, x, y, at, to }) => ({
      x,
      y,
      text: neutral(text),
      xanchor: "left",
      yanchor: "middle",
      xshift: 9,
      yshift: to - at,
      showarrow: false,
      font: { size: 12, color: themed("--ink") },
    }));
  }

  /* The footnotes in as few rows as the width allows. */
  noteRows(notes, width) {
    const rows = [];
    for (const note of notes) {
      if (rows.length && (rows.at(-1).length + note.length + 3) * 5.8 < width) rows.push(`${rows.pop()}   ${note}`);
      else rows.push(note);
    }
    return rows;
  }

  layout({ lines, lanes, notes }, width) {
    const strip = lanes ? 0.05 + LANE_HEIGHT * lanes : 0;
    const shared = {
      gridcolor: themed("--grid"),
      linecolor: themed("--rule-strong"),
      tickcolor: themed("--rule-strong"),
      zeroline: false,
      automargin: true,
    };
    const one = { type: "line", xref: "paper", x0: 0, x1: 1, y0: 1, y1: 1, line: { color: themed("--muted"), width: 1, dash: "dot" } };
    const range = this.yRange(lines);
    const rows = this.noteRows(notes, width - MARGIN.left);
    const height = PLOT_HEIGHT + NOTE_HEIGHT * rows.length;
    const xaxis = this.xAxis({ ...shared, showgrid: false, showline: true, ticks: "outside", ticklen: 4 });
    const pixels = (1 - strip) * (PLOT_HEIGHT - MARGIN.top - MARGIN.bottom);
    const labels = this.endLabels(lines, range, xaxis.type === "log", pixels);
    const longest = Math.max(0, ...labels.map((label) => label.text.length));
    const note = { xref: "paper", yref: "paper", x: 0, y: 0, xanchor: "left", yanchor: "top", yshift: -46, showarrow: false, align: "left", font: { size: 11.5 } };
    return {
      height,
      margin: { l: MARGIN.left, r: Math.min(MARGIN.right + 6.4 * longest, 0.36 * width), t: MARGIN.top, b: MARGIN.bottom + NOTE_HEIGHT * rows.length },
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(document.body).fontFamily, size: 12.5, color: themed("--muted") },
      hoverlabel: { bgcolor: themed("--raised"), bordercolor: themed("--rule-strong"), font: { color: themed("--ink") }, align: "left" },
      hovermode: "closest",
      dragmode: matchMedia("(pointer: fine)").matches ? "zoom" : false,
      showlegend: false,
      shapes: this.ratio || this.data.lines.some((line) => line.base_rows.length) ? [one] : [],
      annotations: [...labels, ...(rows.length ? [{ ...note, text: rows.join("<br>") }] : [])],
      xaxis,
      yaxis: this.yAxis(shared, strip, range),
      yaxis2: {
        domain: [0, Math.max(strip - 0.05, 0.001)],
        range: [-0.7, lanes - 0.3],
        fixedrange: true,
        showgrid: false,
        zeroline: false,
        tickvals: lanes ? [(lanes - 1) / 2] : [],
        ticktext: ["no result"],
        tickfont: { size: 11 },
        automargin: true,
      },
    };
  }

  draw() {
    const traces = this.traces();
    this.data.lines.forEach((line, index) => {
      this.entries[index].hidden = !this.isOffered(line);
    });
    if (!this.measured.length) {
      this.plot.className = "empty";
      this.plot.textContent = "No case of this figure has a result; the reasons are in the list of cases without one.";
      return null;
    }
    const layout = this.layout(traces, this.plot.clientWidth);
    this.plot.style.height = `${layout.height}px`; // when the window's size changes, Plotly takes the element's height
    return Plotly.react(this.plot, traces.data, layout, { responsive: true, displayModeBar: false });
  }

  /* The picture has to name its lines itself: the page's legend is not part of it. */
  save() {
    const traces = this.traces();
    const legend = { orientation: "h", y: -0.3 };
    const layout = { ...this.layout(traces, 720), width: 720, height: 460, showlegend: true, legend, paper_bgcolor: themed("--paper") };
    return Plotly.downloadImage({ data: traces.data, layout }, { format: "svg", width: 720, height: 460, filename: this.data.id });
  }
}
