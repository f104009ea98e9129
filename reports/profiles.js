/* The tables of kernels sort by their headings, and a link to a profile opens it. */
(() => {
  const order = new Intl.Collator("en", { numeric: true });

  function sort(table, column) {
    const header = table.tHead.rows[0].cells[column];
    const numeric = header.classList.contains("number");
    const before = header.getAttribute("aria-sort");
    const descending = before ? before === "ascending" : numeric;
    for (const cell of table.tHead.rows[0].cells) cell.removeAttribute("aria-sort");
    header.setAttribute("aria-sort", descending ? "descending" : "ascending");
    const value = (row) => (numeric ? row.cells[column].dataset.value : row.cells[column].textContent);
    const sign = descending ? -1 : 1;
    const rows = [...table.tBodies[0].rows].sort((a, b) => {
      const [left, right] = [value(a), value(b)];
      if (left === "" || right === "") return (left === "") - (right === "");
      return sign * (numeric ? left - right : order.compare(left, right));
    });
    table.tBodies[0].append(...rows);
  }

  for (const table of document.querySelectorAll("table.kernels")) {
    [...table.tHead.rows[0].cells].forEach((cell, column) => {
      cell.querySelector("button").onclick = () => sort(table, column);
    });
  }

  function open() {
    const target = document.getElementById(location.hash.slice(1));
    if (target?.classList.contains("profile")) target.querySelector("details").open = true;
  }
  addEventListener("hashchange", open);
  open();
})();
