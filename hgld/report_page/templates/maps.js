"use strict";
// Maps are whole pictures without this; it names the dot that is pointed at, and makes room between dots that lie close.
for (const figure of document.querySelectorAll("figure[data-dots]")) {
  const REACH = 22, MOST = 32, STEP = 1.5; // pixels from a dot; times larger at most; and at a press
  const KEYS = "Arrow keys go from dot to dot, plus and minus change the size, 0 shows the whole map.";
  const names = JSON.parse(figure.dataset.dots);
  const svg = figure.querySelector("svg");
  const uses = [...svg.querySelectorAll("g[id] use")].filter((use) => /-dots-\d+$/.test(use.closest("g[id]").id));
  if (uses.length !== names.length) continue; // never a wrong name
  const dots = uses.map((use, i) => ({ use, name: names[i], x: use.x.baseVal.value, y: use.y.baseVal.value }));
  const ends = (side) => [Math.min(...dots.map((dot) => dot[side])), Math.max(...dots.map((dot) => dot[side]))];
  const [[left, right], [top, bottom]] = [ends("x"), ends("y")];
  let [scale, dx, dy] = [1, 0, 0];
  let chosen = null, held = null;

  const element = (tag, className, text) => {
    const made = document.createElement(tag);
    made.className = className;
    made.textContent = text;
    return made;
  };
  const frame = element("div", "map", "");
  const label = element("div", "dotname", "");
  label.setAttribute("role", "status");
  svg.before(frame);
  frame.append(svg, label);
  svg.tabIndex = 0;
  svg.setAttribute("role", "application"); // of a picture a screen reader would keep the arrow keys for itself
  svg.setAttribute("aria-roledescription", "map");
  svg.setAttribute("aria-label", `${svg.getAttribute("aria-label")}. ${KEYS}`);
  const spot = document.createElementNS(svg.namespaceURI, "circle");
  spot.setAttribute("class", "spot");
  spot.setAttribute("r", "5");
  uses[0].parentNode.parentNode.append(spot);

  const place = (dot) => [dot.x * scale + dx, dot.y * scale + dy];
  const within = (value, least, most) => Math.min(Math.max(value, least), most);
  const inside = ([x, y]) => x >= left - 1 && x <= right + 1 && y >= top - 1 && y <= bottom + 1;
  const user = (event) => {
    const point = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
    return [point.x, point.y];
  };
  const draw = () => {
    dx = within(dx, right * (1 - scale), left * (1 - scale));
    dy = within(dy, bottom * (1 - scale), top * (1 - scale));
    for (const dot of dots) {
      const at = place(dot);
      dot.use.setAttribute("x", at[0]);
      dot.use.setAttribute("y", at[1]);
      dot.use.style.display = inside(at) ? "" : "none";
    }
    frame.classList.toggle("enlarged", scale > 1);
    show(chosen);
  };
  const show = (dot) => {
    chosen = dot;
    const shown = dot !== null && inside(place(dot));
    spot.style.display = shown ? "block" : "none";
    const said = shown ? dot.name : "";
    if (label.textContent !== said) label.textContent = said; // never hidden: what appears with its text is not read out
    if (!shown) return;
    const [x, y] = place(dot);
    spot.setAttribute("cx", x);
    spot.setAttribute("cy", y);
    const at = new DOMPoint(x, y).matrixTransform(svg.getScreenCTM());
    const box = frame.getBoundingClientRect();
    label.style.left = `${within(at.x - box.left - label.offsetWidth / 2, 0, box.width - label.offsetWidth)}px`;
    const above = at.y - box.top - label.offsetHeight - 12;
    label.style.top = `${above >= 0 ? above : at.y - box.top + 12}px`;
  };
  const enlarge = (factor, x = (left + right) / 2, y = (top + bottom) / 2) => {
    const next = within(scale * factor, 1, MOST);
    [dx, dy] = [x - ((x - dx) / scale) * next, y - ((y - dy) / scale) * next];
    scale = next;
    draw();
  };
  const nearest = (event) => {
    const [x, y] = user(event);
    const reach = REACH / svg.getScreenCTM().a;
    let found = null, least = reach * reach;
    for (const dot of dots) {
      const [a, b] = place(dot);
      const apart = (a - x) ** 2 + (b - y) ** 2;
      if (apart < least && inside([a, b])) [found, least] = [dot, apart];
    }
    return found;
  };
  const towards = (across, down) => {
    if (chosen === null || !inside(place(chosen))) return dots.find((dot) => inside(place(dot))) ?? null;
    const [x, y] = place(chosen);
    let found = chosen, least = Infinity;
    for (const dot of dots) {
      const [a, b] = place(dot);
      const [along, aside] = [(a - x) * across + (b - y) * down, Math.abs((a - x) * down) + Math.abs((b - y) * across)];
      if (along > 0 && along + 2 * aside < least && inside([a, b])) [found, least] = [dot, along + 2 * aside];
    }
    return found;
  };
  const centre = () => (chosen === null ? [] : place(chosen));
  const keys = {
    ArrowLeft: () => show(towards(-1, 0)), ArrowRight: () => show(towards(1, 0)),
    ArrowUp: () => show(towards(0, -1)), ArrowDown: () => show(towards(0, 1)),
    "+": () => enlarge(STEP, ...centre()), "-": () => enlarge(1 / STEP, ...centre()), 0: () => enlarge(0),
    Escape: () => show(null),
  };
  svg.addEventListener("keydown", (event) => {
    if (!(event.key in keys) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    keys[event.key]();
  });
  svg.addEventListener("pointerdown", (event) => {
    show(nearest(event));
    if (scale === 1 || event.button || !event.isPrimary) return;
    held = user(event);
    svg.setPointerCapture(event.pointerId);
  });
  svg.addEventListener("pointermove", (event) => {
    if (held === null) return show(nearest(event));
    const at = user(event);
    [dx, dy] = [dx + at[0] - held[0], dy + at[1] - held[1]];
    held = at;
    draw();
  });
  for (const end of ["pointerup", "pointercancel"]) svg.addEventListener(end, () => { held = null; });
  svg.addEventListener("pointerleave", (event) => { if (held === null && event.pointerType === "mouse") show(null); });
  svg.addEventListener("dblclick", (event) => enlarge(STEP * STEP, ...user(event)));

  const bar = element("div", "mapkeys", "");
  const buttons = [["+", "Larger", STEP], ["−", "Smaller", 1 / STEP], ["whole", "Show the whole map", 0]];
  for (const [text, says, factor] of buttons) {
    const button = element("button", "", text);
    button.type = "button";
    button.title = says;
    button.setAttribute("aria-label", says);
    button.addEventListener("click", () => enlarge(factor, ...(factor ? centre() : [])));
    bar.append(button);
  }
  frame.after(bar);
}
