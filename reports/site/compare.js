/* What does `ttt-bench compare` say of two stored runs? Medians, intervals and facts come from reports/compare/side.py;
   pairs, ratios and verdicts are those of reports/compare/comparison.py. */

const { rules, runs } = JSON.parse(document.getElementById("page-data").textContent);
const known = new Map();
const NUMBERS = [1, 2, 3, 4];

class NotComparable extends Error {}

/* A run's data/ID.js calls it. */
function ttt_bench_run(text) {
  const run = JSON.parse(text);
  for (const side of Object.values(run.cases)) {
    side.facts = run.facts[side.facts];
    side.devices = run.devices[side.devices];
    side.half ??= Infinity;
  }
  known.set(run.id, run);
}

function load(id) {
  if (known.has(id)) return Promise.resolve();
  return new Promise((resolve, reject) => {
    const script = element("script", { src: `data/${id}.js` });
    script.onload = resolve;
    script.onerror = () => reject(new NotComparable(`data/${id}.js is missing from this site.`));
    document.head.append(script);
  });
}

function compareRuns(a, b) {
  for (const run of [a, b]) {
    if (run.mode !== "measure") throw new NotComparable(`${run.side.name} is a run of mode '${run.mode}', whose cases have no timing.`);
  }
  for (const run of [a, b]) {
    if (!Object.keys(run.cases).length) throw new NotComparable(`${run.side.name} has no records to compare.`);
  }
  const shared = Object.keys(a.cases).filter((key) => own(b.cases, key));
  if (!shared.length) throw new NotComparable(`${a.side.name} and ${b.side.name} have no case in common.`);
  const pairs = shared.map((key) => [a.cases[key], b.cases[key]]).filter((pair) => pair.every((side) => side.ms !== null));
  for (const pair of pairs) refuseAnotherDevice(...pair);
  const rows = pairs.map(rowOf).sort((one, other) => other.ratio - one.ratio);
  return { rows, differences: differencesOf(pairs), missing: missingOf(a, b) };
}

function refuseAnotherDevice(a, b) {
  const without = (devices, others) => devices.filter((one) => others.every((other) => whatDiffers(one, other) !== undefined));
  const [ofA, ofB] = [without(a.devices, b.devices), without(b.devices, a.devices)];
  if (ofA.length || ofB.length) throw new NotComparable(`Not comparable: ${apart(ofA, ofB)} (${a.label}).`);
}

/* The devices that only one side has; where each side has one, what tells the two apart. */
function apart(ofA, ofB) {
  if (ofA.length === 1 && ofB.length === 1) {
    const what = whatDiffers(ofA[0], ofB[0]);
    return `${what} ${own(ofA[0], what) || "not recorded"} in A, ${own(ofB[0], what) || "not recorded"} in B`;
  }
  const words = (device) => Object.entries(device).map(([what, value]) => `${what} ${value || "not recorded"}`).join(", ");
  return [...ofA.map((device) => `${words(device)} only in A`), ...ofB.map((device) => `${words(device)} only in B`)].join("; ");
}

/* The first thing in which two devices differ; undefined of the same one. */
function whatDiffers(one, other) {
  return namesOf(one, other).find((what) => own(one, what) !== own(other, what));
}

/* A stranger may call a package `__proto__`, which every object has. */
function own(values, name) {
  return Object.hasOwn(values, name) ? values[name] : undefined;
}

function namesOf(a, b) {
  return [...new Set([...Object.keys(a), ...Object.keys(b)])];
}

function rowOf([a, b]) {
  const middle = b.log_ms - a.log_ms;
  const onCpu = [a, b].some((side) => side.devices.some((device) => device.GPU === rules.no_gpu));
  const half = Math.hypot(a.half, b.half, rules.between[onCpu ? "cpu" : onOtherGpus(a, b) ? "gpus" : "gpu"]);
  const sound = [a, b].every((side) => side.samples >= rules.fewest && !side.others && !side.hot && !side.changed) && !onOtherHosts(a, b);
  const far = sound && Math.abs(middle) > Math.max(half, Math.log1p(rules.bar));
  const [ratio, low, high] = [middle, middle - half, middle + half].map((each) => Math.exp(Math.min(each, rules.log_limit)));
  const verdict = far ? (middle > 0 ? "slower" : "faster") : "not judged";
  return { label: a.label, a_ms: a.ms, b_ms: b.ms, ratio, low, high, verdict, notes: notesOf({ A: a, B: b }) };
}

