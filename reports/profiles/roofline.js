/* The roofline: the rate of each kernel against the peaks of memory and tensor cores. */

const LARGEST = 30, SMALLEST = 7; // diameters in pixels: for a kernel that takes all of the time, and the minimum

/* The {traces, layout} of a case's roofline; hollow points are parts with the adapter's count of their work. */
function drawnRoofline({ names, kernels, roofline }) {
  const { copy_gbs: copy, product_tflops: top, l2_gbs: l2, fp32_tflops: fp32 } = roofline;
  const items = [
    ...roofline.parts.map(([part, x, y, ms]) => ({ part, x, y, ms, kernel: null })),
    ...roofline.points.map(([kernel, x, y, ms, l2Intensity, isFp32]) => ({ part: kernels[kernel], x, y, ms, kernel, l2Intensity, isFp32 })),
  ].sort((a, b) => b.ms - a.ms); // small points lie above large ones
  const total = roofline.points.reduce((sum, [, , , ms]) => sum + ms, 0);
  const ridge = (tflops, gbs = copy) => (1e3 * tflops) / gbs;
  const xs = [...items.map(({ x }) => x), ridge(top) / 30, ridge(top) * 4];
  const [from, to] = [10 ** Math.floor(Math.log10(smallest(xs))), 10 ** Math.ceil(Math.log10(largest(xs)))];
  const ys = [...items.map(({ y }) => y), (2 * copy * from) / 1e3];
  const slope = (gbs, words, textposition) => {
    const middle = Math.sqrt(from * ridge(top, gbs));
    const ends = [from, middle, ridge(top, gbs)];
    return { x: ends, y: ends.map((x) => (gbs * x) / 1e3), text: ["", words, ""], textposition };
  };
  const horizontal = (tflops, words, textposition) => ({ x: [ridge(tflops), to], y: [tflops, tflops], text: ["", words], textposition });
  const roofs = [
    [slope(copy, `highest measured: ${Math.round(copy).toLocaleString("en")} GB/s`, l2 ? "bottom right" : "top left"), true],
    [horizontal(top, `highest measured: ${Math.round(top)} TFLOP/s`, "top left"), true],
    ...(l2 ? [[slope(l2, `L2 peak: ${(l2 / 1e3).toFixed(1)} TB/s`, "top left"), false]] : []),
    ...(fp32 ? [[horizontal(fp32, `FP32 peak: ${Math.round(fp32)} TFLOP/s`, "bottom left"), false]] : []),
  ].map(([roof, isMain]) => {
    const line = { color: themed(isMain ? "--ink" : "--muted"), width: 1.5, dash: isMain ? "solid" : "dash" };
    return { ...roof, type: "scatter", mode: "lines+text", line, hoverinfo: "skip" };
  });

  /* A point in words. A kernel that is short, or whose counted launches differ from the mean, may exceed the peak. */
  function words({ part, kernel, x, y, ms, l2Intensity, isFp32 }) {
    const name = kernel === null ? `${partLabel(part)} as a whole` : names[kernel];
    const peak = isFp32 ? fp32 : top;
    const resource = x < ridge(peak) ? "bandwidth" : isFp32 ? "FP32" : "GEMMs";
    const cache = l2 && l2Intensity ? `, ${Math.round((1e5 * y) / (l2Intensity * l2))}% of the L2 peak` : "";
    const under = `${Math.round((100 * y) / Math.min(peak, (copy * x) / 1e3))}% of peak ${resource}${cache}`;
    return `${name}: ${shown(y)} TFLOP/s at ${shown(x)} FLOPs per byte, ${under}, ${shown(ms)} ms`;
  }

  const colors = items.map(({ part }) => themed(`--part-${PARTS[part]}`));
  const points = {
    type: "scatter",
    mode: "markers",
    x: items.map(({ x }) => x),
    y: items.map(({ y }) => y),
    marker: {
      symbol: items.map(({ kernel }) => (kernel === null ? "diamond" : "circle")),
      size: items.map(({ kernel, ms }) => (kernel === null ? 11 : Math.max(SMALLEST, LARGEST * Math.sqrt(ms / total)))),
      color: colors.map((color, at) => (items[at].kernel === null ? themed("--paper") : color)),
      line: { width: 2, color: colors.map((color, at) => (items[at].kernel === null ? color : themed("--paper"))) },
      opacity: 0.85,
    },
    customdata: items.map((item) => [words(item), item.kernel]),
    hovertext: items.map((item) => escapeHtml(words(item).split(", ").slice(0, 2).join(", "))),
    hoverinfo: "text",
  };
  const log = (ends) => ({ type: "log", range: ends.map(Math.log10), dtick: 1, tickformat: "~r" });
  return {
    traces: [...roofs, points],
    layout: {
      height: 340,
      margin: { l: 60, r: 14, t: 14, b: 48 },
      hovermode: "closest",
      xaxis: { ...log([from, to]), title: { text: "FLOPs per byte of memory", standoff: 8 } },
      yaxis: { ...log([smallest(ys) / 1.5, 2 * top]), title: { text: "TFLOP/s", standoff: 8 } },
    },
  };
}
