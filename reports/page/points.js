/* The points of a figure: value, interval, flags, and a description in words. */

/* Flags with special treatment. `page.signs` has [flag, sign, meaning]. */
const [CACHE_FULL, FEW_SAMPLES] = ["cache full", "few samples"];

/* The [flag, sign, meaning] of each of these flags, the gravest first. */
function signsOf(marks) {
  return page.signs.filter(([mark]) => marks.includes(mark));
}

/* The flags in a cell that concern the column `y`. */
function marksIn(cell, y) {
  return (cell || "").split(", ").filter((mark) => page.marks[y].includes(mark));
}

function axisLabel(value) {
  if (typeof value !== "number") return String(value);
  if (!Number.isInteger(value)) return String(Number(value.toPrecision(3)));
  if (value < 1024 || value % 1024) return String(value);
  return value % 1048576 ? `${value / 1024}k` : `${value / 1048576}M`;
}

class Points {
  /* `data`: a figure of figures.py. `cell(row, column)`: a value of the table. `scales`: the divisor of each column. */
  constructor(data, cell, scales) {
    Object.assign(this, { data, cell, scales });
  }

  /* {value, low, high, within, over} of a row in the column's unit, or null. Low and high are the ends of the interval
     `over` processes if known, else of the interval `within` one process. */
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

  /* The value of a row whose case has a result, else null. A lower bound, in the column `bound`, needs no result. */
  result(row, bound = "") {
    return bound || this.cell(row, "status") === "ok" ? this.value(row, bound || this.data.y) : null;
  }

  /* The interval of a time or a rate, from the latency's in the columns `lowest` and `highest`; null for others. */
  interval(row, column, value, lowest, highest) {
    const [median, low, high] = ["latency_ms", lowest, highest].map((name) => this.cell(row, name));
    if (low === null || high === null) return null;
    if (page.latencies.includes(column) && median > 0) return [(value * low) / median, (value * high) / median];
    if (page.rates.includes(column) && low > 0) return [(value * median) / high, (value * median) / low];
    return null;
  }

  /* The ratio of two values, with an interval for the worst case of their intervals. */
  quotient(own, divisor) {
    if (!own || !divisor) return null;
    const over = own.over ?? divisor.over;
    return { value: own.value / divisor.value, low: own.low / divisor.high, high: own.high / divisor.low, over };
  }

