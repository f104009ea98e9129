/* The roofline: the rate of each kernel against the peaks of memory and tensor cores, on logarithmic axes in SVG. */

const ROOF = { height: 320, left: 56, right: 14, top: 14, bottom: 40 };
const LARGEST = 15; // px: the radius for a kernel that takes all of the time
const SMALLEST = 3.5; // px: the least radius
const NAMED_SHARE = 0.05; // share of the time from which a kernel's name stands at its point
const NAME_LETTERS = 28;
const LETTER_WIDTH = 6.6; // px per letter of a name

class Roofline {
  /* `choose(kernel)` is called with the row of the selected kernel. */
  constructor(host, data, choose) {
    Object.assign(this, { host, choose, names: data.names, ...data.roofline });
    this.readout = host.parentNode.querySelector(".readout");
    this.marks = [
      ...this.parts.map(([part, x, y, ms]) => ({ part, x, y, ms, kernel: null })),
      ...this.points.map(([kernel, x, y, ms, l2, fp32]) => ({ part: data.kernels[kernel], x, y, ms, kernel, l2, fp32 })),
    ];
    this.total = this.points.reduce((sum, [, , , ms]) => sum + ms, 0);
    drawWhenSeen(host, (width) => this.draw(width));
    host.addEventListener("keydown", (event) => this.key(event));
  }

  ridge(tflops = this.product_tflops, gbs = this.copy_gbs) {
    return (1e3 * tflops) / gbs;
  }

  roof(x, tflops = this.product_tflops) {
    return Math.min(tflops, (this.copy_gbs * x) / 1e3);
  }

  /* The peak in TFLOP/s for a mark: FP32 for kernels that leave the tensor cores idle, such as norms. */
  peak({ fp32 }) {
    return fp32 ? this.fp32_tflops : this.product_tflops;
  }

  /* The ranges of both axes as powers of ten, with room for the marks, the ridge and some of both roofs. */
  ranges() {
    const xs = [...this.marks.map((mark) => mark.x), this.ridge() / 30, this.ridge() * 4];
    const [from, to] = [Math.floor(Math.log10(smallest(xs))), Math.ceil(Math.log10(largest(xs)))];
    const ys = [...this.marks.map((mark) => mark.y), this.roof(10 ** from) * 2, 1.3 * this.product_tflops];
    return { x: [from, to], y: [Math.floor(Math.log10(smallest(ys))), Math.log10(largest(ys) * 1.4)] };
  }

  draw(width) {
    const { x, y } = this.ranges();
    const right = width - ROOF.right;
    const bottom = ROOF.height - ROOF.bottom;
    const atX = (value) => ROOF.left + ((Math.log10(value) - x[0]) / (x[1] - x[0])) * (right - ROOF.left);
    const atY = (value) => bottom - ((Math.log10(value) - y[0]) / (y[1] - y[0])) * (bottom - ROOF.top);
    const svg = drawn("svg", { viewBox: `0 0 ${width} ${ROOF.height}`, height: ROOF.height });
    this.drawAxes(svg, { x, y, atX, atY, right, bottom });
    this.drawRoofs(svg, { x, y, atX, atY, right });
    const nodes = this.marks.map((mark) => this.mark(mark, atX(mark.x), atY(mark.y)));
    // Draw small points above large ones, so that each can be pointed at. The arrow keys follow the same order.
    const bySize = [...nodes.keys()].sort((a, b) => this.marks[b].ms - this.marks[a].ms);
    bySize.forEach((n) => svg.append(nodes[n]));
    this.drawNames(svg, bySize.map((n) => [this.marks[n], atX(this.marks[n].x), atY(this.marks[n].y)]), right);
    this.nodes = [...svg.querySelectorAll(".point")];
    if (this.nodes.length) this.nodes[0].setAttribute("tabindex", 0);
    this.host.replaceChildren(svg);
  }

  drawAxes(svg, { x, y, atX, atY, right, bottom }) {
    for (let decade = x[0]; decade <= x[1]; decade += 1) {
      const at = atX(10 ** decade);
      svg.append(drawn("path", { class: "ruled", d: `M${at} ${ROOF.top}V${bottom}` }));
      svg.append(drawn("text", { x: at, y: bottom + 16, "text-anchor": "middle" }, this.decade(decade)));
    }
    for (let decade = Math.ceil(y[0]); decade <= y[1]; decade += 1) {
      const at = atY(10 ** decade);
      svg.append(drawn("path", { class: "ruled", d: `M${ROOF.left} ${at}H${right}` }));
      svg.append(drawn("text", { x: ROOF.left - 6, y: at + 4, "text-anchor": "end" }, this.decade(decade)));
    }
    svg.append(
      drawn("path", { class: "axis", d: `M${ROOF.left} ${ROOF.top}V${bottom}H${right}` }),
      drawn("text", { x: (ROOF.left + right) / 2, y: bottom + 34, "text-anchor": "middle" }, "FLOPs per byte of memory"),
      drawn("text", { transform: `translate(14 ${(ROOF.top + bottom) / 2}) rotate(-90)`, "text-anchor": "middle" }, "TFLOP/s"),
    );
  }

  decade(power) {
    return Math.abs(power) <= 3 ? String(Number((10 ** power).toPrecision(1))) : `1e${power}`;
  }

