/* The history of a case: one line per device model and driver. */

const page = JSON.parse(document.getElementById("page-data").textContent);
const cases = new Map(page.cases.map((each) => [each.key, each]));
const select = document.getElementById("case");
let chosen = ""; // the key of the case that is drawn
const plot = document.getElementById("plot");
const DASHES = ["solid", "dash", "dot", "dashdot"];
const SYMBOLS = [page.marker, ...["circle", "square", "diamond"].filter((each) => each !== page.marker)];
const DAY = 86400e3; // ms

/* The hover text of a point, as lines: run, machine, time, commit, latency. */
function hoverLines(line, at, unit) {
  const interval = line.low[at] === null ? "" : ` (${shown(line.low[at])} to ${shown(line.high[at])})`;
  return [page.names[line.run[at]], line.machine, `${line.at[at].replace("T", " ")} UTC`, `commit ${line.commit[at] || "not recorded"}`, `${shown(line.ms[at])} ${unit}${interval}`]
    .concat(line.sequences.length ? [`${line.sequences[at]} concurrent sequences`] : [])
    .concat(line.flagged.includes(at) ? ["flagged: fewer than six samples, unsteady times, or a contended or thermally throttled machine"] : []);
}

const address = (line, at) => `../runs/${line.run[at]}.html`;

function trace(line, number, unit) {
  const tone = themed(`--tone-${page.tone}`);
  const symbol = SYMBOLS[number % SYMBOLS.length];
  const texts = line.at.map((_, at) => hoverLines(line, at, unit).map(escapeHtml).join("<br>"));
  return {
    type: "scatter", mode: "lines+markers", name: escapeHtml(line.machine), x: line.at, y: line.ms,
    line: { color: tone, dash: DASHES[number % DASHES.length], width: 1.5 },
    marker: { size: 9, color: tone, symbol: line.at.map((_, at) => (line.flagged.includes(at) ? `${symbol}-open` : symbol)) },
    error_y: { type: "data", symmetric: false, color: tone, thickness: 1, width: 2, array: line.ms.map((ms, at) => (line.high[at] ?? ms) - ms), arrayminus: line.ms.map((ms, at) => ms - (line.low[at] ?? ms)) },
    customdata: line.at.map((_, at) => address(line, at)), text: texts, hovertemplate: "%{text}<extra></extra>",
  };
}

/* The x range of one day if all points have the same time, else none. */
function days(lines) {
  const times = lines.flatMap((line) => line.at).map((at) => Date.parse(`${at}Z`));
  const [first, last] = [smallest(times), largest(times)];
  return last > first ? {} : { range: [first - DAY / 2, last + DAY / 2].map((time) => new Date(time).toISOString()) };
}

async function draw() {
  document.documentElement.dataset.ready = "no";
  const { label, lines, unit } = cases.get(chosen);
  document.getElementById("figure-title").textContent = label;
  const [ink, muted, grid] = ["--ink", "--muted", "--grid"].map(themed);
  const axis = { gridcolor: grid, linecolor: muted, tickcolor: muted, zeroline: false, fixedrange: true };
  const layout = {
    height: 420, margin: { t: 20, r: 40, b: 50, l: 60 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: ink, size: 13, family: getComputedStyle(document.body).fontFamily },
    xaxis: { ...axis, type: "date", title: { text: "first sample, UTC", standoff: 12 }, automargin: true, ...days(lines) }, yaxis: { ...axis, title: { text: `latency, ${unit}`, standoff: 8 }, rangemode: "tozero", automargin: true },
    dragmode: false, showlegend: true, legend: { orientation: "h", y: 0, yref: "container", yanchor: "bottom" }, hoverlabel: { bgcolor: themed("--raised"), font: { color: ink }, align: "left" },
  };
  await Plotly.newPlot(plot, lines.map((line, number) => trace(line, number, unit)), layout, { displayModeBar: false, responsive: true, doubleClick: "reset" });
  plot.on("plotly_click", ({ points: [{ customdata }] }) => location.assign(customdata));
  plot.setAttribute("aria-label", `Line chart of the latency of ${label}. The numbers are in the table below it.`);
  numbers(lines, unit);
  document.documentElement.dataset.ready = "yes";
}

function numbers(lines, unit) {
  const rows = lines.flatMap((line) => line.at.map((_, at) => ({ line, at }))).sort((a, b) => (a.line.at[a.at] < b.line.at[b.at] ? 1 : -1));
  const sequences = lines.some(({ sequences }) => sequences.length) ? [["sequences", "Concurrent sequences", true]] : [];
  const columns = [["at", "First sample, UTC"], ["run", "Run"], ["commit", "Commit"], ["ms", `Latency (${unit})`, true], ["low", "From", true], ["high", "To", true], ...sequences, ["machine", "Machine"]]
    .map(([key, label, numeric]) => ({ key, label, numeric: Boolean(numeric), scale: 1, names: Object.create(null) }));
  columns.find(({ key }) => key === "run").link = ({ line, at }) => address(line, at);
  const cell = ({ line, at }, key) => {
    if (key === "run") return page.names[line.run[at]];
    return key === "machine" ? line.machine : line[key][at];
  };
  new Table(document.getElementById("numbers"), { caption: "Numbers", columns, rows, cell });
}

/* The number of runs that measured a case. */
const runsOf = ({ lines }) => new Set(lines.flatMap(({ run }) => run)).size;

/* Offer the cases by phase and batch, with their number of runs. */
function offerCases() {
  const runs = (each) => (runsOf(each) > 1 ? ` · ${runsOf(each)} runs` : "");
  const option = (each) => element("option", { value: each.key, textContent: each.name + runs(each), selected: each.key === chosen });
  const groups = [...new Set(page.cases.map(({ group }) => group))].sort(collator.compare);
  select.replaceChildren(...groups.map((label) => element("optgroup", { label }, ...page.cases.filter(({ group }) => group === label).map(option))));
}

/* Draw the case in the address, or else the one with the most runs. */
function follow() {
  const wanted = location.hash.slice(1);
  const most = page.cases.reduce((best, each) => (runsOf(each) > runsOf(best) ? each : best));
  chosen = cases.has(wanted) ? wanted : most.key;
  offerCases();
  draw();
}

select.onchange = () => { location.hash = select.value; };
select.form.onsubmit = (event) => event.preventDefault();
addEventListener("hashchange", follow);
darkTheme.onchange = draw;
follow();
