/* Which runs does the index show, and which two are compared? */

const lines = [...document.querySelectorAll("#runs > li")].map((host) => ({
  host,
  box: host.querySelector("input"),
  id: host.dataset.id,
  first: host.dataset.first,
  last: host.dataset.last,
  text: host.innerText.toLowerCase(),
  devices: JSON.parse(host.dataset.devices),
  systems: JSON.parse(host.dataset.systems),
  commits: JSON.parse(host.dataset.commits),
}));
const FILTERS = ["words", "device", "system", "from", "to", "commit"];
const field = (id) => document.getElementById(id).value;
let pair = [];

function filterRuns() {
  const words = field("words").toLowerCase().split(/\s+/).filter(Boolean);
  const [, device, system, from, to, commit] = FILTERS.map(field);
  const digits = commit.trim().toLowerCase();
  let kept = 0;
  for (const line of lines) {
    const isKept = words.every((word) => line.text.includes(word))
      && (!device || line.devices.includes(device))
      && (!system || line.systems.includes(system))
      && (!from || line.last >= from)
      && (!to || (line.first && line.first <= to))
      && (!digits || line.commits.some((each) => each.toLowerCase().startsWith(digits)));
    line.host.hidden = !isKept;
    kept += isKept;
  }
  document.getElementById("count").textContent = kept === lines.length ? `${kept} runs` : `${kept} of ${lines.length} runs`;
}

/* Whether two runs have no machine in common; of one that says none that is not known. */
function areStrangers(one, other) {
  return one.devices.length > 0 && other.devices.length > 0 && !one.devices.some((device) => other.devices.includes(device));
}

/* The last two that were chosen; the older of them is A. Two that have no machine in common are not compared. */
function choose(line) {
  pair = pair.filter((each) => each !== line);
  if (line.box.checked) pair = [...pair, line].slice(-2);
  for (const each of lines.filter(({ box }) => box)) {
    each.box.checked = pair.includes(each);
    each.box.disabled = pair.length > 0 && areStrangers(pair[0], each);
  }
  const host = document.getElementById("pair");
  if (pair.length < 2) {
    host.textContent = pair.length ? "Choose another run of this GPU or machine to compare it with." : "Choose two runs to compare them.";
    return;
  }
  const [a, b] = lines.filter((each) => pair.includes(each)).reverse();
  const name = (each) => each.host.querySelector(".name").textContent;
  host.replaceChildren(element("a", { href: `compare.html?a=${a.id}&b=${b.id}`, textContent: `Compare ${name(a)} with ${name(b)}` }));
}

/* The filters that are set are in the address. */
function changed() {
  const set = new URLSearchParams(FILTERS.map((id) => [id, field(id)]).filter(([, value]) => value));
  history.replaceState(null, "", set.size ? `#${set}` : location.pathname);
  filterRuns();
}

function restore() {
  const set = new URLSearchParams(location.hash.slice(1));
  for (const id of FILTERS) document.getElementById(id).value = set.get(id) ?? "";
}

startPage();
const filters = document.getElementById("filters");
filters.oninput = changed;
filters.onsubmit = (event) => event.preventDefault();
filters.onreset = () => setTimeout(changed);
restore();
for (const line of lines) if (line.box) line.box.onchange = () => choose(line);
filterRuns();
document.documentElement.dataset.ready = "yes";
