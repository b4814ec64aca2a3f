// Episodes of the final policies from above, in metres; stretches that cost something are red.

const INK = { path: "var(--path)", cost: "var(--cost)", good: "#009e73", limit: "var(--path)" };

function drawPaths() {
  const withPaths = inEnv().flatMap((group) => group.runs.filter((run) => run.paths.episodes));
  const seeds = [...new Set(withPaths.map((run) => run.seed))].sort((a, b) => a - b);
  if (!seeds.includes(state.pathSeed)) state.pathSeed = seeds[0] ?? null;
  const gather = withPaths.some((run) => run.paths.map.kind === "gather");
  const episodes = withPaths.length ? withPaths[0].paths.episodes.length : 0;
  state.episode = Math.min(state.episode, Math.max(0, episodes - 1));
  drawPathTools(seeds, gather ? episodes : 0);
  byId("paths-about").textContent = !withPaths.length ? "" : gather
    ? "Actions as the policy draws them. Every policy plays the same episodes: the same objects in the same places."
    : `${count(episodes, "episode")} of each policy, actions as it draws them; they begin alike for all policies.`;
  const figures = shown().flatMap((group) => {
    const run = group.runs.find((r) => r.seed === state.pathSeed && r.paths.episodes);
    return run ? [figure(group, run, gather)] : [];
  });
  byId("paths").replaceChildren(...figures);
  byId("paths-legend").replaceChildren(...(figures.length ? mapKey(gather) : []));
  tellMissing();
}

function drawPathTools(seeds, episodes) {
  const tool = (key, name, options) => options.length < 2 ? null : el("span", { class: "row", "data-tool": key },
    el("span", { class: "quiet" }, name), choice(options, state[key], (value) => {
      state[key] = value;
      drawPaths();
      document.querySelector(`[data-tool="${key}"] [aria-pressed="true"]`).focus();
    }));
  const numbers = Array.from({ length: episodes }, (_, k) => [k, k + 1]);
  const tools = [tool("pathSeed", "seed", seeds.map((seed) => [seed, seed])), tool("episode", "episode", numbers)];
  byId("paths-tools").replaceChildren(...tools.filter(Boolean));
}

function tellMissing() {
  const missing = inEnv().flatMap((group) => [...new Set(group.runs.map((run) => run.paths.missing).filter(Boolean))].map((why) => {
    const seeds = group.runs.filter((run) => run.paths.missing === why).map((run) => run.seed);
    return `${group.label}, ${seeds.length > 1 ? "seeds" : "seed"} ${seeds.join(", ")} (${why})`;
  }));
  byId("paths-missing").hidden = !missing.length;
  byId("paths-missing").textContent = `No trajectories of ${missing.join("; ")}.`;
}

function figure(group, run, gather) {
  const all = run.paths.episodes, episodes = gather ? [all[state.episode]] : all;
  const over = (pick) => format(mean(episodes.map(pick)));
  const costs = group.constraints.map((c, k) => `${c.name} ${over((e) => e.costs[k])} (limit ${format(c.limit)})`);
  const about = [`return ${over((e) => e.return)}`, ...costs].join(", ") + (gather ? "" : `; mean of ${episodes.length}`);
  const title = el("b", {}, swatch(group), `${group.label}, seed ${run.seed}`);
  const picture = gather ? arena(run.paths.map, episodes[0]) : circle(run.paths.map, reach(), episodes);
  return el("figure", {}, el("figcaption", {}, title, el("span", { class: "quiet" }, about)), picture);
}

// All Circle panels of an environment have one scale.
function reach() {
  const runs = inEnv().flatMap((group) => group.runs.filter((run) => run.paths.episodes));
  const far = runs.flatMap((run) => run.paths.episodes.flatMap((episode) => episode.path.map(Math.abs)));
  return Math.max(1.2 * runs[0].paths.map.d, 1.06 * far.reduce((a, b) => Math.max(a, b), 0));
}

function circle(map, half, episodes) {
  const unit = half / 150;
  const dashes = { "stroke-width": 1.2 * unit, "stroke-dasharray": `${5 * unit} ${4 * unit}` };
  // Beyond ±limit across x; the same turned by a quarter for y.
  const beyond = (limit, turn) => [-1, 1].map((sign) => svg("g", { transform: `rotate(${turn})` },
    svg("rect", { x: sign < 0 ? -half : limit, y: -half, width: half - limit, height: 2 * half, fill: "var(--unsafe)" }),
    svg("line", { x1: sign * limit, x2: sign * limit, y1: -half, y2: half, stroke: INK.limit, ...dashes })));
  return canvas(half, "Paths on the circle, from above", beyond(map.x, 0), map.y === null ? [] : beyond(map.y, 90),
    svg("circle", { r: map.d, fill: "none", stroke: INK.good, "stroke-width": 2.4 * unit }),
    episodes.map((episode) => path(episode, unit, 0.75)), scaleBar(-half + 10 * unit, -half + 10 * unit, 5, unit));
}

