/* The theme of a page: the reader's choice on any page of this site, else the system's. */

const THEME = "ttt-bench theme"; // key in localStorage

/* Store `theme` ("light" or "dark"); "" removes the stored theme, and no argument leaves it unchanged. Returns the
   stored theme, or null if there is none or the browser refuses storage. */
function chosenTheme(theme) {
  try {
    if (theme) localStorage.setItem(THEME, theme);
    else if (theme === "") localStorage.removeItem(THEME);
    return localStorage.getItem(THEME);
  } catch {
    return null;
  }
}

/* Start the theme button. `redraw` repaints drawings, which do not follow the style by themselves. */
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
    chosenTheme(theme === (system.matches ? "dark" : "light") ? "" : theme); // the system's own theme is not stored
    follow();
  };
  system.onchange = follow;
  name();
}

if (["light", "dark"].includes(chosenTheme())) document.documentElement.dataset.theme = chosenTheme();
