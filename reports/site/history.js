/* How did a case of a system change from run to run? A line for each kind of machine, a triangle at each change. */

const page = JSON.parse(document.getElementById("page-data").textContent);
const cases = new Map(page.cases.map((each) => [each.key, each]));
const select = document.getElementById("case");
const plot = document.getElementById("plot");
const SYMBOLS = ["circle", "square", "diamond", "pentagon", "star"];
const DASHES = ["solid", "dash", "dot", "dashdot"];
const TONES = 8;
/* The least that the axis shows to either side of the values, so that noise does not look like change. */
const LEAST_REACH = 0.1;
const DAY = 86400e3; // ms
const NARROW = 500; // pixels of a figure, in which changes are told by hover and table alone

/* Plotly reads a part of HTML in its texts; words from records are shown as they are. */
function neutral(text) {
  return String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}

function colour(name) {
  plot.style.color = `var(${name})`;
  const found = getComputedStyle(plot).color;
  plot.style.color = "";
  return found;
}

function percent(ratio) {
  return `${ratio > 1 ? "+" : "−"}${Math.abs(100 * (ratio - 1)).toFixed(1)}%`;
}

function hover(line, at, unit) {
  const interval = line.low[at] === null ? "" : ` (${shown(line.low[at])} to ${shown(line.high[at])})`;
  return [page.names[line.run[at]], `${line.at[at].replace("T", " ")} UTC`, `commit ${line.commit[at] || "not recorded"}`, `${shown(line.ms[at])} ${unit}${interval}`]
    .concat(line.sequences.length ? [`${line.sequences[at]} sequences at once`] : [])
    .concat(line.doubtful.includes(at) ? ["few samples, or ones that changed in their course, or a loaded or hot machine"] : []).map(neutral).join("<br>");
}

function traces(line, number, unit) {
  const tone = colour(`--tone-${number % TONES}`);
  const symbol = SYMBOLS[number % SYMBOLS.length];
  const points = {
    type: "scatter", mode: "lines+markers", name: neutral(line.place), x: line.at, y: line.ms,
    line: { color: tone, dash: DASHES[number % DASHES.length], width: 1.5 },
    marker: { size: 7, color: tone, symbol: line.at.map((_, at) => (line.doubtful.includes(at) ? `${symbol}-open` : symbol)) },
    error_y: { type: "data", symmetric: false, color: tone, thickness: 1, width: 2, array: line.ms.map((ms, at) => (line.high[at] ?? ms) - ms), arrayminus: line.ms.map((ms, at) => ms - (line.low[at] ?? ms)) },
    text: line.at.map((_, at) => hover(line, at, unit)), hovertemplate: "%{text}<extra></extra>",
  };
  const changes = {
    type: "scatter", mode: plot.clientWidth < NARROW ? "markers" : "markers+text", cliponaxis: false, showlegend: false, x: line.changes.map(({ at }) => line.at[at]), y: line.changes.map(({ at }) => line.ms[at]),
    marker: { size: 14, symbol: line.changes.map(({ verdict }) => (verdict === "slower" ? "triangle-up" : "triangle-down")), color: line.changes.map(({ verdict }) => colour(verdict === "slower" ? "--bad" : "--good")) },
    text: line.changes.map(({ at, ratio }) => `${percent(ratio)}<br>${neutral(line.commit[at].slice(0, 7))}`), textposition: line.changes.map(({ verdict }) => (verdict === "slower" ? "top center" : "bottom center")), textfont: { color: colour("--ink") },
    hovertext: line.changes.map(({ at, before, verdict, ratio, differs }) => [`${verdict}: ${percent(ratio)} against ${page.names[before]}`, ...differs.slice(0, 5)].map(neutral).join("<br>") + `<br>${hover(line, at, unit)}`),
    hovertemplate: "%{hovertext}<extra></extra>",
  };
  return [points, changes];
}

function range(lines) {
  const values = lines.flatMap((line) => [...line.ms, ...line.low, ...line.high]).filter((value) => value !== null);
  const middle = lines.flatMap((line) => line.ms);
  const [low, high] = [Math.min(smallest(values), smallest(middle) * (1 - LEAST_REACH)), Math.max(largest(values), largest(middle) * (1 + LEAST_REACH))];
  const margin = 0.08 * (high - low);
  return [Math.max(0, low - margin), high + margin];
}

