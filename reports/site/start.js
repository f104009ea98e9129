/* Start a page of a site: show the parts that need a script, and start the theme button. */

/* `redraw` repaints what has colors of its own. */
function startPage(redraw = () => {}) {
  for (const part of document.querySelectorAll(".needs-script")) part.hidden = false;
  startTheme(redraw);
}

