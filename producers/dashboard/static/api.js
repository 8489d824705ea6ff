// The gateway's API. Where it asks who is asking, the person is asked for a token. For one of the
// gateway itself, a session is begun, whose cookie no script can read. One for a proxy before it is
// kept for as long as the tab is open.

import { askToken } from "./ui.js";

const ROOT = new URL("../", location.href);
const KEPT = "surefoot-token";
const WAIT_MS = [500, 1000, 2000, 5000, 10000];

export class ApiError extends Error {
  constructor(status, message, body) {
    super(message);
    this.status = status;
    this.body = body;
  }
}

// Integers of the log are exact, also beyond 2**53; they are shown as they are.
function exact(_key, value, context) {
  const big = typeof value === "number" && Number.isInteger(value) && !Number.isSafeInteger(value);
  return big && /^-?\d+$/.test(context?.source ?? "") ? BigInt(context.source) : value;
}

export function parsed(text) {
  return JSON.parse(text, exact);
}

function url(parts, params) {
  if (parts.some((part) => /^\.{0,2}$/.test(part))) throw new ApiError(404, "Not found.");
  const found = new URL(parts.map(encodeURIComponent).join("/"), ROOT);
  for (const [name, value] of Object.entries(params ?? {})) {
    if (value !== null && value !== undefined && value !== "") found.searchParams.set(name, value);
  }
  return found;
}

function headers(more) {
  const token = sessionStorage.getItem(KEPT);
  return token ? { ...more, Authorization: `Bearer ${token}` } : more;
}

let asking = null;
let sessions = 0; // begun by this page

function ofGateway(answer) {
  return (answer.headers.get("WWW-Authenticate") ?? "").includes('realm="surefoot"');
}

async function beginSession() {
  for (let refused = false; ; refused = true) {
    const token = await askToken(refused, "You stay signed in until you sign out or close the browser.");
    if (token === null) throw new ApiError(401, "The gateway requires a token.");
    const more = { "Content-Type": "application/json", Authorization: `Bearer ${token.trim()}` };
    const answer = await fetch(new URL("session", ROOT), { method: "POST", headers: more });
    if (answer.status === 401) continue;
    if (!answer.ok) await told(answer);
    sessions += 1;
    return;
  }
}

async function send(target, options, more) {
  for (;;) {
    const asked = sessionStorage.getItem(KEPT);
    const session = sessions;
    let answer;
    try {
      answer = await fetch(target, { ...options, headers: headers(more), cache: "no-store" });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new ApiError(0, "The gateway does not answer. Retrying.");
    }
    if (answer.status !== 401) return answer;
    if (ofGateway(answer)) {
      if (session === sessions) await (asking ??= beginSession().finally(() => (asking = null)));
      continue;
    }
    if (asked !== sessionStorage.getItem(KEPT)) continue; // somebody has given one meanwhile
    asking ??= askToken(asked !== null, "This tab keeps it until it closes.").finally(() => (asking = null));
    const token = await asking;
    if (token === null) throw new ApiError(401, "The gateway requires a token.");
    sessionStorage.setItem(KEPT, token);
  }
}

async function told(answer) {
  const text = await answer.text();
  let body = null;
  try {
    body = text ? parsed(text) : null;
  } catch {
    throw new ApiError(answer.status, `Not an answer of the gateway (status ${answer.status}).`);
  }
  if (answer.ok) return body;
  throw new ApiError(
    answer.status,
    body?.error ?? body?.message ?? `The gateway answered with status ${answer.status}.`,
    body,
  );
}

/** get(["runs", agent], {status: "failed"}, signal): the JSON of the answer. Throws ApiError. */
export async function get(parts, params, signal) {
  return told(await send(url(parts, params), { signal }, { Accept: "application/json" }));
}

/** The same for what changes something. */
export async function post(parts, body, signal) {
  const options = { method: "POST", body: JSON.stringify(body), signal };
  return told(await send(url(parts), options, { "Content-Type": "application/json" }));
}

/** Server-sent events, with the token and from the last one on after a break: `take(event)` with
 * {id, type, data}. Resolves when there will be none any more, or the signal is aborted. */
export async function follow(parts, params, take, signal, state = () => {}) {
  let last = null;
  let tries = 0;
  while (!signal.aborted) {
    try {
      const more = { Accept: "text/event-stream", ...(last === null ? {} : { "Last-Event-ID": last }) };
      const answer = await send(url(parts, params), { signal }, more);
      if (answer.status === 204) return state("over");
      if (!answer.ok) await told(answer);
      state("live");
      for await (const event of frames(answer.body)) {
        tries = 0;
        last = event.id ?? last;
        take(event);
      }
    } catch (error) {
      if (signal.aborted) return;
      if (error.status >= 400 && error.status < 500 && error.status !== 429) throw error;
    }
    state("waiting");
    await pause(WAIT_MS[Math.min(tries++, WAIT_MS.length - 1)], signal);
  }
}

async function* frames(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const blocks = (rest + value).split(/\r?\n\r?\n/);
    rest = blocks.pop();
    for (const block of blocks) {
      const event = { id: null, type: "message", data: "" };
      for (const line of block.split(/\r?\n/)) {
        const [, field, text] = /^([a-z]+): ?(.*)$/.exec(line) ?? [];
        if (field === "id") event.id = text;
        else if (field === "event") event.type = text;
        else if (field === "data") event.data += text;
      }
      if (event.data) yield { ...event, data: parsed(event.data) };
    }
  }
}

export function pause(ms, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal?.addEventListener("abort", () => (clearTimeout(timer), resolve()), { once: true });
  });
}

/** Ask again and again, also after a failure, which `failed` is told of (null: it works again). Asks
 * less while nobody looks at the page. */
export async function repeat(every_ms, ask, signal, failed) {
  while (!signal.aborted) {
    try {
      await ask();
      failed(null);
    } catch (error) {
      if (signal.aborted) return;
      failed(error);
      if (error.status === 401) return;
    }
    await pause(every_ms * (document.hidden ? 6 : 1), signal);
  }
}

/** Names and counts of the agents. */
export async function agents(signal) {
  return (await get(["agents"], {}, signal)).agents;
}