/* A day around what was all measured at one moment. */
function days(lines) {
  const times = lines.flatMap((line) => line.at).map((at) => Date.parse(`${at}Z`));
  const [first, last] = [smallest(times), largest(times)];
  return last > first ? {} : { range: [first - DAY / 2, last + DAY / 2].map((time) => new Date(time).toISOString()) };
}

async function draw() {
  document.documentElement.dataset.ready = "no";
  const { label, lines, unit } = cases.get(select.value);
  document.getElementById("figure-title").textContent = label;
  const [ink, muted, grid] = ["--ink", "--muted", "--grid"].map(colour);
  const axis = { gridcolor: grid, linecolor: muted, tickcolor: muted, zeroline: false, fixedrange: true };
  const layout = {
    height: 420, margin: { t: 20, r: 40, b: 50, l: 60 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: ink, size: 13, family: getComputedStyle(document.body).fontFamily },
    xaxis: { ...axis, type: "date", title: { text: "first sample, UTC", standoff: 12 }, automargin: true, ...days(lines) }, yaxis: { ...axis, title: { text: `latency, ${unit}`, standoff: 8 }, range: range(lines), automargin: true },
    showlegend: true, legend: { orientation: "h", y: 0, yref: "container", yanchor: "bottom" }, hoverlabel: { bgcolor: colour("--raised"), font: { color: ink }, align: "left" },
  };
  await Plotly.react(plot, lines.flatMap((line, number) => traces(line, number, unit)), layout, { displayModeBar: false, responsive: true, doubleClick: "reset" });
  const [runs, changes] = ["at", "changes"].map((part) => lines.reduce((sum, line) => sum + line[part].length, 0));
  plot.setAttribute("aria-label", `Line chart of the latency of ${label}: ${runs} runs on ${lines.length} kinds of machine, ${changes} changes. The numbers are in the table below it.`);
  numbers(lines, unit);
  document.documentElement.dataset.ready = "yes";
}

function numbers(lines, unit) {
  const rows = lines.flatMap((line) => line.at.map((_, at) => ({ line, at }))).sort((a, b) => (a.line.at[a.at] < b.line.at[b.at] ? 1 : -1));
  const held = lines.some(({ sequences }) => sequences.length) ? [["sequences", "Sequences at once", true]] : [];
  const columns = [["at", "First sample, UTC"], ["run", "Run"], ["commit", "Commit"], ["ms", `Latency (${unit})`, true], ["low", "From", true], ["high", "To", true], ...held, ["place", "Machine"], ["change", "Change"]]
    .map(([key, label, numeric]) => ({ key, label, numeric: Boolean(numeric), scale: 1, names: Object.create(null) }));
  columns.find(({ key }) => key === "run").link = ({ line, at }) => `../runs/${line.run[at]}.html`;
  const cell = ({ line, at }, key) => {
    const change = line.changes.find((each) => each.at === at);
    if (key === "change") return change ? `${change.verdict}, ${percent(change.ratio)}` : null;
    if (key === "run") return page.names[line.run[at]];
    return key === "place" ? line.place : line[key][at];
  };
  new Table(document.getElementById("numbers"), { caption: "Numbers", columns, rows, cell });
}

/* What an address was made of; one that was cut stays as it is. */
function fromAddress(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/* In how many runs a kind of machine measured a case, at the most. */
const runsOf = ({ lines }) => largest(lines.map(({ run }) => new Set(run).size));

/* The cases of several runs on one kind of machine; apart, the others, which have no change to show. */
function offerCases() {
  const isRepeated = (each) => runsOf(each) > 1;
  const option = ({ key, label }) => element("option", { value: key, textContent: label });
  const [several, single] = [true, false].map((wanted) => page.cases.filter((each) => isRepeated(each) === wanted).map(option));
  select.append(...several, ...(single.length ? [element("optgroup", { label: "In one run on each machine" }, ...single)] : []));
}

/* The first, where cases changed, as those come first; else that of most runs. */
function opening() {
  if (page.cases[0].lines.some(({ changes }) => changes.length)) return page.cases[0].key;
  return page.cases.reduce((best, each) => (runsOf(each) > runsOf(best) ? each : best)).key;
}

/* The case that the address names behind its #; else the one to open with. */
function follow() {
  const wanted = fromAddress(location.hash.slice(1));
  select.value = cases.has(wanted) ? wanted : opening();
  draw();
}

offerCases();
select.onchange = () => { location.hash = select.value; };
select.form.onsubmit = (event) => event.preventDefault();
addEventListener("hashchange", follow);
startPage(draw);
matchMedia("print").onchange = draw;
follow();
