"use strict";
// Copying, sorting, and the timeline that can be zoomed. The page is whole without any of it.

// ---- copying ----

for (const button of document.querySelectorAll("[data-copy]")) {
  button.hidden = false;
  button.addEventListener("click", async () => {
    const source = document.getElementById(button.dataset.copy);
    try {
      await navigator.clipboard.writeText(source.textContent);
      button.textContent = "copied";
    } catch {
      getSelection().selectAllChildren(source); // a page from a file may not write to the clipboard
      button.textContent = document.execCommand("copy") ? "copied" : "selected";
    }
    setTimeout(() => (button.textContent = "copy"), 1500);
  });
}

// ---- sorting ----

for (const head of document.querySelectorAll("th[data-sort]")) {
  const table = head.closest("table");
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = head.textContent;
  head.replaceChildren(button);
  button.addEventListener("click", () => {
    const down = head.getAttribute("aria-sort") === "ascending";
    for (const other of table.querySelectorAll("[aria-sort]")) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const value = (row) => Number(row.cells[head.cellIndex].dataset.value);
    const rows = [...table.tBodies[0].rows].sort((a, b) => (down ? value(b) - value(a) : value(a) - value(b)));
    table.tBodies[0].append(...rows);
  });
}

// ---- the timeline ----

const KINDS = ["forward", "backward", "gradient of the input", "gradient of the weights"];
const TAIL = ["reducing gradients", "optimizer", "host"];

