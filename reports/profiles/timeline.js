/* The timeline of a step: rows of phases, layers, operators, kernels and idle time, drawn as SVG paths; it zooms. */

const ROWS = [["Phase", 18], ["Layer", 18], ["Operator", 12], ["Kernels", 26], ["Idle", 10]];
const LANES = 4; // most lanes for kernels that run at once; further kernels share the last lane
const GUTTER = 62; // px to the left of the rows, for the names of rows
const ROW_GAP = 4;
const AXIS = 20;
const STEP = 2; // factor of one zoom
const PAN = 0.25; // share of the visible time by which one step moves
const LETTER = 6.2; // px per letter of a label
const TICK_SPACE = 110; // least px between ticks

class Timeline {
  constructor(host, data, choose) {
    Object.assign(this, { host, choose, names: data.names, paths: data.timeline.paths, read: -1 });
    this.readout = host.parentNode.querySelector(".readout");
    this.launches = this.unpacked(data.timeline);
    this.end = Math.max(largest(this.launches.map((launch) => launch.to)), 1);
    this.lanes = this.byLane();
    this.gaps = this.between();
    this.phases = this.spans(0, () => true);
    this.layers = this.spans(1, (path) => path.length > 1 && path[1].startsWith("layer "));
    this.operators = this.spans(2, (path) => path.length > 2);
    this.show(0, this.end);
    drawWhenSeen(host, (width) => this.draw(width));
    this.listen();
  }

  /* The launches with start and end in ns, each on the first free lane. */
  unpacked({ kernel, range, part, wait, time }) {
    const free = [];
    let before = 0;
    return kernel.map((number, at) => {
      const from = before + wait[at];
      before = from + time[at];
      let lane = free.findIndex((end) => end <= from);
      if (lane < 0) lane = Math.min(free.length, LANES - 1);
      free[lane] = Math.max(free[lane] ?? 0, before);
      return { kernel: number, range: range[at], part: part[at], from, to: before, lane };
    });
  }

  /* The launches of each part, lane by lane. */
  byLane() {
    const lanes = [];
    for (const launch of this.launches) {
      lanes[launch.lane] ??= PARTS.map((part) => [part, []]);
      lanes[launch.lane][launch.part][1].push(launch);
    }
    return lanes;
  }

  /* The spans of time in which no kernel runs. */
  between() {
    const gaps = [];
    let end = this.launches[0].from;
    for (const { from, to } of this.launches) {
      if (from > end) gaps.push({ from: end, to: from });
      end = Math.max(end, to);
    }
    return gaps;
  }

  path(launch) {
    return this.paths[launch.range] ?? [];
  }

  /* Join neighbouring launches whose paths agree up to `depth` into spans. `belongs(path)`: whether a path counts. */
  spans(depth, belongs) {
    const spans = [];
    let open = null;
    for (const launch of this.launches) {
      const path = this.path(launch);
      const name = belongs(path) && path.length > depth ? path.slice(0, depth + 1).join(" / ") : "";
      if (open && name === open.path) open.to = Math.max(open.to, launch.to);
      else if (name) spans.push((open = { path: name, name: path[depth], from: launch.from, to: launch.to }));
      else open = null;
    }
    return spans;
  }

  /* Show from `from` to `to`, within the step and not less than a few ns. */
  show(from, to) {
    const span = Math.min(this.end, Math.max(20, to - from));
    this.from = Math.min(Math.max(0, from), this.end - span);
    this.to = this.from + span;
    if (this.width) this.draw(this.width);
  }

  /* Zoom by a factor around a time: by default the selected launch, or else the middle. */
  zoom(factor, around = this.inView(this.launches[this.read]) ? this.launches[this.read].from : (this.from + this.to) / 2) {
    this.show(around - (around - this.from) / factor, around + (this.to - around) / factor);
  }

  pan(share) {
    const by = share * (this.to - this.from);
    this.show(this.from + by, this.to + by);
  }

  inView(item) {
    return item && item.to >= this.from && item.from <= this.to;
  }

  at(time) {
    return GUTTER + ((time - this.from) / (this.to - this.from)) * (this.width - GUTTER);
  }

