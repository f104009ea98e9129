/* Downloads: a figure as a picture for a paper, or its numbers as CSV. */

const PRINT_WIDTH = 660;
const INCH = 125; // pixels per inch of a picture, which sets its text at 7 points
const PRINTED_DOTS = 300; // per inch

const FILES = {
  svg: async (figure) => save(`${fileName(figure)}.svg`, "image/svg+xml", await paperSvg(figure, Number(figure.inches.value))),
  png: (figure) => savePng(figure, Number(figure.inches.value)),
  pdf: (figure) => printAlone([figure], Number(figure.inches.value)),
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

function csvCell(value) {
  if (value === null || value === undefined) return "";
  if (typeof value === "number") return String(value);
  const text = Array.isArray(value) ? value.join(", ") : String(value);
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

function csvText(rows) {
  return rows.map((row) => `${row.map(csvCell).join(",")}\n`).join("");
}

/* A figure on white, `inches` wide, without title and caption, which LaTeX sets. */
function paperPicture(figure, inches) {
  const paper = { width: inches * INCH, height: Math.round(INCH * (inches < 5 ? 2.4 : 3.2)) };
  return inLight(() => {
    const drawing = figure.drawing(paper);
    const layout = { ...drawing.layout(paper.width), width: paper.width, autosize: false, paper_bgcolor: "#ffffff", plot_bgcolor: "#ffffff" };
    return { data: drawing.traces(), layout };
  });
}

async function paperSvg(figure, inches) {
  const picture = paperPicture(figure, inches);
  const { width, height } = picture.layout;
  const svg = await Plotly.toImage(picture, { format: "svg", width, height, imageDataOnly: true });
  return svg.replace(/ width="[^"]*" height="[^"]*"/, ` width="${width / INCH}in" height="${height / INCH}in"`);
}

function savePng(figure, inches) {
  const picture = paperPicture(figure, inches);
  const { width, height } = picture.layout;
  return Plotly.downloadImage(picture, { format: "png", width, height, scale: PRINTED_DOTS / INCH, filename: fileName(figure) });
}

/* Show only these figures, one on each sheet; the highest figure sets the size of all sheets. */
async function showAlone(figures, inches) {
  const svgs = [];
  for (const figure of figures) svgs.push(await paperSvg(figure, inches));
  const highest = largest(svgs.map((svg) => Number(/height="([\d.]+)in"/.exec(svg)[1])));
  const style = element("style", { textContent: `@page { size: ${inches}in ${highest}in; margin: 0 }` });
  const sheets = svgs.map((svg) => {
    const sheet = element("div");
    sheet.innerHTML = svg; // from Plotly, which escapes the records' text
    return sheet;
  });
  const alone = element("div", { id: "alone" }, style, ...sheets);
  document.body.append(alone);
  document.documentElement.classList.add("alone");
  return alone;
}

/* Print these figures; a browser's print writes PDF. */
async function printAlone(figures, inches) {
  const alone = await showAlone(figures, inches);
  print();
  alone.remove();
  document.documentElement.classList.remove("alone");
}

/* The shown points as CSV, one row each, with flags and notes of the point and its baseline. */
function figureCsv(figure) {
  const drawing = figure.drawing();
  const { data, cell, points } = figure;
  const columns = ["system", "backend", "size", "phase", "batch", "context", ...page.settings, "samples", "processes", "process_spread", "status", "reason", "marks", "notes", "device", "device_id", "commit", "started_at"];
  const others = [...new Set(columns)].filter((name) => name !== data.x && page.columns.some((column) => column.name === name));
  const head = ["figure", "line", data.x, "quantity", "value", "low", "high", ...others];
  const csvRow = (line, point) => {
    const { row, y } = point;
    const values = [y?.value, y?.low, y?.high].map((value) => value && Number(value.toPrecision(6)));
    const special = {
      status: y ? cell(row, "status") : points.whyNot(point),
      reason: points.reason(point),
      marks: points.marks(point).join(", "),
      notes: points.notes(point).join("; "),
    };
    const rest = others.map((name) => special[name] ?? cell(row, name));
    return [data.title, line.name, point.x, line.y || drawing.yTitle, ...values, ...rest];
  };
  return csvText([head, ...drawing.lines.flatMap(([line, all]) => all.map((point) => csvRow(line, point)))]);
}
