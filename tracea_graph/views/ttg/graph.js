(function () {
  "use strict";
  const facts = FACTS;
  const root = document.getElementById(ROOT);
  if (!root) return;
  const sidebar = root.querySelector(".sidebar");
  const bar = root.querySelector(".bar");
  const SVG = "http://www.w3.org/2000/svg";
  const ROLES = ["#93c5fd", "#fdba74", "#f1f5f9"];
  const ROLE_NAMES = ["main", "boundary", "skipped"];
  const BOUNDS = { compute: "#fecaca", memory: "#bfdbfe", overhead: "#e2e8f0" };

  function make(tag, text, style) {
    const made = document.createElement(tag);
    if (text !== undefined) made.textContent = text;
    if (style) made.style.cssText = style;
    return made;
  }
  function shape(tag, attributes, parent) {
    const made = document.createElementNS(SVG, tag);
    for (const key of Object.keys(attributes)) made.setAttribute(key, attributes[key]);
    if (parent) parent.appendChild(made);
    return made;
  }
  function number(x) {
    const units = ["", "k", "M", "G", "T"];
    let i = 0;
    while (x >= 1000 && i < 4) { x /= 1000; i += 1; }
    return (i ? x.toPrecision(3) : String(Math.round(x))) + " " + units[i];
  }

  const tools = make("div");
  tools.className = "tools";
  bar.parentNode.insertBefore(tools, bar);

  function time(us) { return us < 1000 ? us.toPrecision(3) + " µs" : (us / 1000).toPrecision(3) + " ms"; }

  // ---- zoom and pan ---------------------------------------------------------------------
  const holder = root.querySelector(".drawing");
  const canvas = holder && holder.querySelector("svg");
  let view = null;
  let dragged = false;
  let moved = false;  // by the user: the view stays then when the page's layout changes
  function button(text, label, act) {
    const made = make("button", text);
    made.type = "button";
    made.setAttribute("aria-label", label);
    made.title = label;
    made.onclick = act;
    return made;
  }
  function size() { return [canvas.width.baseVal.value, canvas.height.baseVal.value]; }
  function place(scale, x, y) {
    moved = true;
    // Panzoom scales about the middle of the drawing, and pans in the drawing's own units
    const [width, height] = size();
    view.zoom(scale, { animate: false, force: true });
    view.pan(x / scale + (width - width / scale) / 2, y / scale + (height - height / scale) / 2,
      { animate: false, force: true });
  }
  function whole() {
    const [width, height] = size();
    const scale = Math.min(1, holder.clientWidth / width, holder.clientHeight / height);
    place(scale, (holder.clientWidth - width * scale) / 2, 0);
  }
  function start() {
    const [width] = size();
    const scale = Math.max(0.6, Math.min(1, holder.clientWidth / width));
    const first = canvas.querySelector("g[data-node] > rect");
    const room = holder.clientWidth - width * scale;
    const middle = first ? holder.clientWidth / 2 - (first.x.baseVal.value + first.width.baseVal.value / 2) * scale : 0;
    place(scale, room >= 0 ? room / 2 : Math.min(0, Math.max(room, middle)), 0);
    moved = false;
  }
  function reveal(box) {
    if (!view) return;
    const frame = box.querySelector("rect");
    const scale = Math.max(view.getScale(), 0.7);
    place(scale, holder.clientWidth / 2 - (frame.x.baseVal.value + frame.width.baseVal.value / 2) * scale,
      holder.clientHeight / 2 - (frame.y.baseVal.value + frame.height.baseVal.value / 2) * scale);
  }
  if (canvas && globalThis.Panzoom) {
    holder.classList.add("live");
    view = globalThis.Panzoom(canvas, {
      canvas: true, minScale: 0.02, maxScale: 6, step: 0.25,
    });
    let from = null;
    holder.addEventListener("pointerdown", function (event) { from = [event.clientX, event.clientY]; dragged = false; moved = true; });
    holder.addEventListener("pointermove", function (event) {
      if (from && Math.hypot(event.clientX - from[0], event.clientY - from[1]) > 4) dragged = true;
    });
    addEventListener("pointerup", function () { from = null; });
    holder.addEventListener("wheel", function (event) {
      moved = true;
      if (event.ctrlKey || event.metaKey) {
        view.zoomWithWheel(event);
      } else {
        event.preventDefault();
        const scale = view.getScale();
        view.pan(-event.deltaX / scale, -event.deltaY / scale, { relative: true, animate: false, force: true });
      }
    }, { passive: false });
    tools.appendChild(button("+", "zoom in", function () { moved = true; view.zoomIn(); }));
    tools.appendChild(button("−", "zoom out", function () { moved = true; view.zoomOut(); }));
    tools.appendChild(button("whole graph", "show the whole graph", whole));
  }

  // ---- colours ------------------------------------------------------------------------
  const ways = {
    pass: function (n) { return n.pass; },
    family: function (n) { return facts.families[facts.kinds[n.kind].family]; },
    bound: function (n) { return BOUNDS[n.bound] || "#f1f3f4"; },
    time: function (n) {
      const share = n.microseconds ? Math.sqrt(n.microseconds / slowest) : 0;
      return "hsl(20,90%," + (97 - 42 * share) + "%)";
    },
  };
  const nodes = facts.nodes || {};
  const all = Object.keys(nodes).map(function (k) { return nodes[k]; });
  const slowest = Math.max(1e-9, ...all.map(function (n) { return n.microseconds || 0; }));
  const boxes = {};
  root.querySelectorAll("g[data-node]").forEach(function (g) { boxes[g.dataset.node] = g; });
  function paint(way) {
    for (const name of Object.keys(nodes)) {
      if (boxes[name]) boxes[name].querySelector("rect").setAttribute("fill", ways[way](nodes[name]));
    }
  }
  function chips(way) {
    const made = { family: facts.families, bound: BOUNDS }[way];
    keys.textContent = "";
    if (way === "time") keys.textContent = "darker takes longer; slowest " + time(slowest);
    for (const name of Object.keys(made || {})) {
      const chip = make("span", name, "background:" + made[name]);
      chip.className = "chip";
      keys.appendChild(chip);
    }
  }
  const keys = make("span");
  if (all.length) {
    const select = make("select");
    const timed = all.some(function (n) { return n.microseconds !== undefined; });
    for (const way of timed ? ["pass", "family", "bound", "time"] : ["pass", "family"]) {
      select.appendChild(make("option", way));
    }
    select.onchange = function () { paint(select.value); chips(select.value); };
    const label = make("label", "color by ");
    label.appendChild(select);
    tools.appendChild(label);
    tools.appendChild(keys);
    if (!all.some(function (n) { return n.rule; })) {
      select.value = "family";  // nothing is fused yet: passes would leave all grey
      select.onchange();
    }
  }

  // ---- the tile map -------------------------------------------------------------------
  function grid(title, rows, columns, parent) {
    const size = Math.max(6, Math.min(28, Math.floor(420 / Math.max(rows, columns, 1))));
    const holder = make("div", undefined, "display:inline-block;vertical-align:top;margin:6px 18px 6px 0");
    holder.appendChild(make("div", title, "font-weight:600;overflow-wrap:anywhere"));
    const svg = shape("svg", { width: columns * size + 2, height: rows * size + 2 });
    holder.appendChild(svg);
    parent.appendChild(holder);
    return { svg: svg, size: size };
  }
  function cell(g, row, column, fill, parent) {
    return shape("rect", {
      x: column * g.size + 1, y: row * g.size + 1, width: g.size - 1, height: g.size - 1,
      fill: fill, stroke: "#cbd5e1",
    }, parent || g.svg);
  }
  // what equal regions share is stored once, so names come from the region `n` that is shown
  function tileMap(map, parent, n) {
    const axes = map.axes.map(function (a) { return a[0] + "=" + a[1] + (a[2] ? " (sum)" : ""); });
    parent.appendChild(make("p", "loops " + axes.join(", ") + "; " + map.grid.join(" × ") +
      " tiles of " + map.tile.join(" × ") + (map.batch > 1 ? ", " + map.batch + " problems" : "")));
    const own = grid("tiles, in launch order", map.grid[0], map.grid[1], parent);
    const others = map.needs.map(function (need) {
      const value = n ? n.reads[need.read].replace(/: [^:]*$/, "") : need.value;
      const producer = n ? n.sources[need.read] : need.producer;
      const g = grid(value + " ← " + producer + " (" + need.kind + ")", need.grid[0], need.grid[1], parent);
      for (let i = 0; need.grid[0] > i; i += 1) {
        for (let j = 0; need.grid[1] > j; j += 1) cell(g, i, j, "#f8fafc");
      }
      return g;
    });
    const place = {};
    map.order.forEach(function (tile, i) { place[tile] = i; });
    const marks = [];
    function show(tile) {
      marks.splice(0).forEach(function (m) { m.remove(); });
      marks.push(cell(own, map.rows[tile], map.columns[tile], "#1d4ed8"));
      map.needs.forEach(function (need, i) {
        need.rectangles.forEach(function (r) {
          if (r[0] !== tile) return;
          for (let m = r[1]; r[2] > m; m += 1) {
            for (let n = r[3]; r[4] > n; n += 1) marks.push(cell(others[i], m, n, "#1d4ed8"));
          }
        });
      });
    }
    map.roles.forEach(function (role, tile) {
      const box = cell(own, map.rows[tile], map.columns[tile], ROLES[role]);
      const order = place[tile] === undefined ? "never" : "number " + place[tile];
      shape("title", {}, box).textContent = "tile " + tile + ", " + ROLE_NAMES[role] + ", runs " + order;
      box.style.cursor = "pointer";
      box.onclick = function () { show(tile); };
      if (own.size >= 18) {
        if (place[tile] !== undefined) {
          const label = shape("text", {
            x: map.columns[tile] * own.size + own.size / 2 + 1,
            y: map.rows[tile] * own.size + own.size / 2 + 4,
            "text-anchor": "middle", "font-size": 10, "pointer-events": "none",
          }, own.svg);
          label.textContent = place[tile];
        }
      }
    });
    const hint = "main, boundary (orange) and skipped (grey) tiles; click one to see what it waits for";
    parent.appendChild(make("p", hint, "opacity:.8"));
    if (map.order.length) show(map.order[0]);
  }

  // ---- search ---------------------------------------------------------------------------
  const search = make("input");
  const hits = make("span");
  let matches = [], current = -1;
  function find() {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    root.classList.toggle("searching", words.length > 0);
    matches = [];
    current = -1;
    for (const name of Object.keys(boxes)) {
      const n = nodes[name];
      const text = (boxes[name].textContent + (n ? n.originals.join(" ") + n.rule : "")).toLowerCase();
      const found = words.length > 0 && words.every(function (word) { return text.includes(word); });
      boxes[name].classList.toggle("found", found);
      if (found) matches.push(name);
    }
    hits.textContent = words.length ? matches.length + " found" : "";
  }
  function next(step) {
    if (!matches.length) return;
    current = (current + step + matches.length) % matches.length;
    hits.textContent = current + 1 + " of " + matches.length;
    reveal(boxes[matches[current]]);
    open(matches[current]);
  }
  if (canvas) {
    search.type = "search";
    search.placeholder = "search  ( / )";
    search.setAttribute("aria-label", "search operators, layers and tensors");
    hits.setAttribute("role", "status");
    search.oninput = find;
    search.onkeydown = function (event) {
      if (event.key === "Enter") next(event.shiftKey ? -1 : 1);
      if (event.key === "Escape") { search.value = ""; find(); }
    };
    tools.insertBefore(hits, tools.firstChild);
    tools.insertBefore(search, hits);
  }
  document.addEventListener("keydown", function (event) {
    if (event.key !== "/" || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
    const first = document.querySelector(".ttg input[type=search]");
    if (first !== search) return;
    event.preventDefault();
    search.focus();
  });

  // ---- the sidebar ----------------------------------------------------------------------
  function list(title, items, parent) {
    if (!items.length) return;
    parent.appendChild(make("div", title, "font-weight:600;margin-top:4px"));
    parent.appendChild(make("div", items.join("\n"), "white-space:pre-wrap;overflow-wrap:anywhere"));
  }
  function tiles(kind, n, parent) {
    if (kind.map) tileMap(kind.map, parent, n);
    else parent.appendChild(make("p", kind.why || "no tiles: its loops are not modelled"));
  }
  function program(kind, n, parent) {
    const line = make("div", undefined, "margin-top:8px");
    const select = make("select");
    kind.steps.forEach(function (step, i) {
      const layer = n.steps[i] ? n.steps[i] + ": " : "";
      select.appendChild(make("option", i + " " + layer + step.op + " → " + step.writes[0]));
      select.lastChild.value = i;
    });
    line.appendChild(make("label", "step "));
    line.appendChild(select);
    parent.appendChild(line);
    const shown = make("div");
    parent.appendChild(shown);
    select.onchange = function () {
      const step = kind.steps[select.value], inner = kind.kinds[step.kind];
      shown.textContent = "";
      list("writes", step.writes, shown);
      list("reads", step.reads, shown);
      tiles(inner, step, shown);
    };
    select.onchange();
  }
  let marked = null;
  const overview = document.createDocumentFragment();
  function open(name) {
    const n = nodes[name];
    if (!n || !sidebar) return;
    if (marked) marked.classList.remove("open");
    if (!overview.childNodes.length) overview.append(...sidebar.childNodes);
    marked = boxes[name];
    if (marked) marked.classList.add("open");
    sidebar.textContent = "";
    const back = make("a", "← slowest regions");
    back.href = "#";
    back.onclick = function (event) {
      event.preventDefault();
      sidebar.textContent = "";
      sidebar.append(...overview.childNodes);
    };
    sidebar.appendChild(back);
    const kind = facts.kinds[n.kind];
    const said = [kind.steps ? "program of " + kind.steps.length + " steps" : kind.family];
    if (n.rule) said.push("made by " + n.rule);
    if (kind.flops !== undefined) said.push(number(kind.flops) + "FLOP");
    if (n.microseconds !== undefined) said.push("predicted " + time(n.microseconds));
    if (n.bound) said.push(n.bound + " bound");
    sidebar.appendChild(make("div", n.layer ? n.layer + ": " + n.op : n.op,
      "font-size:14px;font-weight:600;overflow-wrap:anywhere"));
    sidebar.appendChild(make("div", name + ": " + said.join(", ")));
    list("writes", n.writes, sidebar);
    if (!kind.steps) list("reads", n.reads, sidebar);
    if (kind.steps) program(kind, n, sidebar);
    else tiles(kind, n, sidebar);
    if (n.rule) {
      const folded = make("details");
      folded.open = n.originals.length <= 12;
      folded.appendChild(make("summary", "replaces", "font-weight:600;cursor:pointer"));
      folded.appendChild(make("div", n.originals.join("\n"), "white-space:pre-wrap;overflow-wrap:anywhere"));
      sidebar.appendChild(folded);
    }
  }
  for (const name of Object.keys(nodes)) {
    if (!boxes[name]) continue;
    const box = boxes[name];
    box.style.cursor = "pointer";
    box.setAttribute("tabindex", "0");
    box.setAttribute("role", "button");
    box.setAttribute("aria-label", (nodes[name].layer + " " + nodes[name].op).trim());
    box.onclick = function () { if (!dragged) open(name); };
    box.onkeydown = function (event) {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      open(name);
    };
    box.onfocus = function () { if (box.matches(":focus-visible")) reveal(box); };
  }
  if (sidebar) {
    for (const link of sidebar.querySelectorAll("[data-open]")) {
      link.onclick = function (event) {
        event.preventDefault();
        const name = link.dataset.open;
        if (boxes[name]) reveal(boxes[name]);
        open(name);
      };
    }
  }
  if (view) {
    const again = function () { if (!moved) start(); };
    setTimeout(start);  // after Panzoom's own start
    addEventListener("load", again);  // what stands beside it has its width now
    addEventListener("resize", again);
  }
  if (facts.map) tileMap(facts.map, sidebar);
})();
