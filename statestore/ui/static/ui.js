// The script of the pages: tables that sort and filter, forms, and news of the store.
// Without it, links and buttons still show everything.
"use strict";

const main = document.getElementById("main");

function say(text) {
  document.getElementById("live").textContent = text;
}

// Show how long ago a time is, also after the page has been open for a while.
function tell(root) {
  for (const time of root.querySelectorAll("time.age")) {
    const seconds = Math.max(0, (Date.now() - new Date(time.dateTime)) / 1000);
    const [length, unit] = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]].find(
      ([length]) => seconds >= 2 * length || length === 1);
    time.textContent = `${Math.floor(seconds / length)} ${unit} ago`;
  }
}

// Replace the content of an element.
function replace(place, ...nodes) {
  place.replaceChildren(...nodes);
  start(place);
}

// The settings of tables are in the address, so that a link shows the same table.
function setting(name, value) {
  const address = new URL(location);
  if (value === undefined) return address.searchParams.get(name) ?? "";
  if (value) address.searchParams.set(name, value);
  else address.searchParams.delete(name);
  history.replaceState(history.state, "", address);
  return value;
}

// The order of two values: empty ones last, numbers by value, and texts with numbers in them, too.
function ordered(a, b) {
  return (a === "") - (b === "") || a - b || a.localeCompare(b, undefined, { numeric: true });
}

function valueOf(row, column) {
  const cell = row.cells[column];
  if (!cell || cell.classList.contains("null")) return "";
  return cell.dataset.order ?? cell.textContent.trim();
}

// Make a table sort, filter, and download its shown rows.
function grid(table) {
  const region = table.closest(".wide");
  const body = table.tBodies[0];
  const rows = [...body.rows];
  const titles = [...table.tHead.rows[0].cells];
  for (const [number, title] of titles.entries()) {
    title.classList.toggle("n", rows[0]?.cells[number]?.classList.contains("n") ?? false);
    const button = document.createElement("button");
    button.type = "button";
    button.className = "sort";
    button.append(...title.childNodes);
    title.append(button);
    title.addEventListener("click", () => {
      const now = Number(column) === number ? direction : "";
      [column, direction] = [String(number), { "": "asc", asc: "desc", desc: "" }[now]];
      setting(order, direction && `${column}.${direction}`);
      draw();
    });
  }
  new ResizeObserver(() => {
    region.classList.toggle("scrolls", region.scrollWidth > region.clientWidth);
  }).observe(region);
  const filter = `filter.${table.id}`;
  const order = `sort.${table.id}`;
  let [column, direction = ""] = setting(order).split(".");
  if (!(Number(column) < titles.length && /^(asc|desc)$/.test(direction))) direction = "";
  const tools = document.createElement("div");
  tools.className = "tools";
  const box = document.createElement("input");
  box.type = "search";
  box.placeholder = "Filter the rows";
  box.ariaLabel = `Filter: ${region.ariaLabel}`;
  box.value = setting(filter);
  box.hidden = rows.length < 5 && !box.value;
  const shown = document.createElement("span");
  const draw = () => {
    const words = box.value.toLowerCase().split(/\s+/);
    const found = rows.filter((row) => {
      const text = row.textContent.toLowerCase();
      return words.every((word) => text.includes(word));
    });
    const sign = direction === "desc" ? -1 : 1;
    if (direction) found.sort((a, b) => sign * ordered(valueOf(a, column), valueOf(b, column)));
    body.replaceChildren(...found);
    shown.textContent = found.length === rows.length ? "" : `${found.length} of ${rows.length} rows`;
    for (const [number, title] of titles.entries()) {
      const sorted = direction && Number(column) === number;
      title.ariaSort = sorted ? { asc: "ascending", desc: "descending" }[direction] : null;
    }
  };
  box.addEventListener("input", () => {
    setting(filter, box.value);
    draw();
  });
  const button = document.createElement("button");
  button.type = "button";
  button.className = "csv";
  button.textContent = "CSV";
  button.title = "Download the shown rows as CSV";
  button.addEventListener("click", () => download(`${table.id}.csv`, csvOf(table)));
  tools.append(box, shown, button);
  region.before(tools);
  if (direction || box.value) draw();
}

