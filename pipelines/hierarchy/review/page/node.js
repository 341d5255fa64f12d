// Make an element. Properties are set, never parsed, so that text from the data stays text.
export function node(tag, properties = {}, children = []) {
  const element = Object.assign(document.createElement(tag), withoutRole(properties));
  if (properties.role) element.setAttribute("role", properties.role);
  element.append(...children);
  return element;
}

function withoutRole({ role, ...rest }) {
  return rest;
}

export const count = (number, one, many = `${one}s`) => `${number.toLocaleString("en")} ${number === 1 ? one : many}`;
