// The live panel: memory by owner from /ledger, the rest from /metrics.

import { getJson, getMetrics } from "./api.js";

const $ = (id) => document.getElementById(id);
const METRICS_MS = 1000;
const LEDGER_MS = 5000; // it walks the page tables
const POINTS = 120;
const COLOURS = 6; // one more is "other"

let timer = 0;
let last = null; // {time, tokens} of the previous sample
let ledgerAt = -Infinity;
const rates = [];

function size(bytes) {
  if (bytes >= 2 ** 30) return `${(bytes / 2 ** 30).toFixed(2)} GiB`;
  return `${(bytes / 2 ** 20).toFixed(bytes < 10 * 2 ** 20 ? 1 : 0)} MiB`;
}

/** Owners by the word before a colon ("library: numpy"), largest first. */
function grouped(owners) {
  const sums = new Map();
  for (const { name, bytes } of owners) {
    const group = name.split(":")[0];
    sums.set(group, (sums.get(group) ?? 0) + bytes);
  }
  const sorted = [...sums].filter(([, bytes]) => bytes > 0).sort((a, b) => b[1] - a[1]);
  return sorted.map(([name, bytes]) => ({ name, bytes }));
}

function drawMemory(owners, budget) {
  const sorted = grouped(owners);
  const shown = sorted.slice(0, COLOURS);
  const rest = sorted.slice(COLOURS).reduce((sum, o) => sum + o.bytes, 0);
  if (rest) shown.push({ name: "other", bytes: rest });
  const used = shown.reduce((sum, o) => sum + o.bytes, 0);
  $("memory-value").textContent = budget ? `${size(used)} of ${size(budget)}` : size(used);
  $("memory-meter").hidden = !budget;
  if (budget) $("memory-meter").value = used / budget;
  const bar = $("memory-bar");
  bar.replaceChildren();
  const body = $("memory-table").tBodies[0];
  body.replaceChildren();
  const row = (name, bytes, className) => {
    const tr = body.insertRow();
    const head = document.createElement("th");
    head.scope = "row";
    const swatch = document.createElement("i");
    swatch.className = className;
    head.append(swatch, name);
    tr.append(head);
    tr.insertCell().textContent = size(bytes);
  };
  for (const [i, owner] of shown.entries()) {
    const part = document.createElement("span");
    part.className = `owner-${i}`;
    part.style.width = `${(100 * owner.bytes) / used}%`;
    part.title = `${owner.name}: ${size(owner.bytes)}`;
    bar.append(part);
    row(owner.name, owner.bytes, `owner-${i}`);
  }
}

function drawRate(rate) {
  rates.push(rate);
  if (rates.length > POINTS) rates.shift();
  $("rate-value").textContent = rate.toFixed(1);
  const top = Math.max(1, ...rates);
  const points = rates.map((r, i) => {
    const x = 120 - (rates.length - 1 - i) * (120 / (POINTS - 1));
    return `${x.toFixed(1)} ${(31 - (29 * r) / top).toFixed(1)}`;
  });
  const [first] = points[0].split(" ");
  $("rate-chart").querySelector(".line").setAttribute("d", `M${points.join("L")}`);
  $("rate-chart").querySelector(".area").setAttribute("d", `M${first} 32L${points.join("L")}L120 32Z`);
}

/** Owners and budget of a ledger document; without a ledger, the two kinds of resident memory. */
async function memory(samples) {
  try {
    const ledger = await getJson("ledger");
    const owner = (line) => ({ name: line.name, bytes: line.anonymous + line.file_backed });
    return [ledger.lines.map(owner), ledger.budget];
  } catch (error) {
    if (error.status !== 404) throw error;
    const kinds = ["anonymous", "file"];
    const bytes = (kind) => samples.get(`edge_infer_memory_bytes{kind="${kind}"}`) ?? 0;
    return [kinds.map((kind) => ({ name: kind, bytes: bytes(kind) })), null];
  }
}

async function sample() {
  const samples = await getMetrics("metrics");
  const value = (name) => samples.get(`edge_infer_${name}`) ?? 0;
  const now = performance.now();
  const tokens = value("generated_tokens_total");
  if (last) drawRate(Math.max(0, (1000 * (tokens - last.tokens)) / (now - last.time)));
  last = { time: now, tokens };
  const [used, total] = [value("kv_used_bytes"), value("kv_total_bytes")];
  $("kv-value").textContent = `${size(used)} of ${size(total)}`;
  $("kv-meter").value = total ? used / total : 0;
  const waiting = value("requests_waiting");
  $("requests-value").textContent = `${value("requests_running")} running, ${waiting} waiting`;
  if (now - ledgerAt > LEDGER_MS) {
    ledgerAt = now;
    drawMemory(...(await memory(samples)));
  }
}

export async function refresh() {
  clearTimeout(timer);
  try {
    await sample();
    note("");
  } catch (error) {
    last = null;
    note(error.status === 401 ? "Needs the API key." : error.message);
  }
  if (!document.hidden) timer = setTimeout(refresh, METRICS_MS);
}

function note(text) {
  $("live-note").textContent = text;
  $("live-note").hidden = !text;
}

export function start() {
  document.addEventListener("visibilitychange", () => {
    last = null; // time in the background is no sample
    if (document.hidden) clearTimeout(timer);
    else refresh();
  });
  refresh();
}