// The shown rows as CSV: numbers without separators and units, sizes in bytes, times in UTC.
// Null is an empty field, and an empty text has quotes.
function csvOf(table) {
  const quoted = (value) => (/[",\r\n]/.test(value) ? `"${value.replaceAll('"', '""')}"` : value);
  const field = (cell) => {
    if (cell.classList.contains("null")) return "";
    if (cell.classList.contains("value")) return quoted(cell.textContent) || '""';
    return quoted(cell.dataset.csv ?? cell.dataset.order ?? cell.textContent.trim());
  };
  const title = (cell) => quoted(cell.dataset.csv ?? cell.textContent.trim().replaceAll("\u00a0", " "));
  const lines = [[...table.tHead.rows[0].cells].map(title)];
  for (const row of table.tBodies[0].rows) lines.push([...row.cells].map(field));
  return lines.map((line) => line.join(",")).join("\n") + "\n";
}

function download(name, text) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
  link.download = name;
  link.click();
  URL.revokeObjectURL(link.href);
}

// A button copies the text below it.
function copies(text) {
  if (!navigator.clipboard) return; // without TLS, only pages of this machine may use it
  const button = document.createElement("button");
  button.type = "button";
  button.className = "secondary outline";
  button.textContent = "Copy";
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(text.textContent.trim());
    say("Copied.");
  });
  text.before(button);
}

// Each section has a link to itself.
function anchor(heading) {
  const link = document.createElement("a");
  link.href = `#${heading.id}`;
  link.className = "anchor";
  link.textContent = "#";
  link.ariaLabel = `Link to ${heading.textContent}`;
  heading.append(" ", link);
}

// Return the main part of a page as an element; null if the server does not answer.
async function part(address, signal) {
  try {
    const answer = await fetch(address, { headers: { "x-part": "1" }, signal });
    const found = document.createElement("div");
    found.innerHTML = await answer.text();
    return found;
  } catch (error) {
    if (error.name !== "AbortError") say("The server of this page does not answer.");
    return null;
  }
}

// Load a part of the page when it becomes visible, or when it is opened.
function load(root) {
  for (const place of root.querySelectorAll("[data-load]")) {
    new IntersectionObserver(async (seen, observer) => {
      if (!seen.some((entry) => entry.isIntersecting)) return;
      observer.disconnect();
      place.ariaBusy = "true";
      const found = await part(place.dataset.load);
      place.ariaBusy = null;
      if (found) replace(place, ...found.childNodes);
    }).observe(place);
  }
  for (const place of root.querySelectorAll("details[data-load-in]")) {
    place.addEventListener("toggle", async () => {
      const found = await part(place.dataset.loadIn);
      if (found) replace(place, place.querySelector("summary"), ...found.childNodes);
    }, { once: true });
  }
}

// A form that takes a while says so until the next page is there.
function announce(form) {
  form.addEventListener("submit", (event) => {
    if (event.submitter?.name === "format") return; // a download leaves the page as it is
    (event.submitter ?? form.querySelector("button")).ariaBusy = "true";
    say(form.dataset.busy);
  });
  addEventListener("pageshow", () => {
    for (const button of document.querySelectorAll("button[aria-busy]")) button.ariaBusy = null;
  });
}

// Plan anew when the slider moves; the answer to an older position is ignored.
function plans(form) {
  const number = form.elements.parallelism;
  const slider = document.getElementById("slider");
  let asked = new AbortController();
  form.addEventListener("input", async (event) => {
    if (event.target === slider) number.value = slider.value;
    if (event.target === number) slider.value = number.value;
    asked.abort();
    asked = new AbortController();
    const address = `${form.getAttribute("action")}?${new URLSearchParams(new FormData(form))}`;
    say("The restore is planned.");
    const found = await part(address, asked.signal);
    if (!found) return;
    replace(document.getElementById("plan"), ...found.querySelector("#plan").childNodes);
    history.replaceState(null, "", address);
    say("");
  });
}

const KINDS = ["comment", "text", "name", "number", "keyword"];
const WORDS = "select|from|where|group|by|order|having|limit|offset|join|left|right|full|inner|cross|using|on|as|and|or|not|in|is|null|between|like|case|when|then|else|end|distinct|with|union|all|except|intersect|over|partition|asc|desc|cast|true|false|exists|values|qualify|filter";
const TOKENS = RegExp(
  `(--[^\\n]*|/\\*[^]*?\\*/)|('(?:[^']|'')*'?)|("(?:[^"]|"")*"?)|\\b(\\d[\\d.]*)\\b|\\b(${WORDS})\\b`, "gi");

