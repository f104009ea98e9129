/* What is known of each point of a figure: its value, its interval, what is doubtful of it, and all of it in words? */

/* What a point is marked for: the mark of stats.py, its sign in the picture, and what it means. */
const SIGNS = [
  ["cache full", "†", "fewer sequences at once than asked for"],
  ["few samples", "*", "fewer than six samples"],
  ["loaded machine", "‡", "others used the machine"],
  ["unsteady", "§", "median not known to within 10%"],
];
const CACHE_FULL = SIGNS[0][0];
/* Cases that were not tried at all; every other without a result failed. */
const UNTRIED = ["skipped", "unstarted"];
const LATENCIES = ["latency_ms", "us_per_token"];
const RATES = ["tokens_per_s", "tflops", "gbs"];
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });

function axisLabel(value) {
  if (typeof value !== "number" || value < 1024 || value % 1024) return String(value);
  return value % 1048576 ? `${value / 1024}k` : `${value / 1048576}M`;
}

class Points {
  /* `data`: a figure of figures.py; `cell(row, column)`: a value of the table; `scales`: what columns are divided by. */
  constructor(data, cell, scales) {
    Object.assign(this, { data, cell, scales });
  }

  /* Value, low and high of `column` in its unit: over processes where there are several, and `within` one of them. */
  value(row, column = this.data.y) {
    const raw = this.cell(row, column);
    if (raw === null) return null;
    const value = raw / (this.scales[column] ?? 1);
    const own = [`${column}_low`, `${column}_high`].map((name) => this.cell(row, name));
    const within = own.includes(null)
      ? this.interval(row, column, value, "latency_ms_low", "latency_ms_high")
      : own.map((end) => (end * value) / raw);
    const over = this.interval(row, column, value, "latency_ms_repeats_low", "latency_ms_repeats_high");
    const [low, high] = over ?? within ?? [value, value];
    return { value, low, high, within, over };
  }

  /* Of a column without an interval of its own, that of the latency, which a rate divides by; null where there is none. */
  interval(row, column, value, lowest, highest) {
    const [median, low, high] = ["latency_ms", lowest, highest].map((name) => this.cell(row, name));
    if (low === null || high === null) return null;
    if (LATENCIES.includes(column) && median > 0) return [(value * low) / median, (value * high) / median];
    if (RATES.includes(column) && low > 0) return [(value * median) / high, (value * median) / low];
    return null;
  }

  /* The widest interval that a ratio of the two can have. */
  quotient(over, under) {
    if (!over || !under) return null;
    return { value: over.value / under.value, low: over.low / under.high, high: over.high / under.low };
  }

  own(line, at) {
    const own = this.value(line.rows[at], line.y || this.data.y);
    return line.base_rows.length ? this.quotient(own, this.value(line.base_rows[at])) : own;
  }

  /* The points of a line; relative to the line `base` where there is one. */
  of(line, base = null) {
    const bases = base && new Map(base.rows.map((row, at) => [this.cell(row, this.data.x), this.own(base, at)]));
    return line.rows.map((row, at) => {
      const x = this.cell(row, this.data.x);
      const own = this.own(line, at);
      return { row, x, failed: !own, y: bases ? this.quotient(own, bases.get(x)) : own };
    });
  }

  hasResult(line) {
    return line.rows.some((row, at) => this.own(line, at));
  }

  best(points) {
    return points.filter((point) => point.y).reduce((a, b) => (b.y.value > a.y.value ? b : a));
  }

  /* Is a larger batch than the best worse beyond their intervals? Not where fewer sequences than asked for ran at the
     best: larger batches would have run as many. */
  turns(points) {
    const { x, y, row } = this.best(points);
    return !this.marks(row).includes(CACHE_FULL) && points.some((point) => point.x > x && point.y?.high < y.low);
  }

  marks(row) {
    return String(this.cell(row, "marks") ?? "").split(", ");
  }

  signs(row) {
    const marks = this.marks(row);
    return SIGNS.filter(([mark]) => marks.includes(mark)).map(([, sign]) => sign).join("");
  }

