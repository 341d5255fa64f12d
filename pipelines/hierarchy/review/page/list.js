// A list of any length: the document contains only the visible rows.
// The CSS variable --row is the height of a row. Arrows, Home, End, Page Up and Down move; Space selects; Shift extends.

export class List {
  constructor(element, { key, draw, onActive, onOpen, onSpace, multiple = false }) {
    Object.assign(this, { element, key, draw, onActive, onOpen, onSpace, multiple });
    this.items = [];
    this.active = 0;
    this.anchor = 0;
    this.selected = new Set();
    this.space = document.createElement("div");
    this.space.className = "space";
    element.append(this.space);
    element.addEventListener("scroll", () => this.render(), { passive: true });
    element.addEventListener("keydown", (event) => this.keydown(event));
    this.space.addEventListener("click", (event) => this.click(event));
    new ResizeObserver(() => this.render()).observe(element);
  }

  get rowHeight() {
    return parseFloat(getComputedStyle(this.element).getPropertyValue("--row")) || 48;
  }

  // Show other items. The active item stays active and at the same position if it is among them.
  show(items, { keep = true } = {}) {
    const before = keep ? this.current : null, at = this.active;
    this.items = items;
    const known = new Set(items.map(this.key));
    this.selected = keep ? new Set([...this.selected].filter((k) => known.has(k))) : new Set();
    const found = before === null ? 0 : items.findIndex((item) => this.key(item) === this.key(before));
    this.active = Math.max(0, found >= 0 ? found : Math.min(this.active, items.length - 1));
    this.anchor = this.active;
    this.space.style.height = `${items.length * this.rowHeight}px`;
    if (!keep) this.element.scrollTop = 0;
    else if (found >= 0 && found !== at) this.element.scrollTop += (found - at) * this.rowHeight;
    this.render();
  }

  get current() {
    return this.items[this.active] ?? null;
  }

  // The subject of a decision: the selected rows, or else the active row.
  get chosen() {
    if (this.selected.size) return this.items.filter((item) => this.selected.has(this.key(item)));
    return this.current === null ? [] : [this.current];
  }

  go(index, { extend = false, quiet = false } = {}) {
    if (!this.items.length) return;
    this.active = Math.max(0, Math.min(index, this.items.length - 1));
    if (extend && this.multiple) {
      const [low, high] = [this.anchor, this.active].sort((a, b) => a - b);
      this.selected = new Set(this.items.slice(low, high + 1).map(this.key));
    } else {
      this.anchor = this.active;
    }
    const top = this.active * this.rowHeight;
    const bottom = top + this.rowHeight - this.element.clientHeight;
    if (this.element.scrollTop > top) this.element.scrollTop = top;
    else if (this.element.scrollTop < bottom) this.element.scrollTop = bottom;
    this.render();
    if (!quiet && this.current !== null) this.onActive?.(this.current);
  }

  // Select items, the active one among them.
  select(items) {
    this.selected = new Set(items.map(this.key));
    this.render();
    this.onActive?.(this.current);
  }

  toggle(index) {
    const key = this.key(this.items[index]);
    if (!this.selected.delete(key)) this.selected.add(key);
    this.render();
    this.onActive?.(this.current);
  }

  keydown(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) {
      if (event.key === "a" && this.multiple && !event.altKey) {
        this.selected = new Set(this.items.map(this.key));
        this.render();
        this.onActive?.(this.current);
        event.preventDefault();
      }
      return;
    }
    const page = Math.max(1, Math.floor(this.element.clientHeight / this.rowHeight) - 1);
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
    if (event.key in steps) this.go(this.active + steps[event.key], { extend: event.shiftKey });
    else if (event.key === " " && this.multiple && this.current !== null) { if (!event.repeat) this.spaced(this.active); }
    else if (event.key === "Enter" && this.current !== null) { if (this.onOpen?.(this.current) === false) return; }
    else if (event.key === "Escape" && this.selected.size) {
      this.selected.clear();
      this.render();
      this.onActive?.(this.current);
    } else return;
    event.preventDefault();
    event.stopPropagation();
  }

  spaced(index) {
    if (!this.onSpace?.(this.items[index])) this.toggle(index);
  }

  click(event) {
    const row = event.target.closest("[data-index]");
    if (!row) return;
    const index = Number(row.dataset.index);
    if (this.multiple && event.target.closest(".tick")) {
      this.active = this.anchor = index;
      this.spaced(index);
    } else if (this.multiple && (event.ctrlKey || event.metaKey)) {
      this.active = this.anchor = index;
      this.toggle(index);
    } else {
      if (!event.shiftKey) this.selected.clear();
      const again = index === this.active;
      this.go(index, { extend: event.shiftKey });
      if (!event.shiftKey) this.onOpen?.(this.current, true, again);
    }
  }

  render() {
    const height = this.rowHeight;
    this.space.style.height = `${this.items.length * height}px`;
    const first = Math.max(0, Math.floor(this.element.scrollTop / height) - 4);
    const last = Math.min(this.items.length, Math.ceil((this.element.scrollTop + this.element.clientHeight) / height) + 4);
    const rows = [];
    for (let index = first; index < last; index++) {
      const item = this.items[index];
      const row = document.createElement("div");
      row.id = `${this.element.id}-${index}`;
      row.className = "row";
      row.dataset.index = index;
      row.setAttribute("role", "option");
      row.setAttribute("aria-setsize", this.items.length);
      row.setAttribute("aria-posinset", index + 1);
      const chosen = this.multiple ? this.selected.has(this.key(item)) : index === this.active;
      row.setAttribute("aria-selected", chosen);
      row.classList.toggle("active", index === this.active);
      row.style.transform = `translateY(${index * height}px)`;
      this.draw(row, item, index);
      rows.push(row);
    }
    this.space.replaceChildren(...rows);
    if (this.current !== null) this.element.setAttribute("aria-activedescendant", `${this.element.id}-${this.active}`);
    else this.element.removeAttribute("aria-activedescendant");
  }
}
