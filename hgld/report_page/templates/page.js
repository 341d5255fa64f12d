"use strict";
// Tables are whole without this; it adds sorting by a column and a search over the rows.
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const up = head.getAttribute("aria-sort") !== "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const rows = [...body.rows].map((row) => {
        const cell = row.cells[column];
        return { row, text: cell.textContent, value: cell.classList.contains("number") ? parseFloat(cell.textContent) : null };
      });
      rows.sort((a, b) => {
        if (a.value === null) return (up ? 1 : -1) * a.text.localeCompare(b.text);
        if (isNaN(a.value) || isNaN(b.value)) return isNaN(a.value) - isNaN(b.value);
        return (up ? 1 : -1) * (a.value - b.value);
      });
      body.append(...rows.map((entry) => entry.row));
    });
  });
  const search = table.closest("section").querySelector("input.search");
  search.hidden = false;
  search.addEventListener("input", () => {
    const wanted = search.value.trim().toLowerCase();
    for (const row of body.rows) row.hidden = !row.textContent.toLowerCase().includes(wanted);
  });
}
