/* What is known of each point of a figure: its value, its interval, what is doubtful of it, and all of it in words? */

/* Marks that are drawn or said in a way of their own; `page.signs` has of each mark [it, its sign, what it means]. */
const [CACHE_FULL, FEW_SAMPLES] = ["cache full", "few samples"];
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });

/* Of these marks those that have a sign, as `page.signs` has them, the gravest first. */
function signsOf(marks) {
  return page.signs.filter(([mark]) => marks.includes(mark));
}

/* The marks in a cell that say something of a value in the column `y`. */
function marksIn(cell, y) {
  return (cell || "").split(", ").filter((mark) => page.marks[y].includes(mark));
}

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

  /* The value of a case that has one. What a case would have held is known of one that did not fit, too, and so is a
     floor: `floor` is its column, which is drawn all the same. */
  result(row, floor = "") {
    return floor || this.cell(row, "status") === "ok" ? this.value(row, floor || this.data.y) : null;
  }

  /* Of a column without an interval of its own, that of the latency, which a rate divides by; null where there is none. */
  interval(row, column, value, lowest, highest) {
    const [median, low, high] = ["latency_ms", lowest, highest].map((name) => this.cell(row, name));
    if (low === null || high === null) return null;
    if (page.latencies.includes(column) && median > 0) return [(value * low) / median, (value * high) / median];
    if (page.rates.includes(column) && low > 0) return [(value * median) / high, (value * median) / low];
    return null;
  }

  /* The widest interval that a ratio of the two can have. */
  quotient(own, divisor) {
    if (!own || !divisor) return null;
    const over = own.over ?? divisor.over;
    return { value: own.value / divisor.value, low: own.low / divisor.high, high: own.high / divisor.low, over };
  }

  /* The points of a line: relative to the line `base` or to the rows that the line is divided by, where there are any.
     `lost`: the row that leaves a point without a value, which is its own or its baseline. */
  of(line, base = null) {
    const bases = base && new Map(base.rows.map((row) => [this.cell(row, this.data.x), row]));
    return line.rows.map((row, at) => {
      const x = this.cell(row, this.data.x);
      const own = this.result(row, line.y);
      const baseline = (base ? bases.get(x) : line.base_rows[at]) ?? null;
      const divisor = baseline === null ? null : this.result(baseline, base?.y);
      const isItself = own && row === baseline;
      const y = isItself ? { ...own, value: 1, low: 1, high: 1 } : base || line.base_rows.length ? this.quotient(own, divisor) : own;
      const lost = own && !divisor ? baseline : row;
      // A floor is computed: of its rows nothing is in doubt.
      const measured = [...(line.y ? [] : [row]), ...(baseline === null || base?.y ? [] : [baseline])];
      return { row, x, y, lost: y ? null : lost, failed: !(base ? own : y), measured: [...new Set(measured)] };
    });
  }

  hasResult(line) {
    return this.of(line).some((point) => point.y);
  }

  best(points) {
    return points.filter((point) => point.y).reduce((a, b) => (b.y.value > a.y.value ? b : a));
  }

  /* Is a larger batch than the best worse beyond their intervals, and not level with it? Not where fewer sequences than
     asked for ran at the best: larger batches would have run as many. */
  turns(points) {
    const best = this.best(points);
    const { x, y } = best;
    return !this.marks(best).includes(CACHE_FULL) && points.some((point) => point.x > x && point.y?.high < y.low && point.y.value * (1 + page.level) < y.value);
  }

  /* Those that say something of what is drawn: of an amount of memory no time is in doubt. */
  marks(point) {
    return [...new Set(point.measured.flatMap((row) => marksIn(this.cell(row, "marks"), this.data.y)))];
  }

  signs(point) {
    return signsOf(this.marks(point)).map(([, sign]) => sign).join("");
  }

  /* What is said of a row that a point rests on, and whether that is what the point is divided by. */
  saidOf(row, point, words) {
    return row === point.row ? words : `baseline: ${words}`;
  }

  notes(point) {
    const noted = point.measured.filter((row) => this.cell(row, "notes"));
    return noted.map((row) => this.saidOf(row, point, this.cell(row, "notes")));
  }

  /* Why a point has no value: what became of its case, or that what was measured is something else. */
  whyNot(point) {
    if (point.lost === null) return "baseline: not measured";
    const status = this.cell(point.lost, "status");
    return this.saidOf(point.lost, point, status === "ok" ? `measured without ${this.data.y_label}` : status);
  }

  reason(point) {
    return point.lost === null ? null : this.cell(point.lost, "reason");
  }

  isTried(point) {
    return !page.untried.includes(this.cell(point.lost, "status"));
  }

  /* [at once, asked for] of a point whose cache was full: its note says it. */
  atOnce(row) {
    const found = /(\d+) of (\d+) sequences at once/.exec(this.cell(row, "notes") ?? "");
    return found && [Number(found[1]), Number(found[2])];
  }

  /* What the signs of these [line, points] mean, a line of words each. */
  footnotes(lines) {
    const points = lines.flatMap(([, all]) => all);
    const signed = points.filter((point) => point.y);
    const signs = new Set(signed.flatMap((point) => [...this.signs(point)]));
    const failed = points.filter((point) => point.failed).map((point) => this.isTried(point));
    return [
      ...page.signs.filter(([mark, sign]) => signs.has(sign) && page.marks[this.data.y].includes(mark)).map(([mark, sign, meaning]) => `${sign} ${mark === CACHE_FULL ? this.fullWords(signed) : meaning}`),
      ...(failed.includes(true) ? ["× no result"] : []),
      ...(failed.includes(false) ? ["– not tried"] : []),
    ];
  }

  fullWords(points) {
    const full = points.flatMap((point) => point.measured.map((row) => this.atOnce(row))).filter(Boolean);
    const meaning = page.signs.find(([mark]) => mark === CACHE_FULL)[2];
    if (!full.length) return meaning;
    const ends = (values) => [...new Set([smallest(values), largest(values)])].join("–");
    return `${meaning}: ${ends(full.map(([fit]) => fit))} of ${ends(full.map(([, asked]) => asked))}`;
  }

  /* The line, where the point is, its value and interval. */
  brief(line, point, yTitle) {
    const value = point.y ? `${yTitle}: ${shown(point.y.value)}${point.y.low < point.y.high ? ` [${shown(point.y.low)}, ${shown(point.y.high)}]` : ""}` : this.whyNot(point);
    return [line.name, `${this.data.x_title}: ${axisLabel(point.x)}`, value];
  }

  /* A point in words, each a part: the line, where it is, its value, what it rests on, what is doubtful. */
  words(line, point, yTitle) {
    const parts = [line.name, `${this.data.x_title}: ${axisLabel(point.x)}`];
    const { row } = point;
    const unit = line.name.includes(unitOf(row)) ? [] : [unitOf(row)];
    if (!point.y) {
      const why = [this.whyNot(point), this.reason(point)].filter(Boolean).join(": ");
      return [...parts, why.slice(0, 300), ...unit];
    }
    const notes = this.notes(point);
    if (line.y) return [...parts, `${shown(point.y.value)}, bound by ${this.cell(row, "bound")}`, ...notes];
    const samples = point.measured.map((each) => this.saidOf(each, point, this.sampleWords(each)));
    const value = `${yTitle}: ${shown(point.y.value)}${this.intervalWords(point)}`;
    return [...parts, value, ...samples, ...unit, ...this.work(row), ...notes];
  }

  intervalWords(point) {
    const { row, y } = point;
    const said = ([low, high]) => `[${shown(low)}, ${shown(high)}]`;
    const few = this.marks(point).includes(FEW_SAMPLES);
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
