// Make an element. Text from the data is set as a property, never parsed as HTML.
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

// Text from the data within a sentence, with its own writing direction.
export const own = (text) => node("bdi", { textContent: text });

// A probability as a percentage; null if it is unknown.
export const percent = (share) => (share === null ? null : `${Math.round(share * 100)}%`);