function arena(map, episode) {
  const half = map.wall + map.thick, unit = half / 150;
  const box = (h, fill) => svg("rect", { x: -h, y: -h, width: 2 * h, height: 2 * h, fill });
  const objects = [...episode.left].flatMap((left, k) => {
    const [x, y] = episode.objects.slice(2 * k, 2 * k + 2), apple = k < map.apples;
    const dots = { "stroke-width": 0.7 * unit, "stroke-dasharray": `${2 * unit} ${2.5 * unit}` };
    const range = svg("circle", { cx: x, cy: y, r: map.catch, fill: "none", stroke: apple ? INK.good : INK.cost, ...dots });
    return [range, object(x, y, apple, left === "1", 6.5 * unit)];
  });
  const hits = pairs(episode.hits).map(([x, y]) => diamond(x, y, 5 * unit));
  return canvas(half, "The path among apples and bombs, from above", box(half, "var(--wall)"), box(map.wall, "var(--safe)"),
    objects, path(episode, unit, 1), hits, scaleBar(-map.wall + 6 * unit, map.wall - 16 * unit, 2, unit));
}

// Apples are discs, bombs crosses; hollow when caught.
function object(x, y, apple, left, r) {
  const ink = apple ? INK.good : INK.cost;
  const style = { fill: left ? ink : "var(--safe)", stroke: ink, "stroke-width": r / 5 };
  if (apple) return svg("circle", { cx: x, cy: y, r, ...style });
  const b = 0.45 * r;
  const arm = [[-b, -r], [0, -b], [b, -r]];  // of four; each next one is turned by a quarter, (u, v) to (-v, u)
  const cross = [arm, arm.map(([u, v]) => [-v, u]), arm.map(([u, v]) => [-u, -v]), arm.map(([u, v]) => [v, -u])].flat();
  return svg("polygon", { points: cross.map(([u, v]) => `${x + u},${y + v}`).join(" "), ...style });
}
function diamond(x, y, r) {
  const points = `${x - r},${y} ${x},${y - r} ${x + r},${y} ${x},${y + r}`;
  return svg("polygon", { points, fill: INK.cost, stroke: "var(--text)", "stroke-width": r / 4 });
}

// North is up: y is turned here, once. Text would stand on its head, and turns itself back.
function canvas(half, about, ...children) {
  const all = { x: -half, y: -half, width: 2 * half, height: 2 * half };
  return svg("svg", { class: "map", viewBox: Object.values(all).join(" "), role: "img", "aria-label": about },
    svg("rect", { ...all, fill: "var(--safe)" }), svg("g", { transform: "scale(1 -1)" }, ...children));
}

function pairs(flat) {
  return Array.from({ length: flat.length / 2 }, (_, k) => [flat[2 * k], flat[2 * k + 1]]);
}

// From a hollow dot to a full one; stretches that cost something are red, and on top.
function path(episode, unit, opacity) {
  const points = pairs(episode.path);
  const stretches = { 0: "", 1: "" };  // free, costly
  for (let k = 0; k < episode.costly.length; k++) {
    const joined = k > 0 && episode.costly[k - 1] === episode.costly[k];
    stretches[episode.costly[k]] += `${joined ? "" : `M${points[k].join(" ")}`}L${points[k + 1].join(" ")}`;
  }
  const round = { "stroke-width": 2 * unit, "stroke-linejoin": "round", "stroke-linecap": "round", opacity };
  const stroke = (d, ink) => svg("path", { class: "path", d, fill: "none", stroke: ink, ...round });
  const dot = ([cx, cy], fill) => svg("circle", { cx, cy, r: 3.2 * unit, fill, stroke: "var(--text)", "stroke-width": 1.2 * unit });
  return [stroke(stretches[0], INK.path), stroke(stretches[1], INK.cost),
    dot(points[0], "var(--safe)"), dot(points[points.length - 1], "var(--text)")];
}

function scaleBar(x, y, length, unit) {
  const place = { transform: `translate(${x + length / 2} ${y + 5 * unit}) scale(1 -1)`, "text-anchor": "middle" };
  return [svg("line", { x1: x, x2: x + length, y1: y, y2: y, stroke: "var(--text)", "stroke-width": 2 * unit }),
    svg("text", { ...place, style: `font-size: ${10 * unit}px; fill: var(--text)` }, `${length} m`)];
}

function mapKey(gather) {
  const icon = (...children) => svg("svg", { width: 22, height: 16, "aria-hidden": "true" }, ...children);
  const line = (ink) => icon(svg("line", { x1: 0, x2: 22, y1: 8, y2: 8, stroke: ink, "stroke-width": 2.4 }));
  const dot = (fill) => icon(svg("circle", { cx: 11, cy: 8, r: 4, fill, stroke: "var(--text)", "stroke-width": 1.4 }));
  const thing = (apple, left) => icon(object(11, 8, apple, left, 6));
  const area = { width: 22, height: 16, fill: "var(--unsafe)", stroke: INK.limit, "stroke-dasharray": "4 3" };
  const circleEntries = [[line(INK.good), "target circle"], [icon(svg("rect", area)), "costs 1 a step"],
    [line(INK.path), "path"], [line(INK.cost), "path, where it costs"]];
  const gatherEntries = [[thing(true, true), "apple"], [thing(true, false), "apple, caught"], [thing(false, true), "bomb"],
    [thing(false, false), "bomb, caught"], [icon(diamond(11, 8, 6)), "a bomb was caught here"], [line(INK.path), "path"]];
  const ends = [[dot("var(--safe)"), "start"], [dot("var(--text)"), "end"]];
  return [...(gather ? gatherEntries : circleEntries), ...ends].map(([mark, text]) => el("li", {}, mark, text));
}
