/* Which runs does the index show? */

const lines = [...document.querySelectorAll("#runs > li")].map((host) => ({
  host,
  first: host.dataset.first,
  last: host.dataset.last,
  text: [...host.querySelectorAll(":scope > :not(.answer)")].map((each) => each.textContent).join(" ").toLowerCase(),
  devices: JSON.parse(host.dataset.devices),
  systems: JSON.parse(host.dataset.systems),
  commits: JSON.parse(host.dataset.commits),
}));
const FILTERS = ["words", "device", "system", "from", "to", "commit"];
const field = (id) => document.getElementById(id).value;

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
filterRuns();
document.documentElement.dataset.ready = "yes";