  /* Why a row has no point: what became of its case, or that what was measured is something else. */
  whyNot(row) {
    const status = this.cell(row, "status");
    return status === "ok" ? `measured without ${this.data.y_label}` : status;
  }

  isTried(point) {
    return !UNTRIED.includes(this.cell(point.row, "status"));
  }

  /* [at once, asked for] of a point whose cache was full: its note says it. */
  atOnce(row) {
    const found = /(\d+) of (\d+) sequences at once/.exec(this.cell(row, "notes") ?? "");
    return found && [Number(found[1]), Number(found[2])];
  }

  /* What the signs of these [line, points] mean, a line of words each. */
  footnotes(lines) {
    const points = lines.flatMap(([line, all]) => (line.y ? [] : all));
    const signed = points.filter((point) => point.y);
    const signs = new Set(signed.flatMap((point) => [...this.signs(point.row)]));
    const failed = points.filter((point) => point.failed).map((point) => this.isTried(point));
    return [
      ...SIGNS.filter(([, sign]) => signs.has(sign)).map(([mark, sign, meaning]) => `${sign} ${mark === CACHE_FULL ? this.fullWords(signed) : meaning}`),
      ...(failed.includes(true) ? ["× no result"] : []),
      ...(failed.includes(false) ? ["– not tried"] : []),
    ];
  }

  fullWords(points) {
    const full = points.map((point) => this.atOnce(point.row)).filter(Boolean);
    if (!full.length) return SIGNS[0][2];
    const ends = (values) => [...new Set([Math.min(...values), Math.max(...values)])].join("–");
    return `${SIGNS[0][2]}: ${ends(full.map(([fit]) => fit))} of ${ends(full.map(([, asked]) => asked))}`;
  }

  /* A point in words, each a part: the line, where it is, its value, what it rests on, what is doubtful. */
  words(line, point, yTitle) {
    const parts = [line.name, `${this.data.x_title}: ${axisLabel(point.x)}`];
    const { row } = point;
    const unit = line.name.includes(unitOf(row)) ? [] : [unitOf(row)];
    if (point.failed) return [...parts, [this.whyNot(row), this.cell(row, "reason")].filter(Boolean).join(": ").slice(0, 300), ...unit];
    if (line.y) return [...parts, `${shown(point.y.value)}, bound by ${this.cell(row, "bound")}`];
    const note = this.cell(row, "notes");
    return [...parts, `${yTitle}: ${shown(point.y.value)}${this.intervalWords(point)}`, this.sampleWords(row), ...unit, ...this.work(row), ...(note ? [note] : []), ...(profileOf(row) ? ["Profiled: click or Enter shows where its time goes"] : [])];
  }

  intervalWords({ row, y }) {
    const said = ([low, high]) => `[${shown(low)}, ${shown(high)}]`;
    const few = this.marks(row).includes("few samples");
    if (!y.within) return y.low === y.high ? "" : ` ${said([y.low, y.high])}`;
    const within = `${said(y.within)} ${few ? "is the range of its samples" : "within one process"}`;
    return y.over ? ` ${said(y.over)} over ${this.cell(row, "processes")} processes, ${within}` : ` ${within}`;
  }

  sampleWords(row) {
    const [samples, spread] = ["samples", "process_spread"].map((name) => this.cell(row, name));
    const parts = [`${samples} sample${samples === 1 ? "" : "s"}`];
    if (spread !== null) parts.push(`processes differ by ${shown(100 * spread)}%`);
    return parts.join(", ");
  }

  /* What the latency is made of, where the record says it. */
  work(row) {
    const [share, tflops, gbs] = ["floor_share", "tflops", "gbs"].map((name) => this.cell(row, name));
    if (share === null) return [];
    return [`the floor (${this.cell(row, "bound")}) is ${Math.round(100 * share)}% of it: ${Math.round(gbs)} GB/s, ${shown(tflops)} TFLOP/s`];
  }
}
