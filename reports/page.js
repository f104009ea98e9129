/* What does the page do: read its data, draw, filter, change theme, hand out the records. */

const page = JSON.parse(document.getElementById("page-data").textContent);
const columns = new Map(page.columns.map(({ name, values, codes, numbers }) => [name, numbers ?? codes.map((code) => values[code])]));
/* null for a column that no record fills. */
const cell = (row, name) => columns.get(name)?.[row] ?? null;
/* Where the page has the profile of a row's case; null where it has none. */
const profileOf = (row) => page.profiles[row] ?? null;
const allRows = [...Array(page.count).keys()];
const hiddenSystems = new Set();

function tableColumns(names) {
  return names.map((key) => ({ key, label: page.labels[key] ?? key, numeric: page.numeric.includes(key), scale: page.scales[key] ?? 1 }));
}

/* Of the columns shown in the results, those that are `needed` or not the same in all `rows`. */
function tellingColumns(rows, needed) {
  return page.shown.filter((name) => needed.includes(name) || new Set(rows.map((row) => cell(row, name))).size > 1);
}

function startResults() {
  const host = document.getElementById("results-table");
  const table = new Table(host, { caption: "All cases", columns: tableColumns(page.shown), rows: allRows, cell });
  const controls = [...document.querySelectorAll("#filters [data-filter]")];
  const words = document.getElementById("filter-text");
  const haystacks = [];
  const haystack = (row) => (haystacks[row] ??= [...columns.keys()].map((name) => shown(cell(row, name))).join("\n").toLowerCase());
  const apply = () => {
    const wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean);
    const chosen = controls.filter((control) => control.value !== "").map((control) => [control.dataset.filter, control.value]);
    table.filter((row) => chosen.every(([name, value]) => [cell(row, name)].flat().includes(value)) && wanted.every((word) => haystack(row).includes(word)));
  };
  words.oninput = apply;
  for (const control of controls) control.onchange = apply;
  document.getElementById("filters").onreset = () => setTimeout(apply);
}

function startFailures() {
  const host = document.getElementById("failures-table");
  if (!host) return;
  const names = ["status", "system", "backend", "suites", "reason", "which", "cases"];
  new Table(host, { caption: "Cases without a result", columns: tableColumns(names), rows: page.failures, cell: (row, key) => row[key] });
}

function startFigures() {
  return [...document.querySelectorAll("[data-figure]")].map((host) => {
    const data = page.figures[Number(host.dataset.figure)];
    const details = host.querySelector("details.numbers");
    details.addEventListener("toggle", () => {
      const rows = [...new Set(data.lines.flatMap((line) => [...line.base_rows, ...line.rows]))];
      const telling = tellingColumns(rows, ["system", "backend", data.x, data.y, "latency_ms", "status"]);
      const first = ["system", "backend", ...page.settings, data.x].filter((name) => telling.includes(name));
      const columns = tableColumns([...new Set([...first, ...telling])]);
      new Table(details.querySelector(".table-host"), { caption: `Numbers of: ${data.title}`, columns, rows, cell });
    }, { once: true });
    return new Figure(host, data, cell, page.scales, hiddenSystems);
  });
}

/* One figure at a time, so that the page answers in between. */
async function drawAll(figures) {
  for (const figure of figures) {
    await figure.draw();
    await new Promise((resolve) => setTimeout(resolve));
  }
}

function startSystems(figures) {
  const looks = new Map(page.looks);
  for (const box of document.querySelectorAll("[data-system]")) {
    box.after(swatch({ ...looks.get(box.dataset.system), dash: "solid", hollow: false }));
    box.onchange = () => {
      if (box.checked) hiddenSystems.delete(box.dataset.system);
      else hiddenSystems.add(box.dataset.system);
      drawAll(figures);
    };
  }
}

function startTheme(figures) {
  const button = document.getElementById("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const dark = () => (document.documentElement.dataset.theme ?? (system.matches ? "dark" : "light")) === "dark";
  const follow = () => {
    button.textContent = dark() ? "Light theme" : "Dark theme";
    drawAll(figures);
  };
  button.onclick = () => {
    document.documentElement.dataset.theme = dark() ? "light" : "dark";
    follow();
  };
  system.onchange = follow;
  button.textContent = dark() ? "Light theme" : "Dark theme";
}

/* A spreadsheet would run a text that starts like a formula. */
function csvCell(value) {
  if (value === null || value === undefined) return "";
  if (typeof value === "number") return String(value);
  const text = Array.isArray(value) ? value.join(", ") : String(value);
  const inert = /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
  return /[",\r\n]/.test(inert) ? `"${inert.replaceAll('"', '""')}"` : inert;
}

function csv() {
  const names = [...columns.keys()];
  return [names, ...allRows.map((row) => names.map((name) => cell(row, name)))].map((line) => `${line.map(csvCell).join(",")}\n`).join("");
}

/* The text that `packed` of html.py put into an element: base 85 of gzip. */
async function unpacked(id) {
  const digits = new Uint8Array(128);
  [..."0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%:()*+-;,=.?@^_`{|}~"].forEach((sign, digit) => {
    digits[sign.charCodeAt(0)] = digit;
  });
  const text = document.getElementById(id).textContent;
  const length = Math.floor((text.length * 4) / 5);
  const view = new DataView(new ArrayBuffer(Math.ceil(text.length / 5) * 4));
  for (let at = 0, to = 0; at < text.length; at += 5, to += 4) {
    let word = 0;
    for (let i = 0; i < 5; i += 1) word = word * 85 + (at + i < text.length ? digits[text.charCodeAt(at + i)] : 84);
    view.setUint32(to, word);
  }
  const bytes = new Blob([new Uint8Array(view.buffer, 0, length)]);
  return new Response(bytes.stream().pipeThrough(new DecompressionStream("gzip"))).text();
}

/* The page's policy knows the hash of Plotly and runs nothing else that is put in so. A site's pages share a file. */
async function startPlotly() {
  if (!document.getElementById("plotly")) return;
  document.head.append(element("script", { textContent: await unpacked("plotly") }));
}

function save(name, type, text) {
  const link = element("a", { download: name, href: URL.createObjectURL(new Blob([text], { type })) });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

/* A page of a site links to files instead. */
function startDownloads() {
  if (!document.getElementById("records")) return;
  document.getElementById("save-csv").onclick = () => save("records.csv", "text/csv", csv());
  document.getElementById("save-records").onclick = async () => save("records.jsonl", "application/jsonl", await unpacked("records"));
}

/* On a small screen the first figure comes before what else was found. */
function foldFindings() {
  const findings = document.getElementById("findings");
  if (findings && matchMedia("(max-width: 40rem)").matches) findings.open = false;
}

async function start() {
  foldFindings();
  startDownloads();
  startResults();
  startFailures();
  await startPlotly();
  const figures = startFigures();
  startSystems(figures);
  startTheme(figures);
  await drawAll(figures);
  document.documentElement.dataset.ready = "yes";
}

start();
