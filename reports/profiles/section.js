/* The section of profiles: opening a case draws its roofline and timeline, and a link to a case opens it. */

const PARTS = ["products", "ttt", "scan", "edges", "head", "other", "gaps"];
const KEYS = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };
const ZOOM = [["zoomIn2d", "zoomOut2d", "pan2d", "resetScale2d"]];
const redraws = []; // a function for each plot of the opened cases

/* A part's label in the page's legend. */
function partLabel(part) {
  return document.querySelectorAll("#profiles > .parts li")[part].textContent.trim();
}

/* Draw the {traces, layout} of `build()`. Describe the points of its last trace below the plot, under the pointer and by
   arrow keys. A point's customdata is [words, row of its kernel in the table or null]; `each`: points per item. */
async function drawProfile(host, build, choose, each = 1) {
  const readout = host.parentNode.querySelector(".readout");
  const draw = () => {
    const { traces, layout } = build();
    const axis = { gridcolor: themed("--grid"), linecolor: themed("--rule-strong"), zeroline: false };
    Object.assign(layout, {
      xaxis: { ...axis, ...layout.xaxis },
      yaxis: { ...axis, ...layout.yaxis },
      font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: themed("--muted") },
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      hoverlabel: { bgcolor: themed("--raised"), font: { color: themed("--ink") }, align: "left" },
      showlegend: false,
    });
    return Plotly.react(host, traces, layout, { responsive: true, modeBarButtons: ZOOM, displaylogo: false });
  };
  await plotlyLoaded;
  await draw();
  redraws.push(draw);
  let current = -1;
  const describe = (item) => {
    current = item;
    const [words, kernel] = host.data.at(-1).customdata[item * each];
    readout.textContent = words;
    choose(kernel);
  };
  host.on("plotly_hover", ({ points: [{ pointNumber }] }) => describe(Math.floor(pointNumber / each)));
  host.addEventListener("keydown", (event) => {
    const last = host.data.at(-1).x.length / each - 1;
    if (!KEYS[event.key] || last < 0) return;
    event.preventDefault();
    const next = Math.max(0, Math.min(last, current + KEYS[event.key]));
    Plotly.Fx.hover(host, [{ curveNumber: host.data.length - 1, pointNumber: next * each + Math.floor(each / 2) }]);
    describe(next);
  });
}

function startProfile(details) {
  const data = JSON.parse(details.dataset.profile);
  const rows = [...details.querySelector("table.kernels").tBodies[0].rows];
  data.names = rows.map((row) => row.cells[0].textContent);
  const choose = (kernel) => rows.forEach((row, number) => row.classList.toggle("chosen", number === kernel));
  const roofline = details.querySelector(".roofline .plot-host");
  const timeline = details.querySelector(".timeline .plot-host");
  if (roofline) drawProfile(roofline, () => drawnRoofline(data), choose);
  if (timeline) startTimeline(timeline, data, choose);
}

/* Open and focus the profile in the address. */
function openProfile() {
  const target = document.getElementById(location.hash.slice(1));
  if (!target?.classList.contains("profile")) return;
  const group = target.closest("details");
  if (group) group.open = true;
  target.querySelector("details[data-profile]").open = true;
  target.focus({ preventScroll: true });
  target.scrollIntoView();
}

for (const details of document.querySelectorAll("details[data-profile]")) {
  details.addEventListener("toggle", () => startProfile(details), { once: true });
}
darkTheme.addEventListener("change", () => redraws.forEach((draw) => draw()));
addEventListener("hashchange", openProfile);
openProfile();
