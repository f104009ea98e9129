/* What do the pages of a site begin with? What needs a script is shown, and the button changes the theme. */

/* `redraw`: of a page with something that takes its colours when it is drawn. */
function startPage(redraw = () => {}) {
  for (const part of document.querySelectorAll(".needs-script")) part.hidden = false;
  startTheme(redraw);
}

