// A click on a class shows only its images among the matches. The page of hgld serve searches the class instead.
document.addEventListener("click", (event) => {
  const button = event.target.closest(".matches nav button");
  if (!button) return;
  const section = button.closest(".matches"), isOn = button.getAttribute("aria-pressed") !== "true";
  const { level, class: name } = button.dataset;
  if (!section.dispatchEvent(new CustomEvent("within", { bubbles: true, cancelable: true, detail: isOn ? { level, class: name } : {} }))) return;
  for (const other of section.querySelectorAll("nav button")) other.setAttribute("aria-pressed", String(isOn && other === button));
  const tiles = [...section.querySelectorAll("[data-classes]")];
  for (const tile of tiles) tile.hidden = isOn && JSON.parse(tile.dataset.classes)[level] !== name;
  section.querySelector("output").textContent = isOn ? `${tiles.filter((tile) => !tile.hidden).length} of ${tiles.length} shown` : "";
});
