// A chart of one column against iterations: means with bands, single seeds, limits, a cursor with values, and zoom.

const charts = [];
const MARGIN = { left: 56, right: 12, top: 8, bottom: 34 };
const HEIGHT = 270;

class Chart {
  // title: element; column(group): name of its column; limits(group): dashed levels of the group
  constructor(title, column, limits) {
    Object.assign(this, { column, limits, zoom: null, drag: null });
    this.plot = svg("svg", { class: "plot", height: HEIGHT, tabindex: 0, role: "img" });
    this.tip = el("div", { class: "tip", role: "status", hidden: true });
    this.box = el("div", { class: "chart" }, title, this.plot, this.tip);
    this.listen();
    charts.push(this);
  }

  listen() {
    const on = (name, act) => this.plot.addEventListener(name, act);
    on("pointerdown", (event) => {
      if (event.button !== 0) return;
      this.drag = [event.offsetX, event.offsetY];
      this.plot.setPointerCapture(event.pointerId);
    });
    on("pointermove", (event) => {
      if (this.drag) this.select(event.offsetX, event.offsetY);
      moveCursor(this.toX(event.offsetX), this);
    });
    on("pointerup", (event) => this.release(event.offsetX, event.offsetY));
    on("pointercancel", () => this.release(...this.drag ?? [0, 0]));
    on("pointerleave", () => moveCursor(null));
    on("blur", () => moveCursor(null));
    on("dblclick", resetZoom);
    on("keydown", (event) => {
      const [first, last] = span();
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (event.key === "Escape") moveCursor(null);
      if (!step) return;
      event.preventDefault();
      const from = state.cursor ?? (step > 0 ? first - step : last - step);
      moveCursor(Math.min(last, Math.max(first, from + step * (event.shiftKey ? 10 : 1))), this);
    });
  }

  toX(pixel) { return this.x0 + (pixel - MARGIN.left) / this.width * (this.x1 - this.x0); }
  toY(pixel) { return this.y1 - (pixel - MARGIN.top) / this.height * (this.y1 - this.y0); }
  px(x) { return MARGIN.left + (x - this.x0) / (this.x1 - this.x0) * this.width; }
  py(y) { return MARGIN.top + (this.y1 - y) / (this.y1 - this.y0) * this.height; }

  // The area that a drag covers: a box; a direction in which it hardly moved is covered whole.
  covered(x, y) {
    const clampX = (v) => Math.min(MARGIN.left + this.width, Math.max(MARGIN.left, v));
    const clampY = (v) => Math.min(MARGIN.top + this.height, Math.max(MARGIN.top, v));
    const wide = Math.abs(x - this.drag[0]) > 12, tall = Math.abs(y - this.drag[1]) > 24;
    const xs = wide || !tall ? [clampX(this.drag[0]), clampX(x)] : [MARGIN.left, MARGIN.left + this.width];
    const ys = tall ? [clampY(this.drag[1]), clampY(y)] : [MARGIN.top, MARGIN.top + this.height];
    const order = (a, b) => a - b;
    return { xs: xs.sort(order), ys: ys.sort(order), wide, tall };
  }

  select(x, y) {
    const { xs, ys } = this.covered(x, y);
    const box = { x: xs[0], y: ys[0], width: xs[1] - xs[0], height: ys[1] - ys[0] };
    this.selection.replaceChildren(svg("rect", { class: "selection", ...box }));
  }

  release(x, y) {
    if (!this.drag) return;
    const { xs, ys, wide, tall } = this.covered(x, y);
    this.drag = null;
    this.selection.replaceChildren();
    if (wide && xs[1] > xs[0]) state.zoom = xs.map((pixel) => this.toX(pixel));
    if (tall && ys[1] > ys[0]) this.zoom = [this.toY(ys[1]), this.toY(ys[0])];
    if (wide || tall) drawLinked();
  }

