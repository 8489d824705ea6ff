// Who is signed in, and the way out.

import { get, post } from "./api.js";
import { h } from "./dom.js";

/** Show it at the end of `place`. */
export async function session(place, signal) {
  const who = await get(["session"], {}, signal);
  place.append(h("p", { class: "who" }, `${who.name} (${who.role})`,
    h("button", { type: "button", onclick: leave }, "Sign out")));
}

async function leave() {
  await post(["session", "end"], {});
  location.reload();
}
