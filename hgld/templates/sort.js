// The page shows all tables without this script. It lets the reader sort a table by a column.
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  const isNumber = (cell) =>
    cell.classList.contains("number") || (cell.tagName === "TD" && table.classList.contains("scores") && !cell.classList.contains("text"));
  const read = (row, column) => {
    const cell = row.cells[column];
    if (!cell) return { row, text: "", value: NaN };
    const text = (cell.querySelector(".value") ?? cell).textContent.trim();
    return { row, text, value: isNumber(cell) ? parseFloat(text.replaceAll(",", "")) : null };
  };
  const heads = [...table.tHead.querySelectorAll("th:not(.group)")];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const up = head.getAttribute("aria-sort") !== "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const rows = [...body.rows].map((row) => read(row, column));
      rows.sort((a, b) => {
        if (a.value === null || b.value === null) return (up ? 1 : -1) * a.text.localeCompare(b.text);
        if (isNaN(a.value) || isNaN(b.value)) return isNaN(a.value) - isNaN(b.value);
        return (up ? 1 : -1) * (a.value - b.value);
      });
      body.append(...rows.map((entry) => entry.row));
    });
  });
}
