"use strict";
// Sorts tables, searches partitions, opens and closes topics. The page shows everything without this script.

const UNITS = { B: 1, KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30, TiB: 2 ** 40 };
const FIGURE = /^~?(-?[\d,]+(?:\.\d+)?) ?([KMGT]iB|B|%)?(?: and [\d,]+ more)?$/;
const byText = new Intl.Collator("en", { numeric: true }); // t-2 before t-10

// Return a cell's number, bytes as bytes; null if it is none.
function figure(text) {
  const found = FIGURE.exec(text);
  return found && found[1].replaceAll(",", "") * (UNITS[found[2]] ?? 1);
}

// Sort by a column: figures from the largest, text from A; the other way round if it is sorted so. Empty cells are last.
function sortBy(header) {
  const body = header.closest("table").tBodies[0];
  const cells = [...body.rows].map((row) => ({ row, text: row.cells[header.cellIndex].textContent.trim() }));
  const filled = cells.filter((cell) => cell.text);
  for (const cell of filled) cell.figure = figure(cell.text);
  const figures = filled.every((cell) => cell.figure !== null);
  const descending = header.ariaSort ? header.ariaSort === "ascending" : figures;
  filled.sort((a, b) => (figures ? a.figure - b.figure : byText.compare(a.text, b.text)) * (descending ? -1 : 1));
  body.append(...filled.map((cell) => cell.row), ...cells.filter((cell) => !cell.text).map((cell) => cell.row));
  for (const other of header.parentElement.cells) other.ariaSort = null;
  header.ariaSort = descending ? "descending" : "ascending";
}

for (const header of document.querySelectorAll("thead th")) {
  if (header.closest("table").tBodies[0].rows.length < 2) continue;
  const button = document.createElement("button");
  button.type = "button";
  header.dataset.name = header.textContent; // for paper: browsers print no buttons on top of a table's further pages
  button.append(...header.childNodes);
  button.addEventListener("click", () => sortBy(header));
  header.append(button);
}

const table = document.getElementById("all-partitions");
if (table) {
  const topics = [...document.querySelectorAll("details.topic")];
  const partitions = [...table.tBodies[0].rows].map((row) => {
    const details = document.querySelector(row.querySelector("a").hash);
    return { row, details, name: row.cells[0].textContent.toLowerCase() };
  });

  // Show the partitions whose names contain every word, and the topics that have some of them.
  const search = () => {
    const words = document.getElementById("search").value.toLowerCase().split(/\s+/);
    const shown = partitions.filter(({ row, details, name }) => {
      row.hidden = details.hidden = !words.every((word) => name.includes(word));
      return !row.hidden;
    });
    const found = new Set(shown.map(({ details }) => details.parentElement));
    for (const topic of topics) topic.hidden = !found.has(topic);
    document.getElementById("found").textContent = `${shown.length} of ${partitions.length} partitions`;
  };
  const fold = (open) => topics.filter((topic) => !topic.hidden).forEach((topic) => { topic.open = open; });

  document.getElementById("search").addEventListener("input", search);
  document.getElementById("open").addEventListener("click", () => fold(true));
  document.getElementById("close").addEventListener("click", () => fold(false));
  document.getElementById("controls").hidden = false;
  search();
}

// Open what a link leads to, and everything around it.
function reveal() {
  const target = document.getElementById(location.hash.slice(1));
  for (let at = target; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
  if (target?.tagName === "DETAILS") target.firstElementChild.focus();
}
addEventListener("hashchange", reveal);
addEventListener("click", (event) => { // a link followed again: the hash stays as it is
  if (event.target.closest?.("a[href^='#']")?.hash === location.hash) setTimeout(reveal); // when the browser has gone there
});
reveal();
