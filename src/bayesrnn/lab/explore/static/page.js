// The page: who may ask (the token), how questions are asked, and a section for every panel.
import { h } from "./kit.js";

const STORED = "bayesrnn-token";

function readToken() {
  const given = location.hash.slice(1);
  if (!/^[\w-]{40,}$/.test(given)) return sessionStorage.getItem(STORED) ?? "";
  sessionStorage.setItem(STORED, given);
  history.replaceState(null, "", location.pathname); // out of the address bar and the history
  return given;
}

const token = readToken();
const main = document.getElementById("main");
let asked = 0;
const busy = (more) => { asked += more; main.setAttribute("aria-busy", String(asked > 0)); };

/** Ask, and hand over every part of the answer as it comes. */
async function ask(path, body, part, signal) {
  const response = await fetch(path, {
    method: "POST", signal, body: JSON.stringify(body), cache: "no-store", credentials: "omit",
    headers: { "Content-Type": "application/json", Authorization: `Bearer ${token}` },
  });
  if (!response.ok) throw new Error((await response.text()).trim() || `Status ${response.status}`);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    const lines = (rest + (value ?? "")).split("\n");
    rest = lines.pop();
    for (const text of lines) {
      const found = JSON.parse(text);
      if (found.error) throw new Error(found.error);
      part(found);
    }
    if (done) return;
  }
}

/** A section of the page, and what its panel gets as `page`. */
function section(panel, about) {
  const bar = h("progress", { max: 1, value: 0, "aria-label": "Progress" });
  const stop = h("button", { type: "button", text: "Cancel", onclick: () => open.forEach((each) => each.abort()) });
  const said = h("span", { role: "status" });
  const status = h("div", { class: "status" }, said);
  const error = h("p", { class: "error", role: "alert" });
  const root = h("div");
  const open = new Map();
  const page = {
    runs: about.runs.map((run) => ({ name: run.name, about: run.panels[panel.name] })),
    say: (text) => { said.textContent = text; },
    /** Resolves to true, or to false if it failed or a later question of the same name took its place. */
    async ask(run, handler, body, part) {
      const key = `${run}/${panel.name}/${handler}`;
      open.get(key)?.abort();
      const control = new AbortController();
      open.set(key, control);
      error.textContent = "";
      busy(1);
      const slow = setTimeout(() => status.replaceChildren(bar, stop, said), 300);
      try {
        await ask(`/ask/${key}`, body, (found) => {
          if (found.progress !== undefined) bar.value = found.progress;
          else if (!control.signal.aborted) part(found);
        }, control.signal);
        return !control.signal.aborted;
      } catch (fault) {
        if (!control.signal.aborted) error.textContent = fault.message;
        return false;
      } finally {
        busy(-1);
        clearTimeout(slow);
        if (open.get(key) === control) open.delete(key);
        if (!open.size) { bar.value = 0; status.replaceChildren(said); }
      }
    },
  };
  const box = h("section", { id: panel.name, "aria-labelledby": `${panel.name}-title` },
    h("h2", { id: `${panel.name}-title`, text: panel.title }), error, root, status);
  return { box, root, page };
}

async function start() {
  const runs = document.getElementById("runs");
  let about;
  try {
    await ask("/about", {}, (found) => { about = found; });
  } catch (fault) {
    runs.replaceChildren(h("span", { class: "error", role: "alert", text: fault.message }));
    return;
  }
  runs.textContent = about.runs.map((run) => `${run.name} (${run.folder})`).join(" beside ");
  document.title = `${about.runs.map((run) => run.name).join(" and ")} – bayesrnn explore`;
  document.getElementById("panels").replaceChildren(...about.panels.map((panel) => h("a", { href: `#${panel.name}`, text: panel.title })));
  for (const panel of about.panels) {
    const made = section(panel, about);
    main.append(made.box);
    for (const name of panel.files) {
      if (name.endsWith(".css")) document.head.append(h("link", { rel: "stylesheet", href: `/files/${name}` }));
      else (await import(`/files/${name}`)).mount(made.root, made.page);
    }
  }
}

start();
