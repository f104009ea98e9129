/* What does a reader take along: a figure as a picture or its numbers, on white, with what it is written inside? */

const PICTURE_WIDTH = 900;
const PRINT_WIDTH = 660;
const TEXT_WIDTH = 132; // characters of a row of small print
const LEGEND_ROW = 21;
const LEGEND_LINE = 60; // of a line in the legend, in pixels: room for the longest dash twice
const TICK_ROOM = 16;

const FILES = {
  svg: (figure) => savePicture(figure, "svg", 1),
  png: (figure) => savePicture(figure, "png", 2),
  csv: (figure) => save(`${fileName(figure)}.csv`, "text/csv", figureCsv(figure)),
};

function fileName(figure) {
  return slug(figure.data.id) || "figure";
}

function save(name, type, text) {
  const link = element("a", { download: name, href: URL.createObjectURL(new Blob([text], { type })) });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

/* A spreadsheet would run a text that starts like a formula. */
function csvCell(value) {
  if (value === null || value === undefined) return "";
  if (typeof value === "number") return String(value);
  const text = Array.isArray(value) ? value.join(", ") : String(value);
  const inert = /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
  return /[",\r\n]/.test(inert) ? `"${inert.replaceAll('"', '""')}"` : inert;
}

function csvText(rows) {
  return rows.map((row) => `${row.map(csvCell).join(",")}\n`).join("");
}

/* How the axes are to be read, for who sees the picture alone. */
function axisWords({ view }) {
  const y = view.yLog ? "y logarithmic" : "y linear from 0";
  return `${view.xLog ? "x logarithmic" : "x linear"}, ${y}`;
}

function savePicture(figure, format, scale) {
  const drawing = figure.drawing();
  const picture = inLight(() => ({ data: drawing.traces(), layout: pictureLayout(figure, drawing) }));
  const { width, height } = picture.layout;
  return Plotly.downloadImage(picture, { format, width, height, scale, filename: fileName(figure) });
}

/* The plot under its title and what was held fixed, above the names of its lines. */
function pictureLayout({ data }, drawing) {
  const plot = drawing.layout(PICTURE_WIDTH);
  plot.margin.l += TICK_ROOM; // a page makes its own for long ticks
  const source = [data.suite, data.source && `${data.source} of arXiv 2407.04620`].filter(Boolean).join(" · ");
  const words = [source, data.caption, `${axisWords(drawing)}; ${data.provenance}.`].filter(Boolean);
  const small = words.flatMap((text) => folded(text.split(" "), TEXT_WIDTH, " ")).map(neutral);
  const head = 40 + 15 * small.length;
  const names = drawing.lines.map(([line]) => line.name.length);
  const across = PICTURE_WIDTH - plot.margin.l - plot.margin.r; // Plotly wraps a legend at the width of the plot
  const columns = Math.max(1, Math.floor(across / (7 * Math.max(0, largest(names)) + LEGEND_LINE + 30)));
  const foot = LEGEND_ROW * Math.ceil(names.length / columns) + 14;
  const text = { xref: "paper", yref: "paper", yanchor: "top", xanchor: "left", x: 0, y: 1, align: "left", showarrow: false };
  const left = { xshift: 14 - plot.margin.l };
  return {
    ...plot,
    width: PICTURE_WIDTH,
    height: plot.height + head + foot,
    margin: { ...plot.margin, t: plot.margin.t + head, b: plot.margin.b + foot, autoexpand: false },
    paper_bgcolor: "#ffffff",
    plot_bgcolor: "#ffffff",
    showlegend: true,
    legend: { orientation: "h", itemwidth: LEGEND_LINE, xref: "container", yref: "container", x: 0.015, y: 0.01, xanchor: "left", yanchor: "bottom" },
    annotations: [
      ...plot.annotations,
      { ...text, ...left, yshift: head + 8, text: `<b>${neutral(data.title)}</b>`, font: { size: 17, color: themed("--ink") } },
      { ...text, ...left, yshift: head - 18, text: small.join("<br>"), font: { size: 11.5 } },
    ],
  };
}

/* The points shown, a row each, with all that the picture says of them: of a ratio also its baseline's doubts. */
function figureCsv(figure) {
  const drawing = figure.drawing();
  const { data, cell, points } = figure;
  const columns = ["system", "backend", "size", "phase", "batch", "context", ...page.settings, "samples", "processes", "process_spread", "status", "reason", "marks", "notes", "device", "device_id", "commit", "started_at"];
  const others = [...new Set(columns)].filter((name) => name !== data.x && page.columns.some((column) => column.name === name));
  const head = ["figure", "line", data.x, "quantity", "value", "low", "high", ...others];
  const csvRow = (line, point) => {
    const { row, y } = point;
    const values = [y?.value, y?.low, y?.high].map((value) => value && Number(value.toPrecision(6)));
    const told = {
      status: y ? cell(row, "status") : points.whyNot(point),
      reason: points.reason(point),
      marks: points.marks(point).join(", "),
      notes: points.notes(point).join("; "),
    };
    const rest = others.map((name) => told[name] ?? cell(row, name));
    return [data.title, line.name, point.x, line.y || drawing.yTitle, ...values, ...rest];
  };
  return csvText([head, ...drawing.lines.flatMap(([line, all]) => all.map((point) => csvRow(line, point)))]);
}
