// Make an element. Properties are set, never parsed, so that text from the data stays text.
export function node(tag, properties = {}, children = []) {
  const { role, dataset, ...rest } = properties;
  const element = Object.assign(document.createElement(tag), rest);
  if (role) element.setAttribute("role", role);
  if (dataset) Object.assign(element.dataset, dataset);
  element.append(...children);
  return element;
}

export const count = (number, one, many = `${one}s`) => `${number.toLocaleString("en")} ${number === 1 ? one : many}`;
export const some = (names) => (names.length > 3 ? `${names.slice(0, 2).join(", ")} and ${(names.length - 2).toLocaleString("en")} more` : names.join(", "));

// A text of the data within a sentence: its direction is its own.
export const own = (text) => node("bdi", { textContent: text });

// A probability as people read it; null where it is not known.
export const percent = (share) => (share === null ? null : `${Math.round(share * 100)}%`);