function onOtherGpus(a, b) {
  return own(a.facts, rules.gpu_unit) !== own(b.facts, rules.gpu_unit);
}

/* Whether two hosts are compared rather than what ran on them: a GPU of another unit is taken for another. */
function onOtherHosts(a, b) {
  return a.host_bound && onOtherGpus(a, b);
}

function notesOf(sides) {
  const notes = [];
  const all = Object.entries(sides);
  for (const [name, side] of all) {
    if (side.samples < rules.fewest) notes.push(`${name} has ${side.samples} sample${side.samples === 1 ? "" : "s"}`);
    if (side.timed < side.rounds) notes.push(`${name} has ${side.timed} of ${side.rounds} rounds`);
  }
  const loaded = all.filter(([, side]) => side.others).map(([name, side]) => `${(100 * side.others).toFixed(0)}% in ${name}`);
  if (loaded.length) notes.push(`loaded machine: others used ${loaded.join(", ")}`);
  const tokens = all.map(([name, side]) => [name, [...new Set(Object.values(side.tokens))].sort((x, y) => x - y).join(" or ")]);
  if (tokens[0][1] !== tokens[1][1]) {
    const said = tokens.map(([name, each]) => `${each} in ${name}`).join(", ");
    notes.push(`sequences at once differ: tokens of a sample are ${said}; the ratio is of the time of one`);
  }
  if (onOtherHosts(sides.A, sides.B)) notes.push("an engine's few sequences on another host, which bounds them");
  const hot = all.filter(([, side]) => side.hot).map(([name]) => name);
  if (hot.length) notes.push(`heat slowed the GPU down in ${hot.join(" and ")}`);
  const throttled = all.filter(([, side]) => side.throttled);
  const changed = all.filter(([, side]) => side.changed).map(([name]) => name);
  if (changed.length) notes.push(`the time changed in the course of the samples in ${changed.join(" and ")}`);
  if (throttled.length === 1) notes.push(`throttled in ${throttled[0][0]} only`);
  return notes;
}

function differencesOf(pairs) {
  const found = new Map();
  for (const [a, b] of pairs) {
    for (const what of namesOf(a.facts, b.facts)) {
      const values = [own(a.facts, what) ?? "", own(b.facts, what) ?? ""];
      if (values[0] === values[1]) continue;
      const kinds = found.get(what) ?? found.set(what, new Map()).get(what);
      const kind = JSON.stringify(values);
      kinds.set(kind, [...(kinds.get(kind) ?? []), a.system]);
    }
  }
  const everywhere = new Set(pairs.map(([a]) => a.system));
  const where = (systems) => {
    const own = new Set(systems);
    return own.size === everywhere.size ? "" : ` (${[...own].join(", ")})`;
  };
  return [...found].flatMap(([what, kinds]) => {
    if (kinds.size > rules.named) return [`${what}, from case to case${where([...kinds.values()].flat())}`];
    return [...kinds].map(([kind, systems]) => {
      const [a, b] = JSON.parse(kind);
      return `${what} ${a || "not recorded"} → ${b || "not recorded"}${where(systems)}`;
    });
  });
}

function missingOf(a, b) {
  return namesOf(a.cases, b.cases).flatMap((key) => {
    const sides = [["A", own(a.cases, key)], ["B", own(b.cases, key)]];
    const there = sides.filter(([, side]) => side);
    if (there.length === 1) {
      const [[name, side]] = there;
      const [other, run] = name === "A" ? ["B", b] : ["A", a];
      const asked = run.unmeasured.includes(key);
      const reason = asked ? `no record in ${other}, which is unfinished` : `only in ${name}`;
      const told = asked && side.ms !== null;
      return [{ label: side.label, reason, lost: told && name === "A", gained: told && name === "B" }];
    }
    const without = sides.filter(([, side]) => side.why);
    if (!without.length) return [];
    const reason = `no result in ${without.map(([name, side]) => `${name}: ${side.why}`).join("; ")}`;
    const alone = without.length === 1 && without[0][0];
    return [{ label: a.cases[key].label, reason, lost: alone === "B", gained: alone === "A" }];
  });
}

function counted({ rows, missing }) {
  const sides = ["lost", "gained"].flatMap((verdict) => missing.filter((each) => each[verdict]).map(() => verdict));
  const verdicts = [...rows.map((row) => row.verdict), ...sides];
  const count = (verdict) => verdicts.filter((each) => each === verdict).length;
  return rules.verdicts.filter((verdict) => count(verdict)).map((verdict) => `${count(verdict)} ${verdict}`).join(", ");
}

