/* The samples of a point: a strip with one dot per sample, and a CSV file. */

const STRIP = { width: 360, height: 44, pad: 6 };
let allSamples = null; // ms by row and process, unpacked when a point is first shown

function svgElement(tag, attributes) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
}

async function showSamples(host, line, point) {
  allSamples ??= unpacked("samples").then(JSON.parse);
  host.point = point;
  const processes = (await allSamples)[point.row];
  if (host.point !== point) return; // the reader has moved on
  const flat = processes.flat();
  host.hidden = !flat.length || Boolean(line.y);
  if (host.hidden) return;
  const [least, most] = [smallest(flat), largest(flat)];
  const x = (ms) => STRIP.pad + ((STRIP.width - 2 * STRIP.pad) * (ms - least)) / (most - least || 1);
  const middle = flat.toSorted((a, b) => a - b)[Math.floor(flat.length / 2)];
  const svg = svgElement("svg", { viewBox: `0 0 ${STRIP.width} ${STRIP.height}`, role: "img", "aria-label": `${flat.length} samples from ${shown(least)} to ${shown(most)} ms` });
  svg.append(svgElement("path", { d: `M${x(middle)} 2V${STRIP.height - 2}`, class: "median" }));
  let number = 0;
  processes.forEach((samples) => {
    for (const ms of samples) {
      number += 1;
      svg.append(svgElement("circle", { cx: x(ms).toFixed(1), cy: (4 + ((STRIP.height - 8) * number) / (flat.length + 1)).toFixed(1), r: 2 }));
    }
  });
  const button = element("button", { type: "button", textContent: "Samples (CSV)" });
  button.onclick = () => save(`${slug(line.name)}-${axisLabel(point.x)}-samples.csv`, "text/csv", samplesCsv(line, point, processes));
  const scale = element("small", { textContent: `${shown(least)} to ${shown(most)} ms, first sample on top` });
  host.replaceChildren(svg, element("div", {}, scale, " ", button));
}

function samplesCsv(line, point, processes) {
  const rows = processes.flatMap((samples, process) => samples.map((ms, at) => [line.name, point.x, process + 1, at + 1, ms]));
  return csvText([["line", "x", "process", "sample", "ms"], ...rows]);
}
