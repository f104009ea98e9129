/* The traces and axes that Plotly draws, at a width and in a theme. */

const PLOT_HEIGHT = 340;
const MARGIN = { top: 18, bottom: 48, left: 60, right: 5 };
const LANE_HEIGHT = 0.045; // share of the height for the failed cases of a line
const LANES_HEIGHT = 0.25; // largest share for the failed cases of all lines
const LABEL_GAP = 14, LABEL_SIZE = 12, LABEL_SHIFT = 9, LABEL_SHARE = 0.42;
const NOTE_HEIGHT = 15;
const TITLE_HEIGHT = 20, TITLE_LETTER = 8; // pixels: a row of the y title, a letter of it
const TWO_TICKS = 2.5 ** 2; // a log axis over this factor has two of the ticks 1, 2 and 5 of a decade
const TICK_SIZE = 12.5, TICK_GAP = 5;

/* Run `work` with the colors of the light theme. */
function inLight(work) {
  probe.style.colorScheme = "light";
  try {
    return work();
  } finally {
    probe.style.colorScheme = "";
  }
}

/* The width of a text in pixels. */
function textWidth(text, size) {
  textWidth.context ??= document.createElement("canvas").getContext("2d");
  textWidth.family ??= getComputedStyle(document.body).fontFamily;
  textWidth.context.font = `${size}px ${textWidth.family}`;
  return textWidth.context.measureText(text).width;
}

/* Truncate the text to `room` pixels. */
function fitting(text, size, room) {
  let shown = text;
  for (let left = text.length - 1; left > 0 && textWidth(shown, size) > room; left -= 1) shown = `${text.slice(0, left)}…`;
  return shown;
}

/* The name of the CSS variable with a line's color; a lower bound has the color of the axes. */
function tone(line) {
  return line.y ? "--muted" : `--tone-${line.tone}`;
}

/* Join the pieces into lines of text of at most `most` characters. */
function folded(pieces, most, gap) {
  const rows = [];
  for (const piece of pieces) {
    if (rows.length && rows.at(-1).length + piece.length + gap.length <= most) rows.push(`${rows.pop()}${gap}${piece}`);
    else rows.push(piece);
  }
  return rows;
}

/* The values 1, 2 and 5 of each decade between two logarithms. */
function roundValues(first, last) {
  const powers = Array.from({ length: Math.floor(last) - Math.floor(first) + 1 }, (_, at) => 10 ** (Math.floor(first) + at));
  return powers.flatMap((power) => [power, 2 * power, 5 * power]).filter((value) => first <= Math.log10(value) && Math.log10(value) <= last);
}

/* One drawing of a figure. `lines`: [line, its points]. `view`: {xLog, yLog, paper: {width, height} in pixels}. */
class Drawing {
  constructor(points, lines, view) {
    Object.assign(this, { points, data: points.data, lines, view });
    this.withFailures = lines.filter(([, all]) => all.some((point) => !point.y));
    this.notes = points.footnotes(lines);
    this.height = view.paper?.height ?? PLOT_HEIGHT;
    this.inner = this.height - MARGIN.top - MARGIN.bottom;
  }

  traces() {
    return [
      ...this.lines.map(([line, all]) => this.lineTrace(line, all)),
      ...this.withFailures.map(([line, all], lane) => this.failedTrace(line, all, lane)),
    ];
  }

  /* The hover text of a point: three lines. The readout below the plot has the rest. */
  hover(line, point) {
    const most = Math.min(60, Math.floor(innerWidth / 8) - 8); // characters that fit a phone
    const [name, ...parts] = this.points.brief(line, point).map((text) => (text.length > most ? `${text.slice(0, most - 1)}…` : text)).map(escapeHtml);
    return [`<b>${name}</b>`, ...parts].join("<br>");
  }

