/* Small drawings of a line's dash and marker. */

const DASH_ARRAYS = { solid: "", dash: "7 4", dot: "2 3", dashdot: "7 3 2 3", longdash: "11 4", longdashdot: "11 3 2 3" };
const MARKER_PATHS = {
  circle: "M14 6m-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0",
  square: "M10.5 2.5h7v7h-7z",
  diamond: "M14 1l5 5l-5 5l-5 -5z",
  "triangle-up": "M14 1.5l4.5 8h-9z",
  pentagon: "M14 1.5l4.5 3.3l-1.7 5.2h-5.6l-1.7 -5.2z",
  "triangle-down": "M14 10.5l4.5 -8h-9z",
  star: "M14 1l1.4 3.2l3.5 .3l-2.7 2.3l.8 3.4l-3 -1.8l-3 1.8l.8 -3.4l-2.7 -2.3l3.5 -.3z",
};

function svgElement(tag, attributes) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
}

/* A line's dash and marker in its color. */
function swatch(line) {
  const svg = svgElement("svg", { viewBox: "-3 0 34 12", "aria-hidden": "true" });
  const colour = `var(${tone(line)})`;
  svg.append(svgElement("path", { d: "M-3 6H31", stroke: colour, "stroke-width": 2, "stroke-dasharray": DASH_ARRAYS[line.dash] }));
  if (!line.y) svg.append(svgElement("path", { d: MARKER_PATHS[line.marker], stroke: colour, "stroke-width": 1.5, fill: line.hollow ? "var(--paper)" : colour }));
  return svg;
}
