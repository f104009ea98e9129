/* Which theme has a page? The one that its reader chose, on any page of this place, else the system's. */

const THEME = "ttt-bench theme"; // what a browser keeps a reader's choice by

/* The theme that a reader chose: read, or kept where one is given, and forgotten for "". A browser may refuse it. */
function chosenTheme(theme) {
  try {
    if (theme) localStorage.setItem(THEME, theme);
    else if (theme === "") localStorage.removeItem(THEME);
    return localStorage.getItem(THEME);
  } catch {
    return null;
  }
}

/* The button that changes it; `redraw` draws anew what takes its colours when it is drawn. */
function startTheme(redraw) {
  const button = document.getElementById("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const dark = () => (document.documentElement.dataset.theme ?? (system.matches ? "dark" : "light")) === "dark";
  const name = () => { button.textContent = dark() ? "Light theme" : "Dark theme"; };
  const follow = () => {
    name();
    redraw();
  };
  button.onclick = () => {
    const theme = dark() ? "light" : "dark";
    document.documentElement.dataset.theme = theme;
    chosenTheme(theme === (system.matches ? "dark" : "light") ? "" : theme); // who goes back follows the system again
    follow();
  };
  system.onchange = follow;
  name();
}

if (["light", "dark"].includes(chosenTheme())) document.documentElement.dataset.theme = chosenTheme();
