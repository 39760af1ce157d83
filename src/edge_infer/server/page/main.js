// The conversation: what was said, the request that is running, and the keys that drive both.

import { ApiError, getJson, stream } from "./api.js";
import * as panel from "./panel.js";
import { turn } from "./render.js";
import * as settings from "./settings.js";

const $ = (id) => document.getElementById(id);
const log = $("log");
const prompt = $("prompt");

let model = null; // the entry of /v1/models
let turns = []; // {role, text, reasoning, note, error}
let leaving = false;
let running = null; // AbortController of the request under way

function chats() {
  return model?.chat_template !== false;
}

// --- what is kept when the page is loaded again ---

function remember() {
  if (leaving) return; // the request's end is the page's own
  sessionStorage.setItem("turns", JSON.stringify(turns));
}

function recall() {
  try {
    turns = JSON.parse(sessionStorage.getItem("turns")) ?? [];
  } catch {
    turns = [];
  }
  for (const entry of turns) {
    if (entry.unfinished) Object.assign(entry, { unfinished: false, note: "Stopped: page reloaded" });
    show(entry);
  }
}

// --- drawing ---

function show(entry) {
  $("empty").hidden = true;
  const user = entry.role === "user";
  const view = turn(entry.role, user ? "You" : (model?.id ?? "Model"));
  view.update({ ...entry, plain: user });
  if (!entry.unfinished) view.finish({ ...entry, copy: user ? "" : entry.text });
  log.append(view.root);
  log.scrollTop = log.scrollHeight;
  return view;
}

function notice(text) {
  $("notice").textContent = text;
  $("notice").hidden = !text;
}

function say(text) {
  $("status").textContent = text; // for screen readers, once an answer and not once a token
}

function busy(on) {
  $("send").hidden = on;
  $("stop").hidden = !on;
  $("new").disabled = on;
}

// --- requests ---

function body() {
  const common = { model: model.id, stream: true, stream_options: { include_usage: true } };
  const answered = exchanges();
  if (!chats()) {
    // A base model continues one text: everything so far, a new line before what was typed.
    const text = answered.reduce(
      (all, t) => all + (all && t.role === "user" ? "\n" : "") + t.text,
      "",
    );
    return ["v1/completions", { ...common, ...settings.sampling(), prompt: text }];
  }
  const messages = answered.map(({ role, text }) => ({ role, content: text }));
  const system = settings.systemPrompt();
  if (system) messages.unshift({ role: "system", content: system });
  return ["v1/chat/completions", { ...common, ...settings.sampling(), messages }];
}

/** What the model is told: a question that got no answer is left out, except the last one. */
function exchanges() {
  return turns.filter((entry, i) => {
    if (entry.role === "assistant") return entry.text;
    return i === turns.length - 1 || turns[i + 1].text;
  });
}

function figures(usage, times, reason) {
  const parts = [];
  if (reason === "length") parts.push("Cut at max tokens");
  if (usage) {
    const cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
    parts.push(`${usage.prompt_tokens} prompt tokens${cached ? ` (${cached} cached)` : ""}`);
    parts.push(`${usage.completion_tokens} generated`);
    const seconds = (times.last - times.first) / 1000;
    if (usage.completion_tokens > 1 && seconds > 0) {
      parts.push(`${((usage.completion_tokens - 1) / seconds).toFixed(1)} tokens/s`);
    }
  }
  if (times.first) parts.push(`first after ${((times.first - times.sent) / 1000).toFixed(2)} s`);
  return parts.join(", ");
}

async function answer() {
  const [path, request] = body();
  const entry = { role: "assistant", text: "", reasoning: "", unfinished: true };
  turns.push(entry);
  const view = show(entry);
  const times = { sent: performance.now(), first: 0, last: 0 };
  let usage = null;
  let reason = null;
  let frame = 0;
  const draw = () => {
    frame = 0;
    const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 60;
    view.update({ ...entry, plain: !chats() });
    if (atEnd) log.scrollTop = log.scrollHeight;
  };
  view.running(true);
  busy(true);
  say("Generating");
  running = new AbortController();
  try {
    for await (const event of stream(path, request, running.signal)) {
      usage = event.usage ?? usage;
      const choice = event.choices[0];
      if (!choice) continue;
      reason = choice.finish_reason ?? reason;
      const text = choice.text ?? choice.delta?.content ?? "";
      const thought = choice.delta?.reasoning_content ?? "";
      if (!text && !thought) continue;
      times.last = performance.now();
      times.first ||= times.last;
      entry.text += text;
      entry.reasoning += thought;
      frame ||= requestAnimationFrame(draw);
    }
    entry.note = figures(usage, times, reason);
    say("Answer finished");
  } catch (error) {
    const stopped = error.name === "AbortError";
    if (stopped) entry.note = "Stopped";
    else entry.error = error.message;
    say(stopped ? "Stopped" : error.message);
    if (error.status === 401) settings.askForKey();
  } finally {
    cancelAnimationFrame(frame);
    running = null;
    entry.unfinished = false;
    draw();
    view.running(false);
    view.finish({ ...entry, copy: entry.text });
    busy(false);
    remember();
  }
}

async function send() {
  const text = prompt.value;
  if (running || (!text.trim() && (chats() || !turns.length))) return;
  if (!model) await connect();
  if (!model) return;
  try {
    settings.sampling();
  } catch (error) {
    notice(error.message);
    return;
  }
  notice(chats() ? "" : CONTINUES);
  if (text.trim()) {
    turns.push({ role: "user", text });
    show(turns.at(-1));
    remember();
  }
  prompt.value = "";
  await answer();
}

const CONTINUES =
  "This model has no chat template, so it continues your text instead of answering. Sending nothing" +
  " lets it go on. The system prompt is not used.";

async function connect() {
  try {
    model = (await getJson("v1/models")).data[0];
    $("model").textContent = model.id;
    document.title = model.id;
    notice(chats() ? "" : CONTINUES);
    $("settings").elements.system.disabled = !chats();
  } catch (error) {
    if (error instanceof ApiError && error.status === 401) {
      settings.askForKey();
      notice("This server wants an API key: enter it under Settings.");
    } else {
      notice(error.message);
    }
  }
}

// --- keys, buttons, theme ---

prompt.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    send();
  }
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  if ($("side").classList.contains("open")) toggleSide(false);
  else running?.abort();
});
$("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
$("stop").addEventListener("click", () => {
  running?.abort();
  prompt.focus();
});
$("new").addEventListener("click", () => {
  turns = [];
  remember();
  for (const node of log.querySelectorAll(".turn")) node.remove();
  $("empty").hidden = false;
  prompt.focus();
});
addEventListener("pagehide", () => {
  remember();
  leaving = true;
});
addEventListener("pageshow", () => (leaving = false));

function toggleSide(open) {
  $("side").classList.toggle("open", open);
  document.querySelector("main").inert = open; // it lies under the panel
  $("show-side").setAttribute("aria-expanded", String(open));
}
$("show-side").addEventListener("click", () => {
  toggleSide($("show-side").getAttribute("aria-expanded") !== "true");
});

function applyTheme(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
}
$("theme").addEventListener("click", () => {
  const dark = getComputedStyle(document.documentElement).colorScheme;
  const now = dark === "light dark" ? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light") : dark;
  const next = now === "dark" ? "light" : "dark";
  localStorage.setItem("theme", next);
  applyTheme(next);
});

applyTheme(localStorage.getItem("theme"));
settings.start(() => {
  connect();
  panel.refresh();
});
await connect();
recall();
panel.start();
if (matchMedia("(min-width: 52rem)").matches) prompt.focus();
