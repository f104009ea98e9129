/* What does a reader do with a figure: choose lines and axes, go from point to point, take it along, link to it? */

/* What a link calls a line. */
function slug(text) {
  return text.toLowerCase().replaceAll(/[^\p{L}\p{N}.]+/gu, "-").replaceAll(/^-|-$/g, "");
}

const NEAR = 300; // pixels from the screen within which a figure is drawn
const MANY_LINES = 8;

class Figure {
  /* `cell(row, column)`: a value of the table; `scales`: what columns are divided by to be shown; `hiddenSystems`: the
     set that the page's checkboxes keep. `stale`: what is drawn is not what would be; it is drawn once it is in view. */
  constructor(host, data, cell, scales, hiddenSystems) {
    Object.assign(this, { host, data, cell, hiddenSystems, points: new Points(data, cell, scales), stale: true });
    this.plot = host.querySelector(".plot");
    this.said = host.querySelector(".readout");
    this.strip = host.querySelector(".strip");
    [this.xLog, this.yLog, this.relative, this.link, this.inches] = ["x-log", "y-log", "ratio", "link", "inches"].map((role) => host.querySelector(`[data-role=${role}]`));
    this.numbers = host.querySelector("details.numbers");
    this.more = host.querySelector(".more");
    this.lines = new Map(); // [line, its ratio] to its points
  }

  /* What a figure out of view does not need. */
  prepare() {
    if (this.measured) return;
    this.measured = this.data.lines.filter((line) => this.points.hasResult(line));
    this.others = this.measured.filter((line) => !line.primary);
    this.reset();
    this.offerRatios();
    this.buildLegend();
    this.listen();
  }

  /* As the page opens it. */
  reset() {
    this.shown = new Set(this.measured.filter((line) => line.primary));
    this.hasMore = !this.shown.size;
    this.ratio = null;
    this.xLog.checked = true;
    this.yLog.checked = this.data.y_log;
    if (this.relative) this.relative.value = "";
  }

  offerRatios() {
    if (!this.relative) return;
    this.relative.append(...this.measured.map((line, index) => element("option", { value: index, textContent: line.name })));
    this.relative.onchange = () => {
      this.ratio = this.relative.value === "" ? null : this.measured[Number(this.relative.value)];
      this.changed();
    };
  }

  listen() {
    this.xLog.onchange = this.yLog.onchange = () => this.changed();
    for (const button of this.host.querySelectorAll("[data-save]")) {
      button.disabled = !this.measured.length;
      button.onclick = () => FILES[button.dataset.save](this);
    }
    this.numbers.addEventListener("toggle", () => this.changed());
    this.plot.addEventListener("keydown", (event) => this.go(event));
    this.plot.addEventListener("blur", () => this.measured.length && Plotly.Fx.unhover(this.plot));
    this.keepReachable = roving(this.host.querySelector(".legend"));
    this.more.onclick = () => {
      this.hasMore = !this.hasMore;
      for (const line of this.others) this.shown[this.hasMore ? "add" : "delete"](line);
      this.changed();
    };
  }

  buildLegend() {
    this.entries = this.data.lines.map((line) => (this.measured.includes(line) ? this.entry(line) : this.missingEntry(line)));
    this.host.querySelector(".legend").replaceChildren(...this.entries);
    const systems = this.others.filter((line) => line.unnamed).length;
    this.kinds = !systems ? "backends" : systems === this.others.length ? "systems" : "systems and backends";
    this.more.hidden = !this.others.length || this.others.length === this.measured.length;
  }

  entry(line) {
    const name = element("span", { textContent: line.name });
    const button = element("button", { type: "button", title: "Hide or show this line" }, swatch(line), name);
    if (this.data.best) button.append(element("small", { textContent: this.bestWords(line) }));
    button.onclick = () => this.toggle(line);
    const only = element("button", { type: "button", className: "only", textContent: "only this", ariaLabel: `Only ${line.name}` });
    only.onclick = () => this.showOnly(line);
    return element("li", {}, button, ...(this.measured.length > 1 ? [only] : []));
  }