  draw() {
    this.width = Math.max(120, this.box.clientWidth - MARGIN.left - MARGIN.right);
    this.height = HEIGHT - MARGIN.top - MARGIN.bottom;
    this.plot.setAttribute("width", this.width + MARGIN.left + MARGIN.right);
    [this.x0, this.x1] = span();
    [this.y0, this.y1] = this.zoom ?? this.range();
    const clip = `clip-${charts.indexOf(this)}`;
    const inside = svg("g", { "clip-path": `url(#${clip})` });
    const groups = shown().filter((group) => this.has(group));
    for (const group of groups) inside.append(this.band(group));
    for (const group of groups) inside.append(...this.singles(group));
    for (const group of groups) inside.append(this.mean(group));
    this.cursor = svg("g");
    this.selection = svg("g");
    const frame = { x: MARGIN.left, y: MARGIN.top, width: this.width, height: this.height };
    const window = svg("clipPath", { id: clip }, svg("rect", frame));
    this.plot.replaceChildren(window, this.axes(), inside, ...this.limitLines(groups), this.cursor, this.selection);
    if (!groups.length) this.plot.append(this.hiddenText());
    this.plot.setAttribute("aria-label", `${this.box.querySelector("h3").textContent} over iterations`);
  }

  hiddenText() {
    const at = { x: MARGIN.left + this.width / 2, y: MARGIN.top + this.height / 2, "text-anchor": "middle" };
    return svg("text", at, "every run that has this is hidden");
  }

  has(group) { return group.runs.some((run) => this.column(group) in run.columns); }

  range() {
    const values = [];
    for (const group of shown().filter((g) => this.has(g))) {
      for (const point of series(group, this.column(group)))
        if (point.count && point.x >= this.x0 && point.x <= this.x1) values.push(point.low, point.high);
      for (const run of group.runs.filter((r) => seedShown(group, r)))
        run.x.forEach((x, i) => {
          if (x >= this.x0 && x <= this.x1) values.push(valueAt(run, this.column(group), i));
        });
      values.push(...this.limits(group));
    }
    let low = Infinity, high = -Infinity;
    for (const value of values.filter((v) => v !== null)) {
      low = Math.min(low, value);
      high = Math.max(high, value);
    }
    if (low > high) return [0, 1];
    const room = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1;
    return [low >= 0 && low < 0.35 * high ? 0 : low - room, high + room];
  }

  axes() {
    const bottom = MARGIN.top + this.height, right = MARGIN.left + this.width;
    const across = ticks(this.y0, this.y1, 6).flatMap((y) => [
      svg("line", { class: "grid", x1: MARGIN.left, x2: right, y1: this.py(y), y2: this.py(y) }),
      svg("text", { x: MARGIN.left - 7, y: this.py(y) + 4, "text-anchor": "end" }, format(y))]);
    return svg("g", {}, across, iterationAxis((x) => this.px(x), MARGIN.left, right, bottom));
  }

  line(points, value) {
    let text = "", pen = "M";
    for (const point of points) {
      if (point[value] === null) { pen = "M"; continue; }
      text += `${pen}${this.px(point.x).toFixed(1)} ${this.py(point[value]).toFixed(1)}`;
      pen = "L";
    }
    return text;
  }

  mean(group) {
    const d = this.line(series(group, this.column(group)), "mean");
    return svg("path", { class: "mean", "data-group": group.id, d, ...look(group) });
  }

  // Along the lower edge, and back along the upper one.
  band(group) {
    const points = series(group, this.column(group)).filter((point) => point.count);
    const back = this.line([...points].reverse(), "high").replace("M", "L");
    return svg("path", { class: "band", d: points.length ? `${this.line(points, "low")}${back}Z` : "", fill: colour(group) });
  }

  singles(group) {
    return group.runs.filter((run) => seedShown(group, run)).map((run) => {
      const points = run.x.map((x, i) => ({ x, value: valueAt(run, this.column(group), i) }));
      return svg("path", { class: "single", "data-seed": run.seed, d: this.line(points, "value"), stroke: colour(group) });
    });
  }