  drawRoofs(svg, at) {
    const { atX, atY, right } = at;
    const top = atY(this.product_tflops);
    if (this.l2_gbs) this.drawSlope(svg, at, this.l2_gbs, `L2 peak: ${(this.l2_gbs / 1e3).toFixed(1)} TB/s`, "roof minor", -7);
    this.drawSlope(svg, at, this.copy_gbs, `highest seen: ${Math.round(this.copy_gbs).toLocaleString("en")} GB/s`, "roof", this.l2_gbs ? 15 : -7);
    svg.append(drawn("path", { class: "roof", d: `M${atX(this.ridge())} ${top}H${right}` }));
    svg.append(drawn("text", { x: right, y: top - 7, "text-anchor": "end" }, `highest seen: ${Math.round(this.product_tflops)} TFLOP/s`));
    if (!this.fp32_tflops) return;
    const height = atY(this.fp32_tflops);
    svg.append(drawn("path", { class: "roof minor", d: `M${atX(this.ridge(this.fp32_tflops))} ${height}H${right}` }));
    svg.append(drawn("text", { x: right, y: height + 15, "text-anchor": "end" }, `FP32 peak: ${Math.round(this.fp32_tflops)} TFLOP/s`));
  }

  /* Draw the slope of a bandwidth, from the left or lower edge of the picture to the roof of GEMMs. */
  drawSlope(svg, { x, y, atX, atY }, gbs, words, kind, below) {
    const start = Math.max(10 ** x[0], (1e3 * 10 ** y[0]) / gbs);
    const [x0, y0] = [atX(start), atY((start * gbs) / 1e3)];
    const [x1, y1] = [atX(this.ridge(this.product_tflops, gbs)), atY(this.product_tflops)];
    const angle = (Math.atan2(y1 - y0, x1 - x0) * 180) / Math.PI;
    const turned = `translate(${(x0 + x1) / 2} ${(y0 + y1) / 2}) rotate(${angle}) translate(0 ${below})`;
    svg.append(drawn("path", { class: kind, d: `M${x0} ${y0}L${x1} ${y1}` }));
    svg.append(drawn("text", { transform: turned, "text-anchor": "middle" }, words));
  }

  /* Write the names of long kernels next to their points, where they hide no other long kernel. */
  drawNames(svg, placed, right) {
    const large = placed.filter(([mark]) => mark.ms >= NAMED_SHARE * this.total);
    const taken = large.map(([, x, y]) => ({ from: x - 8, to: x + 8, y }));
    for (const [{ kernel }, x, y] of large) {
      if (kernel === null) continue;
      const whole = this.names[kernel];
      const name = whole.length > NAME_LETTERS ? `${whole.slice(0, NAME_LETTERS - 1)}…` : whole;
      const wide = name.length * LETTER_WIDTH;
      const free = [[x + 18, y], [x - wide / 2, y + 24], [x - 18 - wide, y], [x - wide / 2, y + 40]]
        .map(([from, height]) => ({ from, to: from + wide, y: height }))
        .find(({ from, to, y: height }) => from > ROOF.left && to < right
          && taken.every((other) => from > other.to || to < other.from || Math.abs(height - other.y) > 12));
      if (!free) continue;
      taken.push(free);
      svg.append(drawn("text", { class: "name", x: free.from, y: free.y + 4 }, name));
    }
  }

  mark(mark, x, y) {
    const whole = mark.kernel === null;
    const r = whole ? 5.5 : Math.max(SMALLEST, LARGEST * Math.sqrt(mark.ms / this.total));
    const names = { class: `point part-${PARTS[mark.part]}${whole ? " whole" : ""}`, tabindex: -1, role: "img", "aria-label": this.words(mark) };
    const node = whole ? drawn("path", { ...names, d: `M${x} ${y - r}l${r} ${r}l${-r} ${r}l${-r} ${-r}z` }) : drawn("circle", { ...names, cx: x, cy: y, r });
    node.append(drawn("title", {}, this.words(mark)));
    node.addEventListener("pointerenter", () => this.read(node, mark));
    node.addEventListener("click", () => this.read(node, mark));
    node.addEventListener("focus", () => this.read(node, mark));
    return node;
  }

  words(mark) {
    const { part, kernel, x, y, ms, l2 } = mark;
    const name = kernel === null ? `${partLabel(part)} as a whole` : this.names[kernel];
    const peak = this.peak(mark);
    const what = x < this.ridge(peak) ? "bandwidth" : peak === this.product_tflops ? "GEMMs" : "FP32";
    // A kernel that is short, or whose counted launches differ from the mean, may exceed the peak.
    const cache = this.l2_gbs && l2 ? `, ${Math.round((1e5 * y) / (l2 * this.l2_gbs))}% of the L2 peak` : "";
    const under = `${Math.round((100 * y) / this.roof(x, peak))}% of peak ${what}${cache}`;
    return `${name}: ${shown(y)} TFLOP/s at ${shown(x)} FLOPs per byte, ${under}, ${shown(ms)} ms`;
  }

  read(node, mark) {
    for (const other of this.nodes) {
      other.classList.toggle("chosen", other === node);
      other.setAttribute("tabindex", other === node ? 0 : -1);
    }
    this.readout.textContent = this.words(mark);
    this.choose(mark.kernel);
  }

  /* The arrow keys go from point to point, the longest first. */
  key(event) {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    const at = this.nodes.indexOf(event.target);
    if (!step || at < 0) return;
    event.preventDefault();
    this.nodes.at((at + step) % this.nodes.length).focus();
  }
}

/* A part's label in the page's legend. */
function partLabel(part) {
  return document.querySelectorAll("#profiles > .parts li")[part].textContent.trim();
}
