(() => {
  const units = { ns: 1, us: 1e3, ms: 1e6, s: 1e9, K: 1024, M: 1048576, G: 1073741824, T: 1099511627776 };
  const value = text => {
    const found = /^[\s<]*([-+]?[\d.]+(?:e[-+]?\d+)?)\s*([a-zA-Z]*)[\s*%]*$/.exec(text);
    return found ? found[1] * (units[found[2]] || 1) : NaN;
  };
  const compare = (a, b) => {
    const x = value(a), y = value(b);
    if (isNaN(x) || isNaN(y)) return isNaN(x) - isNaN(y) || a.localeCompare(b, "en", { numeric: true });
    return x - y;
  };
  for (const table of document.querySelectorAll("table")) {
    const body = table.tBodies[0], rows = [...body.rows];
    if (rows.length < 2) continue;
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.title = "sort";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") === "ascending";
        heads.forEach(other => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const sorted = [...rows].sort((a, b) =>
          compare(a.cells[column].textContent, b.cells[column].textContent) * (down ? -1 : 1));
        body.append(...sorted);
      });
    });
    if (rows.length < 8) continue;
    const filter = document.createElement("input");
    filter.className = "filter";
    filter.type = "search";
    filter.placeholder = "rows with ...";
    filter.setAttribute("aria-label", "show rows with this text");
    filter.addEventListener("input", () => {
      const words = filter.value.toLowerCase().split(/\s+/);
      for (const row of rows) {
        const text = row.textContent.toLowerCase();
        row.hidden = !words.every(word => text.includes(word));
      }
    });
    table.parentElement.before(filter);
  }
})();