  lineTrace(line, points) {
    const drawn = points.filter((point) => point.y);
    const color = themed(tone(line));
    return {
      type: "scatter",
      mode: "lines+markers+text",
      name: escapeHtml(line.name),
      x: drawn.map((point) => point.x),
      y: drawn.map((point) => point.y.value),
      error_y: {
        type: "data",
        visible: !line.y,
        symmetric: false,
        array: drawn.map((point) => point.y.high - point.y.value),
        arrayminus: drawn.map((point) => point.y.value - point.y.low),
        color,
        thickness: 1.2,
        width: 3,
      },
      line: { color, width: 2, dash: line.dash },
      marker: this.marker(line, color),
      text: drawn.map((point) => this.points.signs(point)), // "" without flags
      textposition: "top left",
      textfont: { size: 14, color },
      hovertext: drawn.map((point) => this.hover(line, point)),
      hoverinfo: "text",
      cliponaxis: false, // show whole markers at the axis ends
    };
  }

  /* The marker of a line; a lower bound has a dash, which is visible also at a single x. */
  marker(line, color) {
    const edge = { color, width: 1.5 };
    if (line.y) return { symbol: "line-ew", size: 10, line: edge };
    return { symbol: line.marker, size: line.marker.startsWith("triangle") ? 10 : 8, color: line.hollow ? themed("--paper") : color, line: edge };
  }

  failedTrace(line, points, lane) {
    const failed = points.filter((point) => !point.y);
    const color = themed(tone(line));
    return {
      type: "scatter",
      mode: "markers",
      yaxis: "y2",
      x: failed.map((point) => point.x),
      y: failed.map(() => lane),
      marker: {
        symbol: failed.map((point) => (this.points.wasRun(point) ? "x-thin" : "line-ew")),
        size: 7,
        color,
        line: { color, width: 2 },
      },
      hovertext: failed.map((point) => this.hover(line, point)),
      hoverinfo: "text",
      cliponaxis: false,
      showlegend: false,
    };
  }

  /* [line, point, trace, index in the trace, axes] of all points, line by line. */
  targets() {
    const found = ([line, all], trace, axes, keep) => all.filter(keep).map((point, at) => [line, point, trace, at, axes]);
    const drawn = this.lines.flatMap((pair, at) => found(pair, at, "xy", (point) => point.y));
    const failures = this.withFailures.flatMap((pair, lane) => found(pair, this.lines.length + lane, "xy2", (point) => !point.y));
    const order = new Map(this.lines.map(([line], index) => [line, index]));
    return [...drawn, ...failures].sort((a, b) => order.get(a[0]) - order.get(b[0]) || a[1].x - b[1].x);
  }

  xAxis(shared) {
    const rows = this.data.lines.flatMap((line) => line.rows); // of all lines, also hidden ones
    const values = [...new Set(rows.map((row) => cell(row, this.data.x)))].sort((a, b) => a - b);
    const log = this.view.xLog && values[0] > 0;
    // A computed x, such as interactivity, has values that lines do not share.
    const isOwn = this.data.along && values.length > largest(this.data.lines.map((line) => line.rows.length));
    // A single value gets neighbors, so that the axis has ticks.
    if (values.length === 1) values.splice(0, 1, ...(log ? [values[0] / 2, values[0], 2 * values[0]] : [0, values[0] || 1]));
    const toAxis = log ? Math.log10 : Number;
    const [first, last] = [toAxis(values[0]), toAxis(values.at(-1))];
    const pad = 0.05 * (last - first);
    const round = isOwn && log ? roundValues(first, last) : [];
    const ticks = round.length > 1 ? round : values;
    return {
      ...shared,
      type: log ? "log" : "linear",
      range: [(log ? first : Math.min(0, first)) - pad, last + pad],
      tickvals: ticks,
      ticktext: ticks.map(axisLabel),
      title: { text: escapeHtml(this.data.x_title), standoff: 8 },
      anchor: "y2",
    };
  }

  /* The range of the y axis, as logarithms on a log axis; it holds at least two ticks. */
  yRange() {
    const ends = this.lines.flatMap(([, all]) => all).flatMap((point) => (point.y ? [point.y.low, point.y.value, point.y.high] : []));
    if (!this.view.yLog) return [0, 1.08 * Math.max(largest(ends), 0) || 1];
    const values = ends.filter((value) => value > 0);
    if (!values.length) return [0, 1];
    const [low, high] = [smallest(values), largest(values)];
    const room = Math.max(1.2, Math.sqrt((TWO_TICKS * low) / high));
    return [Math.log10(low / room), Math.log10(high * room)];
  }

