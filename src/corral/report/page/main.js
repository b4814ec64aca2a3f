// Puts the page together and redraws the parts that a choice of the reader changes.

function drawLinked() {
  byId("reset").disabled = !state.zoom && !charts.some((chart) => chart.zoom);
  for (const chart of charts) chart.draw();
  drawCases();
}

function drawRuns() {
  drawLegend();
  drawLinked();
  drawPaths();
}

function drawHeader() {
  const environments = [...new Set(data.groups.map((group) => group.env))];
  const runs = data.groups.flatMap((group) => group.runs);
  const most = Math.max(...runs.map((run) => run.every));
  const thinned = most > 1 ? ` The longest curves show one iteration in ${most}.` : "";
  byId("title").textContent = environments.join(", ");
  byId("about").append(`${count(runs.length, "run")} in ${count(data.groups.length, "group")}, written by Corral ${data.version} on `,
    el("time", { datetime: data.made }, `${data.made.slice(0, 16).replace("T", " ")} UTC`),
    ...(data.command ? [" with ", el("code", {}, data.command)] : []), ".", thinned);
  byId("skipped").hidden = !data.skipped.length;
  const more = data.skipped.length > 3 ? ` and ${data.skipped.length - 3} more` : "";
  byId("skipped").textContent = `Left out, no iteration done yet: ${data.skipped.slice(0, 3).join(", ")}${more}`;
  const tab = (env) => el("button", { type: "button", "data-env": env, click: () => chooseEnv(env) }, env);
  byId("tabs").replaceChildren(...environments.map(tab));
}

function chooseEnv(env) {
  state.env = env;
  state.zoom = null;
  for (const tab of byId("tabs").children) pressable(tab, tab.dataset.env === env);
  buildLegend();
  buildCharts();
  drawRuns();
  drawTable();
  drawSettings();
}

// The legend is built once for an environment, so that a button pressed by keyboard keeps the focus.
function buildLegend() {
  const buttons = (group) => [groupButton(group), ...group.runs.map((run) => seedButton(group, run))];
  byId("legend").replaceChildren(...inEnv().flatMap(buttons));
}

function groupButton(group) {
  const { runs } = group;
  const title = ["Hide or show; with Shift: show only this one", ...runs.map((run) => run.folder)].join("\n");
  const seeds = runs.length > 1 ? `${runs.length} seeds` : `seed ${runs[0].seed}`;
  return el("button", { type: "button", "data-group": group.id, title, click: (event) => toggle(group, event.shiftKey) },
    swatch(group), group.label, el("small", {}, seeds));
}

function seedButton(group, run) {
  const title = `Line of ${group.label}, seed ${run.seed}`;
  const seed = { "data-seed": `${group.id}/${run.seed}`, "aria-label": title, title };
  return el("button", { type: "button", class: "seed", ...seed, click: () => toggleSeed(group, run) }, String(run.seed));
}

function drawLegend() {
  for (const button of byId("legend").children) {
    if (button.dataset.group) pressable(button, !state.hidden.has(Number(button.dataset.group)));
    else {
      button.hidden = !state.seeds || state.hidden.has(Number(button.dataset.seed.split("/")[0]));
      pressable(button, !state.hiddenSeeds.has(button.dataset.seed));
    }
  }
  pressable(byId("seeds"), state.seeds);
}

const flip = (set, value) => set.delete(value) || set.add(value);

function toggle(group, only) {
  if (only) state.hidden = new Set(inEnv().filter((other) => other !== group).map((other) => other.id));
  else flip(state.hidden, group.id);
  drawRuns();
}

function toggleSeed(group, run) {
  flip(state.hiddenSeeds, `${group.id}/${run.seed}`);
  drawRuns();
}

// Return, every constraint, and one column of the reader's choice.
function buildCharts() {
  charts.length = 0;
  const groups = inEnv();
  new Chart(el("h3", {}, "Return ", el("span", { class: "quiet" }, "per episode")), () => "return", () => []);
  const names = [...new Set(groups.flatMap((group) => group.constraints.map((c) => c.name)))];
  for (const name of names) {
    const limit = (group) => group.constraints.filter((c) => c.name === name && c.limit !== null).map((c) => c.limit);
    const kind = (group) => group.shaped && !state.trueCost ? "shaped_cost" : "cost";
    new Chart(costTitle(groups, name), (group) => `${kind(group)}_${name}`, limit);
  }
  // One or two, so that they fill rows of two.
  for (const k of (charts.length % 2 ? [0] : [0, 1]))
    new Chart(metricTitle(groups, names, k), () => state.metrics[k], (group) => metricLimit(group, state.metrics[k]));
  byId("charts").replaceChildren(...charts.map((chart) => chart.box));
}

function costTitle(groups, name) {
  const about = groups.flatMap((group) => group.constraints).find((c) => c.name === name).about;
  const buttons = el("span", { class: "row" });
  const kinds = [[false, "constrained C⁺"], [true, "true C"]];
  const fill = () => buttons.replaceChildren(...choice(kinds, state.trueCost, (value) => {
    state.trueCost = value;
    for (const title of document.querySelectorAll(".chart h3")) title.refill?.();
    drawLinked();
    buttons.querySelector('[aria-pressed="true"]').focus();
  }));
  if (groups.some((group) => group.shaped)) fill();
  const unit = el("span", { class: "quiet" }, about ? `${about}, per episode` : "per episode");
  // With several constraints all charts change together, and so do their buttons.
  return Object.assign(el("h3", {}, `Cost ${name} `, unit, buttons), { refill: () => buttons.children.length && fill() });
}

function metricTitle(groups, names, k) {
  const drawn = ["return", ...names.map((name) => `limit_${name}`)];
  const columns = [...new Set(groups.flatMap((group) => group.runs.flatMap((run) => Object.keys(run.columns))))]
    .filter((name) => !drawn.includes(name));
  // Steps that are judged in-sample have no share of signal.
  const usual = ["signal", "kl", "entropy"].filter((name) => columns.includes(name));
  if (!columns.includes(state.metrics[k])) state.metrics[k] = usual[k] ?? columns[k];
  const select = el("select", { "aria-label": "Metric", change: () => { state.metrics[k] = select.value; drawLinked(); } },
    columns.map((name) => el("option", { selected: name === state.metrics[k] }, name)));
  return el("h3", {}, "Metric ", select);
}

// The limits of a column: costs have them, and so has the KL divergence of an update.
function metricLimit(group, column) {
  if (column === "kl") return [Number(group.config["trust.delta"])];
  const limited = ["cost_", "shaped_cost_", "effective_limit_"];
  const owners = group.constraints.filter((c) => limited.some((kind) => column === kind + c.name) && c.limit !== null);
  return owners.map((c) => c.limit);
}

byId("seeds").addEventListener("click", () => {
  state.seeds = !state.seeds;
  drawRuns();
  drawTable();
});
byId("reset").addEventListener("click", resetZoom);
byId("all").addEventListener("click", () => {
  state.allSettings = !state.allSettings;
  pressable(byId("all"), state.allSettings);
  drawSettings();
});

drawHeader();
chooseEnv(state.env);
let width = document.body.clientWidth;
new ResizeObserver(() => {
  if (document.body.clientWidth === width) return;
  width = document.body.clientWidth;
  drawLinked();
}).observe(document.body);
