// Text of a model to elements. Only textContent is ever set, so no text can become markup.

function element(tag, className, text) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}

/** Paragraphs and fenced code blocks; a fence that is still open is a block too. */
export function blocks(text) {
  const out = [];
  let code = null;
  let lines = [];
  const flush = () => {
    const joined = lines.join("\n");
    if (code) out.push({ code: true, language: code.language, text: joined });
    else if (joined.trim()) out.push({ code: false, text: joined.trim() });
    lines = [];
  };
  for (const line of text.split("\n")) {
    const fence = /^ {0,3}(`{3,}|~{3,})\s*([\w+#.-]*)[^`]*$/.exec(line);
    const closes = code && fence && fence[1].startsWith(code.fence) && !fence[2];
    if (closes || (!code && fence)) {
      flush();
      code = closes ? null : { fence: fence[1], language: fence[2] };
    } else {
      lines.push(line);
    }
  }
  if (code || lines.length) flush();
  return out;
}

function paragraph(text) {
  const node = element("p");
  for (const [i, piece] of text.split(/`([^`\n]+)`/).entries()) {
    if (piece) node.append(i % 2 ? element("code", "", piece) : piece);
  }
  return node;
}

function codeBlock({ language, text }) {
  const node = element("pre");
  node.tabIndex = 0; // so that a wide block can be scrolled by keyboard
  node.setAttribute("aria-label", language ? `Code, ${language}` : "Code");
  node.append(element("code", "", text));
  return node;
}

/** One turn of the conversation with a way to update it. */
export function turn(role, title) {
  const root = element("article", `turn ${role}`);
  const body = element("div", "body");
  const foot = element("footer");
  root.append(element("h3", "", title), body, foot);
  return {
    root,
    update({ text, reasoning, plain }) {
      const children = [];
      if (reasoning) {
        const open = body.querySelector("details")?.open ?? false;
        const details = element("details");
        details.open = open;
        details.append(element("summary", "", "Reasoning"), reasoning);
        children.push(details);
      }
      if (plain) children.push(element("p", "", text));
      else children.push(...blocks(text).map((b) => (b.code ? codeBlock(b) : paragraph(b.text))));
      body.replaceChildren(...children);
    },
    running(on) {
      root.classList.toggle("running", on);
    },
    finish({ note, error, copy }) {
      foot.replaceChildren();
      if (error) body.append(element("p", "error", error));
      if (note) foot.append(element("span", "", note));
      if (copy) {
        const button = element("button", "", "Copy");
        button.type = "button";
        button.addEventListener("click", async () => {
          await navigator.clipboard.writeText(copy);
          button.textContent = "Copied";
          setTimeout(() => (button.textContent = "Copy"), 1500);
        });
        foot.append(button);
      }
    },
  };
}