  limitLines(groups) {
    const levels = [...new Set(groups.flatMap((group) => this.limits(group)))];
    const right = MARGIN.left + this.width;
    return levels.filter((y) => y >= this.y0 && y <= this.y1).flatMap((y) => [
      svg("line", { class: "limit", x1: MARGIN.left, x2: right, y1: this.py(y), y2: this.py(y) }),
      svg("text", { class: "limit-text", x: right - 4, y: this.py(y) - 6, "text-anchor": "end" }, `limit ${format(y)}`)]);
  }

  // The cursor of all charts at iteration x; the values beside it in the chart that has the pointer.
  point(x, told) {
    this.cursor.replaceChildren();
    this.tip.hidden = true;
    if (x === null || x < this.x0 || x > this.x1) return;
    const found = shown().filter((group) => this.has(group))
      .map((group) => ({ group, point: nearest(series(group, this.column(group)), x) }));
    const rows = found.filter(({ point }) => point.count && Math.abs(point.x - x) <= this.reach());
    if (!rows.length) return;
    const at = this.px(x);
    this.cursor.append(svg("line", { class: "cursor", x1: at, x2: at, y1: MARGIN.top, y2: MARGIN.top + this.height }));
    for (const { group, point } of rows)
      if (point.mean >= this.y0 && point.mean <= this.y1)
        this.cursor.append(svg("circle", { cx: this.px(point.x), cy: this.py(point.mean), r: 3.5, fill: colour(group) }));
    if (told) this.tell(x, rows);
  }

  // How far from x a group's nearest iteration may lie: of long runs only every k-th iteration is drawn.
  reach() { return Math.max(...inEnv().flatMap((group) => group.runs.map((run) => run.every))) / 2 + 1e-9; }

  tell(x, rows) {
    rows.sort((a, b) => b.point.mean - a.point.mean);
    const lines = rows.map(({ group, point }) => {
      const half = point.high - point.mean;
      const fewer = point.count < group.runs.length ? ` (${point.count} of ${group.runs.length} seeds)` : "";
      return el("tr", {}, el("td", {}, swatch(group)), el("td", {}, group.label + fewer),
        el("td", { class: "number" }, format(point.mean)),
        el("td", {}, el("small", {}, half > 0 ? `± ${Number(half.toPrecision(2))}` : "", this.seedValues(group, point.x))));
    });
    this.tip.replaceChildren(`iteration ${Math.round(x)}`, el("table", {}, ...lines));
    this.tip.hidden = false;
    const at = this.px(x), width = this.tip.offsetWidth, whole = this.box.clientWidth;
    const fits = at + 14 + width <= whole || at - 14 < width;
    this.tip.style.left = `${fits ? Math.min(at + 14, Math.max(0, whole - width)) : at - 14 - width}px`;
    const top = this.plot.getBoundingClientRect().top - this.box.getBoundingClientRect().top;
    this.tip.style.top = `${top + MARGIN.top + 4}px`;
  }

  seedValues(group, x) {
    const runs = group.runs.filter((run) => seedShown(group, run) && run.x.includes(x));
    const values = runs.map((run) => format(valueAt(run, this.column(group), run.x.indexOf(x))));
    return values.length ? ` (${values.join(", ")})` : "";
  }
}

function iterationAxis(px, left, right, y) {
  const [first, last] = span();
  const marks = ticks(first, last, Math.max(2, Math.min(8, (right - left) / 80)), true);
  return svg("g", {},
    svg("line", { class: "axis", x1: left, x2: right, y1: y, y2: y }),
    marks.map((x) => svg("text", { x: px(x), y: y + 15, "text-anchor": "middle" }, x.toLocaleString("en"))),
    svg("text", { x: (left + right) / 2, y: y + 30, "text-anchor": "middle" }, "iteration"));
}

function moveCursor(x, told = null) {
  const [first, last] = span();
  const outside = x === null || x < first - 0.5 || x > last + 0.5;
  state.cursor = outside ? null : Math.min(Math.floor(last), Math.max(Math.ceil(first), Math.round(x)));
  for (const chart of charts) chart.point(state.cursor, chart === told);
  pointCases(state.cursor);
}

function resetZoom() {
  state.zoom = null;
  for (const chart of charts) chart.zoom = null;
  drawLinked();
}
