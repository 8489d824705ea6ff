// Elements from values. Whatever comes from outside ends up in text nodes and attributes, never in
// markup; the Content-Security-Policy refuses anything else.

const SVG = "http://www.w3.org/2000/svg";
// control and format characters: bidirectional overrides, zero-width marks, escapes of terminals
const UNSEEN = /(?![\n\t])[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Cs}]/gu;
// a page of ours, with parameters or without; so no text becomes an address of another kind
const OURS = /^(?:[a-z]+)?(?:\?[^#]*)?(?:#[\w-]*)?$/;

/** The text with what cannot be seen made visible. */
export function seen(text) {
  return String(text).replace(UNSEEN, (sign) => `\\u{${sign.codePointAt(0).toString(16)}}`);
}

function filled(element, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) {
      if (typeof value !== "function") throw new TypeError(`${name} takes a function`);
      element.addEventListener(name.slice(2), value);
    } else if (name === "style") {
      for (const [key, each] of Object.entries(value)) element.style.setProperty(key, each);
    } else if (name === "href" && !OURS.test(value)) {
      throw new TypeError("a link leads to a page of the dashboard");
    } else {
      element.setAttribute(name, value === true ? "" : seen(value));
    }
  }
  for (const child of children.flat(9)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(seen(child)));
  }
  return element;
}

/** h("a", {href: "runs", class: "x", onclick: f}, "text", other, [more]) */
export function h(tag, properties, ...children) {
  return filled(document.createElement(tag), properties, children);
}

/** The same for SVG. */
export function svg(tag, properties, ...children) {
  return filled(document.createElementNS(SVG, tag), properties, children);
}

/** Have the element hold just these. */
export function put(element, ...children) {
  element.replaceChildren();
  return filled(element, null, children);
}

/** The address of a page of the dashboard; parameters without a value are left out. */
export function address(page, params = {}) {
  const query = new URLSearchParams(
    Object.entries(params).filter(([, value]) => value !== null && value !== undefined && value !== ""),
  ).toString();
  return query ? `${page}?${query}` : page;
}
