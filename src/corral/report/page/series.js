// The curve of a column for one run, and for the seeds of a group together.

// The value of a column in the i-th row of a run; a constant column is stored as its one value.
function valueAt(run, column, i) {
  const values = run.columns[column];
  return Array.isArray(values) ? values[i] : values ?? null;
}

// cost_NAME has its standard error in cost_se_NAME, and so on.
function errorColumn(group, column) {
  if (column === "return") return "return_se";
  const owner = group.constraints.find((c) => column === `cost_${c.name}` || column === `shaped_cost_${c.name}`);
  return owner ? column.replace("cost_", "cost_se_") : null;
}

// Points {x, mean, low, high, count} in the order of x, over the seeds that have got that far. The band from low to high is
// one standard deviation over the seeds to either side; for a group of one seed, two standard errors. Points are cached.
const kept = new Map();
function series(group, column) {
  const key = `${group.id} ${column}`;
  if (!kept.has(key)) kept.set(key, computeSeries(group, column));
  return kept.get(key);
}
function computeSeries(group, column) {
  const at = new Map();
  for (const run of group.runs) run.x.forEach((x, i) => {
    if (!at.has(x)) at.set(x, []);
    const value = valueAt(run, column, i);
    if (value !== null) at.get(x).push(value);
  });
  const single = group.runs.length === 1 ? errorColumn(group, column) : null;
  return [...at].sort((a, b) => a[0] - b[0]).map(([x, values], i) => {
    if (values.length === 0) return { x, mean: null, low: null, high: null, count: 0 };
    const centre = mean(values);
    let half = values.length > 1 ? deviation(values) : 0;
    if (single) half = 2 * (valueAt(group.runs[0], single, i) ?? 0);
    return { x, mean: centre, low: centre - half, high: centre + half, count: values.length };
  });
}

// The point of a list sorted by x that is nearest to `x`.
function nearest(points, x) {
  let low = 0, high = points.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (points[middle].x < x) low = middle + 1; else high = middle;
  }
  return low > 0 && x - points[low - 1].x < points[low].x - x ? points[low - 1] : points[low];
}

// The first and last iteration of the runs shown, or of the zoom.
function span() {
  if (state.zoom) return state.zoom;
  const groups = shown().length ? shown() : inEnv();
  const all = groups.flatMap((group) => group.runs.flatMap((run) => [run.x[0], run.x[run.x.length - 1]]));
  const first = Math.min(...all), last = Math.max(...all);
  return first < last ? [first, last] : [first - 0.5, last + 0.5];
}