  draw(width) {
    this.width = width;
    const svg = drawn("svg", { width });
    let top = 2;
    const spans = [this.phases, this.layers, this.operators];
    ROWS.forEach(([name, height], row) => {
      if (spans[row] && !spans[row].length) return; // a replayed graph has no ranges
      const tall = name === "Kernels" ? height * this.lanes.length : height;
      svg.append(drawn("text", { x: 0, y: top + Math.min(tall / 2, 13) + 4 }, name));
      if (name === "Kernels") this.drawKernels(svg, top, height);
      else if (name === "Idle") this.drawParts(svg, [["gaps", this.gaps]], top, tall);
      else this.drawSpans(svg, spans[row], top, tall);
      top += tall + ROW_GAP;
    });
    this.drawAxis(svg, top);
    svg.setAttribute("viewBox", `0 0 ${width} ${top + AXIS}`);
    svg.setAttribute("height", top + AXIS);
    this.host.replaceChildren(svg);
  }

  visible(items) {
    return items.filter((item) => this.inView(item));
  }

  /* The data of one SVG path with a box for each item: thousands of elements would be slow. */
  boxes(items, top, height) {
    return items.map((item) => {
      const [x, end] = [Math.max(GUTTER, this.at(item.from)), Math.min(this.width, this.at(item.to))];
      return `M${x.toFixed(1)} ${top}h${Math.max(0.4, end - x).toFixed(1)}v${height}H${x.toFixed(1)}z`;
    }).join("");
  }

  drawSpans(svg, spans, top, height) {
    const seen = this.visible(spans);
    svg.append(drawn("path", { class: "spans", d: this.boxes(seen, top, height) }));
    for (const span of seen) this.label(svg, span, span.name, top, height);
  }

  drawKernels(svg, top, height) {
    this.lanes.forEach((parts, lane) => this.drawParts(svg, parts, top + lane * height, height - 2));
    const launch = this.launches[this.read];
    if (!this.inView(launch)) return;
    svg.append(drawn("path", { class: "cursor", d: this.boxes([launch], top + launch.lane * height, height - 2) }));
  }

  /* Draw the items of each part as boxes. If an item is narrower than a pixel, draw every pixel column instead, with
     each part as tall as its share of the column's time. */
  drawParts(svg, parts, top, height) {
    const pixel = (this.to - this.from) / (this.width - GUTTER);
    const seen = parts.map(([part, items]) => [part, this.visible(items)]);
    const narrow = seen.some(([, items]) => items.some(({ from, to }) => to - from < pixel));
    const below = new Float64Array(Math.ceil(this.width - GUTTER)); // px of each column that earlier parts have taken
    for (const [part, items] of seen) {
      const d = narrow ? this.columns(items, below, top, height, pixel) : this.boxes(items, top, height);
      if (d) svg.append(drawn("path", { class: `part-${part}`, d }));
    }
  }

  columns(items, below, top, height, pixel) {
    const taken = new Float64Array(below.length);
    for (const { from, to } of items) {
      const last = Math.min(below.length - 1, Math.floor((to - this.from) / pixel));
      for (let at = Math.max(0, Math.floor((from - this.from) / pixel)); at <= last; at++) {
        const begin = this.from + at * pixel;
        taken[at] += (Math.max(0, Math.min(to, begin + pixel) - Math.max(from, begin)) / pixel) * height;
      }
    }
    return [...taken].map((tall, at) => {
      if (tall < 0.05) return "";
      const y = top + below[at];
      below[at] += tall;
      return `M${GUTTER + at} ${y.toFixed(1)}h1v${tall.toFixed(1)}h-1z`;
    }).join("");
  }

  /* Write a name into its box; of a layer only the number, if the whole name does not fit. */
  label(svg, { from, to }, name, top, height) {
    const [x, end] = [Math.max(GUTTER, this.at(from)), Math.min(this.width, this.at(to))];
    const letters = Math.floor((end - x - 4) / LETTER);
    const number = name.replace("layer ", "");
    const text = [name, number].find((each) => each.length <= letters);
    if (!text || height < 12) return;
    svg.append(drawn("text", { class: "label", x: x + 3, y: top + height / 2 + 4 }, text));
  }

