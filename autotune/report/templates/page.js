"use strict";
(() => {
  const holder = document.getElementById("charts");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const themed = (data, style) => {
    if (typeof data === "string") {
      const name = /^var\((--[\w-]+)\)$/.exec(data);
      return name ? style.getPropertyValue(name[1]).trim() : data;
    }
    if (Array.isArray(data)) return data.map((item) => themed(item, style));
    if (data && typeof data === "object") {
      return Object.fromEntries(Object.entries(data).map(([key, item]) => [key, themed(item, style)]));
    }
    return data;
  };
  const draw = () => {
    const style = getComputedStyle(document.documentElement);
    for (const [name, figure] of Object.entries(JSON.parse(holder.textContent))) {
      const { data, layout } = themed(figure, style);
      Plotly.react(name, data, layout, { responsive: true, displaylogo: false, displayModeBar: false });
    }
  };
  if (holder) {
    draw();
    dark.addEventListener("change", draw);
  }
  for (const table of document.querySelectorAll("table.sortable")) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      head.querySelector("button").addEventListener("click", () => {
        const falling = head.getAttribute("aria-sort") !== "descending" && head.classList.contains("figure")
          || head.getAttribute("aria-sort") === "ascending";
        const key = (row) => row.cells[column].dataset.key;
        const rows = [...table.tBodies[0].rows].sort((one, other) => {
          const [a, b] = [key(one), key(other)];
          if (a === "" || b === "") return (a === "") - (b === "");
          const order = isNaN(a) || isNaN(b) ? a.localeCompare(b) : a - b;
          return falling ? -order : order;
        });
        table.tBodies[0].append(...rows);
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", falling ? "descending" : "ascending");
      });
    });
  }
})();
