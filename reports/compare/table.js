/* The table of a comparison: clicking a header sorts the rows; search words and a chosen outcome filter them. */

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

  const form = document.getElementById("filters");
  const [words, verdict, count] = ["words", "verdict", "count"].map((id) => document.getElementById(id));

  function filter() {
    const wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !wanted.every((word) => text.includes(word)) || (verdict.value !== "" && row.cells[0].textContent !== verdict.value);
    }
    count.textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length} cases`;
  }

  form.oninput = filter;
  form.onsubmit = (event) => event.preventDefault();
  filter();
})();

document.documentElement.dataset.ready = "yes";