/* How far the two are apart in all, and how many of those that were not judged are beyond the bar. */
function howFar(rows) {
  const far = rows.map(({ ratio }) => Math.max(ratio, 1 / Math.max(ratio, Math.exp(-rules.log_limit))) - 1);
  const sorted = [...far].sort((a, b) => a - b);
  const half = Math.floor(sorted.length / 2);
  const middle = sorted.length % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
  const cases = (count) => `${count} ${count === 1 ? "case" : "cases"}`;
  const within = rules.near.map((near) => `${far.filter((each) => each <= near).length} within ${Math.round(100 * near)}%`).join(", ");
  const beyond = rows.filter(({ verdict }, at) => verdict === "not judged" && far[at] > rules.bar).length;
  const said = `Of ${cases(rows.length)} ${within}; ${(100 * middle).toFixed(1)}% apart in the median, ${(100 * sorted.at(-1)).toFixed(1)}% at most.`;
  return beyond ? `${said} ${cases(beyond)} beyond ${Math.round(100 * rules.bar)}% may not be judged, as notes or interval say.` : said;
}

function show(a, b) {
  const found = compareRuns(a, b);
  const said = [element("p", { className: "verdict", textContent: counted(found) || "No case has a result in both." })];
  if (found.rows.length) said.push(paragraph(howFar(found.rows)));
  said.push(paragraph(rules.meaning));
  const worse = found.rows.filter(({ verdict }) => verdict === "slower").length + found.missing.filter(({ lost }) => lost).length;
  if (worse) said.push(paragraph(`${worse} ${worse === 1 ? "case" : "cases"} slower by more than ${Math.round(100 * rules.bar)}%, and by more than two runs differ by themselves, or lost.`));
  if (a.turns && a.turns === b.turns && a.id !== b.id) {
    said.push(paragraph("These are the two sides of one `ttt-bench ab`, measured in turns; `ttt-bench compare` judges their rounds from 1%. Here they stand as two stored runs."));
  }
  document.getElementById("said").replaceChildren(...said);
  const parts = [section("The two runs", sidesTable(a, b)), section("What differs", list(found.differences, "Nothing that was recorded."))];
  if (found.rows.length) parts.push(section("Cases", ...casesTable(found.rows)));
  if (found.missing.length) parts.push(section("Not compared", list(byReason(found.missing))));
  document.getElementById("found").replaceChildren(...parts);
}

/* What stands between backticks is code. */
function paragraph(text) {
  return element("p", {}, ...text.split("`").map((part, at) => (at % 2 ? element("code", { textContent: part }) : part)));
}

function byReason(missing) {
  const reasons = new Map();
  for (const { reason, label } of missing) reasons.set(reason, [...(reasons.get(reason) ?? []), label]);
  return [...reasons].map(([reason, labels]) => `${reason}: ${named(labels)}`);
}

/* The cases, or where they are many how many of each system; the pages of the runs have all. */
function named(labels) {
  if (labels.length <= rules.named_cases) return labels.join(", ");
  const systems = new Map();
  for (const [system] of labels.map((label) => label.split(" "))) systems.set(system, (systems.get(system) ?? 0) + 1);
  return `${labels.length} cases (${[...systems].map(([system, count]) => `${count} ${system}`).join(", ")})`;
}

function section(title, ...children) {
  return element("section", {}, element("h2", { textContent: title }), ...children);
}

function list(texts, none = "") {
  return element("ul", {}, ...(texts.length ? texts : [none]).map((textContent) => element("li", { textContent })));
}

function table(label, className, columns, rows) {
  const head = element("tr", {}, ...columns.map((textContent) => element("th", { scope: "col", textContent })));
  const host = element("div", { className: `scroller ${className}`, tabIndex: 0 }, element("table", {}, element("thead", {}, head), element("tbody", {}, ...rows)));
  host.setAttribute("role", "region");
  host.setAttribute("aria-label", label);
  return host;
}

function sidesTable(a, b) {
  const rows = [["A", a], ["B", b]].map(([letter, { id, side }]) => element(
    "tr", {},
    element("th", { scope: "row", textContent: letter }),
    element("td", {}, element("a", { href: `runs/${id}.html`, textContent: side.name })),
    ...[side.commit, side.device, side.measured].map((textContent) => element("td", { textContent })),
  ));
  return table("The two runs", "", ["Run", "Folder", "Commit", "Device", "Measured"], rows);
}