  yAxis(shared, strip, range, title) {
    const log = this.view.yLog;
    const isLarge = log ? range[0] >= 0 && range[1] > 4 : range[1] > 1e4; // 100k instead of 100000
    // 1, 2 and 5 of each decade, or only decades over a wide range.
    const ticks = log ? { dtick: range[1] - range[0] > 2.5 ? 1 : "D2" } : { nticks: 7 };
    const isSmall = log ? (ticks.dtick === 1 ? Math.ceil(range[0]) : range[0]) < -3 : range[1] < 1e-3; // no room for 0.00001
    return { ...shared, type: log ? "log" : "linear", range, tickformat: isLarge ? "~s" : isSmall ? "~e" : "~g", ...ticks, domain: [strip, 1], showticklabels: this.lines.length > 0, title: { text: title.map(escapeHtml).join("<br>"), standoff: 8 } };
  }

  /* Shorten line names to `room` pixels: leave out last parts, or first parts if names would be equal, or the
     words of numbers. Measured lines also omit the words that all of them share. */
  endTexts(lines, room) {
    const parts = (line) => line.name.split(" · ");
    const measured = lines.filter((line) => !line.y).map((line) => parts(line).join(" ").split(" "));
    const isDistinctive = (word) => measured.length < 2 || !measured.every((own) => own.includes(word));
    const reduced = (part) => part.split(" ").filter(isDistinctive).join(" ");
    const kept = (part) => (/^[\d.]+[kM]?$/.test(reduced(part)) ? part : reduced(part)); // a number keeps its word, such as context
    const within = (line, drop, words) => {
      const short = parts(line).map(words).filter(Boolean);
      const rest = line.y || !short.length ? parts(line) : short;
      while (rest.length > 1 && textWidth(rest.join(" · "), LABEL_SIZE) > room) rest[drop]();
      return fitting(rest.join(" · "), LABEL_SIZE, room);
    };
    const ways = [["pop", kept], ["shift", kept], ["pop", reduced]].map((way) => lines.map((line) => within(line, ...way)));
    return lines.map((_, at) => (ways.find((texts) => texts.indexOf(texts[at]) === texts.lastIndexOf(texts[at])) ?? ways[1])[at]);
  }

  /* Write names next to the plot, at the heights where the lines end, and move names apart that would overlap. Returns
     Plotly's annotations and the width of the longest in pixels. `range`, `pixels`: the y axis's range and height.
     `room`: the pixels for a name and its sign. */
  endLabels(range, pixels, room) {
    const labels = this.lines.flatMap(([line, points]) => {
      const end = points.filter(({ y }) => y && (y.value > 0 || !this.view.yLog)).at(-1); // a log axis has no 0
      if (!end) return [];
      const y = this.view.yLog ? Math.log10(end.y.value) : end.y.value; // where Plotly puts an annotation of a log axis
      const at = (pixels * (y - range[0])) / (range[1] - range[0]);
      return [{ line, y, at, to: at }];
    });
    labels.sort((a, b) => a.at - b.at);
    const gap = Math.min(LABEL_GAP, this.inner / (labels.length - 1));
    let least = pixels - this.inner, most = pixels;
    for (const label of labels) {
      label.to = Math.max(label.to, least);
      least = label.to + gap;
    }
    for (const label of labels.toReversed()) {
      label.to = Math.min(label.to, most);
      most = label.to - gap;
    }
    const sign = ({ line }) => (line.y ? DASH_SIGNS[line.dash] : MARKER_SIGNS[line.marker][Number(line.hollow)]);
    const texts = this.endTexts(labels.map(({ line }) => line), room - LABEL_SIZE - LABEL_GAP);
    const names = labels.map((label, index) => ({
      text: `<span style="color: ${themed(tone(label.line))}">${sign(label)}</span> ${escapeHtml(texts[index])}`,
      xref: "paper",
      x: 1,
      xanchor: "left",
      yanchor: "middle",
      y: label.y,
      yshift: label.to - label.at,
      showarrow: false,
      font: { size: LABEL_SIZE, color: themed("--ink") },
    }));
    const widths = labels.map((label, index) => textWidth(`${sign(label)} ${texts[index]}`, LABEL_SIZE));
    return { names, width: Math.max(0, largest(widths)) };
  }

