/* The timeline of a case: rows of phases, layers, operators, kernels and idle time. */

const LANES = 4; // most lanes for concurrent kernels; further kernels share the last lane
const ROW_HEIGHT = 28, LETTER = 6.5; // pixels
const SIDES = { l: 64, r: 14 };
const S = 1e-9; // the x axis is in seconds, the launches in ns

/* A time in ms, µs or ns. */
function timeWords(ns) {
  if (ns === 0) return "0";
  const [unit, name] = ns >= 1e6 ? [1e6, "ms"] : ns >= 1e3 ? [1e3, "µs"] : [1, "ns"];
  return `${Number((ns / unit).toPrecision(4))} ${name}`;
}

/* The launches with start and end in ns, each on the first free lane or else the last, and the path of ranges around each. */
function launchesOf({ kernel, range, part, wait, time, paths }) {
  const free = [];
  let before = 0;
  return kernel.map((number, at) => {
    const from = before + wait[at];
    before = from + time[at];
    let lane = free.findIndex((end) => end <= from);
    if (lane < 0) lane = Math.min(free.length, LANES - 1);
    free[lane] = Math.max(free[lane] ?? 0, before);
    return { kernel: number, path: paths[range[at]] ?? [], part: part[at], from, to: before, lane };
  });
}

/* Join neighboring launches whose paths agree up to `depth` into spans. `belongs(path)`: whether a path counts. */
function spansOf(launches, depth, belongs = (path) => path.length > depth) {
  const spans = [];
  let open = null;
  for (const { path, from, to } of launches) {
    const name = belongs(path) ? path.slice(0, depth + 1).join(" / ") : "";
    if (open && name === open.path) open.to = Math.max(open.to, to);
    else if (name) spans.push((open = { path: name, name: path[depth], from, to }));
    else open = null;
  }
  return spans;
}

/* The spans of time in which no kernel runs. */
function idleSpans(launches) {
  const idle = [];
  let end = launches[0].from;
  for (const { from, to } of launches) {
    if (from > end) idle.push({ from: end, to: from });
    end = Math.max(end, to);
  }
  return idle;
}

/* Filled boxes of the items in the row with this number from the top. */
function boxes(items, row, color) {
  return {
    type: "scatter",
    mode: "none",
    fill: "toself",
    fillcolor: themed(color),
    hoverinfo: "skip",
    x: items.flatMap(({ from, to }) => [from * S, from * S, to * S, to * S, null]),
    y: items.flatMap(() => [-row, -row - 0.85, -row - 0.85, -row, null]),
  };
}

function startTimeline(host, { names, timeline }, choose) {
  const launches = launchesOf(timeline);
  const ranges = [
    ["Phase", spansOf(launches, 0)],
    ["Layer", spansOf(launches, 1, (path) => path.length > 1 && path[1].startsWith("layer "))],
    ["Operator", spansOf(launches, 2)],
  ].filter(([, spans]) => spans.length); // a replayed graph has no ranges
  const lanes = [...new Set(launches.map(({ lane }) => lane))].sort();
  const rows = [...ranges.map(([name]) => name), ...lanes.map((lane) => (lane ? "" : "Kernels")), "Idle"];
  const end = largest(launches.map(({ to }) => to));
  const shortened = ({ from, to }) => ({ from, to: to - Math.min(0.001 * end, 0.1 * (to - from)) }); // separates spans
  const nameOf = ({ kernel }) => names[kernel] ?? "a kernel that is not in the table";

  function words(launch) {
    const where = launch.path.join(" / ");
    return `${nameOf(launch)}: ${timeWords(launch.to - launch.from)}, starts at ${timeWords(launch.from)}${where ? `, in ${where}` : ""}; ${partLabel(launch.part)}`;
  }

  /* The names of all spans at these ends of the axis: "" if too long for the box; a layer may show its number. */
  function labels([from, to]) {
    const letters = (span) => (((span.to - span.from) * S) / (to - from)) * ((host.clientWidth - SIDES.l - SIDES.r) / LETTER);
    const fitting = (span) => [span.name, span.name.replace("layer ", "")].find((name) => name.length <= letters(span)) ?? "";
    return ranges.flatMap(([, spans]) => spans.map(fitting)).map(escapeHtml);
  }

  function build() {
    const kernels = lanes.flatMap((lane) => PARTS.map((part, number) => {
      return boxes(launches.filter((launch) => launch.lane === lane && launch.part === number), ranges.length + lane, `--part-${part}`);
    }));
    const named = ranges.flatMap(([, spans], row) => spans.map(({ from, to }) => [((from + to) / 2) * S, -row - 0.42]));
    const range = host.layout?.xaxis.range ?? [0, end * S];
    const traces = [
      ...ranges.map(([, spans], row) => boxes(spans.map(shortened), row, "--rule")),
      ...kernels.filter(({ x }) => x.length),
      boxes(idleSpans(launches), rows.length - 1, "--part-gaps"),
      { type: "scatter", mode: "text", x: named.map(([x]) => x), y: named.map(([, y]) => y), text: labels(range), textfont: { size: 11, color: themed("--ink") }, hoverinfo: "skip" },
      {
        type: "scatter",
        mode: "none",
        x: launches.flatMap(({ from, to }) => [from * S, ((from + to) / 2) * S, to * S]), // so that the nearest point is the pointed launch's
        y: launches.flatMap(({ lane }) => Array(3).fill(-ranges.length - lane - 0.42)),
        customdata: launches.flatMap((launch) => Array(3).fill([words(launch), launch.kernel])),
        hovertext: launches.flatMap((launch) => Array(3).fill(escapeHtml(nameOf(launch)))),
        hoverinfo: "text",
      },
    ];
    const layout = {
      height: ROW_HEIGHT * rows.length + 70,
      margin: { ...SIDES, t: 30, b: 40 },
      hovermode: "x",
      hoverdistance: -1,
      dragmode: "zoom",
      xaxis: { range, tickformat: "~s", ticksuffix: "s", showgrid: false, showline: true, ticks: "outside" },
      yaxis: { range: [-rows.length, 0.1], tickvals: rows.map((_, row) => -row - 0.42), ticktext: rows, showgrid: false, fixedrange: true },
    };
    return { traces, layout };
  }

  drawProfile(host, build, choose, 3).then(() => {
    host.on("plotly_relayout", () => Plotly.restyle(host, { text: [labels(host.layout.xaxis.range)] }, [host.data.length - 2]));
  });
}
