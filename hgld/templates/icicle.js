// An icicle: a row per level, the coarsest on top; a class is as wide as its share of the images. At most one rectangle is
// drawn per level and pixel, so that 50,000 classes move as smoothly as fifty.
for (const figure of document.querySelectorAll("figure.icicle")) {
  const tree = JSON.parse(figure.querySelector("script").textContent);
  const [canvas, bar, said] = ["canvas", ".bar", "[role=status]"].map((part) => figure.querySelector(part));
  const [crumbs, choice, search, found, ramp] = ["nav", "select", "input", "output", ".ramp"].map((part) => bar.querySelector(part));
  const shown = [...figure.querySelectorAll("[data-path]")].map((one) => [one, one.dataset.path.split(" ").map(Number)]);
  const [low, high] = [ramp.previousElementSibling, ramp.nextElementSibling];
  const context = canvas.getContext("2d");
  const [GAP, STEPS, FIRST, MOST_SHOWN, ROW] = [1, 64, 28, 12, Math.max(44, Math.min(88, Math.floor(330 / tree.levels.length)))];
  const topOf = (row) => (row ? FIRST + (row - 1) * ROW : 0), tall = (row) => (row ? ROW : FIRST);
  // Lightness falls along both ramps, so that they can be read in grey and by the colour-blind.
  const ramps = { count: ["#e6f0f6", "#7db4d3", "#2b6f9e", "#123a6b"], share: ["#f4f0e3", "#eab04e", "#b8482c", "#541320"] };

  // -- the nodes: node 0 is the whole; classes whose parent is unknown are below a node of their own -------------------
  const coarsest = tree.levels.length - 1;
  const nodes = [{ name: "all", row: 0, items: 0, above: null, below: [], level: -1, index: -1 }];
  const NONE = Object.freeze([]); // classes of the finest level have nothing below them
  const add = (name, level, index, items, above) => {
    const node = { name, row: coarsest - level + 1, items, above, below: level ? [] : NONE, level, index, left: 0, right: 0, paint: null };
    above.below.push(node);
    nodes.push(node);
    return node;
  };
  let upper = [];
  for (let level = coarsest; level >= 0; level--) {
    const { names, parents, items } = tree.levels[level];
    let unknown = null;
    upper = names.map((name, i) => {
      let above = level === coarsest ? nodes[0] : upper[parents[i]];
      above ??= unknown ??= add(null, level + 1, -1, 0, nodes[0]);
      if (above === unknown) unknown.items += items[i];
      return add(name, level, i, items[i], above);
    });
  }
  const nameOf = (node) => node.name ?? `(${tree.levels[node.level].name} unknown)`;
  nodes[0].items = nodes[0].below.reduce((sum, node) => sum + node.items, 0);
  const rows = Array.from({ length: coarsest + 2 }, () => []);
  const lay = (node, left, width) => {
    [node.left, node.right] = [left, left + width];
    rows[node.row].push(node);
    if (node.below === NONE) return;
    node.below.sort((a, b) => b.items - a.items || (a.index - b.index));
    const total = Math.max(node.items, node.below.reduce((sum, child) => sum + child.items, 0)) || 1;
    for (const child of node.below) {
      lay(child, left, (width * child.items) / total);
      left = child.right;
    }
  };
  lay(nodes[0], 0, 1);

  // -- colours -----------------------------------------------------------------------------------------------------------
  const rgb = (color) => [1, 3, 5].map((at) => parseInt(color.slice(at, at + 2), 16));
  const tables = Object.fromEntries(Object.entries(ramps).map(([kind, stops]) => [kind, Array.from({ length: STEPS }, (_, i) => {
    const place = (i / (STEPS - 1)) * (stops.length - 1), at = Math.min(Math.floor(place), stops.length - 2);
    const [from, to] = [rgb(stops[at]), rgb(stops[at + 1])];
    const mixed = from.map((value, j) => Math.round(value + (to[j] - value) * (place - at)));
    return { fill: `rgb(${mixed})`, ink: mixed[0] * 0.299 + mixed[1] * 0.587 + mixed[2] * 0.114 > 140 ? "#1b2530" : "#ffffff" };
  })]));
  const measures = Object.keys(tree.measures);
  const UNIT = `number of ${tree.unit}`;
  for (const name of [...measures, UNIT]) choice.add(new Option(name, name));
  const valueOf = (node, measure) => (node.index < 0 ? null : tree.measures[measure][node.level][node.index]);
  let ends = {}, plain = {}, ink = "", soft = "", page = "";
  const paint = () => {
    const style = getComputedStyle(document.documentElement);
    [ink, soft, page] = ["--ink", "--others", "--card"].map((name) => style.getPropertyValue(name).trim());
    plain = { fill: soft, ink: "#10161c" };
    const isShare = choice.value !== UNIT, table = tables[isShare ? "share" : "count"];
    ends = { most: Math.max(1, ...rows.map((row) => row.reduce((most, node) => (node.row ? Math.max(most, node.items) : most), 0))) };
    for (const node of nodes) {
      const value = isShare ? valueOf(node, choice.value) : Math.log1p(node.items) / Math.log1p(ends.most);
      node.paint = node.row === 0 || value === null ? plain : table[Math.round(Math.min(Math.max(value, 0), 1) * (STEPS - 1))];
      // A class that only repeats the class above, as in a tree of uneven depth, is left blank.
      if (node.row && node.above.below.length === 1 && node.above.name === node.name) node.paint = { fill: page, ink: page };
    }
    ramp.style.background = `linear-gradient(90deg,${table.map((step) => step.fill).filter((_, i) => i % 9 === 0)})`;
    [low.textContent, high.textContent] = isShare ? ["0 %", "100 %"] : ["1", ends.most.toLocaleString("en")];
  };

  // -- drawing -----------------------------------------------------------------------------------------------------------
  let open = nodes[0], at = nodes[0], view = [0, 1], width = 0, matches = [], moving = 0;
  const firstAfter = (row, place) => { // index of the first node that ends after a place
    let [from, to] = [0, row.length];
    while (from < to) {
      const middle = (from + to) >> 1;
      if (row[middle].right > place) to = middle;
      else from = middle + 1;
    }
    return from;
  };
  const cut = (text, room) => {
    const whole = context.measureText(text).width;
    if (whole <= room) return text;
    const letters = [...text.slice(0, 400)], most = Math.floor((letters.length * (room - 10)) / context.measureText(letters.join("")).width);
    return most > 1 ? letters.slice(0, most).join("") + "…" : "";
  };
  const edges = (node) => [node.left, node.right].map((place) => ((place - view[0]) / (view[1] - view[0])) * width);
  let thin = {};
  const flush = () => {
    if (thin.fill) {
      context.fillStyle = thin.fill;
      context.fillRect(thin.from, thin.top, thin.to - thin.from, thin.high - GAP);
    }
    thin = {};
  };
  const shape = (node, [left, right]) => {
    const [from, to] = [Math.max(left, 0), Math.min(right, width)];
    const [top, high, across] = [topOf(node.row), tall(node.row), to - from];
    if (across <= 3) { // neighbours of one colour are one rectangle
      if (thin.fill !== node.paint.fill || thin.top !== top || from - thin.to > 1) {
        flush();
        thin = { fill: node.paint.fill, top, high, from };
      }
      thin.to = Math.max(to, from + 1);
      return;
    }
    context.fillStyle = node.paint.fill;
    context.fillRect(from, top, across - GAP, high - GAP);
    if (across < 14) return;
    context.fillStyle = node.paint.ink;
    const turned = across < 48 && high > 48, text = cut(nameOf(node).replace(/\s+/g, " "), (turned ? high : across) - 10);
    context.save();
    context.translate(from, top);
    if (turned) {
      context.translate(across / 2, high - 5);
      context.rotate(-Math.PI / 2);
      context.fillText(text, 0, 0);
    } else context.fillText(text, 5, high / 2);
    context.restore();
  };
  const draw = () => {
    context.clearRect(0, 0, width, topOf(rows.length));
    context.globalAlpha = matches.length ? 0.3 : 1;
    for (const row of rows) {
      for (let i = firstAfter(row, view[0]); i < row.length && row[i].left < view[1];) {
        const placed = edges(row[i]);
        shape(row[i], placed);
        // Skip what ends within the same pixel.
        const next = placed[1] - placed[0] >= 1 ? i + 1 : firstAfter(row, view[0] + ((Math.floor(placed[0]) + 1) * (view[1] - view[0])) / width);
        i = Math.max(next, i + 1);
      }
      flush();
    }
    context.globalAlpha = 1;
    for (const node of matches) {
      const placed = edges(node);
      if (placed[1] > 0 && placed[0] < width) shape(node, placed);
    }
    flush();
    const [left, right] = edges(at);
    if (at.row && right > 0 && left < width) {
      context.strokeStyle = page;
      context.lineWidth = 5;
      const box = [Math.max(left, 0) + 2, topOf(at.row) + 2, Math.max(Math.min(right, width) - Math.max(left, 0) - 5, 2), ROW - 5];
      context.strokeRect(...box);
      context.strokeStyle = ink;
      context.lineWidth = 2;
      context.strokeRect(...box);
    }
  };
  const fit = () => {
    const ratio = devicePixelRatio || 1;
    width = canvas.clientWidth;
    [canvas.width, canvas.height] = [width * ratio, topOf(rows.length) * ratio];
    canvas.style.height = `${topOf(rows.length)}px`;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    [context.font, context.textBaseline] = ["12px system-ui, sans-serif", "middle"];
    draw();
  };

  // -- moving ------------------------------------------------------------------------------------------------------------
  const path = (node) => (node ? [...path(node.above), node] : []);
  const tell = (node) => {
    at = node;
    const level = node.level < 0 ? "" : `${tree.levels[node.level].name}: `;
    const facts = [`${node.items.toLocaleString("en")} ${tree.unit}`];
    if (node.below.length) facts.push(`${node.below.length.toLocaleString("en")} classes below`);
    for (const measure of measures) {
      const value = valueOf(node, measure);
      if (value !== null) facts.push(`${measure} ${(100 * value).toFixed(1)} %`);
    }
    const note = node.index < 0 ? "" : tree.notes?.[node.level]?.[node.index];
    said.textContent = `${level}${nameOf(node)} · ${facts.join(" · ")}${note ? ` · ${note}` : ""}`;
    let room = MOST_SHOWN;
    for (const [one, classes] of shown) one.hidden = (node.level >= 0 && classes[node.level] !== node.index) || room-- <= 0;
    if (shown.length) figure.querySelector(".shown > :last-child").hidden = room < MOST_SHOWN;
  };
  const enter = (node) => {
    open = node.below.length || !node.above ? node : node.above;
    crumbs.replaceChildren(...path(open).map((one) => {
      const button = Object.assign(document.createElement("button"), { type: "button", textContent: nameOf(one).slice(0, 60), dir: "auto" });
      if (one === open) button.setAttribute("aria-current", "true");
      button.addEventListener("click", () => { tell(one); enter(one); });
      return button;
    }));
    const [from, to] = [view, [open.left, open.right]];
    const start = performance.now(), lasts = matchMedia("(prefers-reduced-motion: reduce)").matches ? 0 : 260;
    cancelAnimationFrame(moving);
    const step = (now) => {
      const part = lasts ? Math.min(Math.max((now - start) / lasts, 0), 1) : 1, eased = part * (2 - part);
      view = part === 1 ? to : from.map((place, i) => place + (to[i] - place) * eased);
      draw();
      if (part < 1) moving = requestAnimationFrame(step);
    };
    moving = requestAnimationFrame(step);
  };
  const go = (node) => {
    if (!node || !(node.right > node.left)) return;
    tell(node);
    if (node.left < view[0] - 1e-12 || node.right > view[1] + 1e-12) enter(node.row < open.row ? node : node.above);
    else draw();
  };
  const beside = (step) => { const row = rows[at.row]; return row[row.indexOf(at) + step]; };
  const keys = {
    ArrowDown: () => go(at.below[0]),
    ArrowUp: () => go(at.above),
    ArrowLeft: () => go(beside(-1)),
    ArrowRight: () => go(beside(1)),
    Enter: () => enter(at),
    Escape: () => { const above = open.above ?? open; tell(above); enter(above); },
    Home: () => { tell(nodes[0]); enter(nodes[0]); },
  };
  canvas.addEventListener("keydown", (event) => {
    if (event.key === "/") search.focus();
    else if (Object.hasOwn(keys, event.key)) keys[event.key]();
    else return;
    event.preventDefault();
  });
  const under = (event) => {
    const row = rows[Math.max(Math.floor((event.offsetY - FIRST) / ROW) + 1, 0)] ?? [], place = view[0] + (event.offsetX / width) * (view[1] - view[0]);
    const node = row[firstAfter(row, place)];
    return node && node.left <= place ? node : null;
  };
  canvas.addEventListener("pointermove", (event) => {
    const node = under(event);
    if (node && node !== at) { tell(node); draw(); }
  });
  canvas.addEventListener("click", (event) => {
    const node = under(event);
    if (!node) return;
    const target = node === open ? node.above ?? node : node;
    tell(target);
    enter(target);
  });
  choice.addEventListener("change", () => { paint(); draw(); });
  search.addEventListener("input", () => {
    const text = search.value.trim().toLowerCase();
    matches = text ? nodes.filter((node) => node.name !== null && node.row && node.name.toLowerCase().includes(text)) : [];
    found.textContent = text ? `${matches.length.toLocaleString("en")} found` : "";
    draw();
  });
  search.addEventListener("keydown", (event) => {
    if (event.key === "Escape") { search.value = ""; search.dispatchEvent(new Event("input")); canvas.focus(); }
    if (event.key !== "Enter" || !matches.length) return;
    const next = matches[(matches.indexOf(at) + 1) % matches.length];
    tell(next);
    enter(next);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { paint(); draw(); });
  bar.hidden = false;
  paint();
  tell(nodes[0]);
  enter(nodes[0]);
  new ResizeObserver(fit).observe(canvas);
  performance.mark("icicle drawn");
}
