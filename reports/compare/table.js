/* The table of a comparison: clicking a header sorts the rows. */

(() => {
  const table = document.getElementById("cases");
  if (!table) return;
  const rows = [...table.tBodies[0].rows];
  const collator = new Intl.Collator("en", { numeric: true });

  function sort(header) {
    const ascending = header.getAttribute("aria-sort") === "descending";
    const text = (row) => row.cells[header.cellIndex].textContent.trim();
    const number = (row) => parseFloat(text(row).replaceAll(",", ""));
    const order = (a, b) => (header.classList.contains("number") ? number(a) - number(b) : collator.compare(text(a), text(b)));
    for (const each of table.tHead.rows[0].cells) each.removeAttribute("aria-sort");
    header.setAttribute("aria-sort", ascending ? "ascending" : "descending");
    for (const row of rows.sort((a, b) => (ascending ? 1 : -1) * order(a, b))) table.tBodies[0].append(row);
  }

  for (const header of table.tHead.rows[0].cells) {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...header.childNodes);
    button.onclick = () => sort(header);
    header.append(button);
  }
})();

document.documentElement.dataset.ready = "yes";