  drawAxis(svg, top) {
    const span = this.to - this.from;
    const least = (span * TICK_SPACE) / (this.width - GUTTER);
    const decade = 10 ** Math.floor(Math.log10(least));
    const tick = decade * ([1, 2, 5, 10].find((each) => each * decade >= least) ?? 10);
    svg.append(drawn("path", { class: "axis", d: `M${GUTTER} ${top}H${this.width}` }));
    for (let time = Math.ceil(this.from / tick) * tick; time <= this.to; time += tick) {
      const x = this.at(time);
      const anchor = x > this.width - 40 ? "end" : x < GUTTER + 10 ? "start" : "middle";
      svg.append(drawn("path", { class: "axis", d: `M${x} ${top}v4` }));
      svg.append(drawn("text", { x, y: top + 16, "text-anchor": anchor }, timeWords(time)));
    }
  }

  listen() {
    const doing = { in: () => this.zoom(STEP), out: () => this.zoom(1 / STEP), earlier: () => this.pan(-PAN), later: () => this.pan(PAN), all: () => this.show(0, this.end), trace: () => save(`${this.host.closest(".profile").id}.trace.json`, "application/json", JSON.stringify({ traceEvents: this.trace() })) };
    for (const button of this.host.parentNode.querySelectorAll(".zoom button")) button.onclick = doing[button.dataset.do];
    const keys = {
      "+": doing.in, "=": doing.in, "-": doing.out, _: doing.out, 0: doing.all,
      ArrowLeft: doing.earlier, ArrowRight: doing.later, ArrowUp: () => this.go(-1), ArrowDown: () => this.go(1),
    };
    this.host.addEventListener("keydown", (event) => {
      if (!keys[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      keys[event.key]();
    });
    this.host.addEventListener("pointermove", (event) => this.point(event));
  }

  /* The events of the Chrome trace format, which Perfetto reads: rows of ranges, then the lanes of kernels; in µs. */
  trace() {
    const rows = [["Phases", this.phases], ["Layers", this.layers], ["Operators", this.operators]];
    const lanes = this.lanes.map((_, lane) => [`Kernels ${lane + 1}`, this.launches.filter((launch) => launch.lane === lane)]);
    return [...rows, ...lanes].flatMap(([row, items], tid) => [
      { ph: "M", pid: 0, tid, name: "thread_name", args: { name: row } },
      ...items.map(({ kernel, name = this.nameOf(kernel), part, from, to }) => (
        { ph: "X", pid: 0, tid, name, ts: from / 1e3, dur: (to - from) / 1e3, ...(part === undefined ? {} : { cat: partLabel(part) }) })),
    ]);
  }

  nameOf(kernel) {
    return this.names[kernel] ?? "a kernel that the table leaves out";
  }

  point(event) {
    const x = event.clientX - this.host.getBoundingClientRect().left;
    this.tell(this.launches.findLastIndex(({ from, to }) => this.at(from) <= x + 0.5 && this.at(to) >= x - 0.5));
  }

  /* Select the next launch (`step` 1) or the previous one (-1) and bring it into view. If the selected launch is out of
     view, select the first one in view. */
  go(step) {
    const whole = this.launches.findIndex(({ from, to }) => from >= this.from && to <= this.to);
    const first = whole >= 0 ? whole : this.launches.findIndex(({ to }) => to > this.from);
    const next = !this.inView(this.launches[this.read]) ? first : Math.min(this.launches.length - 1, Math.max(0, this.read + step));
    const { from, to } = this.launches[next];
    const span = this.to - this.from;
    if (from < this.from || to > this.to) this.show(from - span / 10, from + (9 * span) / 10);
    this.tell(next);
  }

  tell(number) {
    if (number === this.read) return;
    this.read = number;
    this.draw(this.width);
    const launch = this.launches[number];
    if (!launch) {
      this.readout.textContent = "No kernel runs here.";
      return;
    }
    const where = this.path(launch).join(" / ");
    this.readout.textContent = `${this.nameOf(launch.kernel)}: ${timeWords(launch.to - launch.from)}, from ${timeWords(launch.from)} on${where ? `, in ${where}` : ""}; ${partLabel(launch.part)}`;
    this.choose(launch.kernel);
  }
}