// Show a statement in colors behind its field, whose own text is transparent.
function highlight(box) {
  const shown = document.createElement("pre");
  shown.ariaHidden = "true";
  const draw = () => {
    const parts = [];
    let last = 0;
    for (const found of box.value.matchAll(TOKENS)) {
      const part = document.createElement("span");
      part.className = KINDS[found.slice(1).findIndex((group) => group !== undefined)];
      part.textContent = found[0];
      parts.push(box.value.slice(last, found.index), part);
      last = found.index + found[0].length;
    }
    shown.replaceChildren(...parts, `${box.value.slice(last)}\n`);
    shown.scrollTop = box.scrollTop;
  };
  box.before(shown);
  box.addEventListener("input", draw);
  box.addEventListener("scroll", () => (shown.scrollTop = box.scrollTop));
  draw();
}

// Put a text into the field at the cursor, or instead of its text.
function put(box, text, start = box.selectionStart, end = box.selectionEnd) {
  box.setRangeText(text, start, end, "end");
  box.dispatchEvent(new Event("input"));
  box.focus();
}

// Remember the statements that ran, newest first, in this browser only.
function remember(form, box) {
  const list = document.getElementById("history");
  let known = JSON.parse(localStorage.getItem("sql-history") ?? "[]");
  if (document.getElementById("answer")) {
    known = [box.value, ...known.filter((text) => text !== box.value)].slice(0, 20);
    localStorage.setItem("sql-history", JSON.stringify(known));
  }
  list.hidden = known.length === 0;
  list.querySelector("ul").replaceChildren(...known.map((text) => {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "insert";
    button.textContent = text;
    button.addEventListener("click", () => put(box, text, 0, box.value.length));
    const line = document.createElement("li");
    line.append(button);
    return line;
  }));
}

// Ctrl+Enter runs a statement, a name of the schema is inserted, and the address has the statement.
function statements(form) {
  const box = form.elements.sql;
  box.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    form.requestSubmit();
  });
  for (const name of document.querySelectorAll("[data-insert]")) {
    name.addEventListener("click", () => put(box, name.dataset.insert));
  }
  highlight(box);
  remember(form, box);
  if ("asked" in form.dataset) setting("sql", box.value);
}

// Find while the reader types; the form opens the page with all that was found.
function finder(form) {
  const list = document.getElementById("suggestions");
  let asked = new AbortController();
  let pause;
  const hide = () => (list.hidden = true);
  form.elements.q.addEventListener("input", () => {
    clearTimeout(pause);
    asked.abort();
    if (!form.elements.q.value.trim()) return hide();
    pause = setTimeout(async () => {
      asked = new AbortController();
      const found = await part(`/search?${new URLSearchParams(new FormData(form))}`, asked.signal);
      if (!found) return;
      found.querySelector("h1").remove();
      list.replaceChildren(...found.childNodes);
      list.hidden = false;
    }, 150);
  });
  form.addEventListener("keydown", (event) => event.key === "Escape" && hide());
  document.addEventListener("click", (event) => !form.contains(event.target) && hide());
}

// Announce a new checkpoint, and refresh the list of the newest ones.
function follow() {
  let known;
  setInterval(async () => {
    if (document.hidden) return;
    tell(document);
    let id;
    try {
      id = (await (await fetch("/newest")).json()).id;
    } catch {
      return say("The server of this page does not answer.");
    }
    if (known !== undefined && id !== known) {
      say(`Checkpoint ${id} is new.`);
      if (main.dataset.tab === "timeline" && !setting("before")) {
        const found = await part(location.pathname + location.search);
        if (found) replace(main, ...found.childNodes);
      }
    }
    known = id;
  }, 2000);
}

// Open the folded part that the address names.
function unfold() {
  const place = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  const folded = place && place.closest("details");
  if (folded) folded.open = true;
  if (place) place.scrollIntoView();
}

function start(root) {
  tell(root);
  root.querySelectorAll("table[data-grid]").forEach(grid);
  root.querySelectorAll("h2[id]").forEach(anchor);
  root.querySelectorAll(".copy > code").forEach(copies);
  load(root);
}

start(document);
document.querySelectorAll("form[data-busy]").forEach(announce);
document.querySelectorAll("form#rescale").forEach(plans);
document.querySelectorAll("form#sql").forEach(statements);
finder(document.getElementById("search"));
addEventListener("hashchange", unfold);
unfold();
follow();
