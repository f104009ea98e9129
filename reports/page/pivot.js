/* A figure's numbers as a table: one row per x, one column per line. */

/* Draw the table; if it is too wide for the figure's column, the figure becomes as wide as the page. */
function drawPivot(figure) {
  const { points } = figure;
  const drawing = figure.drawing();
  const columns = drawing.lines;
  const places = [...new Set(columns.flatMap(([, all]) => all.map((point) => point.x)))].sort((a, b) => a - b);
  const head = element("tr", {}, element("th", { scope: "col", className: "number", textContent: figure.data.x_title }));
  const { shared } = drawing;
  const name = (line) => nameParts(line).filter((part) => !shared.includes(part)).join(" · ");
  head.append(...columns.map(([line]) => element("th", { scope: "col", className: "number" }, swatch(line), ` ${name(line)}`)));
  const body = places.map((x) => {
    const row = element("tr", {}, element("th", { scope: "row", className: "number", textContent: axisLabel(x) }));
    row.append(...columns.map(([line, all]) => pivotCell(points, drawing, line, name(line), all.find((point) => point.x === x))));
    return row;
  });
  const caption = element("caption", { textContent: pivotCaption(drawing) });
  const table = element("table", { className: "pivot" }, caption, element("thead", {}, head), element("tbody", {}, ...body));
  const place = figure.host.querySelector(".pivot-host");
  place.replaceChildren(table);
  if (place.scrollWidth > place.clientWidth) figure.host.classList.add("wide");
  place.tabIndex = place.scrollWidth > place.clientWidth ? 0 : -1;
}

function pivotCaption(drawing) {
  const intervals = drawing.lines.some(([line, all]) => !line.y && all.some((point) => point.y && point.y.high > point.y.low));
  const over = drawing.lines.some(([, all]) => all.some((point) => point.y?.over));
  const where = over ? "over processes" : "within one process";
  const what = drawing.isRatio
    ? `the ratio's worst case from both 95% intervals ${where}`
    : `the 95% interval of the median ${where}`;
  const brackets = intervals ? [`in brackets ${what}`] : [];
  return `${[drawing.yTitle, ...(drawing.shared.length ? [`all lines: ${drawing.shared.join(", ")}`] : []), ...brackets, ...drawing.notes].join("; ")}.`;
}

/* A cell of the table. A narrow screen stacks the cells of a row; there `data-line` labels the cell. */
function pivotCell(points, drawing, line, name, point) {
  const cell = element("td", { className: "number" });
  cell.dataset.line = name;
  if (!point) {
    cell.append(element("span", { className: "none", textContent: "–", title: "not measured", ariaLabel: "not measured" }));
    return cell;
  }
  cell.title = points.words(line, point, drawing.yTitle).join("\n");
  if (!point.y) {
    const status = point.lost === null ? "ok" : points.cell(point.lost, "status");
    cell.append(element("span", { textContent: point.lost === null ? "–" : points.whyNot(point) }));
    if (status !== "ok") cell.firstChild.dataset.status = status;
    return cell;
  }
  const { value, low, high } = point.y;
  cell.append(element("span", { textContent: `${points.signs(point)} ${shown(value)}`.trim() }));
  if (!line.y && high > low) cell.append(" ", element("small", { textContent: `[${shown(low)}, ${shown(high)}]` }));
  return cell;
}
