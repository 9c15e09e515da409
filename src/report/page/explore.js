"use strict";
// Other questions: the reader chooses among answers that the planner gave when the page was written. Time, money and
// energy of the run, and the front, are computed here, in the order of the planner's own arithmetic and in its words.
(() => {
  const data = JSON.parse(document.getElementById("answers").textContent);
  const box = document.getElementById("explore");
  const NBSP = "\u00a0", THIN = "\u202f";
  const make = (name, properties = {}, ...children) => {
    const element = Object.assign(document.createElement(name), properties);
    element.append(...children);
    return element;
  };

  // ---- words, as page/words.c makes them ----

  // Ties go to the even digit, as printf rounds them.
  function fixed(value, digits) {
    const scaled = value * 10 ** digits;
    const tie = Math.abs(scaled % 1) === 0.5 && scaled / 10 ** digits === value;
    return (tie ? (2 * Math.round(scaled / 2)) / 10 ** digits : value).toFixed(digits);
  }
  function count(value) {
    const digits = fixed(Math.min(value, 1e18), 0);
    return digits.length > 4 ? digits.replace(/\B(?=(\d{3})+$)/g, THIN) : digits;
  }
  function number(value) {
    const size = Math.abs(value);
    if (size >= 1e4) return count(value);
    return fixed(value, size >= 99.95 || size === 0 ? 0 : size >= 9.995 ? 1 : size >= 0.9995 ? 2 : 3);
  }
  const unit = (value, name) => number(value) + NBSP + name;
  function days(seconds) {
    const hours = seconds / 3600;
    if (hours < 2) return unit(seconds / 60, "min");
    if (hours < 72) return unit(hours, "h");
    return hours < 24 * 1000 ? unit(hours / 24, "days") : unit(hours / 24 / 365.25, "years");
  }
  const dollars = (value) => "$" + (value >= 999500 ? unit(value / 1e6, "M") : count(value));
  function energy(kwh) {
    if (kwh < 999.5) return unit(kwh, "kWh");
    return kwh < 999.5e3 ? unit(kwh / 1e3, "MWh") : unit(kwh / 1e6, "GWh");
  }
  const tokenWords = (tokens) => (tokens < 1e9 ? unit(tokens / 1e6, "million") : unit(tokens / 1e9, "billion"));

  // ---- the question ----

  const UNITS = { K: 1e3, M: 1e6, B: 1e9, G: 1e9, T: 1e12 };
  function readTokens(text) {
    const factor = UNITS[text.slice(-1)];
    const value = Number(factor ? text.slice(0, -1) : text) * (factor || 1);
    return text.trim() && value > 0 && value < 1e18 ? value : NaN;
  }
  function tokenText(tokens) {
    for (const name of ["T", "B", "M", "K"])
      if (tokens > 0 && tokens % UNITS[name] === 0) return tokens / UNITS[name] + name;
    return tokens > 0 ? String(tokens) : "";
  }

  const ask = { ...data.asked, tokens: data.tokens, goodput: data.goodput, pue: data.pue };
  const prices = new Map(data.cells.map((cell) => [cell.machine, cell.price]));
  const values = (key) => [...new Set(data.cells.map((cell) => cell[key]))];
  const device = data.cells[0].device;
  const find = (question) => data.cells.find((cell) =>
    ["machine", "gpus", "batch", "seq"].every((key) => cell[key] === question[key]));

  function run(cell) {
    const seconds = (step_s) => (step_s * ask.tokens) / (cell.batch * cell.seq) / ask.goodput;
    const price = prices.get(cell.machine);
    const s = ask.tokens > 0 && cell.step_s ? seconds(cell.step_s) : NaN;
    return { s, low: seconds(cell.low_s), high: seconds(cell.high_s), price,
      dollars: price > 0 ? (s / 3600) * cell.gpus * price : NaN,
      kwh: cell.watts > 0 ? (((s / 3600) * cell.gpus * cell.watts) / 1e3) * ask.pue : NaN };
  }

  // Those that train the same: of one batch and one sequence.
  function rivals() {
    const rows = data.cells.filter((cell) => cell.step_s && cell.batch === ask.batch && cell.seq === ask.seq)
      .map((cell) => ({ cell, ...run(cell) }));
    const beats = (a, b) => a.s <= b.s && a.dollars <= b.dollars && (a.s < b.s || a.dollars < b.dollars);
    for (const row of rows) row.competes = row.dollars > 0 && row.cell.fits !== "no";
    for (const row of rows) row.front = row.competes && !rows.some((other) => other.competes && beats(other, row));
    return rows;
  }

  // ---- the controls ----

  const form = make("div", { className: "ask" });
  const controls = {};
  function label(key, name, control) {
    controls[key] = control;
    control.name = key;
    form.append(make("label", {}, name, control));
    return control;
  }
  function choice(key, name) {
    const select = label(key, name, make("select"));
    for (const value of values(key))
      select.append(make("option", { value, textContent: typeof value === "number" ? count(value) : value }));
    select.disabled = select.options.length < 2;
    if (![...select.options].some((option) => option.value === String(ask[key])))
      ask[key] = typeof data.cells[0][key] === "number" ? Number(select.value) : select.value;
    select.value = ask[key];
    select.addEventListener("change", () => {
      ask[key] = typeof data.cells[0][key] === "number" ? Number(select.value) : select.value;
      show();
    });
  }
  // A value that makes no sense leaves the answer as it was, and says what would.
  function entry(key, name, title, text, read, write) {
    const inputMode = key === "tokens" ? "text" : "decimal"; // keys for 300B
    const input = label(key, name, make("input", { type: "text", inputMode, title, value: text }));
    input.addEventListener("input", () => {
      const value = read(input.value.trim());
      input.setAttribute("aria-invalid", Number.isNaN(value));
      if (Number.isNaN(value)) return;
      write(value);
      show();
    });
  }
  const within = (least, most) => (text) => {
    const value = text ? Number(text) : NaN;
    return value >= least && value <= most ? value : NaN;
  };
  choice("machine", "Machine");
  choice("gpus", device === "GPU" ? "GPUs" : "Ranks");
  choice("batch", "Batch, samples");
  choice("seq", "Sequence, tokens");
  entry("tokens", "Tokens of the run", "such as 300B", tokenText(ask.tokens),
    (text) => (text ? readTokens(text) : 0), (value) => (ask.tokens = value));
  entry("price", `$ per ${device} hour`, "of this machine", "", (text) => (text ? within(1e-9, 1e9)(text) : 0),
    (value) => prices.set(ask.machine, value));
  entry("goodput", "Share training", "above 0, up to 1", String(ask.goodput), within(1e-9, 1),
    (value) => (ask.goodput = value));
  entry("pue", "PUE", "energy of the data centre over that of its machines, from 1 to 10", String(ask.pue),
    within(1, 10), (value) => (ask.pue = value));

  // ---- the answer ----

  const advice = make("p", { className: "advice" });
  const figures = make("dl", { className: "figures" });
  const command = make("pre", { tabIndex: 0, id: "words" });
  const plot = make("div", { className: "charts" });
  const table = make("div", { className: "scroll" });
  const meaning = make("p");
  const figure = (name, value, note) => make("div", {}, make("dt", { textContent: name }),
    make("dd", {}, value, make("small", { textContent: note })));

  const centre = () => (ask.pue > 1 ? `, times ${Number(fixed(ask.pue, 3))} for the data centre` : "");

  function showAnswer(cell) {
    const r = run(cell);
    advice.classList.toggle("caution", !cell.step_s);
    if (!cell.step_s) {
      advice.textContent = cell.why;
      figures.replaceChildren();
      return;
    }
    advice.innerHTML = cell.advice;
    figures.innerHTML = cell.figures;
    if (!(r.s > 0)) return;
    const add = (...words) => figures.append(figure(...words), "\n");
    add("Training", days(r.s), `${tokenWords(ask.tokens)} tokens; ${days(r.low)} to ${days(r.high)}`);
    if (r.dollars > 0) add("Cost", dollars(r.dollars), `$${fixed(r.price, 2)} per ${cell.device} hour`);
    if (r.kwh > 0) add("Energy, at most", energy(r.kwh), cell.power + centre());
  }

  function showCommand() {
    const price = prices.get(ask.machine);
    const words = [`--machine=${ask.machine}`, `--gpus=${ask.gpus}`, `--global-batch-size=${ask.batch}`,
      `--seq-length=${ask.seq}`];
    if (ask.tokens > 0) words.push(`--tokens=${ask.tokens}`);
    if (price > 0) words.push(`--price=${price}`);
    words.push(`--goodput=${ask.goodput}`, `--pue=${ask.pue}`);
    command.textContent = "trireme plan ... " + words.join(" ");
  }

  // ---- all of this batch and sequence ----

  function choose(cell) {
    for (const key of ["machine", "gpus"]) controls[key].value = ask[key] = cell[key];
    show();
  }

  function showTable(rows) {
    const head = ["", "machine", device === "GPU" ? "GPUs" : "ranks", "step", "MFU", "memory", "time", "cost",
      "energy, at most"];
    const or = (value, word) => (value > 0 ? word(value) : "–");
    const body = make("tbody");
    for (const row of rows) {
      const pick = make("button", { type: "button", textContent: count(row.cell.gpus), title: "show this answer" });
      pick.addEventListener("click", () => choose(row.cell));
      const cells = [row.front ? "●" : "", row.cell.machine, pick, (row.cell.extrapolates ? "~ " : "") + row.cell.step, row.cell.mfu,
        row.cell.memory + (row.cell.fits === "yes" ? "" : row.cell.fits === "no" ? " (too much)" : " (perhaps)"),
        or(row.s, days), or(row.dollars, dollars), or(row.kwh, energy)];
      const line = make("tr", {}, ...cells.map((cell, i) => make("td", { className: i > 1 ? "n" : "" }, cell)));
      if (row.cell.gpus === ask.gpus && row.cell.machine === ask.machine) line.className = "chosen";
      body.append(line);
    }
    table.replaceChildren(make("table", {}, make("thead", {}, make("tr", {},
      ...head.map((name, i) => make("th", { scope: "col", className: i > 1 ? "n" : "", textContent: name })))), body));
    meaning.textContent = "● of these, none is as fast for less money, or faster for as much."
      + (rows.some((row) => row.cell.extrapolates) ? " ~ extrapolated, outside of what the constants were measured on." : "");
  }

  // ---- time against money ----

  const WIDTH = 520, HEIGHT = 300, LEFT = 76, RIGHT = 24, TOP = 30, BOTTOM = 44;
  const NAMESPACE = make("div", { innerHTML: "<svg></svg>" }).firstChild.namespaceURI;
  function draw(name, attributes, text) {
    const element = document.createElementNS(NAMESPACE, name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    if (text !== undefined) element.textContent = text;
    return element;
  }
  // Round numbers between two values, on a logarithmic axis.
  function ticks(least, most) {
    for (const digits of [[1], [1, 3], [1, 2, 5], [1, 1.5, 2, 3, 4, 5, 7]]) {
      const found = [];
      for (let power = 10 ** Math.floor(Math.log10(least)); power <= most; power *= 10)
        found.push(...digits.map((digit) => digit * power).filter((value) => value >= least && value <= most));
      if (found.length > 2) return found;
    }
    return [least * 1.02, Math.sqrt(least * most), most / 1.02];
  }
  function axis(all, from, to) {
    const least = Math.min(...all) / 1.15, most = Math.max(...all) * 1.15;
    return { least, most, at: (value) => from + (Math.log(value / least) / Math.log(most / least)) * (to - from) };
  }

  function showPlot(rows) {
    rows = rows.filter((row) => row.dollars > 0).sort((a, b) => a.s - b.s);
    if (rows.length < 2) {
      plot.replaceChildren(make("p", { textContent: "With tokens and prices, a picture of time against cost is here." }));
      return;
    }
    const x = axis(rows.map((row) => row.s / 86400), LEFT, WIDTH - RIGHT);
    const y = axis(rows.map((row) => row.dollars), HEIGHT - BOTTOM, TOP);
    const svg = draw("svg", { class: "chart", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img",
      "aria-label": "Cost over time of the run" });
    svg.append(draw("text", { x: 0, y: 14, class: "strong" }, "Cost against time; the line is the front"));
    for (const value of ticks(y.least, y.most)) {
      svg.append(draw("path", { class: "grid", d: `M${LEFT} ${y.at(value)}H${WIDTH - RIGHT}` }),
        draw("text", { x: LEFT - 8, y: y.at(value) + 4, class: "end" }, dollars(value)));
    }
    for (const value of ticks(x.least, x.most)) {
      svg.append(draw("path", { class: "axis", d: `M${x.at(value)} ${HEIGHT - BOTTOM}v5` }),
        draw("text", { x: x.at(value), y: HEIGHT - BOTTOM + 19, class: "middle" }, days(value * 86400)));
    }
    const place = (row) => `${x.at(row.s / 86400).toFixed(1)} ${y.at(row.dollars).toFixed(1)}`;
    const front = rows.filter((row) => row.front);
    svg.append(draw("path", { class: "ideal", d: "M" + front.map(place).join("L") }));
    const machines = values("machine");
    for (const row of rows) {
      const [cx, cy] = place(row).split(" ");
      const picked = row.cell.gpus === ask.gpus && row.cell.machine === ask.machine;
      const dot = draw("circle", { cx, cy, r: picked ? 6 : 4.5,
        class: `${row.front || picked ? "" : "point "}run${machines.indexOf(row.cell.machine) % 8} pick` });
      dot.append(draw("title", {}, `${row.cell.machine}, ${count(row.cell.gpus)} ${device}s: ${days(row.s)}, ` +
        `${dollars(row.dollars)}`));
      dot.addEventListener("click", () => choose(row.cell));
      svg.append(dot);
      if (picked) svg.append(draw("circle", { cx, cy, r: 9.5, class: "ring" }));
    }
    const legend = make("ul", { className: "legend" });
    for (const machine of machines) {
      const key = draw("svg", { class: "key", viewBox: "0 0 10 10" });
      key.append(draw("circle", { cx: 5, cy: 5, r: 4.5, class: `run${machines.indexOf(machine) % 8}` }));
      legend.append(make("li", {}, key, machine));
    }
    plot.replaceChildren(make("div", {}, svg, legend));
  }

  // ---- all of it ----

  function show() {
    const price = prices.get(ask.machine), rows = rivals();
    if (document.activeElement !== controls.price) controls.price.value = price > 0 ? String(price) : "";
    showAnswer(find(ask));
    showCommand();
    showPlot(rows);
    showTable(rows);
  }
  box.append(form, advice, figures, make("div", { className: "flags" }, make("h3", { textContent: "The same by the " +
    "command line, with your other options" }), command), plot, table, meaning);
  show();
})();
