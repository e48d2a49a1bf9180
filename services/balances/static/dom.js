// Making and changing elements. What holds: all text goes in as text, never as markup; what has not changed is not
// touched, so that a screen reader announces changes only.

const SVG = "http://www.w3.org/2000/svg";

/** An element with attributes and children; a child that is a string becomes text. */
export const el = (name, attributes = {}, ...children) => {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) made.setAttribute(key, value);
  }
  made.append(...children.filter((child) => child !== null));
  return made;
};

export const svg = (name, attributes = {}, ...children) => {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
};

/** A sign of the page's own set: good, bad, warn or unknown. It says nothing that the text next to it does not say. */
export const sign = (kind) => svg("svg", { class: "sign", "aria-hidden": "true" }, svg("use", { href: "#sign-" + kind }));

export const setSign = (element, kind) => {
  const use = element.querySelector(".sign use");
  if (use.getAttribute("href") !== "#sign-" + kind) use.setAttribute("href", "#sign-" + kind);
};

export const setText = (element, text) => {
  if (element.textContent !== text) element.textContent = text;
};

export const setData = (element, name, value) => {
  if (element.dataset[name] !== value) element.dataset[name] = value;
};

export const find = (id) => document.getElementById(id);
