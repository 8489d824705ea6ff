// Which page it is stands in the address; each page is a module.

import { session } from "./session.js";
import { age, failed, nowhere } from "./ui.js";

const main = document.getElementById("main");
const name = location.pathname.split("/").pop();
const leaving = new AbortController();
addEventListener("pagehide", () => leaving.abort());
addEventListener("pageshow", (event) => event.persisted && location.reload());

for (const link of document.querySelectorAll("nav a")) {
  const here = link.getAttribute("href") === (name === "run" ? "runs" : name);
  if (here) link.setAttribute("aria-current", "page");
}

setInterval(age, 1000);
if ("accounts" in document.body.dataset) {
  session(document.querySelector("header"), leaving.signal).catch(() => {}); // the page tells why not
}

try {
  if ("nowhere" in document.body.dataset) nowhere(main, name);
  else {
    const page = await import(`./pages/${name}.js`);
    document.title = `${page.title} – Surefoot`;
    await page.show(main, new URLSearchParams(location.search), leaving.signal);
  }
} catch (error) {
  if (!leaving.signal.aborted) failed(main, error);
}
