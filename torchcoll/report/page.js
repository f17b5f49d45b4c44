(async () => {
  "use strict";
  const node = (name, properties = {}, ...children) => {
    const made = Object.assign(document.createElement(name), properties);
    made.append(...children);
    return made;
  };

  // Tables: sorted by a click on a heading, filtered by text.
  const units = { ns: 1, us: 1e3, ms: 1e6, s: 1e9, K: 1024, M: 1048576, G: 1073741824, T: 1099511627776 };
  const value = text => {
    const match = /^[\s<]*([-+]?[\d.]+(?:e[-+]?\d+)?)\s*([a-zA-Z]*)[\s*%]*$/.exec(text);
    return match ? match[1] * (units[match[2]] || 1) : NaN;
  };
  const compare = (a, b) => {
    const x = value(a), y = value(b);
    if (isNaN(x) || isNaN(y)) return isNaN(x) - isNaN(y) || a.localeCompare(b, "en", { numeric: true });
    return x - y;
  };
  const formats = {
    CSV: cells => cells.map(text => /[",]/.test(text) ? `"${text.replace(/"/g, '""')}"` : text).join(","),
    Markdown: (cells, n) => `| ${cells.map(text => text.replace(/\|/g, "\\|")).join(" | ")} |`
      + (n ? "" : `\n|${"---|".repeat(cells.length)}`),
  };
  const copied = (table, format) => [...table.rows].filter(row => !row.hidden).map((row, n) =>
    formats[format]([...row.cells].map(cell => cell.textContent.trim().replace(/\s+/g, " ")), n)).join("\n");
  for (const table of document.querySelectorAll("table")) {
    const body = table.tBodies[0], rows = [...body.rows];
    if (rows.length < 2) continue;
    const tools = node("div", { className: "tools" }, ...Object.keys(formats).map(format => {
      const button = node("button", { type: "button", textContent: `copy as ${format}` });
      button.addEventListener("click", async () => {
        await navigator.clipboard.writeText(copied(table, format));
        button.textContent = `copied as ${format}`;
      });
      return button;
    }));
    table.parentElement.before(tools);
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      if (!head.textContent.trim()) return;
      const button = node("button", { type: "button", title: "sort" }, ...head.childNodes);
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
    if (rows.length < 20) continue; // they are all in view
    const filter = node("input", { className: "filter", type: "search", placeholder: "rows with ..." });
    filter.setAttribute("aria-label", "show rows with this text");
    filter.addEventListener("input", () => {
      const words = filter.value.toLowerCase().split(/\s+/);
      for (const row of rows) {
        const text = row.textContent.toLowerCase();
        row.hidden = !words.every(word => text.includes(word));
      }
    });
    tools.prepend(filter);
  }

  // Charts. Their data and plotly.js are packed in the page; plotly.js is unpacked after the page has
  // been painted.
  if (!document.getElementById("data")) return;
  document.documentElement.classList.add("js");
  const unpack = name => {
    const packed = atob(document.getElementById(name).textContent);
    const bytes = new Uint8Array(packed.length);
    for (let n = 0; n < packed.length; n++) bytes[n] = packed.charCodeAt(n);
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).text();
  };
  const data = JSON.parse(await unpack("data"));
  let library;
  const load = () => library ??= (async () => {
    document.head.append(node("script", { textContent: await unpack("plotly") }));
    return window.Plotly;
  })();
  const decode = node("textarea");
  const words = text => { // of a text of plotly, whose markup is <br> and entities alone
    decode.innerHTML = String(text).replace(/<br>/g, "; ");
    return decode.value;
  };
  const config = {
    responsive: true, displaylogo: false,
    modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"],
  };
  const dressed = (layout, narrow) => {
    const whole = {
      // Room for tick labels and titles: automargin draws a chart twice whenever the room changes.
      margin: { l: narrow ? 65 : 75, r: 15, t: 30, b: layout.xaxis?.side === "top" ? 15 : 55 }, hovermode: "closest",
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: "system-ui, sans-serif", size: narrow ? 11 : 13 },
      legend: { orientation: "h", traceorder: "normal", y: 1, yanchor: "bottom", x: 0 },
      ...layout,
    };
    if (whole.yaxis.ticksuffix) whole.yaxis.labelalias = data.time_labels;
    return whole;
  };
  const assign = (target, path, value) => {
    const names = path.split("."), last = names.pop();
    for (const name of names) target = target[name] ??= {};
    target[last] = value;
  };

  const groups = data.groups.map((source, number) => {
    const figure = document.getElementById(`g${number}`);
    return { ...source, figure, plot: figure.querySelector(".plot"), index: 0, chosen: {}, at: null };
  });

  const text = (trace, point) => { // of a point in words; point: its number, or [row, column]
    if (trace.z) {
      const [row, column] = point;
      const shown = trace.text?.[row][column] ?? trace.z[row][column] ?? "no value";
      return words(`${trace.y[row]}, ${trace.x[column]}: ${shown}`);
    }
    return words(trace.text?.[point] ?? `${trace.name ?? ""} ${trace.x[point]}: ${trace.y[point]}`);
  };

  const scalable = plot => { // so that print can scale a chart to the width of the paper
    const frame = plot.querySelector(".svg-container");
    const { width, height } = plot._fullLayout;
    frame.style.aspectRatio = `${width} / ${height}`;
    for (const svg of plot.querySelectorAll(".main-svg")) {
      svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    }
  };

  // Plotly writes into what it draws, except into arrays of data, and copying those takes longest.
  const copy = value => Array.isArray(value) || value === null || typeof value !== "object"
    ? value : Object.fromEntries(Object.entries(value).map(([name, v]) => [name, copy(v)]));

  const show = async group => {
    const Plotly = await load();
    const chart = group.charts[group.index];
    const narrow = innerWidth < 600;
    const traces = chart.traces.map(copy), layout = structuredClone(chart.layout);
    if (narrow && layout.xaxis) { // few labels fit; those of a heat map stand upright
      layout.xaxis.tickangle = traces[0]?.z ? -90 : 0;
      if (!traces[0]?.z || layout.xaxis.nticks) layout.xaxis.nticks = 4;
    }
    for (const trace of traces) {
      if (!trace.z || !narrow) continue; // no room for figures, and for a scale beside the map
      Object.assign(trace.colorbar, { orientation: "h", y: 1, yanchor: "bottom" });
      trace.colorbar.title.side = "top";
      if (trace.x.length > 5) delete trace.texttemplate;
    }
    for (const selector of chart.selectors) {
      const option = selector.options.find(o => o.text === group.chosen[selector.label]);
      if (!option) continue;
      const [ofTraces, ofLayout, indices = traces.keys()] = option.arguments;
      [...indices].forEach((index, n) => {
        for (const name in ofTraces) traces[index][name] = ofTraces[name][n];
      });
      for (const path in ofLayout) assign(layout, path, ofLayout[path]);
    }
    if (narrow && layout.barmode) layout.height += 16 * traces.length; // a line of the legend for each
    group.plot.style.height = layout.height ? `${layout.height}px` : "";
    const bar = narrow ? false : "hover"; // no room for its buttons, and fingers zoom
    await Plotly.react(group.plot, traces, dressed(layout, narrow), { ...config, displayModeBar: bar });
    group.figure.querySelector(".caption").replaceChildren(
      ...chart.caption.map(line => node("li", { textContent: line })));
    if (group.drawn) return;
    group.drawn = true;
    group.plot.on("plotly_afterplot", () => scalable(group.plot));
    scalable(group.plot);
    group.plot.on("plotly_click", event => {
      const { curveNumber, pointNumber } = event.points[0];
      describe(group, curveNumber, pointNumber);
    });
  };

  const select = (label, texts, chosen, change) => {
    const list = node("select", {}, ...texts.map((t, n) => node("option", { textContent: words(t), value: n })));
    list.value = chosen;
    list.addEventListener("change", () => change(+list.value));
    return node("label", {}, `${label} `, list);
  };
  const controls = group => {
    const box = group.figure.querySelector(".controls");
    if (group.charts.length > 1) { // a list of hundreds, made once
      const titles = group.charts.map(chart => chart.title);
      group.list ??= box.appendChild(select(group.label, titles, 0, n => choose(group, n)));
      group.list.querySelector("select").value = group.index;
    }
    const lists = group.charts[group.index].selectors.map(({ label, options }) => {
      const texts = options.map(option => option.text);
      const chosen = Math.max(0, texts.indexOf(group.chosen[label]));
      return select(label, texts, chosen, n => { group.chosen[label] = texts[n]; show(group); });
    });
    while (box.lastChild && box.lastChild !== group.list) box.lastChild.remove();
    box.append(...lists);
  };
  const choose = (group, index) => {
    group.index = index;
    group.at = null;
    controls(group);
    return show(group);
  };

  // From a point to its row, its samples and its commands.
  const describe = (group, curve, point) => {
    const trace = group.plot.data[curve];
    const found = trace.z ? trace.meta?.keys?.[point[1]] : trace.customdata?.[point];
    const own = group.charts[group.index].key;
    const keys = (found || own || "").split(" ").filter(Boolean);
    const parts = [node("p", { textContent: text(trace, point) })];
    for (const key of keys.slice(0, 6)) {
      const [title, number, explain] = data.cases[key];
      const row = document.getElementById(`case-${key}`);
      parts.push(node("h3", { textContent: title }));
      if (row) {
        const heads = [...row.closest("table").tHead.rows[0].cells];
        const cells = heads.map((head, n) => node("tr", {},
          node("th", { scope: "row", textContent: head.textContent.replace(/\s+/g, " ") }),
          node("td", { textContent: row.cells[n].textContent })));
        parts.push(node("table", {}, node("tbody", {}, ...cells)));
        parts.push(node("p", {}, node("a", { href: `#case-${key}`, textContent: "its row in the table" })));
      }
      for (const other of groups) {
        const index = other.charts.findIndex(chart => chart.key === key);
        if (index < 0 || other === group) continue;
        const button = node("button", { type: "button", textContent: "its samples: calls in order" });
        button.addEventListener("click", async () => {
          await choose(other, index);
          other.figure.scrollIntoView();
          other.plot.focus();
        });
        parts.push(button);
      }
      const commands = [explain, data.runs[number]].filter(Boolean);
      if (commands.length) parts.push(node("pre", { tabIndex: 0, textContent: commands.join("\n") }));
    }
    if (keys.length > 6) parts.push(node("p", { textContent: `and ${keys.length - 6} more runs` }));
    const command = trace.meta?.command;
    if (command && trace.z) {
      const line = command.replace("{x}", words(trace.x[point[1]]));
      parts.push(node("pre", { tabIndex: 0, textContent: line }));
    }
    group.figure.querySelector(".details").replaceChildren(...parts);
  };

  // Arrow keys walk over the points of the chart that has the focus; Enter describes one.
  const steps = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] };
  const clamp = (n, count) => Math.min(Math.max(n, 0), count - 1);
  const walk = (group, event) => {
    const traces = group.plot.data;
    if (!traces) return;
    const usable = traces.map((trace, n) => n).filter(n =>
      traces[n].hoverinfo !== "skip" && traces[n].visible !== "legendonly" && traces[n].x?.length);
    if (!usable.length) return;
    if (event.key === "Enter" || event.key === " ") {
      if (group.at) describe(group, ...group.at);
      event.preventDefault();
      return;
    }
    const step = steps[event.key];
    if (!step) return;
    event.preventDefault();
    let [curve, point] = group.at ?? [usable[0], null];
    const trace = traces[curve];
    if (trace.z) {
      const [row, column] = point ?? [0, -1];
      point = [clamp(row + step[0], trace.z.length), clamp(column + step[1], trace.x.length)];
      Plotly.Fx.hover(group.plot, { xval: point[1], yval: point[0] });
    } else {
      if (step[0] && group.at) {
        curve = usable[clamp(usable.indexOf(curve) + step[0], usable.length)];
      }
      point = clamp((point ?? -1) + step[1], traces[curve].x.length);
      const subplot = traces[curve].xaxis === "x2" ? "x2y" : "xy";
      Plotly.Fx.hover(group.plot, [{ curveNumber: curve, pointNumber: point }], subplot);
    }
    group.at = [curve, point];
    group.figure.querySelector(".readout").textContent = text(traces[curve], point);
  };

  const pending = new Set(groups);
  const first = group => pending.delete(group) && show(group);
  const seen = new IntersectionObserver(entries => {
    for (const entry of entries) {
      if (entry.isIntersecting) first(groups[+entry.target.id.slice(1)]);
    }
  }, { rootMargin: "200px" });
  for (const group of groups) {
    controls(group);
    group.plot.addEventListener("keydown", event => walk(group, event));
    seen.observe(group.figure);
  }
  // All others when there is time, so that they can be printed.
  const idle = window.requestIdleCallback ?? (task => setTimeout(task, 50));
  const rest = async () => {
    const [group] = pending;
    if (!group) return;
    await first(group);
    idle(rest);
  };
  requestAnimationFrame(() => idle(rest));
})();
