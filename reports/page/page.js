/* Reads the page's data and starts its figures, tables and downloads. */

const page = JSON.parse(document.getElementById("page-data").textContent);
const columns = new Map(page.columns.map(({ name, values, codes, numbers }) => [name, numbers ?? codes.map((code) => values[code])]));
/* A value of the table; null if unknown. */
const cell = (row, name) => columns.get(name)?.[row] ?? null;
/* The HTML id of a row's profile; null if it has none. */
const profileOf = (row) => page.profiles[row] ?? null;
const hasSeveralGpus = new Set((columns.get("device_id") ?? []).filter(Boolean)).size > 1;
/* The GPU of a row, such as `GPU 5eedf00d`; "" if unknown, or if the run has only one. */
const gpuOf = (row) => (hasSeveralGpus && cell(row, "device_id") ? `GPU ${cell(row, "device_id")}` : "");
const numeric = new Set(page.columns.filter(({ numbers }) => numbers).map(({ name }) => name));
const allRows = [...Array(page.count).keys()];

/* The table's columns for these keys; a column's `names` maps its values to labels. */
function tableColumns(keys) {
  return keys.map((key) => ({ key, label: page.labels[key] ?? key, numeric: numeric.has(key), scale: page.scales[key] ?? 1, names: page.names[key] ?? Object.create(null) }));
}

function startResults() {
  const host = document.getElementById("results-table");
  const table = new Table(host, { caption: "All cases", columns: tableColumns(page.short), rows: allRows, cell, signs: (row) => signsOf([row], "latency_ms") });
  startChooser(table);
  const words = document.getElementById("filter-text");
  const haystacks = [];
  const texts = (name, value) => [shown(value), page.names[name]?.[value] ?? ""];
  const haystack = (row) => (haystacks[row] ??= [...columns.keys()].flatMap((name) => texts(name, cell(row, name))).join("\n").toLowerCase());
  words.oninput = () => {
    const wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean);
    table.filter((row) => wanted.every((word) => haystack(row).includes(word)));
  };
}

/* Fill the menu of columns; the columns that the table shows at first are checked. */
function startChooser(table) {
  const boxes = [...columns.keys()].map((name) => {
    const box = element("input", { type: "checkbox", value: name, checked: page.short.includes(name) });
    return element("label", {}, box, ` ${page.labels[name] ?? name}`);
  });
  const host = document.getElementById("columns");
  host.append(...boxes);
  host.onchange = () => {
    table.choose(tableColumns([...host.querySelectorAll("input:checked")].map((box) => box.value)));
  };
}

/* Set the URL's hash; if it is set already, fire hashchange again. */
function goTo(anchor) {
  if (location.hash === `#${anchor}`) dispatchEvent(new HashChangeEvent("hashchange"));
  else location.hash = anchor;
}

/* Highlight the figure of the URL's hash, and scroll to it. */
function showLinkedFigure(figures) {
  const named = figures.find(({ link }) => link.hash === location.hash);
  for (const figure of figures) figure.host.classList.toggle("linked", figure === named);
  named?.host.scrollIntoView();
}

/* Draw the stale figures in view one at a time, so that the page stays responsive. */
async function drawInView(figures) {
  for (const figure of figures) {
    if (!figure.stale || !figure.isInView()) continue;
    await figure.draw();
    await new Promise((resolve) => setTimeout(resolve));
  }
}

async function drawAll(figures) {
  for (const figure of figures) await figure.draw();
}

function startDrawing(figures) {
  const observer = new IntersectionObserver(() => drawInView(figures), { rootMargin: `${NEAR}px` });
  for (const { host } of figures) observer.observe(host);
  addEventListener("hashchange", () => {
    showLinkedFigure(figures);
    drawInView(figures);
  });
  addEventListener("click", ({ target }) => {
    if (target.closest("a")?.hash === location.hash) showLinkedFigure(figures); // a click on the current hash fires no hashchange
  });
  showLinkedFigure(figures);
  return drawInView(figures);
}

/* Start the download buttons; a page of a site links to files instead. */
function startDownloads() {
  if (!document.getElementById("records")) return;
  document.getElementById("save-csv").onclick = async () => save("records.csv", "text/csv", await unpacked("table"));
  document.getElementById("save-records").onclick = async () => save("records.jsonl", "application/jsonl", await unpacked("records"));
}

const figures = [];
const plotlyLoaded = document.getElementById("plotly") && run("plotly"); // a site's pages load a shared file instead

async function start() {
  const findings = document.getElementById("findings");
  if (findings && matchMedia("(max-width: 40rem)").matches) findings.open = false; // so that the first figure is on the screen
  await plotlyLoaded;
  for (const host of document.querySelectorAll("[data-figure]")) {
    figures.push(new Figure(host, page.figures[Number(host.dataset.figure)]));
  }
  darkTheme.onchange = () => {
    for (const figure of figures) figure.stale = true;
    drawInView(figures);
  };
  await startDrawing(figures);
  startResults();
  startDownloads();
  document.documentElement.dataset.ready = "yes";
}

start();
