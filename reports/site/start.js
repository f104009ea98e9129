/* Start a page of a site: show the parts that need a script, and start the theme button. */

/* `redraw` repaints drawings in the colors of the new theme. */
function startPage(redraw = () => {}) {
  for (const part of document.querySelectorAll(".needs-script")) part.hidden = false;
  startTheme(redraw);
}

