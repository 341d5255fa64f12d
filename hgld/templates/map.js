// A map of up to 50,000 images: a dot each, coloured by the classes of a level. A lasso or a class chooses dots.
for (const figure of document.querySelectorAll("figure.map")) {
  const bytes = Uint8Array.from(atob(JSON.parse(figure.querySelector("script").textContent)), (letter) => letter.charCodeAt(0));
  const unpacked = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  new Response(unpacked).json().then((map) => show(figure, map));
}

function show(figure, map) {
  const [canvas, choice, legend, said] = ["canvas", "select", ".legend", "[role=status]"].map((part) => figure.querySelector(part));
  const pictured = [...figure.querySelectorAll("[data-point]")].map((tile) => [tile, Number(tile.dataset.point)]);
  const context = canvas.getContext("2d"), count = map.x.length;
  const dots = document.createElement("canvas").getContext("2d"); // drawn per choice, and copied while a lasso moves
  const [SIDE, PAD, MOST_COLORS, MOST_NAMED, MOST_KEYS] = [4095, 8, 10, 4, 24];
  let level = map.levels[map.levels.length - 1], largest = [], chosen = null, lasso = [], size = 0;
  for (const one of map.levels) choice.add(new Option(one.name, one.name, false, one === level));

  const sizesOf = (points) => { // classes of the level with their number of points, the largest first
    const sizes = new Map();
    for (const i of points) sizes.set(level.classes[i], (sizes.get(level.classes[i]) ?? 0) + 1);
    return [...sizes].sort((a, b) => b[1] - a[1] || a[0] - b[0]);
  };
  const every = Array.from({ length: count }, (_, i) => i);
  const place = (i) => [PAD + (map.x[i] / SIDE) * (size - 2 * PAD), PAD + (map.y[i] / SIDE) * (size - 2 * PAD)];
  const drawDots = () => {
    const style = getComputedStyle(document.documentElement);
    const colors = [...Array(MOST_COLORS).keys()].map((i) => style.getPropertyValue(`--s${i}`).trim());
    const radius = count > 5000 ? 2 : count > 800 ? 3 : 5;
    const layers = Array.from({ length: MOST_COLORS + 1 }, () => []);
    const colorOf = new Map(largest.map(([label], i) => [label, i]));
    for (const i of every) layers[colorOf.get(level.classes[i]) ?? MOST_COLORS].push(i);
    dots.clearRect(0, 0, size, size);
    dots.globalAlpha = 0.85;
    for (const [color, layer] of [...layers.entries()].reverse()) { // other classes are below the largest
      dots.fillStyle = colors[color] ?? style.getPropertyValue("--others").trim();
      for (const i of layer) {
        const [x, y] = place(i);
        if (chosen) dots.globalAlpha = chosen.has(i) ? 0.85 : 0.12;
        dots.fillRect(x - radius / 2, y - radius / 2, radius, radius);
      }
    }
    draw();
  };
  const draw = () => {
    context.clearRect(0, 0, size, size);
    if (size) context.drawImage(dots.canvas, 0, 0, size, size);
    if (!lasso.length) return;
    context.strokeStyle = getComputedStyle(canvas).getPropertyValue("--ink").trim();
    context.beginPath();
    for (const point of lasso) context.lineTo(...point);
    context.closePath();
    context.stroke();
  };
  const choose = (points, pressed) => {
    chosen = points && new Set(points);
    for (const button of legend.children) button.setAttribute("aria-pressed", String(button === pressed));
    let pictures = 0;
    for (const [tile, i] of pictured) {
      tile.hidden = Boolean(chosen) && !chosen.has(i);
      pictures += !tile.hidden;
    }
    if (chosen) {
      const sizes = sizesOf(points), named = sizes.slice(0, MOST_NAMED).map(([label, number]) => `${level.names[label]} ${number.toLocaleString("en")}`);
      const rest = sizes.length > MOST_NAMED ? ` and ${(sizes.length - MOST_NAMED).toLocaleString("en")} more classes` : "";
      const keys = points.slice(0, MOST_KEYS).map((i) => map.keys[i]).join(", ");
      said.textContent = `${points.length.toLocaleString("en")} images: ${named.join(", ")}${rest}. ${keys}${points.length > MOST_KEYS ? ", …" : ""}`;
    } else said.textContent = `${count.toLocaleString("en")} images.`;
    drawDots();
  };
  const color = () => {
    level = map.levels.find((one) => one.name === choice.value);
    largest = sizesOf(every).slice(0, MOST_COLORS);
    legend.replaceChildren(...largest.map(([label], i) => {
      const button = Object.assign(document.createElement("button"), { type: "button" });
      const dot = Object.assign(document.createElement("span"), { className: "dot" });
      dot.style.background = `var(--s${i})`;
      button.append(dot, Object.assign(document.createElement("bdi"), { textContent: level.names[label] }));
      button.addEventListener("click", () => {
        const isOn = button.getAttribute("aria-pressed") === "true";
        choose(isOn ? null : every.filter((point) => level.classes[point] === label), isOn ? null : button);
      });
      return button;
    }));
    choose(null, null);
  };
  const isInside = ([x, y], shape) => { // a ray to the right crosses the shape's edges an odd number of times
    let isOdd = false;
    for (let i = 0, last = shape.length - 1; i < shape.length; last = i, i += 1) {
      const [ax, ay] = shape[i], [bx, by] = shape[last];
      if (ay > y !== by > y && x < ax + ((y - ay) * (bx - ax)) / (by - ay)) isOdd = !isOdd;
    }
    return isOdd;
  };
  canvas.addEventListener("mousedown", (event) => event.preventDefault()); // if text is selected, a lasso would drag it
  canvas.addEventListener("pointerdown", (event) => {
    lasso = [[event.offsetX, event.offsetY]];
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!lasso.length) return;
    // A slow page is told several movements at once; their corners belong to the line as well.
    const box = canvas.getBoundingClientRect(), all = event.getCoalescedEvents?.() ?? [];
    for (const one of all.length ? all : [event]) lasso.push([one.clientX - box.left, one.clientY - box.top]);
    requestAnimationFrame(draw);
  });
  canvas.addEventListener("pointerup", () => {
    const shape = lasso.length > 2 ? lasso : [];
    lasso = [];
    const points = shape.length ? every.filter((i) => isInside(place(i), shape)) : [];
    choose(points.length ? points : null, null);
  });
  canvas.addEventListener("pointercancel", () => { lasso = []; draw(); });
  choice.addEventListener("change", color);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawDots);
  color();
  new ResizeObserver(() => {
    const ratio = devicePixelRatio || 1;
    size = canvas.clientWidth;
    for (const one of [context, dots]) {
      [one.canvas.width, one.canvas.height] = [size * ratio, size * ratio];
      one.setTransform(ratio, 0, 0, ratio, 0, 0);
    }
    drawDots();
  }).observe(canvas);
  performance.mark("map drawn");
}