  /* The points of a line, divided by the line `base` or by the line's own base rows, if there are any.
     `lost`: the row that leaves a point without a value: its own, or that of the baseline, or null if that has no row.
     `measured`: the rows whose flags concern the point. */
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
      // Flags concern measured rows; a lower bound is computed.
      const measured = [...(line.y ? [] : [row]), ...(baseline === null || base?.y ? [] : [baseline])];
      return { row, x, y, lost: y ? null : lost, failed: !(base ? own : y), measured: [...new Set(measured)] };
    });
  }

  hasResult(line) {
    return this.of(line).some((point) => point.y);
  }

  /* The flags that concern the figure's column. */
  marks(point) {
    return [...new Set(point.measured.flatMap((row) => marksIn(this.cell(row, "marks"), this.data.y)))];
  }

  signs(point) {
    return signsOf(this.marks(point)).map(([, sign]) => sign).join("");
  }

  /* Words about a row of a point, with the prefix `baseline` for the divisor. */
  about(row, point, words) {
    return row === point.row ? words : `baseline: ${words}`;
  }

  notes(point) {
    const noted = point.measured.filter((row) => this.cell(row, "notes"));
    return noted.map((row) => this.about(row, point, this.cell(row, "notes")));
  }

  /* Why a point has no value: its status, or a metric that was not measured. */
  whyNot(point) {
    if (point.lost === null) return "baseline: not measured";
    const status = this.cell(point.lost, "status");
    return this.about(point.lost, point, status === "ok" ? `measured without ${this.data.y_label}` : status);
  }

  reason(point) {
    return point.lost === null ? null : this.cell(point.lost, "reason");
  }

  isTried(point) {
    return !page.untried.includes(this.cell(point.lost, "status"));
  }

  /* The footnotes that explain the signs at these [line, points]. */
  footnotes(lines) {
    const points = lines.flatMap(([, all]) => all);
    const signed = points.filter((point) => point.y);
    const signs = new Set(signed.flatMap((point) => [...this.signs(point)]));
    const failed = points.filter((point) => point.failed).map((point) => this.isTried(point));
    return [
      ...page.signs.filter(([mark, sign]) => signs.has(sign) && page.marks[this.data.y].includes(mark)).map(([mark, sign, meaning]) => `${sign} ${meaning}${mark === CACHE_FULL ? this.fullCounts(signed) : ""}`),
      ...(failed.includes(true) ? ["× no result"] : []),
      ...(failed.includes(false) ? ["– not run"] : []),
    ];
  }

  /* How many sequences fit into a full cache, as in `: 172 of 512`, from the notes of the points. */
  fullCounts(points) {
    const notes = points.flatMap((point) => point.measured.map((row) => /(\d+) of (\d+) sequences/.exec(this.cell(row, "notes") ?? ""))).filter(Boolean);
    const ends = (values) => [...new Set([smallest(values), largest(values)])].join("–");
    return notes.length ? `: ${ends(notes.map((found) => Number(found[1])))} of ${ends(notes.map((found) => Number(found[2])))}` : "";
  }

  /* [line's name, x, value with its interval] of a point, in words. */
  brief(line, point, yTitle) {
    const value = point.y ? `${yTitle}: ${shown(point.y.value)}${point.y.low < point.y.high ? ` [${shown(point.y.low)}, ${shown(point.y.high)}]` : ""}` : this.whyNot(point);
    return [line.name, `${this.data.x_title}: ${axisLabel(point.x)}`, value];
  }

  /* A point in words: line, x, value, samples, work, notes. */
  words(line, point, yTitle) {
    const parts = [line.name, `${this.data.x_title}: ${axisLabel(point.x)}`];
    const { row } = point;
    const unit = line.name.includes(unitOf(row)) ? [] : [unitOf(row)];
    if (!point.y) {
      const why = [this.whyNot(point), this.reason(point)].filter(Boolean).join(": ");
      return [...parts, why.slice(0, 300), ...unit];
    }
    const notes = this.notes(point);
    if (line.y) return [...parts, `${shown(point.y.value)}, set by ${this.cell(row, "bound")}`, ...notes];
    const samples = point.measured.map((each) => this.about(each, point, this.sampleWords(each)));
    const value = `${yTitle}: ${shown(point.y.value)}${this.intervalWords(point)}`;
    return [...parts, value, ...samples, ...unit, ...this.work(row), ...notes];
  }

  intervalWords(point) {
    const { row, y } = point;
    const brackets = ([low, high]) => `[${shown(low)}, ${shown(high)}]`;
    const few = this.marks(point).includes(FEW_SAMPLES);
    if (!y.within) return y.low === y.high ? "" : ` ${brackets([y.low, y.high])}`;
    const within = `${brackets(y.within)} ${few ? "is the range of its samples" : "within one process"}`;
    return y.over ? ` ${brackets(y.over)} over ${this.cell(row, "processes")} processes, ${within}` : ` ${within}`;
  }

  sampleWords(row) {
    const [samples, spread] = ["samples", "process_spread"].map((name) => this.cell(row, name));
    const parts = [`${samples} sample${samples === 1 ? "" : "s"}`];
    if (spread !== null) parts.push(`processes differ by ${shown(100 * spread)}%`);
    return parts.join(", ");
  }

  /* The lower bound and the rates, if the record has them. */
  work(row) {
    const [share, tflops, gbs] = ["lower_bound_share", "tflops", "gbs"].map((name) => this.cell(row, name));
    if (share === null) return [];
    return [`lower bound (${this.cell(row, "bound")}): ${Math.round(100 * share)}% of the latency, ${Math.round(gbs)} GB/s, ${shown(tflops)} TFLOP/s`];
  }
}