function casesTable(rows) {
  const ends = rows.map((row) => Math.max(row.high - 1, 1 - row.low)).sort((one, other) => one - other);
  const farthest = 1.05 * Math.max(...rows.map((row) => Math.abs(row.ratio - 1)));
  const reach = Math.min(1, Math.max(rules.scale, farthest, ends[Math.floor(0.9 * (ends.length - 1))]));
  const [verdict, ratio, interval, ...others] = rules.columns;
  const axis = `From the largest slowdown to the largest speed-up. The line is the 95% interval of B/A, the dot the ratio; its axis goes from ${(1 - reach).toFixed(2)} to ${(1 + reach).toFixed(2)}, with 1 in the middle, and cuts what lies beyond.`;
  const lines = rows.map((row) => {
    const cells = [row.verdict, row.ratio.toFixed(3), `${row.low.toFixed(3)} to ${row.high.toFixed(3)}`, shown(row.a_ms), shown(row.b_ms), row.label, row.notes.join("; ")]
      .map((textContent, at) => element("td", { textContent, className: NUMBERS.includes(at) ? "number" : at > 4 ? "words" : "" }));
    cells[0].dataset.verdict = row.verdict;
    return element("tr", {}, ...cells.slice(0, 3), element("td", {}, intervalPlot(row, reach)), ...cells.slice(3));
  });
  return [element("p", { textContent: axis }), table("Cases", "compared", [verdict, ratio, interval, "faster, slower", ...others], lines)];
}

/* A row's ratio and its interval, cut where they leave the axis. */
function intervalPlot(row, reach) {
  const place = (value) => (rules.width / 2) * (1 + Math.min(1, Math.max(-1, (value - 1) / reach)));
  const part = (tag, attributes, ...children) => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    node.append(...children);
    return node;
  };
  const middle = rules.width / 2;
  return part(
    "svg", { viewBox: `0 0 ${rules.width} 14`, width: rules.width, height: 14, "aria-hidden": "true" },
    part("line", { x1: middle, x2: middle, y1: 0, y2: 14 }),
    part("line", { class: "bar", x1: place(row.low), x2: place(row.high), y1: 7, y2: 7 }),
    part("circle", { cx: place(row.ratio), cy: 7, r: 3 }),
  );
}

const selects = ["a", "b"].map((id) => document.getElementById(id));

/* What the address asks for, as [chosen ids, the missing in words]: ?a=ID&b=ID, or behind the #, which a page from a
   disk may change. */
function asked() {
  const ids = new Set(runs.map(({ id }) => id));
  const words = new URLSearchParams(location.hash.length > 1 ? location.hash.slice(1) : location.search);
  const named = ["a", "b"].map((name) => [name.toUpperCase(), words.get(name) ?? ""]);
  const missing = named.filter(([, id]) => id && !ids.has(id)).map(([side, id]) => `Run ${side} (${id}) is not on this site.`);
  return [named.map(([, id]) => (ids.has(id) ? id : "")), missing];
}

async function follow() {
  const [chosen, missing] = asked();
  selects.forEach((select, at) => { select.value = chosen[at]; });
  const words = (text) => {
    document.getElementById("said").replaceChildren(element("p", { textContent: text }));
    document.getElementById("found").replaceChildren();
  };
  document.documentElement.dataset.ready = "no";
  if (!chosen.every(Boolean)) words([...missing, "Choose two runs."].join(" "));
  else {
    try {
      await Promise.all(chosen.map(load));
      show(...chosen.map((id) => known.get(id)));
    } catch (error) {
      if (!(error instanceof NotComparable)) throw error;
      words(error.message);
    }
  }
  document.documentElement.dataset.ready = "yes";
}

function choose(a, b) {
  location.hash = `a=${a}&b=${b}`;
}

for (const select of selects) {
  select.append(element("option", { value: "", textContent: "choose a run" }), ...runs.map(({ id, words }) => element("option", { value: id, textContent: words })));
  select.onchange = () => choose(...selects.map((each) => each.value));
}
document.getElementById("swap").onclick = () => choose(...selects.map((each) => each.value).reverse());
document.getElementById("sides").onsubmit = (event) => event.preventDefault();
startPage();
addEventListener("hashchange", follow);
follow();
