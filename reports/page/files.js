/* A figure as an SVG for a paper: as a download, or alone on the page for picture.py. */

const INCH = 125; // pixels per inch of a picture; its text is about 7 points high

function save(name, type, text) {
  const link = element("a", { download: name, href: URL.createObjectURL(new Blob([text], { type })) });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

/* The SVG of a figure on white, `inches` wide, without title and caption, which LaTeX sets. */
async function paperSvg(figure, inches) {
  const paper = { width: inches * INCH, height: Math.round(INCH * (inches < 5 ? 2.4 : 3.2)) };
  const picture = inLight(() => {
    const drawing = figure.drawing(paper);
    const layout = { ...drawing.layout(paper.width), width: paper.width, autosize: false, paper_bgcolor: "#ffffff", plot_bgcolor: "#ffffff" };
    return { data: drawing.traces(), layout };
  });
  const { width, height } = picture.layout;
  const svg = await Plotly.toImage(picture, { format: "svg", width, height, imageDataOnly: true });
  return svg.replace(/ width="[^"]*" height="[^"]*"/, ` width="${width / INCH}in" height="${height / INCH}in"`);
}

/* Show only these figures, one on each sheet; the highest figure sets the size of all sheets. */
async function showAlone(figures, inches) {
  const svgs = [];
  for (const figure of figures) svgs.push(await paperSvg(figure, inches));
  const highest = largest(svgs.map((svg) => Number(/height="([\d.]+)in"/.exec(svg)[1])));
  const style = element("style", { textContent: `@page { size: ${inches}in ${highest}in; margin: 0 }` });
  const sheets = svgs.map((svg) => {
    const sheet = element("div");
    sheet.innerHTML = svg; // from Plotly, which escapes the records' text
    return sheet;
  });
  const alone = element("div", { id: "alone" }, style, ...sheets);
  document.body.append(alone);
  document.documentElement.classList.add("alone");
}
