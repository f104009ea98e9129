/* What does a reader do with a figure: choose lines and axes, go from point to point, take it along, link to it? */

/* What a link calls a line. */
function slug(text) {
  return text.toLowerCase().replaceAll(/[^\p{L}\p{N}.]+/gu, "-").replaceAll(/^-|-$/g, "");
}

class Figure {
  /* `cell(row, column)`: a value of the table; `scales`: what columns are divided by to be shown; `hiddenSystems`: the
     set that the page's checkboxes keep. */
  constructor(host, data, cell, scales, hiddenSystems) {
    Object.assign(this, { host, data, cell, hiddenSystems, points: new Points(data, cell, scales) });
    this.plot = host.querySelector(".plot");
    this.said = host.querySelector(".readout");
    [this.xLog, this.yLog, this.relative, this.link] = ["x-log", "y-log", "ratio", "link"].map((role) => host.querySelector(`[data-role=${role}]`));
    this.numbers = host.querySelector("details.numbers");
    this.measured = data.lines.filter((line) => this.points.hasResult(line));
    this.reset();
    this.offerRatios();
    this.buildLegend();
    this.drawLegend(); // at once, so that no drawing of a figure moves those below it by as much
    this.listen();
  }

  /* As the page opens it. */
  reset() {
    this.shown = new Set(this.measured.filter((line) => line.primary));
    this.more = !this.shown.size;
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
    this.plot.addEventListener("blur", () => this.leave());
    this.keepReachable = roving(this.host, [this.plot, ".legend button"]);
  }

  buildLegend() {
    this.entries = this.data.lines.map((line) => (this.measured.includes(line) ? this.entry(line) : this.missingEntry(line)));
    this.host.querySelector(".legend").replaceChildren(...this.entries, ...this.moreEntry());
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

  /* What shows the lines that do not answer the figure's question. */
  moreEntry() {
    this.others = this.measured.filter((line) => !line.primary);
    const systems = this.others.filter((line) => line.unnamed).length;
    this.kinds = !systems ? "backends" : systems === this.others.length ? "systems" : "systems and backends";
    if (!this.others.length || this.others.length === this.measured.length) return [];
    this.moreButton = element("button", { type: "button", className: "more" });
    this.moreButton.onclick = () => {
      this.more = !this.more;
      for (const line of this.others) this.shown[this.more ? "add" : "delete"](line);
      this.changed();
    };
    return [element("li", {}, this.moreButton)];
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
    return (this.more || line.primary) && !this.hiddenSystems.has(line.system);
  }

  drawing() {
    const lines = this.visibleLines().map((line) => [line, this.points.of(line, this.ratio)]);
    return new Drawing(this.points, lines, { xLog: this.xLog.checked, yLog: this.yLog.checked, ratio: this.ratio });
  }

  /* The whole figure at `width`, or at that of its place; across the page where its table needs that. */
  draw(width) {
    this.drawLegend();
    this.keepReachable();
    this.link.href = this.address();
    this.host.classList.remove("wide");
    if (this.numbers.open) {
      drawPivot(this);
      startRows(this);
    }
    if (!this.measured.length) {
      this.plot.className = "empty";
      this.plot.textContent = "No case of this figure has a result; the reasons are in the list of cases without one.";
      return null;
    }
    const drawing = this.drawing();
    const layout = drawing.layout(width ?? this.plot.clientWidth);
    this.place = null;
    this.said.textContent = ""; // its point may be gone
    this.plot.style.height = `${layout.height}px`; // when the window's size changes, Plotly takes the element's height
    return Plotly.react(this.plot, drawing.traces(), layout, { responsive: true, displayModeBar: false, doubleClick: "reset" });
  }

  /* For paper: light, as wide as a page, and each figure with its legend. */
  drawForPrint() {
    inLight(() => this.draw(PRINT_WIDTH));
    if (this.measured.length) inLight(() => Plotly.relayout(this.plot, { width: PRINT_WIDTH, autosize: false }));
  }

  drawLegend() {
    this.data.lines.forEach((line, index) => {
      this.entries[index].hidden = !this.isOffered(line);
      this.entries[index].querySelector("button")?.setAttribute("aria-pressed", String(this.shown.has(line)));
    });
    if (!this.moreButton) return;
    this.moreButton.textContent = this.more ? `Fewer ${this.kinds}` : `More ${this.kinds} (${this.others.length})`;
    this.moreButton.setAttribute("aria-expanded", String(this.more));
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
    const named = (name) => this.measured.filter((line) => (parameters.get(name) ?? "").split(",").includes(slug(line.name)));
    this.reset();
    if (parameters.has("lines")) {
      this.shown = new Set(named("lines"));
      this.more ||= [...this.shown].some((line) => !line.primary);
    }
    this.xLog.checked = parameters.get("x") !== "linear";
    if (parameters.has("y")) this.yLog.checked = parameters.get("y") === "log";
    this.ratio = this.relative ? (named("relative")[0] ?? null) : null;
    if (this.ratio) this.relative.value = this.measured.indexOf(this.ratio);
    this.numbers.open = parameters.has("numbers");
  }

  /* Left and right go from point to point, line by line; each is told at its place and below the plot. */
  go(event) {
    if (event.key === "Enter") this.openProfile();
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step || !this.measured.length) return;
    event.preventDefault();
    event.stopPropagation();
    const places = this.drawing().places();
    this.place = Math.max(0, Math.min(places.length - 1, (this.place ?? (step > 0 ? -1 : places.length)) + step));
    if (places.length) this.tell(places[this.place]);
  }

  /* From the point that was gone to last to the profile of its case. */
  openProfile() {
    const [, point] = this.drawing().places()[this.place] ?? [];
    const anchor = point && profileOf(point.row);
    if (anchor) goTo(anchor, this.plot);
  }

  tell([line, point, trace, at, axes]) {
    this.said.textContent = this.points.words(line, point, this.drawing().yTitle).join(" · ");
    Plotly.Fx.hover(this.plot, [{ curveNumber: trace, pointNumber: at }], [axes]);
  }

  leave() {
    this.said.textContent = "";
    if (this.measured.length) Plotly.Fx.unhover(this.plot);
  }

  /* A tap or a click tells a point below the plot, where a finger does not lie on it. */
  tellTapped({ points: [tapped] }) {
    const found = this.drawing().places().find(([, , trace, at]) => trace === tapped.curveNumber && at === tapped.pointNumber);
    if (found) this.said.textContent = this.points.words(found[0], found[1], this.drawing().yTitle).join(" · ");
  }
}

/* The elements with one stop for the tab key; arrow keys move among those that can be seen. Returned is what is to be
   called when elements were hidden: the stop may be one of them. */
function roving(host, wanted) {
  const every = () => wanted.flatMap((each) => (typeof each === "string" ? [...host.querySelectorAll(each)] : [each]));
  const items = () => every().filter((each) => !each.closest("[hidden]"));
  const reach = (item) => {
    for (const other of every()) other.tabIndex = other === item ? 0 : -1;
  };
  const keep = () => {
    const all = items();
    if (!all.some((item) => item.tabIndex === 0)) reach(all[0]);
  };
  reach(items()[0]);
  host.addEventListener("focusin", (event) => {
    const item = items().find((each) => each === event.target);
    if (item) reach(item);
  });
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
