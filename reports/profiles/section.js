/* The section of profiles: opening a case draws its roofline and timeline, and a link to a case opens it. */

const PARTS = ["products", "ttt", "scan", "edges", "head", "other", "gaps"];
const SVG = "http://www.w3.org/2000/svg";
const NARROWEST = 280;

/* Make an SVG element; `children` are elements or texts. */
function drawn(tag, attributes = {}, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

/* A time in ms, µs or ns. */
function timeWords(ns) {
  if (ns === 0) return "0";
  const [unit, name] = ns >= 1e6 ? [1e6, "ms"] : ns >= 1e3 ? [1e3, "µs"] : [1, "ns"];
  return `${Number((ns / unit).toPrecision(4))} ${name}`;
}

/* Call `draw(width)` when the host element is first seen, and whenever its width changes. */
function drawWhenSeen(host, draw) {
  let width = 0;
  new ResizeObserver(() => {
    const now = Math.floor(host.clientWidth);
    if (now > 0 && now !== width) {
      width = now;
      draw(Math.max(NARROWEST, now));
    }
  }).observe(host);
}

function startProfile(details) {
  const data = JSON.parse(details.dataset.profile);
  const rows = [...details.querySelector("table.kernels").tBodies[0].rows];
  data.names = rows.map((row) => row.cells[0].textContent);
  const choose = (kernel) => rows.forEach((row, number) => row.classList.toggle("chosen", number === kernel));
  const roofline = details.querySelector(".roofline .plot-host");
  const timeline = details.querySelector(".timeline .plot-host");
  if (roofline) new Roofline(roofline, data, choose);
  if (timeline) new Timeline(timeline, data, choose);
}

/* Open and focus the profile in the address. */
function openProfile() {
  const target = document.getElementById(location.hash.slice(1));
  if (!target?.classList.contains("profile")) return;
  const group = target.closest("details");
  if (group) group.open = true;
  target.querySelector("details[data-profile]").open = true;
  target.focus({ preventScroll: true });
  target.scrollIntoView();
}

for (const details of document.querySelectorAll("details[data-profile]")) {
  details.addEventListener("toggle", () => startProfile(details), { once: true });
}
addEventListener("hashchange", openProfile);
openProfile();
