/* A figure on the page: its lines and axes, its points by keyboard, and its downloads. */

/* Signs of Plotly's dashes, and of its markers: filled and hollow. */
const DASH_SIGNS = { solid: "─", dash: "╌", dot: "┈", dashdot: "─·", longdash: "—", longdashdot: "—·" };
const MARKER_SIGNS = { circle: "●○", square: "■□", diamond: "◆◇", "triangle-up": "▲△", pentagon: "⬟⬠", "triangle-down": "▼▽", star: "★☆" };

/* A line's dash and marker in its color. */
function swatch(line) {
  const dash = DASH_SIGNS[line.dash];
  const sign = element("i", { textContent: line.y ? dash + dash : dash + MARKER_SIGNS[line.marker][Number(line.hollow)] + dash, ariaHidden: "true" });
  sign.style.color = `var(${tone(line)})`;
  return sign;
}

const NEAR = 300; // draw figures this many pixels beyond the screen
const MANY_LINES = 8;

class Figure {
  /* `data`: a figure of figures.py. `stale`: the figure must be drawn again once it is in view. */
  constructor(host, data) {
    Object.assign(this, { host, data, points: new Points(data), stale: true });
    this.plot = host.querySelector(".plot");
    this.readout = host.querySelector(".readout");
    [this.xLog, this.yLog, this.inches, this.link] = ["x-log", "y-log", "inches", "link"].map((role) => host.querySelector(`[data-role=${role}]`));
    this.more = host.querySelector(".more");
    this.measured = data.lines.filter((line) => this.points.of(line).some((point) => point.y));
    this.others = this.measured.filter((line) => !line.primary);
    this.shown = new Set(this.measured.filter((line) => line.primary));
    this.hasMore = !this.shown.size;
    this.yLog.checked = data.y_log;
    this.buildLegend();
    this.listen();
  }

  listen() {
    this.xLog.onchange = this.yLog.onchange = () => this.draw();
    const button = this.host.querySelector("[data-role=svg]");
    button.disabled = !this.measured.length;
    button.onclick = async () => save(`${this.data.id}.svg`, "image/svg+xml", await paperSvg(this, Number(this.inches.value)));
    this.plot.addEventListener("keydown", (event) => this.moveByKey(event));
    this.plot.addEventListener("blur", () => this.measured.length && Plotly.Fx.unhover(this.plot));
    this.more.onclick = () => {
      this.hasMore = !this.hasMore;
      for (const line of this.others) this.shown[this.hasMore ? "add" : "delete"](line);
      this.draw();
    };
  }

  buildLegend() {
    this.entries = this.data.lines.map((line) => (this.measured.includes(line) ? this.entry(line) : this.missingEntry(line)));
    this.host.querySelector(".legend").replaceChildren(...this.entries);
    this.more.hidden = !this.others.length || this.others.length === this.measured.length;
  }

  entry(line) {
    const name = element("span", { textContent: line.name });
    const button = element("button", { type: "button", title: "Hide or show this line" }, swatch(line), name);
    button.onclick = () => {
      if (!this.shown.delete(line)) this.shown.add(line);
      this.draw();
    };
    return element("li", {}, button);
  }

  /* The legend's entry of a line without a result, with the reason. */
  missingEntry(line) {
    const distinct = (words) => [...new Set(this.points.of(line).map(words))].filter(Boolean);
    const reasons = distinct((point) => cell(point.missing, "reason")).join("\n");
    const causes = distinct((point) => this.points.whyMissing(point)).join(", ");
    return element("li", { className: "missing", title: reasons, textContent: `${line.name}: no result (${causes})` });
  }

  visibleLines() {
    return this.measured.filter((line) => this.isOffered(line) && this.shown.has(line));
  }

  isOffered(line) {
    return this.hasMore || line.primary;
  }

  /* `paper`: {width, height} of a picture for a paper. */
  drawing(paper = null) {
    const lines = this.visibleLines().map((line) => [line, this.points.of(line)]);
    return new Drawing(this.points, lines, { xLog: this.xLog.checked, yLog: this.yLog.checked, paper });
  }

  isInView() {
    const { top, bottom } = this.host.getBoundingClientRect();
    return bottom > -NEAR && top < innerHeight + NEAR;
  }

  /* Draw the figure at the width of its element; many lines take the width of the page. */
  async draw() {
    this.stale = false;
    this.drawLegend();
    this.host.classList.toggle("wide", this.visibleLines().length >= MANY_LINES);
    if (!this.measured.length) {
      this.plot.classList.add("empty");
      this.plot.textContent = "No case of this figure has a result. The section Without a result has the reasons.";
      return;
    }
    const drawing = this.drawing();
    const layout = drawing.layout(this.plot.clientWidth);
    this.targets = drawing.targets();
    this.current = null;
    this.readout.textContent = ""; // the point may be hidden now
    this.plot.style.height = `${layout.height}px`; // Plotly takes the element's height when the window changes
    await Plotly.react(this.plot, drawing.traces(), layout, { responsive: true, displayModeBar: false, doubleClick: "reset" });
    if (this.isDrawn) return;
    this.isDrawn = true;
    this.plot.on("plotly_hover", (event) => this.describeAt(event));
    this.plot.on("plotly_click", (event) => this.click(event));
  }

  drawLegend() {
    this.data.lines.forEach((line, index) => {
      this.entries[index].hidden = !this.isOffered(line);
      this.entries[index].querySelector("button")?.setAttribute("aria-pressed", String(this.shown.has(line)));
    });
    this.more.textContent = this.hasMore ? "Fewer lines" : `More lines (${this.others.length})`;
    this.more.setAttribute("aria-expanded", String(this.hasMore));
  }

  /* Left and Right move through the points line by line; Enter opens a point's profile. */
  moveByKey(event) {
    if (event.key === "Enter") this.openProfile(this.targets?.[this.current]);
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step || !this.targets?.length) return;
    event.preventDefault();
    const { length } = this.targets;
    this.current = Math.max(0, Math.min(length - 1, (this.current ?? (step > 0 ? -1 : length)) + step));
    const [, , trace, at, axes] = this.targets[this.current];
    Plotly.Fx.hover(this.plot, [{ curveNumber: trace, pointNumber: at }], [axes]);
    this.describe(this.targets[this.current]);
  }

  openProfile(target) {
    if (!target) return;
    const anchor = profileOf(target[1].row);
    if (anchor) goTo(anchor);
    else this.readout.append(" · This point has no profile: `ttt-bench profile` makes one.");
  }

  /* Describe a point below the plot. */
  describe([line, point]) {
    const anchor = profileOf(point.row);
    this.readout.textContent = this.points.words(line, point).join(" · ");
    if (anchor) this.readout.append(" · ", element("a", { href: `#${anchor}`, className: "offer", textContent: "Profile of this point" }));
  }

  targetAt({ points: [at] }) {
    return this.targets.find(([, , trace, number]) => trace === at.curveNumber && number === at.pointNumber);
  }

  describeAt(event) {
    const target = this.targetAt(event);
    if (target && target[1] !== this.described) this.describe(target);
    this.described = target?.[1];
  }

  /* A click opens the profile; a tap only describes the point. */
  click(event) {
    const target = this.targetAt(event);
    if (!target) return;
    this.describe(target);
    if (profileOf(target[1].row) && matchMedia("(hover: hover)").matches) this.openProfile(target);
  }
}
