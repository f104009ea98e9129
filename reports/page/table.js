/* A sortable, filterable table. */

const WRAPPED = ["suites", "reason", "notes"]; // columns that wrap
const LONG = 30, LONG_LABEL = 15; // longer cells and labels, in characters, need a wide column
const collator = new Intl.Collator("en", { numeric: true });
const fourDigits = new Intl.NumberFormat("en", { minimumSignificantDigits: 4, maximumSignificantDigits: 4, useGrouping: false });

/* Escape text for Plotly, which reads some HTML. */
function escapeHtml(text) {
  return String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}

function element(tag, properties = {}, ...children) {
  const node = Object.assign(document.createElement(tag), properties);
  node.append(...children);
  return node;
}

const probe = document.body.appendChild(element("span", { hidden: true }));

const darkTheme = matchMedia("(prefers-color-scheme: dark)");
const colors = new Map(); // by name and theme, because computed styles are slow

/* A color of style.css in the current theme. */
function themed(name) {
  const key = `${name} ${probe.style.colorScheme || darkTheme.matches}`;
  if (!colors.has(key)) {
    probe.style.color = `var(${name})`;
    colors.set(key, getComputedStyle(probe).color);
  }
  return colors.get(key);
}

/* Unlike a call of Math.min with all values as arguments, these take any number of values. */
const smallest = (values) => values.reduce((a, b) => Math.min(a, b), Infinity);
const largest = (values) => values.reduce((a, b) => Math.max(a, b), -Infinity);

/* A value as text; numbers have four significant digits, or all before the point. */
function shown(value) {
  if (value === null || value === undefined) return "";
  if (Array.isArray(value)) return value.join(", ");
  if (typeof value !== "number" || Number.isInteger(value)) return String(value);
  return Math.abs(value) < 1e4 ? fourDigits.format(value) : value.toFixed(0);
}

/* Compare two cells; a missing value sorts last in both directions. */
function compare(a, b, direction) {
  const missing = (value) => value === null || value === undefined || value === "";
  if (missing(a) || missing(b)) return missing(a) - missing(b);
  const numbers = typeof a === "number" && typeof b === "number";
  return direction * (numbers ? a - b : collator.compare(String(a), String(b)));
}

/* `columns`: {key, label, numeric, scale, names, link}. `cell(row, key)`: the value, which is shown divided by the scale.
   `link(row)`: the address of a column's cell. `signs(row)`: [flag, sign, meaning] of a row's latency. */
class Table {
  constructor(host, { caption, columns, rows, cell, signs = () => [] }) {
    Object.assign(this, { rows, cell, signs, filtered: rows, sorted: { key: null, direction: 1 } });
    this.head = element("tr");
    this.body = element("tbody");
    this.count = element("p", { className: "count" });
    this.count.setAttribute("role", "status");
    const table = element("table", {}, element("caption", { className: "unseen", textContent: caption }));
    table.append(element("thead", {}, this.head), this.body);
    const scroller = element("div", { className: "scroller", tabIndex: 0 }, table);
    scroller.setAttribute("role", "region");
    scroller.setAttribute("aria-label", `${caption} (scrolls)`);
    host.replaceChildren(this.count, scroller);
    this.choose(columns);
  }

  /* Show these columns; rows stay sorted, also by a column that is hidden. */
  choose(columns) {
    this.columns = columns;
    this.head.replaceChildren(...columns.map((column) => this.header(column)));
    this.markSorted();
    this.draw();
  }

  header(column) {
    const button = element("button", { type: "button", textContent: column.label, className: column.label.length > LONG_LABEL ? "long" : "" });
    const header = element("th", { scope: "col", className: column.numeric ? "number" : "" }, button);
    header.dataset.column = column.key;
    button.onclick = () => this.sort(column.key);
    return header;
  }

  sort(key) {
    const again = this.sorted.key === key;
    this.sorted = { key, direction: again ? -this.sorted.direction : 1 };
    this.markSorted();
    this.draw();
  }

  markSorted() {
    for (const header of this.head.children) {
      header.removeAttribute("aria-sort");
      if (header.dataset.column === this.sorted.key) header.setAttribute("aria-sort", this.sorted.direction > 0 ? "ascending" : "descending");
    }
  }

  filter(keep) {
    this.filtered = this.rows.filter(keep);
    this.draw();
  }

  draw() {
    const { key, direction } = this.sorted;
    const rows = key === null ? this.filtered : [...this.filtered].sort((a, b) => compare(this.cell(a, key), this.cell(b, key), direction));
    this.body.replaceChildren();
    for (const row of rows) this.body.append(this.line(row));
    this.count.textContent = `${rows.length} of ${this.rows.length} rows`;
  }

  line(row) {
    return element("tr", {}, ...this.columns.map(({ key, numeric, scale, names, link }) => {
      const value = this.cell(row, key);
      const cell = element("td", { textContent: shown(names[value] ?? (scale === 1 || value === null ? value : value / scale)), className: numeric ? "number" : "" });
      if (link) cell.replaceChildren(element("a", { href: link(row), textContent: cell.textContent }));
      if (key === "status") cell.dataset.status = value;
      if (key === "latency_ms") this.sign(cell, this.signs(row));
      if (WRAPPED.includes(key)) cell.className = cell.textContent.length > LONG ? `${key} long` : key;
      return cell;
    }));
  }

  /* Put the signs of a number's flags in front of the number. */
  sign(cell, signs) {
    if (!signs.length) return;
    const meaning = signs.map(([, , each]) => each).join("; ");
    cell.prepend(signs.map(([, sign]) => sign).join(""), element("span", { className: "unseen", textContent: ` (${meaning})` }), " ");
    cell.title = meaning;
  }
}
