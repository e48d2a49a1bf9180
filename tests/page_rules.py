"""Rules for any content of a page, checked in a browser: contrast, labels, order, width, focus.

After WCAG 2.2: 1.3.1, 1.4.3, 1.4.10, 1.4.11, 2.4.6, 2.4.7, 2.5.8, 3.3.2, 4.1.2. Each script returns the violations.
"""

from typing import Final

CONTRAST: Final = """
() => {
  const channels = (text) => {
    const numbers = text.match(/[\\d.]+/g).map(Number);
    return numbers.length === 3 ? [...numbers, 1] : numbers;
  };
  const over = ([r, g, b, a], below) => [r, g, b].map((value, at) => value * a + below[at] * (1 - a));
  const luminance = (color) => {
    const [r, g, b] = color.map((value) => {
      const part = value / 255;
      return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ratio = (one, other) => {
    const [low, high] = [luminance(one), luminance(other)].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  };
  const ground = (element) => {
    const line = [];
    for (let at = element; at; at = at.parentElement) line.unshift(at);
    return line.reduce((below, at) => over(channels(getComputedStyle(at).backgroundColor), below), [255, 255, 255]);
  };
  const seen = (element) => {
    if (!element.checkVisibility({ visibilityProperty: true, opacityProperty: true })) return false;
    const box = element.getBoundingClientRect();
    return box.width > 1 && box.height > 1 && box.right > 0;
  };
  const wrong = [];
  let checked = 0;
  const check = (element, color, least, what) => {
    const below = ground(element);
    const found = ratio(over(channels(color), below), below);
    checked += 1;
    if (found < least) wrong.push(`${what}: ${found.toFixed(2)} is below ${least}`);
  };
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const element = texts.currentNode.parentElement;
    if (!texts.currentNode.data.trim() || element.closest("noscript, :disabled") || !seen(element)) continue;
    const style = getComputedStyle(element);
    const size = parseFloat(style.fontSize);
    const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    check(element, style.color, large ? 3 : 4.5, `text "${texts.currentNode.data.trim().slice(0, 40)}"`);
  }
  for (const element of document.querySelectorAll("svg.sign")) {
    if (seen(element)) check(element.parentElement, getComputedStyle(element).color, 3, "a sign");
  }
  for (const element of document.querySelectorAll("input")) {
    check(element.parentElement, getComputedStyle(element).borderTopColor, 3, `the border of ${element.id}`);
  }
  if (checked < 100) wrong.push(`only ${checked} texts were looked at`);
  return wrong;
}
"""

FORM: Final = """
() => {
  const wrong = [];
  const all = (selector) => [...document.querySelectorAll(selector)];
  const expect = (holds, what) => holds || wrong.push(what);
  const name = (element) => {
    const ids = (element.getAttribute("aria-labelledby") || "").split(" ").filter(Boolean);
    if (ids.length) return ids.map((id) => document.getElementById(id)?.textContent ?? "").join(" ").trim();
    return (element.getAttribute("aria-label") || "").trim();
  };
  expect(document.documentElement.lang, "the page names no language");
  expect(document.title.trim(), "the page has no title");
  for (const [tag, count] of [["h1", 1], ["main", 1], ["header", 1], ["footer", 1]]) {
    expect(all(tag).length === count, `${all(tag).length} of ${tag}`);
  }
  let level = 0;
  for (const heading of all("h1, h2, h3, h4, h5, h6")) {
    if (!heading.checkVisibility()) continue;
    const own = Number(heading.tagName[1]);
    expect(own <= level + 1, `${heading.tagName} "${heading.textContent}" follows level ${level}`);
    expect(heading.textContent.trim(), `an empty ${heading.tagName}`);
    level = own;
  }
  for (const section of all("section, [role=region], [role=group], [role=log], [role=search]")) {
    expect(name(section), `no name: ${section.outerHTML.slice(0, 60)}`);
  }
  for (const field of all("input, select, textarea")) {
    expect([...field.labels].some((label) => label.textContent.trim()), `no label: ${field.id}`);
  }
  for (const control of all("button, a[href]")) {
    expect(control.textContent.trim() || name(control), `no text: ${control.outerHTML.slice(0, 60)}`);
  }
  for (const control of all("button, input")) {
    if (!control.checkVisibility()) continue;
    const box = control.getBoundingClientRect();
    expect(box.width >= 24 && box.height >= 24, `too small: ${control.id || control.textContent}`);
  }
  for (const image of all("img")) expect(image.hasAttribute("alt"), "an image without alt");
  for (const drawing of all("svg")) {
    expect(drawing.getAttribute("aria-hidden") === "true" || name(drawing), "a drawing neither hidden nor named");
  }
  for (const table of all("table")) {
    expect((table.caption && table.caption.textContent.trim()) || name(table), "a table without caption");
    for (const head of table.querySelectorAll("th")) expect(head.scope, `a heading without scope: ${head.textContent}`);
  }
  for (const list of all("ul, ol")) {
    expect([...list.children].every((child) => child.tagName === "LI"), `a list with others than items: ${list.id}`);
    expect(!list.hasAttribute("role"), `a list that is said to be none: ${list.id}`);
  }
  for (const list of all("dl")) {
    expect([...list.children].every((child) => ["DIV", "DT", "DD"].includes(child.tagName)), `terms: ${list.id}`);
  }
  const ids = all("[id]").map((element) => element.id);
  expect(new Set(ids).size === ids.length, `an id comes twice: ${ids.filter((id, at) => ids.indexOf(id) !== at)}`);
  for (const attribute of ["aria-labelledby", "aria-describedby", "for"]) {
    for (const element of all(`[${attribute}]`)) {
      for (const id of element.getAttribute(attribute).split(" ")) {
        expect(document.getElementById(id), `${attribute}=${id}`);
      }
    }
  }
  expect(!all("[tabindex]").some((element) => element.tabIndex > 0), "an order of focus of its own");
  return wrong;
}
"""

ROOM: Final = """
() => {
  const width = document.documentElement.clientWidth;
  const inside = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const style = getComputedStyle(at);
      if (style.clipPath !== "none" || (at !== element && style.overflowX === "auto")) return true;
    }
    return false;
  };
  const wide = [...document.body.querySelectorAll("*")].filter(
    (element) => element.checkVisibility() && !inside(element) && element.getBoundingClientRect().right > width + 1,
  );
  const found = wide.map((element) => `${element.tagName} "${element.textContent.slice(0, 30)}"`);
  return document.documentElement.scrollWidth > width ? ["the page scrolls sideways", ...found] : found;
}
"""

FOCUS: Final = """
() => {
  const element = document.activeElement;
  const style = getComputedStyle(element);
  const box = element.getBoundingClientRect();
  return {
    name: (element.id || element.textContent || element.tagName).trim().slice(0, 40),
    outlined: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2,
    seen: box.bottom > 0 && box.top < innerHeight && box.right > 0 && box.left < innerWidth,
    body: element === document.body,
  };
}
"""
