// The table of the runs in all environments, and the settings of the groups in the chosen one.

// Rows: groups, or single runs if seeds are shown. A cell is {text, sort, note, over}.
function tableRows() {
  const split = ({ group, runs }) => runs.map((run) => ({ group, runs: [run] }));
  const whole = data.groups.map((group) => ({ group, runs: group.runs }));
  return (state.seeds ? whole.flatMap(split) : whole).map(({ group, runs }) => {
    const over = (pick) => runs.map((run) => pick(run.summary)).filter((value) => value !== null);
    const cells = {
      env: { text: group.env, sort: group.env },
      label: { text: group.label, sort: group.label, group },
      seeds: { text: runs.map((run) => run.seed).join(", "), sort: state.seeds ? runs[0].seed : runs.length },
      done: iterations(runs),
      return: average(over((s) => s.return)),
    };
    group.constraints.forEach((c, k) => {
      cells[`constraint${k}`] = { text: `${c.name} ≤ ${format(c.limit)}`, sort: c.name };
      cells[`cost${k}`] = average(over((s) => s.constraints[k].cost), c.limit);
      if (group.shaped) cells[`shaped${k}`] = average(over((s) => s.constraints[k].shaped), c.limit);
      const share = mean(over((s) => s.constraints[k].over));
      cells[`over${k}`] = { text: `${Math.round(100 * share)}%`, sort: share };
    });
    return cells;
  });
}

function iterations(runs) {
  const done = Math.min(...runs.map((run) => run.done));
  const whole = runs.every((run) => run.finished) ? "" : ` of ${runs[0].planned.toLocaleString("en")}`;
  return { text: done.toLocaleString("en") + whole, sort: done };
}

function average(values, limit = null) {
  if (!values.length) return { text: "–", sort: null };
  const centre = mean(values);
  const note = values.length > 1 ? ` ± ${Number(deviation(values).toPrecision(2))}` : "";
  return { text: format(centre), sort: centre, over: limit !== null && centre > limit, note };
}

function tableColumns() {
  const most = Math.max(...data.groups.map((group) => group.constraints.length));
  const anyShaped = data.groups.some((group) => group.shaped);
  const columns = [["env", "environment"], ["label", "algorithm"], ["seeds", state.seeds ? "seed" : "seeds"]];
  columns.push(["done", "iterations", true], ["return", "return", true]);
  for (let k = 0; k < most; k++) {
    columns.push([`constraint${k}`, "constraint"], [`cost${k}`, "cost C", true]);
    if (anyShaped) columns.push([`shaped${k}`, "shaped cost C⁺", true]);
    columns.push([`over${k}`, "in violation", true]);
  }
  return columns;
}

function drawTable() {
  const columns = tableColumns(), { key, down } = state.sort;
  const seen = data.groups.some((group) => group.shaped) ? " (C⁺ where costs are shaped)" : "";
  byId("table-about").textContent = `Means over ${data.last}`
    + (state.seeds ? "" : " and all seeds, ± one standard deviation of the seeds' means")
    + `. ▲: over the limit. In violation: the share of all iterations whose cost${seen} is over the limit.`;
  const rows = tableRows();
  if (key) rows.sort((a, b) => compare(a[key]?.sort ?? null, b[key]?.sort ?? null, down));
  const order = down ? ["descending", " ↓"] : ["ascending", " ↑"];
  const head = columns.map(([name, text, number]) => {
    const [sorted, arrow] = name === key ? order : [null, ""];
    const button = el("button", { type: "button", "data-key": name, click: () => sortBy(name) }, text + arrow);
    return el("th", { scope: "col", class: number ? "number" : null, "aria-sort": sorted }, button);
  });
  const body = rows.map((cells) => el("tr", {}, columns.map(([name, , number]) => cell(cells[name], number))));
  byId("table").replaceChildren(el("thead", {}, el("tr", {}, head)), el("tbody", {}, body));
}

function cell(content, number) {
  if (!content) return el("td", { class: number ? "number" : null }, "–");
  const text = content.over ? el("span", { class: "over" }, `▲ ${content.text}`) : content.text;
  const mark = content.group ? swatch(content.group) : null;
  return el("td", { class: number ? "number" : null }, mark, text, content.note ? el("small", {}, content.note) : null);
}

// Missing values come last in either order.
function compare(a, b, down) {
  if (a === null || b === null) return (a === null) - (b === null);
  const order = typeof a === "string" ? a.localeCompare(b) : a - b;
  return down ? -order : order;
}

function sortBy(key) {
  state.sort = { key, down: state.sort.key === key ? !state.sort.down : !["env", "label", "seeds"].includes(key) };
  drawTable();
  byId("table").querySelector(`[data-key="${key}"]`).focus();
}

function drawSettings() {
  const groups = inEnv();
  const names = [...new Set(groups.flatMap((group) => Object.keys(group.config)))];
  const differing = new Set(names.filter((name) => new Set(groups.map((group) => group.config[name])).size > 1));
  const listed = state.allSettings ? names : names.filter((name) => differing.has(name));
  const highlighted = state.allSettings && differing.size ? ", highlighted" : "";
  byId("settings-about").textContent = groups.length === 1 ? `One configuration in ${state.env}.`
    : `In ${state.env} ${differing.size} of ${names.length} settings differ between the groups${highlighted}.`;
  const labels = groups.map((group) => el("th", { scope: "col" }, group.label));
  const head = el("tr", {}, el("th", { scope: "col" }, "setting"), labels);
  const body = listed.map((name) => el("tr", { class: state.allSettings && differing.has(name) ? "differs" : null },
    el("th", { scope: "row" }, el("code", {}, name), data.docs[name] ? el("small", {}, data.docs[name]) : null),
    groups.map((group) => el("td", {}, group.config[name] ?? "–"))));
  byId("settings").replaceChildren(...(listed.length ? [el("thead", {}, head), el("tbody", {}, body)] : []));
}
