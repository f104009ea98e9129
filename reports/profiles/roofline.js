/* How fast did each kernel compute, against what memory and the matrix units allow? A logarithmic roofline in SVG. */

const ROOF = { height: 320, left: 56, right: 14, top: 14, bottom: 40 };
const LARGEST = 15; // of a point's radius, for a kernel that takes all of the time
const SMALLEST = 3.5;

class Roofline {
  /* `choose(kernel)` is told which kernel is read. */
  constructor(host, data, choose) {
    Object.assign(this, { host, choose, names: data.names, ...data.roofline });
    this.readout = host.parentNode.querySelector(".readout");
    this.marks = [
      ...this.parts.map(([part, x, y, ms]) => ({ part, x, y, ms, kernel: null })),
      ...this.points.map(([kernel, x, y, ms]) => ({ part: data.kernels[kernel], x, y, ms, kernel })),
    ];
    this.total = this.points.reduce((sum, [, , , ms]) => sum + ms, 0);
    drawWhenSeen(host, (width) => this.draw(width));
    host.addEventListener("keydown", (event) => this.key(event));
  }

  ridge() {
    return (1e3 * this.product_tflops) / this.copy_gbs;
  }

  roof(x) {
    return Math.min(this.product_tflops, (this.copy_gbs * x) / 1e3);
  }

  /* Decades that hold the marks, the ridge and some of both roofs. */
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
    // The small above the large, so that each can be pointed at; the keyboard goes by time.
    [...nodes.keys()].sort((a, b) => this.marks[b].ms - this.marks[a].ms).forEach((n) => svg.append(nodes[n]));
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
      drawn("text", { x: (ROOF.left + right) / 2, y: bottom + 34, "text-anchor": "middle" }, "FLOPs a byte of memory"),
      drawn("text", { transform: `translate(14 ${(ROOF.top + bottom) / 2}) rotate(-90)`, "text-anchor": "middle" }, "TFLOP/s"),
    );
  }

  decade(power) {
    return Math.abs(power) <= 3 ? String(Number((10 ** power).toPrecision(1))) : `1e${power}`;
  }

  drawRoofs(svg, { x, y, atX, atY, right }) {
    // Where the slope enters the picture: at its left edge or at its foot.
    const start = Math.max(10 ** x[0], (1e3 * 10 ** y[0]) / this.copy_gbs);
    const [x0, y0, x1, y1] = [atX(start), atY(this.roof(start)), atX(this.ridge()), atY(this.product_tflops)];
    svg.append(drawn("path", { class: "roof", d: `M${x0} ${y0}L${x1} ${y1}H${right}` }));
    const angle = (Math.atan2(y1 - y0, x1 - x0) * 180) / Math.PI;
    const [middleX, middleY] = [(x0 + x1) / 2, (y0 + y1) / 2];
    const copy = `highest seen: ${Math.round(this.copy_gbs).toLocaleString("en")} GB/s`;
    const product = `highest seen: ${Math.round(this.product_tflops)} TFLOP/s`;
    svg.append(
      drawn("text", { transform: `translate(${middleX} ${middleY}) rotate(${angle}) translate(0 -7)`, "text-anchor": "middle" }, copy),
      drawn("text", { x: right, y: y1 - 7, "text-anchor": "end" }, product),
    );
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

  words({ part, kernel, x, y, ms }) {
    const name = kernel === null ? `${partLabel(part)} as a whole` : this.names[kernel];
    // A kernel too short to be a ceiling, or counted in launches of another length, may pass it by.
    const under = `${Math.round((100 * y) / this.roof(x))}% of the ceiling of ${x < this.ridge() ? "bandwidth" : "products"}`;
    return `${name}: ${shown(y)} TFLOP/s at ${shown(x)} FLOPs a byte, ${under}, ${shown(ms)} ms`;
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

/* What the page's legend calls a part. */
function partLabel(part) {
  return document.querySelectorAll("#profiles > .parts li")[part].textContent.trim();
}