  bestWords(line) {
    const points = this.points.of(line);
    const best = this.points.best(points);
    const { x, y } = best;
    const words = `${compact.format(y.value).replace("K", "k")} at batch ${axisLabel(x)}`; // as on the axes
    if (points.filter((point) => point.y).length === 1) return `${words}, the only one with a result`;
    if (this.points.turns(points)) return `best ${words}`;
    const larger = points.filter((point) => point.x > x);
    if (!larger.length) return `${words}, the largest tried`;
    if (this.points.marks(best).includes(CACHE_FULL)) return `${words}, as many as fit at once`;
    return `${words}, ${larger.some((point) => point.y) ? "larger ones not told apart" : "the largest with a result"}`;
  }

  /* A line without any result stays in the legend, with the reason. */
  missingEntry(line) {
    const said = (words) => [...new Set(this.points.of(line).map(words))].filter(Boolean);
    const reasons = said((point) => this.points.reason(point)).join("\n");
    const why = said((point) => this.points.whyNot(point)).join(", ");
    return element("li", { className: "missing", title: reasons, textContent: `${line.name}: no result (${why})` });
  }

  toggle(line) {
    if (!this.shown.delete(line)) this.shown.add(line);
    this.changed();
  }

  /* This line alone; all of them again where it is alone. */
  showOnly(line) {
    const alone = this.shown.size === 1 && this.shown.has(line);
    this.shown = new Set(alone ? this.measured.filter((each) => this.isOffered(each)) : [line]);
    this.changed();
  }

  visibleLines() {
    return this.measured.filter((line) => this.isOffered(line) && this.shown.has(line));
  }

  isOffered(line) {
    return (this.hasMore || line.primary) && !this.hiddenSystems.has(line.system);
  }

  pointsOf(line) {
    if (!this.lines.has(line)) this.lines.set(line, this.points.of(line));
    return this.ratio ? this.points.of(line, this.ratio) : this.lines.get(line);
  }

  /* `paper`: {width, height} of a picture for a paper, which has no sign that leads elsewhere. */
  drawing(paper = null) {
    this.prepare();
    const lines = this.visibleLines().map((line) => [line, this.pointsOf(line)]);
    return new Drawing(this.points, lines, { xLog: this.xLog.checked, yLog: this.yLog.checked, ratio: this.ratio, paper });
  }

  isInView() {
    const { top, bottom } = this.host.getBoundingClientRect();
    return bottom > -NEAR && top < innerHeight + NEAR;
  }

  /* The whole figure at `width`, or at that of its place; across the page where its lines or its table need that. */
  async draw(width) {
    this.stale = false;
    this.prepare();
    this.drawLegend();
    this.keepReachable();
    this.link.href = this.address();
    this.host.classList.toggle("wide", this.visibleLines().length >= MANY_LINES);
    if (this.numbers.open) {
      drawPivot(this);
      startRows(this);
    }
    if (!this.measured.length) {
      this.plot.className = "empty";
      this.plot.textContent = "No case of this figure has a result; the reasons are in the list of cases without one.";
      return;
    }
    const drawing = this.drawing();
    const layout = drawing.layout(width ?? this.plot.clientWidth);
    this.places = drawing.places();
    this.place = null;
    this.said.textContent = ""; // its point may be gone
    this.strip.hidden = true;
    this.plot.style.height = `${layout.height}px`; // when the window's size changes, Plotly takes the element's height
    await Plotly.react(this.plot, drawing.traces(), layout, { responsive: true, displayModeBar: false, doubleClick: "reset" });
    if (this.isDrawn) return;
    this.isDrawn = true;
    this.plot.on("plotly_hover", (event) => this.tellAt(event));
    this.plot.on("plotly_click", (event) => this.click(event));
  }

  /* For paper: light and as wide as a page. */
  drawForPrint() {
    inLight(() => this.draw(PRINT_WIDTH));
    if (this.measured.length) inLight(() => Plotly.relayout(this.plot, { width: PRINT_WIDTH, autosize: false }));
  }

  drawLegend() {
    this.data.lines.forEach((line, index) => {
      this.entries[index].hidden = !this.isOffered(line);
      this.entries[index].querySelector("button")?.setAttribute("aria-pressed", String(this.shown.has(line)));
    });
    this.more.textContent = this.hasMore ? `Fewer ${this.kinds}` : `More ${this.kinds} (${this.others.length})`;
    this.more.setAttribute("aria-expanded", String(this.hasMore));
  }

  /* Drawn anew, with what is chosen in the page's address. */
  changed() {
    this.draw();
    if (page.started) history.replaceState(null, "", this.address());
  }

