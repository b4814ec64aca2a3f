// The case of the subproblem in every update: a strip for each run whose algorithm solves a constrained subproblem. Blue: the
// policy kept its limits. Orange and red: it did not.

const CASES = [
  ["inside", "#56b4e9", "the trust region lies inside the limits: a plain TRPO step"],
  ["boundary", "#0072b2", "within the limits, and a limit cuts the trust region"],
  ["feasible recovery", "#e69f00", "over a limit, and some step in the trust region brings it back"],
  ["recovery", "#d55e00", "no step in the trust region is feasible: straight for the limits"],
  ["contradictory", "#cc79a7", "no step of any length satisfies every limit"],
  ["zero gradient", "#999999", "a violated constraint does not depend on the policy to first order"],
  ["not finite", "var(--text)", "a gradient was not finite: no step"],
];
const STRIP = { height: 15, gap: 4, right: 12, axis: 34 };
let strips = null;

function drawCases() {
  const solving = shown().filter((group) => group.constrained && group.runs.some((run) => run.cases));
  byId("cases-about").textContent = aboutCases(solving.length > 0);
  const runs = solving.flatMap((group) => group.runs.map((run) => ({ group, run })));
  const rows = runs.map((row, k) => ({ ...row, top: k * (STRIP.height + STRIP.gap) + 6 * solving.indexOf(row.group) }));
  byId("cases-legend").replaceChildren(...caseKey(new Set(rows.flatMap(({ run }) => [...run.cases]))));
  strips = null;
  byId("cases").replaceChildren();
  if (rows.length) layStrips(rows);
}

function aboutCases(some) {
  const without = inEnv().filter((group) => !group.constrained).map((group) => group.label);
  const left = without.length ? ` No strips, as they solve no constrained subproblem: ${without.join("; ")}.` : "";
  const about = "Where the limits lay in the trust region of each update, a strip for each run. A notch: no step was accepted.";
  if (some) return about + left;
  return (inEnv().some((group) => group.constrained) ? "Every run with a constrained subproblem is hidden." : "") + left;
}

// The cases that occur.
function caseKey(present) {
  return CASES.filter((_, k) => present.has(String(k))).map(([name, fill, about]) => el("li", {},
    svg("svg", { width: 14, height: 14, "aria-hidden": "true" }, svg("rect", { width: 14, height: 14, rx: 2, fill })),
    el("span", {}, el("b", {}, name), ` ${about}`)));
}

function layStrips(rows) {
  const box = byId("cases");
  const short = (label) => label.length > 26 ? `${label.slice(0, 25)}…` : label;
  const names = rows.map(({ group, run }) => `${short(group.label)}, seed ${run.seed}`);
  const left = Math.max(90, 7.2 * Math.max(...names.map((name) => name.length)) + 24);
  const width = Math.max(120, box.clientWidth - left - STRIP.right);
  const [first, last] = span();
  // A cell is an iteration wide and has it in the middle.
  const px = (x) => left + (x - first + 0.5) / (last - first + 1) * width;
  const bottom = rows[rows.length - 1].top + STRIP.height + 5;
  const cursor = svg("g");
  const plot = svg("svg", { class: "strips", role: "img", "aria-label": "The dual's cases over iterations" });
  plot.setAttribute("width", left + width + STRIP.right);
  plot.setAttribute("height", bottom + STRIP.axis);
  const clip = svg("clipPath", { id: "clip-cases" }, svg("rect", { x: left, y: 0, width, height: bottom }));
  const cells = svg("g", { "clip-path": "url(#clip-cases)" }, rows.map(({ run, top }) => strip(run, top, px)));
  const labels = rows.map(({ group, top }, k) => svg("g", {}, svg("title", {}, group.label),
    svg("text", { x: left - 22, y: top + 12, "text-anchor": "end" }, names[k]),
    svg("line", { x1: left - 17, x2: left - 5, y1: top + 7.5, y2: top + 7.5, "stroke-width": 3, ...look(group) })));
  plot.append(clip, ...labels, cells, iterationAxis(px, left, left + width, bottom), cursor);
  const tip = el("div", { class: "tip", hidden: true });
  plot.addEventListener("pointermove", (event) => {
    const x = Math.round(first - 0.5 + (event.offsetX - left) / width * (last - first + 1));
    moveCursor(event.offsetX >= left ? x : null);
    const under = rows.find(({ top }) => event.offsetY >= top && event.offsetY < top + STRIP.height + STRIP.gap);
    tellCase(tip, under, event, x);
  });
  plot.addEventListener("pointerleave", () => {
    tip.hidden = true;
    moveCursor(null);
  });
  plot.addEventListener("dblclick", resetZoom);
  box.replaceChildren(plot, tip);
  strips = { cursor, px, bottom, first, last };
}

// One rectangle for every stretch of equal cases, and a notch for every update without a step.
function strip(run, top, px) {
  const half = run.every / 2;
  const box = (from, to, fill, y, height) => {
    const left = px(run.x[from] - half), right = px(run.x[to] + half);
    return svg("rect", { x: left, width: Math.max(0.5, right - left), y, height, fill });
  };
  const found = [];
  for (let from = 0; from < run.cases.length;) {
    let to = from;
    while (run.cases[to + 1] === run.cases[from]) to++;
    const known = CASES[Number(run.cases[from])];
    if (known) found.push(box(from, to, known[1], top, STRIP.height));
    from = to + 1;
  }
  run.x.forEach((_, i) => {
    if (valueAt(run, "accepted", i) === 0) found.push(box(i, i, "var(--back)", top + STRIP.height - 5, 5));
  });
  return found;
}

function tellCase(tip, row, event, x) {
  const i = row ? row.run.x.findIndex((at) => Math.abs(at - x) <= row.run.every / 2) : -1;
  tip.hidden = i < 0;
  if (i < 0) return;
  const known = CASES[Number(row.run.cases[i])];
  const refused = valueAt(row.run, "accepted", i) === 0 ? ", no step accepted" : "";
  tip.replaceChildren(`iteration ${row.run.x[i]}: `, el("b", {}, known ? known[0] : "unknown"), refused, el("br"),
    el("small", {}, `${row.group.label}, seed ${row.run.seed}`));
  tip.style.left = `${Math.min(event.offsetX + 14, byId("cases").clientWidth - tip.offsetWidth)}px`;
  tip.style.top = `${event.offsetY + 16}px`;
}

function pointCases(x) {
  if (!strips) return;
  strips.cursor.replaceChildren();
  if (x === null || x < strips.first || x > strips.last) return;
  const at = strips.px(x);
  strips.cursor.append(svg("line", { class: "cursor", x1: at, x2: at, y1: 0, y2: strips.bottom }));
}
