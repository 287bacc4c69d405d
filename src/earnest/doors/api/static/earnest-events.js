/* Follows the events of a run, or of a whole scope, in a page or in Node. No dependencies, no build
 * step: copy it, or import it from the server that you follow.
 *
 *     import { followRun } from "/static/earnest-events.js";
 *
 *     const following = followRun("", runId, {
 *       token,                                       // or a function; without one, the cookie counts
 *       onEvent: (event) => show(event.seq, event.type, event.payload),
 *       onResync: (resync) => replace(resync.snapshot),
 *       onEnd: () => done(),
 *       onError: (error) => tell(error.message),     // refused: error.status, error.problem
 *     });
 *     following.close();
 *
 * Each event comes once and in order, whatever happens to the connection: it goes on by itself after
 * the last one that was handled. `onEvent` may return a promise; the next one waits for it. When
 * events cannot be told any more, `onResync` brings the run as it stands, and what comes next comes
 * after that. `onError` is told what was refused for good, and what a handler of yours threw; then
 * it is over. While the server cannot be reached it tries again, until `close()`; `onState` hears
 * "open" and "away".
 *
 * `EventSource` can send no token, so this reads with `fetch`. A page of another origin needs the
 * API behind its own: the API allows no foreign origins.
 */

const SILENCE = 30_000; // milliseconds; the server says every 15 seconds that it lives
const FIRST = 200;
const LONGEST = 10_000;
const LARGEST = 1_048_576; // characters of one frame

/** The events of one run after number (or id) `options.after`, until it has ended. */
export function followRun(base, runId, options = {}) {
  const url = `${base}/v1/runs/${encodeURIComponent(runId)}/events`;
  return follow({ url, place: String(options.after ?? 0), gapless: true }, options);
}

/** The events of all runs that one may see, without an end: after the id `options.after`, or with
 * "now" only what is new. Between two positions some may be missing: those of others. */
export function followScope(base, options = {}) {
  const { after = "" } = options;
  const url = `${base}/v1/events${after === "now" ? "?cursor=now" : ""}`;
  return follow({ url, place: after === "now" ? "" : String(after), gapless: false }, options);
}

function follow(stream, options) {
  const following = new Following(stream, options);
  following.run();
  return {
    close: () => following.close(),
    get place() {
      return following.place;
    },
  };
}

class Following {
  constructor({ url, place, gapless }, options) {
    Object.assign(this, { url, place, gapless, options });
    this.over = false;
    this.failures = 0;
    this.retry = 0;
    this.leaving = new AbortController();
  }

  close() {
    this.over = true;
    this.leaving.abort();
  }

  async run() {
    while (!this.over) {
      try {
        await this.connect();
      } catch (error) {
        if (!this.over && error instanceof Final) this.fail(error.cause);
      }
      if (!this.over) {
        this.tell("onState", "away");
        await this.pause();
      }
    }
  }

  async connect() {
    const dead = new AbortController();
    const leave = () => dead.abort();
    this.leaving.signal.addEventListener("abort", leave);
    this.retry = 0;
    const alarm = new Alarm(leave, this.options.silence ?? SILENCE);
    try {
      const answer = await alarm.during(this.ask(dead.signal));
      if (answer.status === 204) return this.end("final");
      await this.requireStream(answer);
      this.tell("onState", "open");
      await this.read(answer.body.getReader(), alarm);
    } finally {
      this.leaving.signal.removeEventListener("abort", leave);
      dead.abort();
    }
  }

  async ask(signal) {
    const { token, fetch = globalThis.fetch, credentials = "same-origin" } = this.options;
    const headers = { Accept: "text/event-stream" };
    const text = typeof token === "function" ? await token() : token;
    if (text) headers.Authorization = `Bearer ${text}`;
    if (this.place) headers["Last-Event-ID"] = this.place;
    return fetch(this.url, { headers, credentials, signal, cache: "no-store" });
  }

  async requireStream(answer) {
    const isStream = (answer.headers.get("content-type") ?? "").startsWith("text/event-stream");
    if (answer.ok && isStream) return;
    const later = Number(answer.headers.get("retry-after"));
    this.retry = later > 0 ? later * 1000 : 0;
    const problem = await answer.json().catch(() => null);
    const error = new Error(problem?.detail ?? `${this.url} answered ${answer.status}, no stream`);
    Object.assign(error, { status: answer.status, code: problem?.code, problem });
    if (answer.status >= 500 || answer.status === 429) throw error;
    throw new Final(error);
  }

  async read(reader, alarm) {
    const frames = new Frames();
    for (;;) {
      const { value, done } = await alarm.during(reader.read());
      if (done) return;
      for (const frame of frames.take(value)) {
        if (!(await this.take(frame)) || this.over) return;
      }
    }
  }

