"use strict";
// Tables that sort by any column: a header's button turns ascending, then descending. Empty cells stay last.
(function () {
  function keyOf(row, column) {
    const cell = row.cells[column];
    const text = cell.hasAttribute("data-sort") ? cell.dataset.sort : cell.textContent.trim();
    const number = text === "" ? NaN : Number(text);
    return { text: text, number: number };
  }

  function compare(one, other) {
    const numbers = !Number.isNaN(one.number) && !Number.isNaN(other.number);
    return numbers ? one.number - other.number : one.text.localeCompare(other.text, "en", { numeric: true });
  }

  function sort(table, header) {
    const descending = header.getAttribute("aria-sort") === "ascending";
    const column = Number(header.dataset.column);
    const body = table.tBodies[0];
    const rows = Array.from(body.rows, (row) => ({ row: row, key: keyOf(row, column) }));
    rows.sort((one, other) => {
      if (one.key.text === "" || other.key.text === "") {
        return Number(one.key.text === "") - Number(other.key.text === "");
      }
      return descending ? compare(other.key, one.key) : compare(one.key, other.key);
    });
    body.append(...rows.map((each) => each.row));
    table.querySelectorAll("[aria-sort]").forEach((each) => each.removeAttribute("aria-sort"));
    header.setAttribute("aria-sort", descending ? "descending" : "ascending");
  }

  document.querySelectorAll("table.sortable").forEach((table) => {
    table.querySelectorAll("th[data-column]").forEach((header) => {
      header.querySelector("button").addEventListener("click", () => sort(table, header));
    });
  });
})();
