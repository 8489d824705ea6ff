// What a step writes while it runs, as it comes: tokens of a model.

import { h, put, seen } from "./dom.js";

// so many characters of each stay in the page, the latest
const MOST = 20000;

/** A place for it, and what takes a piece: {kind: begin, text, end or discard, name, text}. */
export function outputs() {
  const place = h("div", { class: "grid" });
  const boxes = new Map();
  return [place, ({ kind, name, text }) => {
    if (kind === "discard") { // its step has ended, or is tried again
      boxes.clear();
      put(place);
      return;
    }
    if (!boxes.has(name)) {
      const box = h("pre", { tabindex: "0", role: "region", "aria-label": `Output ${name}` });
      boxes.set(name, box);
      place.append(h("section", { class: "card" }, h("h2", null, `Output: ${name}`), box));
    }
    const box = boxes.get(name);
    if (kind === "begin") put(box);
    box.append(document.createTextNode(seen(text)));
    if (box.textContent.length > 2 * MOST) put(box, box.textContent.slice(-MOST));
    box.scrollTop = box.scrollHeight;
  }];
}
