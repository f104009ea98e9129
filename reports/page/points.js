/* The points of a figure: value, interval, flags, and a description in words. */

const CACHE_FULL = "cache full"; // a flag

/* The [flag, sign, meaning] of each flag of these rows that concerns the column `y`, the most severe first. */
function signsOf(rows, y) {
  const flags = rows.flatMap((row) => (cell(row, "flags") ?? "").split(", "));
  return page.signs[y].filter(([flag]) => flags.includes(flag));
}

function axisLabel(value) {
  if (typeof value !== "number") return String(value);
  if (!Number.isInteger(value)) return String(Number(value.toPrecision(3)));
  if (value < 1024 || value % 1024) return String(value);
  return value % 1048576 ? `${value / 1024}k` : `${value / 1048576}M`;
}

class Points {
  /* `data`: a figure of figures.py. */
  constructor(data) {
    this.data = data;
  }

  /* {value, low, high} of a row in the figure's unit, with the ends of its error bar; null without a result. A lower
     bound, in the column `bound`, needs no result. */
  value(row, bound = "") {
    const column = bound || this.data.y;
    const raw = cell(row, column);
    if (raw === null || !(bound || cell(row, "status") === "ok")) return null;
    const value = raw / (page.scales[column] ?? 1);
    const [low, high] = page.bars[column]?.[row] ?? [1, 1];
    return { value, low: low * value, high: high * value };
  }

  /* The ratio of two values; its interval is the widest that their intervals allow. */
  quotient(own, divisor) {
    return own && divisor && { value: own.value / divisor.value, low: own.low / divisor.high, high: own.high / divisor.low };
  }

  /* The points of a line; a line of ratios divides each row by its base row.
     `missing`: the row that leaves a point without a value. `measured`: the rows whose flags concern the point. */
  of(line) {
    return line.rows.map((row, at) => {
      const own = this.value(row, line.y);
      const baseline = line.base_rows[at] ?? null;
      const y = baseline === null ? own : this.quotient(own, this.value(baseline));
      const measured = [row, baseline].filter((each) => each !== null && !line.y); // a lower bound is computed
      return { row, x: cell(row, this.data.x), y, missing: y ? null : own ? baseline : row, measured };
    });
  }

  signs(point) {
    return signsOf(point.measured, this.data.y).map(([, sign]) => sign).join("");
  }

  /* The `words`, with the prefix `baseline` if the row is the divisor of the point. */
  about(row, point, words) {
    return row === point.row ? words : `baseline: ${words}`;
  }

  /* Why a point has no value: its status, or a metric that was not measured. */
  whyMissing(point) {
    const status = cell(point.missing, "status");
    return this.about(point.missing, point, status === "ok" ? `measured without ${page.labels[this.data.y]}` : status);
  }

  wasRun(point) {
    return !page.not_run.includes(cell(point.missing, "status"));
  }

  /* The footnotes on the flags and missing values of these [line, points]. */
  footnotes(lines) {
    const points = lines.flatMap(([, all]) => all);
    const signed = points.filter((point) => point.y);
    const signs = signsOf(signed.flatMap((point) => point.measured), this.data.y);
    const ran = points.filter((point) => !point.y).map((point) => this.wasRun(point));
    return [
      ...signs.map(([flag, sign, meaning]) => `${sign} ${meaning}${flag === CACHE_FULL ? this.sequenceCounts(signed) : ""}`),
      ...(ran.includes(true) ? ["× no result"] : []),
      ...(ran.includes(false) ? ["– not run"] : []),
    ];
  }

  /* How many sequences the KV cache held, as in `: 172 of 512`, from the notes of the points. */
  sequenceCounts(points) {
    const notes = points.flatMap((point) => point.measured.map((row) => /(\d+) of (\d+) sequences/.exec(cell(row, "notes") ?? ""))).filter(Boolean);
    const ends = (values) => [...new Set([smallest(values), largest(values)])].join("–");
    return notes.length ? `: ${ends(notes.map((found) => Number(found[1])))} of ${ends(notes.map((found) => Number(found[2])))}` : "";
  }

  /* [line's name, x, value with its interval] of a point, in words. */
  brief(line, point) {
    const value = point.y ? `${this.data.y_title}: ${shown(point.y.value)}${point.y.low < point.y.high ? ` [${shown(point.y.low)}, ${shown(point.y.high)}]` : ""}` : this.whyMissing(point);
    return [line.name, `${this.data.x_title}: ${axisLabel(point.x)}`, value];
  }

  /* A point in words: line, x, value or why it is missing, samples, GPUs, roofline, notes. */
  words(line, point) {
    const { row } = point;
    const [name, x, value] = this.brief(line, point);
    const parts = [name, x];
    const gpus = [...new Set(point.measured.map(gpuOf))].filter((each) => !line.name.includes(each));
    const gpu = gpus.length ? [gpus.join(" over ")] : [];
    if (!point.y) {
      const why = [this.whyMissing(point), cell(point.missing, "reason")].filter(Boolean).join(": ");
      return [...parts, why.slice(0, 300), ...gpu];
    }
    const notes = point.measured.filter((each) => cell(each, "notes")).map((each) => this.about(each, point, cell(each, "notes")));
    if (line.y) return [...parts, `${value}, ${cell(row, "bound")}-bound`, ...notes];
    const samples = point.measured.map((each) => this.about(each, point, this.sampleWords(each)));
    return [...parts, value, ...samples, ...gpu, ...this.roofline(row), ...notes];
  }

  sampleWords(row) {
    const [samples, processes, spread] = ["samples", "processes", "process_spread"].map((name) => cell(row, name));
    const words = `${samples} sample${samples === 1 ? "" : "s"}`;
    return spread === null ? words : `${words} of ${processes} processes; process medians differ by up to ${shown(100 * spread)}%`;
  }

  /* The lower bound and the rates, if the record has them. */
  roofline(row) {
    const [share, tflops, gbs] = ["lower_bound_share", "tflops", "gbs"].map((name) => cell(row, name));
    if (share === null) return [];
    return [`lower bound (${cell(row, "bound")}): ${Math.round(100 * share)}% of the latency, ${Math.round(gbs)} GB/s, ${shown(tflops)} TFLOP/s`];
  }
}