  /* Whether the connection is still good for something. */
  async take({ event, data, id, retry }) {
    if (retry !== undefined) this.retry = retry;
    if (!data) return true;
    if (event === "stream_end") {
      if (JSON.parse(data).reason === "final") this.end("final");
      return true;
    }
    if (event === "" && !this.isNext(id)) return this.isOld(id);
    this.failures = 0;
    if (event === "") await this.pass("onEvent", JSON.parse(data), id);
    else if (event === "resync_required") await this.pass("onResync", JSON.parse(data), id);
    else if (!this.gapless && id) this.place = id; // a heartbeat keeps the place
    return true;
  }

  async pass(name, told, id) {
    try {
      await this.options[name]?.({ ...told, id });
    } catch (error) {
      throw new Final(error);
    }
    this.place = id;
    const ended = told.final || ENDED.has(told.snapshot?.status);
    if (this.gapless && ended) this.end("final");
  }

  isNext(id) {
    const [epoch, seq] = position(id);
    const [now, last] = position(this.place || "0");
    if (!this.gapless) return !this.place || epoch !== now || seq > last;
    return (now === "" || epoch === now) && seq === last + 1n;
  }

  isOld(id) {
    const [epoch, seq] = position(id);
    const [now, last] = position(this.place || "0");
    return (now === "" || epoch === now) && seq <= last;
  }

  end(reason) {
    if (this.over) return;
    this.close();
    this.tell("onEnd", { reason });
  }

  fail(error) {
    this.close();
    this.tell("onError", error);
  }

  tell(name, told) {
    this.options[name]?.(told);
  }

  /* What the server asks for, and longer and longer while nothing comes. */
  async pause() {
    const window = Math.min(LONGEST, FIRST * 2 ** Math.min(this.failures, 10));
    this.failures += 1;
    const wait = Math.max(window * (0.5 + Math.random() / 2), Math.min(this.retry, 60_000));
    const over = new AbortController();
    let timer;
    await new Promise((go) => {
      timer = setTimeout(go, wait);
      this.leaving.signal.addEventListener("abort", go, { signal: over.signal });
      globalThis.addEventListener?.("online", go, { signal: over.signal });
    });
    over.abort();
    clearTimeout(timer);
  }
}

/* It is no use to come again. */
class Final extends Error {
  constructor(cause) {
    super("final", { cause });
  }
}

const ENDED = new Set(["succeeded", "failed", "cancelled", "blocked"]);

function position(id) {
  const at = id.lastIndexOf("-");
  return [id.slice(0, Math.max(at, 0)), BigInt(id.slice(at + 1))];
}

/* Rings when something takes too long. */
class Alarm {
  constructor(ring, milliseconds) {
    Object.assign(this, { ring, milliseconds });
  }

  async during(work) {
    let timer;
    const late = new Promise((_, refuse) => {
      timer = setTimeout(() => (this.ring(), refuse(new Error("silent"))), this.milliseconds);
    });
    try {
      return await Promise.race([work, late]);
    } finally {
      clearTimeout(timer);
    }
  }
}

/* Server-sent events out of bytes (WHATWG): lines end with CR, LF or both. */
export class Frames {
  constructor() {
    this.decoder = new TextDecoder(); // which takes a BOM away
    this.rest = "";
    this.size = 0;
    this.frame = { event: "", data: null, id: "" };
  }

  *take(bytes) {
    const text = this.rest + this.decoder.decode(bytes, { stream: true });
    // A CR at the end may be half of a line's end.
    const lines = text.split(/\r\n|\n|\r(?!$)/);
    this.rest = lines.pop();
    if (this.size + this.rest.length > LARGEST) throw new Error("a frame is too large");
    for (const line of lines) {
      const frame = this.line(line);
      if (frame) yield frame;
    }
  }

  line(line) {
    if (line === "") return this.dispatch();
    this.size += line.length;
    if (this.size > LARGEST) throw new Error("a frame is too large");
    const colon = line.indexOf(":");
    const name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (name === "event") this.frame.event = value === "message" ? "" : value;
    else if (name === "data") this.data(value);
    else if (name === "id" && !value.includes("\0")) this.frame.id = value;
    else if (name === "retry" && /^[0-9]+$/.test(value)) this.frame.retry = Number(value);
    return null;
  }

  data(value) {
    this.frame.data = this.frame.data === null ? value : `${this.frame.data}\n${value}`;
  }

  dispatch() {
    const frame = this.frame;
    this.frame = { event: "", data: null, id: "" };
    this.size = 0;
    return frame.data === null && frame.retry === undefined ? null : frame;
  }
}
