// The settings form: kept in the browser, sent with every request.

import { setKey } from "./api.js";

const DEFAULTS = { system: "", temperature: "0.7", top_p: "1", top_k: "", max_tokens: "512", seed: "" };
const form = document.getElementById("settings");
const keyField = document.getElementById("key-field");

function stored() {
  try {
    return JSON.parse(localStorage.getItem("settings")) ?? {};
  } catch {
    return {};
  }
}

function fill(values) {
  for (const [name, value] of Object.entries(values)) form.elements[name].value = value;
}

function save() {
  const values = {};
  for (const name of Object.keys(DEFAULTS)) values[name] = form.elements[name].value;
  localStorage.setItem("settings", JSON.stringify(values));
}

export function start(onKey) {
  const saved = stored();
  fill(DEFAULTS);
  fill(Object.fromEntries(Object.entries(saved).filter(([name]) => name in DEFAULTS)));
  form.elements.key.value = sessionStorage.getItem("key") ?? "";
  form.addEventListener("input", save);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.elements.key.addEventListener("change", (event) => {
    setKey(event.target.value.trim());
    onKey();
  });
  document.getElementById("defaults").addEventListener("click", () => {
    fill(DEFAULTS);
    save();
  });
}

export function askForKey() {
  keyField.hidden = false;
}

/** Throws an Error that names the field when a value is out of range. */
export function sampling() {
  const out = {};
  for (const name of ["temperature", "top_p", "top_k", "max_tokens", "seed"]) {
    const input = form.elements[name];
    if (!input.checkValidity()) {
      const label = input.labels[0].firstChild.textContent.trim();
      throw new Error(`${label}: ${input.validationMessage}`);
    }
    if (input.value !== "") out[name] = Number(input.value);
  }
  return out;
}

export function systemPrompt() {
  return form.elements.system.value.trim();
}
