/* The section of profiles: tables of kernels sort, links open what they lead to. */

const PARTS = ["products", "ttt", "scan", "edges", "head", "other", "gaps"];
const SVG = "http://www.w3.org/2000/svg";
const NARROWEST = 280;

/* An element of a picture; `children` may be texts. */
function drawn(tag, attributes = {}, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

/* A time in the unit in which it reads best. */
function timeWords(ns) {
  if (ns === 0) return "0";
  const [unit, name] = ns >= 1e6 ? [1e6, "ms"] : ns >= 1e3 ? [1e3, "µs"] : [1, "ns"];
  return `${Number((ns / unit).toPrecision(4))} ${name}`;
}

/* Calls `draw(width)` when the host is first seen, and whenever its width changes. */
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

class KernelTable {
  constructor(table) {
    this.table = table;
    const order = new Intl.Collator("en", { numeric: true });
    [...table.tHead.rows[0].cells].forEach((cell, column) => {
      cell.querySelector("button").onclick = () => this.sort(column, order);
    });
  }

  sort(column, order) {
    const header = this.table.tHead.rows[0].cells[column];
    const numeric = header.classList.contains("number");
    const before = header.getAttribute("aria-sort");
    const descending = before ? before === "ascending" : numeric;
    for (const cell of this.table.tHead.rows[0].cells) cell.removeAttribute("aria-sort");
    header.setAttribute("aria-sort", descending ? "descending" : "ascending");
    const value = (row) => row.cells[column].textContent;
    const sign = descending ? -1 : 1;
    const rows = [...this.table.tBodies[0].rows].sort((a, b) => {
      const [left, right] = [value(a), value(b)];
      if (left === "" || right === "") return (left === "") - (right === "");
      return sign * (numeric ? left - right : order.compare(left, right));
    });
    for (const row of rows) this.table.tBodies[0].append(row);
  }

  /* The names of the kernels by their numbers. */
  names() {
    const names = [];
    for (const row of this.table.tBodies[0].rows) names[row.dataset.kernel] = row.cells[0].textContent;
    return names;
  }

  /* Mark the row of a kernel, null for none. */
  choose(kernel) {
    for (const row of this.table.tBodies[0].rows) row.classList.toggle("chosen", row.dataset.kernel === String(kernel));
  }
}

function startProfile(details) {
  const data = JSON.parse(details.dataset.profile);
  const table = new KernelTable(details.querySelector("table.kernels"));
  data.names = table.names();
  const choose = (kernel) => table.choose(kernel);
  const roofline = details.querySelector(".roofline .plot-host");
  const timeline = details.querySelector(".timeline .plot-host");
  if (roofline) new Roofline(roofline, data, choose);
  if (timeline) new Timeline(timeline, data, choose);
}

/* Open the profile that the address names, and put the keyboard there. */
function openProfile() {
  const target = document.getElementById(location.hash.slice(1));
  if (!target?.classList.contains("profile")) return;
  const group = target.closest("details");
  if (group) group.open = true;
  target.querySelector("details").open = true;
  target.focus({ preventScroll: true });
  target.scrollIntoView();
}