  /* What differs from how the page opens it, as the part of an address behind #. */
  address() {
    const lines = this.visibleLines();
    const first = this.measured.filter((line) => line.primary);
    const alike = lines.length === first.length && lines.every((line) => first.includes(line));
    const parts = [
      ...(alike ? [] : [`lines=${lines.map((line) => slug(line.name)).join(",")}`]),
      ...(this.xLog.checked ? [] : ["x=linear"]),
      ...(this.yLog.checked === this.data.y_log ? [] : [`y=${this.yLog.checked ? "log" : "linear"}`]),
      ...(this.ratio ? [`relative=${slug(this.ratio.name)}`] : []),
      ...(this.numbers.open ? ["numbers=open"] : []),
    ];
    return `#${encodeURIComponent(this.data.id)}${parts.length ? `?${parts.join("&")}` : ""}`;
  }

  /* As an address says it; what it names and is not there is passed over. */
  restore(parameters) {
    this.prepare();
    const named = (name) => this.measured.filter((line) => (parameters.get(name) ?? "").split(",").includes(slug(line.name)));
    this.reset();
    if (parameters.has("lines")) {
      this.shown = new Set(named("lines"));
      this.hasMore ||= [...this.shown].some((line) => !line.primary);
    }
    this.xLog.checked = parameters.get("x") !== "linear";
    if (parameters.has("y")) this.yLog.checked = parameters.get("y") === "log";
    this.ratio = this.relative ? (named("relative")[0] ?? null) : null;
    if (this.ratio) this.relative.value = this.measured.indexOf(this.ratio);
    this.numbers.open = parameters.has("numbers");
  }

  /* Left and right go from point to point, line by line; Enter goes to the profile of one. */
  go(event) {
    if (event.key === "Enter") this.openProfile(this.places?.[this.place]);
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step || !this.places?.length) return;
    event.preventDefault();
    this.place = Math.max(0, Math.min(this.places.length - 1, (this.place ?? (step > 0 ? -1 : this.places.length)) + step));
    const [, , trace, at, axes] = this.places[this.place];
    Plotly.Fx.hover(this.plot, [{ curveNumber: trace, pointNumber: at }], [axes]);
    this.tell(this.places[this.place]);
  }

  openProfile(place) {
    if (!place) return;
    const anchor = profileOf(place[1].row);
    if (anchor) goTo(anchor, this.plot);
    else this.said.append(" · This point has no profile: `ttt-bench profile` makes one.");
  }

  /* All that is known of a point, below the plot, where neither a card nor a finger lies on it; and its samples. */
  tell([line, point]) {
    const anchor = profileOf(point.row);
    this.said.textContent = this.points.words(line, point, this.drawing().yTitle).join(" · ");
    if (anchor) this.said.append(" · ", element("a", { href: `#${anchor}`, className: "offer", textContent: "Profile of this point" }));
    showSamples(this.strip, line, point);
  }

  placeAt({ points: [at] }) {
    return this.places.find(([, , trace, number]) => trace === at.curveNumber && number === at.pointNumber);
  }

  tellAt(event) {
    const place = this.placeAt(event);
    if (place && place[1] !== this.told) this.tell(place);
    this.told = place?.[1];
  }

  /* A finger's tap shows a point and must not lead away from it. */
  click(event) {
    const place = this.placeAt(event);
    if (!place) return;
    this.tell(place);
    if (profileOf(place[1].row) && matchMedia("(hover: hover)").matches) this.openProfile(place);
  }
}

/* The buttons of a list with one stop for the tab key; arrow keys move among those that can be seen. Returned is what
   is to be called when elements were hidden: the stop may be one of them. */
function roving(host) {
  const every = () => [...host.querySelectorAll("button")];
  const items = () => every().filter((each) => !each.closest("[hidden]"));
  const reach = (item) => {
    for (const other of every()) other.tabIndex = other === item ? 0 : -1;
  };
  const keep = () => {
    const all = items();
    if (all.length && !all.some((item) => item.tabIndex === 0)) reach(all[0]);
  };
  reach(items()[0]);
  host.addEventListener("focusin", (event) => reach(event.target));
  host.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    const all = items();
    const at = all.indexOf(event.target);
    if (!step || at < 0) return;
    event.preventDefault();
    all.at((at + step) % all.length).focus();
  });
  return keep;
}
