// The script of the dashboard: keeps pages live, and sends forms to the API. Nothing is loaded from elsewhere.
"use strict";
(() => {
  const csrf = document.body.dataset.csrf || "";
  const live = document.getElementById("live");

  // --- live pages -------------------------------------------------------------------------------------------------
  let fetching = false;
  async function refresh() {
    if (fetching || document.hidden) return;
    fetching = true;
    try {
      const answer = await fetch(location.href, { headers: { Accept: "text/html", "X-Strandline-Background": "refresh" } });
      if (answer.status === 401) return location.assign(location.href);
      if (!answer.ok) return say("off", "Not live: the server does not answer");
      const found = new DOMParser().parseFromString(await answer.text(), "text/html");
      for (const part of document.querySelectorAll("[data-live]")) {
        const other = found.getElementById(part.id);
        if (other && part.innerHTML !== other.innerHTML && !isUsed(part)) replace(part, other);
      }
      say("on", "Live · " + new Date().toLocaleTimeString([], { hour12: false }));
    } catch {
      say("off", "Not live: the server does not answer");
    } finally {
      fetching = false;
    }
  }
  // Somebody has chosen something there: what is under their hands stays.
  const isUsed = (part) => part.querySelector("input[data-row]:checked, dialog[open], input:focus, select:focus") !== null;
  function replace(part, other) {
    const focused = part.contains(document.activeElement) ? document.activeElement : null;
    const at = focused && [...part.querySelectorAll("a, button, summary")].indexOf(focused);
    const open = [...part.querySelectorAll("details[open]")].map((one) => one.id);
    part.replaceChildren(...[...other.childNodes].map((node) => document.importNode(node, true)));
    for (const one of part.querySelectorAll("details")) one.open = open.includes(one.id);
    if (focused) part.querySelectorAll("a, button, summary")[at]?.focus();
  }
  function say(state, words) {
    if (live && live.dataset.state + live.textContent !== state + words) {
      live.dataset.state = state;
      live.textContent = words;
    }
  }
  // A stream ends with the cookie that it was opened with; a button may have got the browser a later one since.
  async function ended() {
    const answer = await fetch("/api/v1/session", { headers: { Accept: "application/json" } }).catch(() => null);
    if (answer?.status === 401) location.assign(location.href);
    else setTimeout(listen, 1000);
  }
  const LISTEN_AGAIN = 30000; // milliseconds, after the server has answered with an error
  let events = null;
  function listen() {
    events = new EventSource("/live");
    events.addEventListener("open", () => say("on", "Live"));
    events.addEventListener("changed", refresh);
    events.addEventListener("beat", () => {
      if (document.body.dataset.beats) refresh();
      else say("on", "Live · " + new Date().toLocaleTimeString([], { hour12: false }));
    });
    events.addEventListener("ended", () => { events.close(); ended(); });
    events.addEventListener("error", () => {
      say("off", "Not live: connecting again");
      if (events.readyState !== EventSource.CLOSED) return; // the browser connects again by itself
      setTimeout(() => { refresh(); listen(); }, LISTEN_AGAIN);
    });
  }
  if (live) {
    listen();
    document.addEventListener("visibilitychange", refresh);
    addEventListener("pagehide", () => events.close());
  }

  // --- forms that call the API --------------------------------------------------------------------------------------
  const lines = (text) => text.split("\n").map((line) => line.trim()).filter(Boolean);
  const list = (text) => text.split(/[,\n]/).map((word) => word.trim()).filter(Boolean);
  const halves = (line) => {
    const at = line.indexOf("=");
    if (at < 1) throw new Error("“" + line + "” has no name and value with = between them.");
    return [line.slice(0, at).trim(), line.slice(at + 1).trim()];
  };
  const read = {
    text: (given) => given.value.trim() || undefined,
    choice: (given) => given.value || undefined,
    flag: (given) => given.checked,
    number: (given) => (given.value.trim() ? Number(given.value) : undefined),
    list: (given) => (list(given.value).length ? list(given.value) : undefined),
    pairs: (given) => (given.value.trim() ? Object.fromEntries(lines(given.value).map(halves)) : undefined),
    renames: (given) => (given.value.trim() ? lines(given.value).map(halves).map(([name, to]) => ({ name, to })) : undefined),
    columns: (given) => (given.value.trim() ? lines(given.value).map(column) : undefined),
  };
  function column(line) {
    const [, name, rest] = line.match(/^(\S+)\s+(.+)$/) || [];
    if (!name) throw new Error("“" + line + "” has no name and type.");
    const required = /\srequired$/.test(" " + rest);
    const made = { name, type: rest.replace(/\s+required$/, "") };
    return required ? { ...made, required } : made;
  }
  function bodyOf(form) {
    const body = {};
    for (const given of form.querySelectorAll("[data-kind]")) {
      if (given.dataset.kind === "numbers") {
        const numbers = list(given.value).map(Number);
        if (numbers.some((n) => !Number.isInteger(n))) throw new Error("Rows are named by their numbers.");
        Object.assign(body, numbers.length ? { numbers } : { all: true });
        continue;
      }
      const value = read[given.dataset.kind](given);
      if (value !== undefined) body[given.name] = value;
    }
    return body;
  }
  async function call(method, path, body) {
    const headers = { "X-CSRF-Token": csrf, Accept: "application/json" };
    if (body !== undefined) headers["Content-Type"] = "application/json";
    const answer = await fetch(path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body) });
    const found = await answer.json().catch(() => ({}));
    if (!answer.ok) throw Object.assign(new Error(found.detail || "The server answered " + answer.status + "."), { hint: found.hint, status: answer.status });
    return { status: answer.status, found };
  }
  const wait = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));

  function element(tag, text, kind) {
    const made = document.createElement(tag);
    if (text !== undefined) made.textContent = text;
    if (kind) made.className = kind;
    return made;
  }
  const NONE_IF_NULL = new Set(["problem", "reason", "error", "attention"]); // of others, null says that nobody knows
  function show(value) {
    if (value === null || value === undefined) return element("span", "unknown", "unknown");
    if (Array.isArray(value)) {
      if (!value.length) return element("span", "none", "muted");
      const made = element("div");
      value.slice(0, 20).forEach((one) => made.append(show(one)));
      if (value.length > 20) made.append(element("p", "and " + (value.length - 20) + " more", "muted"));
      return made;
    }
    if (typeof value === "object") {
      const made = element("dl", undefined, "facts");
      for (const [name, one] of Object.entries(value)) {
        const detail = element("dd");
        detail.append(show(one === null && NONE_IF_NULL.has(name) ? [] : one));
        made.append(element("dt", name.charAt(0).toUpperCase() + name.slice(1).replaceAll("_", " ")), detail);
      }
      return made;
    }
    if (typeof value === "boolean") return element("span", value ? "yes" : "no");
    return element("span", typeof value === "number" ? value.toLocaleString("en") : value);
  }
  const NUMBERS_MAX = 10000; // that the API takes at once
  const QUIET = new Set(["task", "run", "kind", "subject", "node", "actor", "trigger", "started_at", "ended_at", "stop_asked_at", "outcome", "result", "error", "attention", "by_schedule", "phases", "seconds", "dataset", "dry_run"]);

  // Null while nobody answers: the ledger may be away for a while, and the work continues meanwhile.
  const isOver = (e) => e.status && e.status < 500 && e.status !== 429;
  const look = (place) => call("GET", place).then(({ found }) => found, (e) => { if (isOver(e)) throw e; return null; });
  async function follow(place, outcome, words) {
    const note = element("p", words + " …", "note");
    const stop = element("button", "Call off", "quiet");
    stop.type = "button";
    const trouble = element("p", "", "muted");
    stop.addEventListener("click", () => call("POST", place + "/cancel").catch((e) => (trouble.textContent = e.message)));
    outcome.replaceChildren(note, stop, trouble);
    for (let pause = 150; ; pause = Math.min(pause * 1.5, 2000)) {
      const found = await look(place);
      if (found?.ended_at) return found;
      const said = words + (found ? " …" : ". The server does not answer now …");
      if (note.textContent !== said) note.textContent = said;
      await wait(pause);
    }
  }
  // `attention`: the work is done, and its result is not as it should be. `skipped`: nothing was done, and nothing is broken.
  function conclude(found, outcome, words) {
    const failed = found.error || found.attention || found.aborted || (found.outcome && found.outcome !== "done");
    const headline = failed
      ? (found.error?.message || found.attention || found.why || found.reason || found.outcome || found.aborted)
      : words + ": done.";
    const kind = found.outcome === "skipped" ? "warn" : failed ? "bad" : found.partial ? "unsure" : "ok";
    outcome.replaceChildren(element("p", headline, "note " + kind));
    if (found.partial) outcome.append(element("p", "Partial: not everything could be read. There may be more than this.", "note unsure"));
    if (found.error?.hint) outcome.append(element("p", found.error.hint, "muted"));
    if ("found" in found) return concludeSweep(found, outcome) && !failed;
    const rest = found.result ?? Object.fromEntries(Object.entries(found).filter(([name]) => !QUIET.has(name)));
    if (rest && Object.keys(rest).length) outcome.append(show(rest));
    return !failed;
  }
  // A run of the reconciler has a page of its own; here stands what differs, and nothing that is zero.
  function concludeSweep(found, outcome) {
    const some = (counts) => counts && Object.fromEntries(Object.entries(counts).filter(([, count]) => count));
    const parts = { found: some(found.found), ...(found.dry_run ? {} : { done: some(found.done) }) };
    for (const [name, counts] of Object.entries(parts)) {
      if (counts && !Object.keys(counts).length) parts[name] = found.partial || found.aborted ? "nothing so far" : "nothing";
    }
    for (const name of ["refusals", "failures"]) if (found[name].length) parts[name] = found[name];
    const link = element("a", "Read run " + found.run);
    link.href = "/drift/runs/" + found.run;
    outcome.append(show(parts), link);
    return true;
  }
  // “All” means the rows that the dry run has shown: others may have come since, and nobody has read those.
  function onlyShown(body, form) {
    if (!body?.all || !form.dataset.dryFirst) return body;
    const { all, ...rest } = body;
    if (!form.shown?.length) throw new Error("The dry run found no row.");
    return { ...rest, numbers: form.shown.slice(0, NUMBERS_MAX) };
  }
  async function send(form, dry) {
    const outcome = form.querySelector(".outcome");
    const { method, path, dryPath, label } = form.dataset;
    const words = dry ? "Dry run" : label;
    const buttons = form.querySelectorAll("button[type=submit]");
    buttons.forEach((one) => (one.disabled = true));
    try {
      const fixed = JSON.parse(dry ? form.dataset.dryBody : form.dataset.body);
      const given = form.dataset.sendsBody ? { ...bodyOf(form), ...fixed } : undefined;
      const body = dry ? given : onlyShown(given, form);
      const { status, found } = await call(method, dry ? dryPath : path, body);
      if (status === 202) {
        const ended = await follow(found.place, outcome, words + " under way");
        const well = conclude(ended, outcome, words);
        if (dry && well) form.dataset.rehearsed = "yes";
      } else {
        outcome.replaceChildren(element("p", words + ": done.", "note ok"));
        if (dry) {
          form.dataset.rehearsed = "yes";
          form.shown = found.numbers;
          outcome.append(show(found));
        } else if (found.secret) {
          outcome.append(element("p", "Its secret, shown only now:", "muted"), element("code", found.secret, "secret"));
        } else if (!form.querySelector(".field, .confirm")) {
          form.closest("dialog").close();
        }
      }
      if (!dry) form.dataset.rehearsed = "";
      await refresh();
    } catch (e) {
      outcome.replaceChildren(element("p", e.message, "note bad"));
      if (e.hint) outcome.append(element("p", e.hint, "muted"));
    } finally {
      judge(form);
    }
  }
  // What cannot be undone waits for its dry run, and for the name that has to be typed.
  function judge(form) {
    const act = form.querySelector("button[data-act]");
    const dry = form.querySelector("button[data-dry]");
    const typed = form.querySelector(".confirm");
    if (dry) dry.disabled = false;
    const given = (name) => ((field) => (field.type === "checkbox" ? field.checked : field.value.trim()))(form.elements[name]);
    const isGrave = !form.dataset.onlyIf || form.dataset.onlyIf.split(" ").some(given);
    const isReady = (!form.dataset.dryFirst || form.dataset.rehearsed) && (!typed || typed.value === typed.dataset.word);
    act.disabled = isGrave && !isReady;
  }
  document.addEventListener("submit", (event) => {
    const form = event.target.closest("form[data-method]");
    if (!form) return;
    event.preventDefault();
    send(form, event.submitter?.hasAttribute("data-dry") ?? false);
  });
  document.addEventListener("input", (event) => {
    const form = event.target.closest("form[data-method]");
    if (!form) return;
    if (!event.target.classList.contains("confirm")) form.dataset.rehearsed = "";
    judge(form);
  });
  document.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    if (button.dataset.opens) {
      const dialog = document.getElementById(button.dataset.opens);
      const form = dialog?.querySelector("form");
      if (!form) return;
      const group = form.dataset.rowsOf;
      if (group) {
        const chosen = [...document.querySelectorAll("input[data-row]:checked")].map((box) => box.value);
        form.querySelector("[name=numbers]").value = chosen.join(", ");
      }
      if (button.dataset.run) form.querySelector("[name=run]").value = button.dataset.run;
      form.querySelector(".outcome").replaceChildren();
      form.dataset.rehearsed = "";
      judge(form);
      dialog.showModal();
    } else if (button.hasAttribute("data-close")) {
      button.closest("dialog").close();
    }
  });
  document.addEventListener("change", (event) => {
    if (event.target.dataset.all === undefined) return;
    document.querySelectorAll("input[data-row]").forEach((box) => (box.checked = event.target.checked));
  });
})();