  /* Keep all tick texts, or every second, third, … if more would touch. `pixels`: the positions of the ticks. */
  thinned(pixels, texts) {
    const half = texts.map((text) => textWidth(text, TICK_SIZE) / 2);
    const isClear = (step) => pixels.every((x, at) => at % step || at < step || x - half[at] >= pixels[at - step] + half[at - step] + TICK_GAP);
    let step = 1;
    while (!isClear(step)) step += 1;
    return texts.map((text, at) => (at % step ? "" : text));
  }

  layout(width) {
    const lanes = this.withFailures.length;
    const strip = lanes ? 0.05 + Math.min(LANE_HEIGHT * lanes, LANES_HEIGHT) : 0;
    const shared = {
      gridcolor: themed("--grid"),
      linecolor: themed("--rule-strong"),
      tickcolor: themed("--rule-strong"),
      zeroline: false,
      automargin: false,
      ticklabeloverflow: "allow", // Plotly measures every label otherwise
    };
    const one = { type: "line", xref: "paper", x0: 0, x1: 1, y0: 1, y1: 1, line: { color: themed("--muted"), width: 1, dash: "dot" } };
    const range = this.yRange();
    const pixels = (1 - strip) * this.inner;
    const label = this.view.yLog ? `${this.data.y_title}, log` : this.data.y_title;
    const none = { xref: "paper", yref: "paper", x: 0.5, y: 0.5, showarrow: false, text: "No line is selected", font: { size: 14 } };
    const title = folded(label.split(" "), (pixels + 2 * MARGIN.top) / TITLE_LETTER, " ");
    const left = MARGIN.left + TITLE_HEIGHT * (title.length - 1);
    const most = (width - left - 24) / 6;
    const rows = folded(this.notes, most, "   ").flatMap((row) => (row.length > most ? folded(row.split(" "), most, " ") : [row]));
    const xaxis = this.xAxis({ ...shared, showgrid: false, showline: true, ticks: "outside", ticklen: 4 });
    const gap = MARGIN.right + LABEL_SHIFT;
    const labels = this.endLabels(range, pixels, LABEL_SHARE * width - gap);
    const right = gap + labels.width;
    const [toAxis, texts] = [xaxis.type === "log" ? Math.log10 : Number, xaxis.ticktext];
    const [from, to] = xaxis.range;
    const scale = (width - left - right) / (to - from);
    xaxis.ticktext = this.thinned(xaxis.tickvals.map((value) => scale * toAxis(value)), texts);
    const note = { xref: "paper", yref: "paper", x: 0, y: 0, xanchor: "left", yanchor: "top", yshift: -46, showarrow: false, align: "left", font: { size: 11.5 } };
    return {
      autosize: true, // follow the element's width
      height: this.height + NOTE_HEIGHT * rows.length,
      margin: { l: left, r: right, t: MARGIN.top, b: MARGIN.bottom + NOTE_HEIGHT * rows.length },
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: textWidth.family, size: TICK_SIZE, color: themed("--muted") },
      hoverlabel: { bgcolor: themed("--raised"), bordercolor: themed("--rule-strong"), font: { color: themed("--ink") }, align: "left" },
      hovermode: "closest",
      dragmode: matchMedia("(pointer: fine)").matches ? "zoom" : false,
      showlegend: false,
      shapes: this.data.lines.some((line) => line.base_rows.length) ? [one] : [],
      annotations: [...(this.lines.length ? labels.names : [none]), ...(rows.length ? [{ ...note, text: rows.map(escapeHtml).join("<br>") }] : [])],
      xaxis,
      yaxis: this.yAxis(shared, strip, range, title),
      yaxis2: {
        domain: [0, Math.max(strip - 0.05, 0.001)],
        range: [-0.7, lanes - 0.3],
        fixedrange: true,
        showgrid: false,
        zeroline: false,
        tickvals: lanes ? [(lanes - 1) / 2] : [],
        ticktext: ["no result"],
        tickfont: { size: 11 },
        automargin: false,
      },
    };
  }
}