function timeline(box, data) {
  const canvas = document.createElement("canvas");
  const tools = document.createElement("div");
  const said = document.createElement("output");
  const context = canvas.getContext("2d");
  const ranks = data.ranks.map(unpack);
  const pipeline = Math.max(...ranks.map((rank) => rank.end[rank.count - 1] || 0));
  const total = Math.max(1, pipeline + data.tail.reduce((a, b) => a + b, 0));
  const shortest = total / Math.max(...ranks.map((rank) => rank.count));
  const view = { from: 0, to: total };
  let ink, width, row, gap, left, height, hovered = null, asked = false;

  // [code, microbatch, since the one before, length, ...] as columns.
  function unpack(numbers) {
    const count = numbers.length / 4;
    const rank = { count, code: new Uint8Array(count), microbatch: new Int32Array(count),
      start: new Int32Array(count), end: new Int32Array(count) };
    for (let i = 0, now = 0; i < count; i++) {
      rank.code[i] = numbers[4 * i];
      rank.microbatch[i] = numbers[4 * i + 1];
      rank.start[i] = now += numbers[4 * i + 2];
      rank.end[i] = now += numbers[4 * i + 3];
    }
    return rank;
  }

  // ---- colours and sizes ----

  function rgb(text) {
    const value = parseInt(text.trim().slice(1), 16);
    return [value >> 16, (value >> 8) & 255, value & 255];
  }

  // Chunks lie between the colours of the first and of the last one.
  function readInks() {
    const style = getComputedStyle(document.documentElement);
    const of = (name) => style.getPropertyValue("--" + name);
    const pairs = ["forward", "backward", "backward", "weight"].map((name) => [rgb(of(name)), rgb(of(name + "-later"))]);
    const redo = [rgb(of("redo")), rgb(of("redo-later"))];
    const mix = ([a, b], t) => a.map((x, i) => Math.round(x + t * (b[i] - x)));
    ink = { text: of("ink"), muted: of("muted"), rule: of("rule"), paper: of("paper"), idle: rgb(of("idle")),
      tail: ["data", "optimizer", "other"].map((name) => of(name)), cells: [], redo: [] };
    for (let chunk = 0; chunk < data.chunks; chunk++) {
      const t = data.chunks > 1 ? chunk / (data.chunks - 1) : 0;
      for (const pair of pairs) ink.cells.push({ rgb: mix(pair, t), light: t > 0.5 });
      ink.redo.push(mix(redo, t));
    }
  }

  function measure() {
    const ratio = devicePixelRatio || 1;
    width = box.clientWidth;
    left = 34;
    const most = Math.max(320, Math.min(innerHeight * 0.8, 700));
    const pitch = Math.min(26, Math.max(4, Math.floor((most - 40) / ranks.length)));
    gap = pitch > 10 ? 3 : 1;
    row = pitch - gap;
    height = ranks.length * pitch + 40;
    canvas.style.height = height + "px";
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
  }

  const scale = () => (width - left) / (view.to - view.from);
  const x = (tick) => left + (tick - view.from) * scale();
  const tickAt = (px) => view.from + (px - left) / scale();
  const css = ([r, g, b]) => `rgb(${r},${g},${b})`;
  const again = (code) => (code % 4 === 1 || code % 4 === 2 ? data.again : 0);

  // The first compute that ends after a tick.
  function first(rank, tick) {
    let low = 0, high = rank.count;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (rank.end[middle] > tick) high = middle;
      else low = middle + 1;
    }
    return low;
  }

  // ---- drawing ----

  // Computes narrower than a few pixels: what share of each pixel is of which colour.
  function drawShares() {
    const columns = canvas.width - Math.round((left * canvas.width) / width);
    const image = new ImageData(columns, ranks.length);
    const pixels = image.data, perTick = columns / (view.to - view.from), idle = ink.idle;
    const sums = new Float32Array(4 * columns);
    const add = (from, to, colour) => {
      from = Math.max(0, (from - view.from) * perTick);
      to = Math.min(columns, (to - view.from) * perTick);
      for (let c = Math.floor(from); c < to; c++) {
        const share = Math.min(to, c + 1) - Math.max(from, c);
        for (let k = 0; k < 3; k++) sums[4 * c + k] += share * colour[k];
        sums[4 * c + 3] += share;
      }
    };
    ranks.forEach((rank, r) => {
      sums.fill(0);
      for (let i = first(rank, view.from); i < rank.count && rank.start[i] < view.to; i++) {
        const code = rank.code[i], middle = rank.start[i] + again(code) * (rank.end[i] - rank.start[i]);
        if (middle > rank.start[i]) add(rank.start[i], middle, ink.redo[code >> 2]);
        add(middle, rank.end[i], ink.cells[code].rgb);
      }
      for (let c = 0; c < columns; c++) {
        const at = 4 * (r * columns + c), rest = Math.max(0, 1 - sums[4 * c + 3]);
        for (let k = 0; k < 3; k++) pixels[at + k] = sums[4 * c + k] + rest * idle[k];
        pixels[at + 3] = 255;
      }
    });
    drawRows(image);
  }

  function drawRows(image) {
    const sheet = document.createElement("canvas");
    sheet.width = image.width;
    sheet.height = image.height;
    sheet.getContext("2d").putImageData(image, 0, 0);
    context.imageSmoothingEnabled = false;
    for (let r = 0; r < ranks.length; r++)
      context.drawImage(sheet, 0, r, image.width, 1, left, r * (row + gap), width - left, row);
  }

  function drawCells() {
    const size = Math.min(11, row * 0.9), numbered = row >= 8, digit = size * 0.62;
    context.font = `${size}px system-ui, sans-serif`;
    context.textAlign = "center";
    context.textBaseline = "middle";
    ranks.forEach((rank, r) => {
      const y = r * (row + gap);
      context.fillStyle = css(ink.idle);
      context.fillRect(left, y, Math.min(width, x(pipeline)) - left, row);
      for (let i = first(rank, view.from); i < rank.count && rank.start[i] < view.to; i++)
        drawCell(rank, i, y, numbered ? digit : Infinity);
    });
  }

  function drawCell(rank, i, y, digit) {
    const code = rank.code[i], from = Math.max(left, x(rank.start[i])), to = Math.min(width, x(rank.end[i]));
    const space = x(rank.end[i]) - x(rank.start[i]) > 4 ? 1 : 0, redo = again(code);
    const other = hovered && hovered.microbatch !== undefined && hovered.microbatch !== rank.microbatch[i];
    context.globalAlpha = other ? 0.35 : 1;
    context.fillStyle = css(ink.cells[code].rgb);
    context.fillRect(from, y, Math.max(0.5, to - from - space), row);
    if (redo > 0) {
      const end = Math.min(to - space, x(rank.start[i] + redo * (rank.end[i] - rank.start[i])));
      context.fillStyle = css(ink.redo[code >> 2]);
      if (end > from) context.fillRect(from, y, end - from, row);
    }
    const text = String(rank.microbatch[i]);
    if (to - from >= text.length * digit + 3) {
      context.fillStyle = ink.cells[code].light ? "#111" : "#fff";
      context.fillText(text, (from + to - space) / 2, y + row / 2 + 0.5);
    }
    context.globalAlpha = 1;
  }

  function drawTail() {
    let from = pipeline;
    data.tail.forEach((ticks, i) => {
      const a = Math.max(left, x(from)), b = Math.min(width, x((from += ticks)));
      context.fillStyle = ink.tail[i];
      if (ticks > 0 && b > left && a < width) context.fillRect(a, 0, b - a, ranks.length * (row + gap) - gap);
    });
  }

  function drawAxis() {
    const bottom = ranks.length * (row + gap) + 2, seconds = (view.to - view.from) * data.tick;
    const least = (80 / (width - left)) * seconds, power = 10 ** Math.floor(Math.log10(least));
    const step = power * [1, 2, 5, 10].find((factor) => factor * power >= least * 0.999);
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "top";
    context.fillStyle = context.strokeStyle = ink.muted;
    context.textAlign = "center";
    context.beginPath();
    for (let s = Math.ceil((view.from * data.tick) / step) * step; s <= view.to * data.tick * 1.0001; s += step) {
      const at = x(s / data.tick), text = time(s, step);
      context.moveTo(at, bottom);
      context.lineTo(at, bottom + 4);
      const half = context.measureText(text).width / 2;
      context.fillText(text, Math.min(width - half, Math.max(left + half, at)), bottom + 7);
    }
    context.stroke();
    const every = Math.ceil(13 / (row + gap));
    context.textAlign = "right";
    context.textBaseline = "middle";
    for (let r = 0; r < ranks.length; r += every) context.fillText(r, left - 8, r * (row + gap) + row / 2);
    drawThumb(bottom + 26);
  }

  // Where in the step the view is.
  function drawThumb(y) {
    if (view.to - view.from >= total * 0.999) return;
    const per = (width - left) / total;
    context.fillStyle = ink.rule;
    context.fillRect(left, y, width - left, 3);
    context.fillStyle = ink.muted;
    context.fillRect(left + view.from * per, y, Math.max(6, (view.to - view.from) * per), 3);
  }

  function draw() {
    asked = false;
    context.clearRect(0, 0, width, height);
    if (shortest * scale() < 6) drawShares();
    else drawCells();
    drawTail();
    drawAxis();
  }

  function redraw() {
    if (!asked) requestAnimationFrame(draw);
    asked = true;
  }

  // ---- moving ----

  function show(from, to) {
    const span = Math.min(total, Math.max(total / (4 * total / shortest), to - from, 20));
    view.from = Math.min(Math.max(0, from), total - span);
    view.to = view.from + span;
    redraw();
  }

  function zoom(factor, px = left + (width - left) / 2) {
    const at = tickAt(px), span = Math.min(total, (view.to - view.from) / factor);
    const share = (px - left) / (width - left);
    show(at - share * span, at + (1 - share) * span);
  }

  const pan = (share) => show(view.from + share * (view.to - view.from), view.to + share * (view.to - view.from));
  const all = () => show(0, total);

  // ---- telling ----

  function time(seconds, exact) {
    const unit = exact >= 1 || (seconds === 0 && exact >= 0.1) ? [1, "s"] : exact >= 1e-3 ? [1e3, "ms"] : [1e6, "µs"];
    if (exact >= 0.1 && exact < 1) return seconds.toFixed(1) + " s";
    return Number((seconds * unit[0]).toPrecision(6)) + " " + unit[1];
  }

  function length(seconds) {
    const [factor, unit] = seconds >= 1 ? [1, "s"] : seconds >= 1e-3 ? [1e3, "ms"] : [1e6, "µs"];
    return (seconds * factor).toPrecision(3) + " " + unit;
  }

  function tell(px, py) {
    const r = Math.floor(py / (row + gap)), tick = tickAt(px);
    const before = hovered && hovered.microbatch;
    hovered = null;
    if (px >= left && r >= 0 && r < ranks.length && tick < total) hovered = at(r, tick);
    said.textContent = hovered ? hovered.text : "";
    if ((hovered && hovered.microbatch) !== before) redraw();
  }

  function at(r, tick) {
    const rank = ranks[r], i = first(rank, tick), start = i ? rank.end[i - 1] : 0;
    if (tick >= pipeline) {
      let end = pipeline, k = 0;
      while (k < 2 && (end += data.tail[k]) <= tick) k++;
      return { text: `${TAIL[k]}, ${length(data.tail[k] * data.tick)}` };
    }
    if (i === rank.count || tick < rank.start[i])
      return { text: `rank ${r} waits ${length(((i < rank.count ? rank.start[i] : pipeline) - start) * data.tick)}` };
    const chunk = data.chunks > 1 ? `, chunk ${rank.code[i] >> 2}` : "", took = rank.end[i] - rank.start[i];
    const from = (rank.start[i] * data.tick).toPrecision(5);
    return { microbatch: rank.microbatch[i],
      text: `rank ${r}, ${KINDS[rank.code[i] % 4]} of microbatch ${rank.microbatch[i]}${chunk}: ` +
        `${length(took * data.tick)} from ${from} s on` };
  }

  // ---- hands ----

  const fingers = new Map();

  function place(event) {
    const rect = canvas.getBoundingClientRect();
    return { x: event.clientX - rect.left, y: event.clientY - rect.top };
  }

  function moved(event) {
    const now = place(event), old = fingers.get(event.pointerId);
    if (!old) return tell(now.x, now.y);
    if (fingers.size === 1) pan((old.x - now.x) / (width - left));
    else {
      const [other] = [...fingers].filter(([id]) => id !== event.pointerId).map(([, point]) => point);
      const apart = Math.abs(old.x - other.x);
      if (apart > 10) zoom(Math.max(0.2, Math.abs(now.x - other.x) / apart), (now.x + other.x) / 2);
    }
    fingers.set(event.pointerId, now);
  }

  function released(event) { fingers.delete(event.pointerId); }

  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    fingers.set(event.pointerId, place(event));
    tell(place(event).x, place(event).y);
  });
  canvas.addEventListener("pointermove", moved);
  canvas.addEventListener("pointerup", released);
  canvas.addEventListener("pointercancel", released);
  canvas.addEventListener("pointerleave", () => tell(-1, -1));
  canvas.addEventListener("dblclick", (event) => zoom(4, place(event).x));
  // The wheel belongs to the page until the drawing has been clicked.
  canvas.addEventListener("wheel", (event) => {
    if (document.activeElement !== canvas && !event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) pan(event.deltaX / width);
    else zoom(Math.exp(-event.deltaY * (event.deltaMode ? 0.06 : 0.002)), place(event).x);
  }, { passive: false });
  canvas.addEventListener("keydown", (event) => {
    const does = { "+": () => zoom(1.5), "=": () => zoom(1.5), "-": () => zoom(1 / 1.5), ArrowLeft: () => pan(-0.2),
      ArrowRight: () => pan(0.2), Home: () => show(0, view.to - view.from), 0: all, Escape: () => { all(); canvas.blur(); },
      End: () => show(total - view.to + view.from, total) }[event.key];
    if (!does || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    does();
  });

  // ---- the parts of the page ----

  function button(text, label, does) {
    const made = document.createElement("button");
    made.type = "button";
    made.textContent = text;
    made.title = label;
    made.setAttribute("aria-label", label);
    made.addEventListener("click", does);
    tools.append(made);
  }

  tools.className = "tools";
  button("+", "zoom in", () => zoom(2));
  button("−", "zoom out", () => zoom(0.5));
  button("←", "earlier", () => pan(-0.5));
  button("→", "later", () => pan(0.5));
  button("all", "the whole step", all);
  tools.append(said);
  canvas.tabIndex = 0;
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label",
    `Timeline of ${ranks.length} pipeline ranks over ${length(total * data.tick)}; plus and minus zoom, arrows move`);
  said.textContent = matchMedia("(pointer: coarse)").matches ? "Pinch to zoom, drag to move."
    : "Click, then turn the wheel to zoom; drag to move.";
  box.append(tools, canvas);
  box.classList.add("live");
  const fresh = () => { readInks(); measure(); redraw(); };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", fresh);
  new ResizeObserver(fresh).observe(box);
  fresh();
}

const spans = document.getElementById("spans");
if (spans) timeline(document.getElementById("timeline"), JSON.parse(spans.textContent));
