// Filters the rows of all tables by a text; "/" moves to the field, Escape empties it.
// Layers show their modules when they are opened, or while rows are filtered.
(function () {
  "use strict";
  const field = document.querySelector(".tracea .find");
  if (!field) return;
  const rows = [...document.querySelectorAll(".tracea [data-find]")];
  const found = document.querySelector(".tracea .found");
  field.hidden = false;
  function open(layer, shown) {
    const button = layer.querySelector("button");
    if (!button) return;
    button.setAttribute("aria-expanded", String(shown));
    for (const row of layer.querySelectorAll(".steps")) row.hidden = !shown;
  }
  for (const button of document.querySelectorAll(".tracea button[aria-expanded]")) {
    const layer = button.closest("tbody");
    button.hidden = false;
    button.nextElementSibling.hidden = true;
    button.onclick = function () { open(layer, button.getAttribute("aria-expanded") !== "true"); };
    open(layer, false);
  }
  function filter() {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    let count = 0;
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every(function (word) { return text.includes(word); });
      if (!row.hidden) count += 1;
      if (row.tagName === "TBODY") open(row, words.length > 0 && !row.hidden);
    }
    found.textContent = words.length ? count + " of " + rows.length + " rows" : "";
  }
  field.addEventListener("input", filter);
  document.addEventListener("keydown", function (event) {
    if (event.key === "/" && document.activeElement !== field) {
      event.preventDefault();
      field.focus();
    } else if (event.key === "Escape" && document.activeElement === field) {
      field.value = "";
      filter();
    }
  });
})();
