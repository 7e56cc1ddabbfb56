// What pages gain from scripts: live studies, copying, quick tooltips, filters as you type.
"use strict";

const LEAST_MS_BETWEEN_UPDATES = 4000;

function follow(main) {
  const address = main.dataset.live;
  if (!address || !window.EventSource) return;
  let known = null;
  let timer = null;
  let last = 0;
  const stream = new EventSource(address);
  const refresh = async () => {
    timer = null;
    last = Date.now();
    if (main.contains(document.activeElement) && document.activeElement.matches("input,select")) return;
    try {
      const answer = await fetch(location.href, { credentials: "same-origin" });
      if (!answer.ok) throw new Error(answer.status);
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const open = [...main.querySelectorAll("details")].map((d) => d.open);
      main.replaceChildren(...page.querySelector("main").childNodes);
      main.querySelectorAll("details").forEach((d, i) => { d.open = open[i] || d.open; });
      prepare(main);
    } catch {
      say(main, main.dataset.lost);
    }
  };
  stream.addEventListener("progress", (event) => {
    if (known !== null && known !== event.data && timer === null) {
      timer = setTimeout(refresh, Math.max(0, last + LEAST_MS_BETWEEN_UPDATES - Date.now()));
    }
    known = event.data;
  });
  stream.addEventListener("end", () => { stream.close(); if (timer === null) refresh(); });
  stream.addEventListener("problem", () => { stream.close(); say(main, main.dataset.lost); });
  stream.addEventListener("error", () => say(main, main.dataset.lost));
  stream.addEventListener("open", () => say(main, ""));
}

function say(main, words) {
  const place = document.getElementById("said");
  if (place) place.textContent = words || "";
}

function prepare(root) {
  root.querySelectorAll("button[data-copy]").forEach((button) => {
    button.hidden = false;
    button.addEventListener("click", async () => {
      const text = document.getElementById(button.dataset.copy).textContent;
      try {
        await navigator.clipboard.writeText(text);
      } catch {
        const range = document.createRange();
        range.selectNodeContents(document.getElementById(button.dataset.copy));
        getSelection().removeAllRanges();
        getSelection().addRange(range);
        document.execCommand("copy");
      }
      const before = button.textContent;
      button.textContent = button.dataset.copied;
      setTimeout(() => { button.textContent = before; }, 1500);
    });
  });
  root.querySelectorAll("input[data-filter]").forEach((input) => {
    const rows = [...document.querySelectorAll(`#${input.dataset.filter} tbody tr`)];
    input.addEventListener("input", () => {
      const wanted = input.value.toLowerCase();
      rows.forEach((row) => { row.hidden = !row.textContent.toLowerCase().includes(wanted); });
    });
  });
  root.querySelectorAll("form[data-busy]").forEach((form) => {
    form.addEventListener("submit", () => {
      const button = form.querySelector("button");
      button.disabled = true;
      button.textContent = form.dataset.busy;
    });
  });
  root.querySelectorAll("select[data-submit]").forEach((select) => {
    select.addEventListener("change", () => select.form.requestSubmit());
  });
}

function tooltips() {
  const tip = document.createElement("div");
  tip.id = "tip";
  tip.hidden = true;
  tip.setAttribute("aria-hidden", "true");
  document.body.append(tip);
  let titled = null;
  const hide = () => {
    if (titled) titled.title.textContent = titled.words;
    titled = null;
    tip.hidden = true;
  };
  const show = (target, x, y) => {
    const holder = target.closest && target.closest(".chart a, .chart g, .chart rect, .chart polyline");
    const title = holder && [...holder.children].find((c) => c.tagName === "title")
      || holder && holder.querySelector(":scope > * > title");
    if (!title) { hide(); return; }
    if (!titled || titled.title !== title) {
      hide();
      titled = { title, words: title.textContent };
      tip.textContent = titled.words;
      title.textContent = "";  // the browser's own would come late, on top
    }
    tip.hidden = false;
    tip.style.left = `${Math.max(4, Math.min(x + 12, innerWidth - tip.offsetWidth - 8))}px`;
    tip.style.top = `${y + 16 + tip.offsetHeight > innerHeight ? y - tip.offsetHeight - 8 : y + 16}px`;
  };
  document.addEventListener("mousemove", (event) => show(event.target, event.clientX, event.clientY));
  document.addEventListener("focusin", (event) => {
    const box = event.target.getBoundingClientRect();
    show(event.target, box.right, box.bottom);
  });
  document.addEventListener("focusout", hide);
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
}

const main = document.querySelector("main");
prepare(main);
follow(main);
tooltips();
