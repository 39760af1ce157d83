// Talks to the server: JSON, server-sent events, and the Prometheus text format.

let key = sessionStorage.getItem("key") ?? "";

export function setKey(value) {
  key = value;
  sessionStorage.setItem("key", value);
}

export class ApiError extends Error {
  constructor(message, status, code) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

async function request(path, options = {}) {
  const headers = { ...options.headers };
  if (key) headers.Authorization = `Bearer ${key}`;
  let response;
  try {
    response = await fetch(path, { ...options, headers, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The server does not answer. Is it still running?", 0, "unreachable");
  }
  if (!response.ok) {
    const text = await response.text();
    throw errorOf(parseJson(text)?.error, response.status, text);
  }
  return response;
}

function errorOf(error, status, text = "") {
  const message = error?.message ?? (text.slice(0, 300) || `The server answered ${status}.`);
  return new ApiError(message, status, error?.code ?? null);
}

function parseJson(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

export async function getJson(path, signal) {
  return (await request(path, { signal })).json();
}

/** The JSON documents of a streamed answer, one by one, until [DONE]. */
export async function* stream(path, body, signal) {
  const response = await request(path, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
    signal,
  });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) throw new ApiError("The answer ended early: the connection was lost.", 0, "cut");
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data:")) continue; // a comment, or the line between events
      const data = line.slice(5).trim();
      if (data === "[DONE]") return;
      const event = JSON.parse(data);
      if (event.error) throw errorOf(event.error, 200);
      yield event;
    }
  }
}

/** Samples of the Prometheus text format: name to the sum over its label sets. */
export async function getMetrics(path, signal) {
  const samples = new Map();
  for (const line of (await (await request(path, { signal })).text()).split("\n")) {
    const found = /^([a-zA-Z_:][\w:]*)(\{.*\})? (\S+)/.exec(line);
    if (!found) continue;
    const [, name, labels = "", value] = found;
    samples.set(name, (samples.get(name) ?? 0) + Number(value));
    if (labels) samples.set(name + labels, Number(value));
  }
  return samples;
}
