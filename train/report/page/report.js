// The page: what is known of each run, its charts, the mesh and the recipe.

const data = JSON.parse(document.getElementById('data').textContent);
const isOverlay = data.runs.length > 1;
data.runs.forEach((run, i) => {
  run.color = `var(--c${i % 10})`;
  run.dash = [null, '7 3', '2 3'][Math.floor(i / 10) % 3];
  const most = Math.max(0, ...data.runs.map((r) => r.step.length));
  view.smooth = most >= 100 ? 0.6 : 0;
});

const recipeValue = (run, key) => {
  const found = run.recipe.find(([name]) => name === key);
  return found ? found[1] : null;
};

const swatch = (run, isDotted) => svg('svg', { class: 'swatch', width: 18, height: 10, 'aria-hidden': 'true' },
  svg('line', { x1: 0, x2: 18, y1: 5, y2: 5, stroke: isDotted ? heldOutColor(run) : run.color, 'stroke-width': 2.4, 'stroke-dasharray': isDotted ? null : run.dash }),
  isDotted && svg('circle', { cx: 9, cy: 5, r: 3, fill: 'var(--card)', stroke: heldOutColor(run), 'stroke-width': 2 }));
const heldOutColor = (run) => (isOverlay ? run.color : 'var(--c1)');

// ---- header

function logo() {
  const threads = [];
  for (let i = 0; i < 3; ++i) {
    for (let k = 0; k < 3; ++k) {
      const at = [6 + 14 * i, 6 + 14 * k];
      const isOver = (i + k) % 2 === 0;
      const warp = svg('rect', { x: at[0] - 4, y: at[1] - 7, width: 8, height: 14, fill: 'var(--c0)' });
      const weft = svg('rect', { x: at[0] - 7, y: at[1] - 4, width: 14, height: 8, fill: 'var(--c1)' });
      threads.push(...(isOver ? [warp, weft] : [weft, warp]));
    }
  }
  return svg('svg', { class: 'logo', viewBox: '-2 -2 44 44', 'aria-hidden': 'true' }, threads);
}

function status(run) {
  const { steps } = run.summary;
  if (!steps) return el('span', { class: 'chip empty' }, 'no steps yet');
  if (!run.total_steps) return el('span', { class: 'chip empty' }, format.plural(steps, 'step'));
  return steps >= run.total_steps
    ? el('span', { class: 'chip' }, `finished, ${format.plural(steps, 'step')}`)
    : el('span', { class: 'chip stopped' }, `at step ${format.whole(steps)} of ${format.whole(run.total_steps)}`);
}

function facts(run) {
  const of = (key) => recipeValue(run, key);
  const list = [];
  if (of('model.type')) {
    const size = run.layout ? `${format.si(run.layout.total_elements)} parameters` : `dim ${of('model.dim')}, ${of('model.layers')} layers`;
    list.push(`${of('model.type')}, ${size}`);
  }
  const mesh = meshOf(run);
  if (mesh) list.push(mesh.dims.map((dim, d) => `${dim} ${mesh.shape[d]}`).join(' × '));
  if (of('train.global_batch_size')) list.push(`${of('train.global_batch_size')} × ${of('data.sequence_length')} tokens a step`);
  if (of('train.dtype')) list.push(of('train.dtype'));
  if (run.written) list.push(new Date(run.written * 1000).toLocaleString(undefined, { dateStyle: 'medium', timeStyle: 'short' }));
  return el('div', { class: 'facts' }, list.map((text) => el('span', {}, text)));
}

function header() {
  const [first] = data.runs;
  return el('header', {}, logo(), el('div', { class: 'titles' },
    el('h1', {}, isOverlay ? `${data.runs.length} runs` : first.label),
    isOverlay ? el('div', { class: 'facts' }, data.runs.map((run) => el('span', {}, run.label))) : facts(first)),
  !isOverlay && status(first));
}

// ---- numbers

function tiles(run) {
  const s = run.summary;
  const tile = (name, value, unit, more) => el('div', { class: 'tile' }, el('div', { class: 'name' }, name),
    el('div', { class: 'value' }, value, unit && value !== '–' && el('small', {}, ' ' + unit)), el('div', { class: 'more' }, more));
  return el('div', { class: 'card tiles' },
    tile('final loss', format.loss(s.loss), '', isNumber(s.loss_best) ? `lowest ${format.loss(s.loss_best)}` : ''),
    tile('held-out loss', format.loss(s.eval_loss), '', isNumber(s.eval_best) ? `lowest ${format.loss(s.eval_best)} at step ${format.count(s.eval_best_step)}` : 'never evaluated'),
    tile('throughput', format.si(s.tokens_per_s), 'tokens/s', isNumber(s.tokens) ? `${format.si(s.tokens)} tokens in all` : ''),
    tile('step', format.milliseconds(s.step_ms), '', isNumber(s.comm_share) ? `${format.percent(s.comm_share, 2)} waiting for ranks` : ''),
    tile('time in steps', format.duration(s.duration_s), '', run.restarts.length ? format.plural(run.restarts.length, 'restart') + ' seen' : 'no restart seen'),
    tile('peak memory', format.mebibytes(s.peak_rss_mb), '', `resident, rank 0${isNumber(s.peak_device_mb) ? `; ${format.mebibytes(s.peak_device_mb)} on the device` : ''}`));
}

function notes() {
  const list = data.runs.flatMap((run) => run.notes.map((note) => (isOverlay ? `${run.label}: ${note}` : note)));
  return list.length > 0 && el('ul', { class: 'notes' }, list.map((note) => el('li', {}, note)));
}

// One row a run; the best of a column stands out.
function overview() {
  const columns = [
    ['steps', (s) => s.steps, format.whole, null],
    ['final loss', (s) => s.loss, format.loss, Math.min],
    ['held-out', (s) => s.eval_loss, format.loss, Math.min],
    ['lowest held-out', (s) => s.eval_best, format.loss, Math.min],
    ['tokens', (s) => s.tokens, format.si, null],
    ['tokens/s', (s) => s.tokens_per_s, format.si, Math.max],
    ['step', (s) => s.step_ms, format.milliseconds, Math.min],
    ['time in steps', (s) => s.duration_s, format.duration, null],
    ['peak memory', (s) => s.peak_rss_mb, format.mebibytes, Math.min],
    ['restarts', (s, run) => run.restarts.length, format.whole, null],
  ];
  const best = columns.map(([, of, , pick]) => {
    const values = data.runs.map((run) => of(run.summary, run)).filter(isNumber);
    return pick && values.length > 1 ? pick(...values) : null;
  });
  return el('div', { class: 'card scroll' }, el('table', {},
    el('tr', {}, el('th', {}, 'run'), el('th', {}, 'mesh'), columns.map(([name]) => el('th', { class: 'n' }, name))),
    data.runs.map((run) => {
      const mesh = meshOf(run);
      return el('tr', {}, el('td', { title: run.folder }, swatch(run), run.label),
        el('td', { style: { whiteSpace: 'nowrap' } }, mesh ? mesh.dims.map((dim, d) => `${dim} ${mesh.shape[d]}`).join(' × ') : '–'),
        columns.map(([, of, show], c) => {
          const value = of(run.summary, run);
          return el('td', { class: value !== null && value === best[c] ? 'n best' : 'n' }, show(value));
        }));
    })));
}

function differences() {
  if (!data.differences.length) return el('p', { class: 'soft' }, 'The recipes say the same.');
  return el('div', { class: 'card scroll' }, el('table', {},
    el('tr', {}, el('th', {}, 'key'), data.runs.map((run) => el('th', {}, swatch(run), ' ', run.label))),
    data.differences.map(({ key, values }) => el('tr', {}, el('td', { class: 'mono' }, key),
      values.map((value) => el('td', { class: 'mono' }, value === null ? el('span', { class: 'soft' }, 'not there') : value))))));
}

// ---- charts

const seriesLine = (run, key) => {
  const series = run.series[key];
  return { run, label: isOverlay ? run.label : key.replace(/_/g, ' '), color: run.color, dash: run.dash,
    x: axes[view.x].of(run), steps: run.step, values: series.mean, low: series.min, high: series.max };
};
const evalLine = (run) => ({ run, label: isOverlay ? `${run.label}, held-out` : 'held-out loss', color: heldOutColor(run), dots: true,
  dash: isOverlay ? '5 3' : null, x: axes[view.x].of(run.eval), steps: run.eval.step, values: run.eval.loss });
const everyRun = (key) => () => data.runs.map((run) => seriesLine(run, key));

const parts = [
  ['compute_ms', 'compute', 'var(--c0)'],
  ['comm_ms', 'waiting for other ranks', 'var(--c1)'],
  ['data_ms', 'data', 'var(--c2)'],
  ['checkpoint_ms', 'checkpoint', 'var(--c5)'],
];
const partsOf = (run) => parts.map(([key, label, color]) => ({ run, label, color, exact: true, peaks: (run.series.step_ms.max || run.series.step_ms.mean).filter(isNumber),
  x: axes[view.x].of(run), steps: run.step, values: run.series[key].mean }));
const partsLegend = () => parts.map(([, label, color]) => el('span', {}, el('i', { style: { background: color } }), label));

function splitOfRuns() {
  const most = Math.max(...data.runs.map((run) => parts.reduce((sum, [key]) => sum + (run.summary[key] || 0), 0)), 1e-9);
  return el('section', { class: 'card chart wide' },
    el('div', { class: 'head' }, el('h3', {}, 'Time of a step'), el('span', { class: 'unit' }, 'mean')),
    el('div', { class: 'legend', style: { marginBottom: '10px' } }, partsLegend()),
    el('div', { class: 'split' }, data.runs.map((run) => {
      const total = parts.reduce((sum, [key]) => sum + (run.summary[key] || 0), 0);
      return el('div', { class: 'run' }, el('span', { title: run.label }, swatch(run), ' ', run.label),
        el('div', {}, el('div', { class: 'strip' }, parts.map(([key, label, color]) => el('div', {
          title: `${label}: ${format.milliseconds(run.summary[key])}`,
          style: { width: `${100 * (run.summary[key] || 0) / most}%`, background: color } }))),
        el('div', { class: 'words' }, parts.filter(([key]) => run.summary[key] > 0)
          .map(([key, label]) => `${label} ${format.milliseconds(run.summary[key])}`).join(' · '))),
        el('span', {}, total ? format.milliseconds(total) : '–'));
    })));
}

const lossLegend = () => (isOverlay
  ? [el('span', {}, svg('svg', { width: 18, height: 10 }, svg('line', { x1: 0, x2: 18, y1: 5, y2: 5, stroke: 'var(--soft)', 'stroke-width': 2 })), 'training'),
     el('span', {}, svg('svg', { width: 18, height: 10 }, svg('line', { x1: 0, x2: 18, y1: 5, y2: 5, stroke: 'var(--soft)', 'stroke-width': 2, 'stroke-dasharray': '5 3' }), svg('circle', { cx: 9, cy: 5, r: 3, fill: 'var(--card)', stroke: 'var(--soft)', 'stroke-width': 2 })), 'held-out')]
  : [el('span', {}, swatch(data.runs[0]), 'training'), el('span', {}, swatch(data.runs[0], true), 'held-out')]);

function chartSection() {
  const chart = (spec) => new Chart(spec).mount();
  const onDevice = data.runs.filter((run) => isNumber(run.summary.peak_device_mb));
  return el('div', { class: 'charts' },
    chart({ title: 'Loss', unit: 'mean over tokens', size: 'wide', log: true, format: format.loss, tick: (v) => format.number(v), legend: lossLegend, marksMissing: true,
      lines: () => [...everyRun('loss')(), ...data.runs.filter((run) => run.eval.step.length).map(evalLine)] }),
    chart({ title: 'Gradient norm', unit: 'before clipping', log: true, zero: true, format: (v) => format.number(v, 3), lines: everyRun('grad_norm'), marksMissing: true }),
    chart({ title: 'Learning rate', unit: '', log: true, zero: true, format: format.rate, lines: () => everyRun('lr')().map((line) => ({ ...line, exact: true })) }),
    isOverlay ? splitOfRuns() : chart({ title: 'Time of a step', unit: 'each bar the mean of its steps', size: 'wide', stack: true, format: format.milliseconds, legend: partsLegend,
      lines: () => data.runs.flatMap(partsOf) }),
    chart({ title: 'Throughput', unit: 'tokens/s, all ranks', zero: true, format: (v) => format.si(v), lines: everyRun('tokens_per_s') }),
    chart({ title: 'Peak memory', unit: onDevice.length ? 'rank 0; dashed: on the device' : 'resident, rank 0', zero: true, format: format.mebibytes,
      lines: () => [...everyRun('peak_rss_mb')(), ...onDevice.map((run) => ({ ...seriesLine(run, 'peak_device_mb'), dash: '6 3' }))]
        .map((line) => ({ ...line, exact: true })) }),
    !isOverlay && data.runs[0].quorum.length > 0 && groupChart(data.runs[0]));
}

function controls() {
  const output = el('output', {}, view.smooth.toFixed(2));
  const slider = el('input', { type: 'range', min: 0, max: 0.99, step: 0.01, value: view.smooth, 'aria-label': 'smoothing',
    oninput: (event) => { view.smooth = Number(event.target.value); output.textContent = view.smooth.toFixed(2); redraw(); } });
  return el('div', { class: 'bar' },
    isOverlay && el('div', { class: 'runs' }, data.runs.map((run) => el('button', { type: 'button', 'aria-pressed': 'true', title: run.folder,
      onclick: (event) => {
        const show = view.hidden.delete(run);
        if (!show) view.hidden.add(run);
        event.currentTarget.setAttribute('aria-pressed', String(show));
        redraw();
      } }, swatch(run), el('span', {}, run.label)))),
    segments([['step', 'steps'], ['tokens', 'tokens'], ['time', 'time']], 'step', (x) => { view.x = x; view.hover = null; setZoom(null); }),
    el('label', {}, 'smoothing', slider, output),
    el('button', { id: 'unzoom', class: 'plain', type: 'button', hidden: '', onclick: () => setZoom(null) }, 'show all'),
    el('span', { class: 'hint' }, 'drag over a chart to zoom, double-click to show all'));
}

// ---- recipe

function recipeCards(run) {
  if (!run.recipe.length) return el('p', { class: 'soft' }, 'recipe.yaml is missing or cannot be read.');
  const groups = new Map();
  for (const [path, value] of run.recipe) {
    const dot = path.indexOf('.');
    const group = dot < 0 ? 'run' : path.slice(0, dot);
    if (!groups.has(group)) groups.set(group, []);
    groups.get(group).push([dot < 0 ? path : path.slice(dot + 1), value]);
  }
  return el('div', { class: 'recipe' }, [...groups].map(([name, pairs]) => el('div', { class: 'card' }, el('h3', {}, name),
    el('dl', {}, pairs.map(([key, value]) => [el('dt', {}, key), el('dd', { class: 'mono' }, value)])))));
}

// A section that shows one run at a time.
function perRun(title, show) {
  const body = el('div', {}, show(data.runs[0]));
  return [el('div', { class: 'picker' }, el('h2', {}, title),
    isOverlay && segments(data.runs.map((run) => [run, run.label]), data.runs[0], (run) => body.replaceChildren(show(run)))), body];
}

document.getElementById('page').replaceChildren(...[
  header(),
  isOverlay ? overview() : tiles(data.runs[0]),
  notes(),
  controls(),
  chartSection(),
  isOverlay && [el('h2', {}, 'What differs'), differences()],
  data.runs.some((run) => run.quorum.length) && perRun('Replica groups', (run) => (run.quorum.length ? quorumTable(run)
    : el('p', { class: 'soft' }, 'The run had none.'))),
  perRun('Mesh', meshSection),
  perRun('Recipe', recipeCards),
  el('footer', {}, `${data.made_by} · ${data.runs.map((run) => `${run.folder}: ${format.plural(run.lines, 'line')} of metrics`
    + (run.per_point > 1 ? `, ${format.whole(run.per_point)} steps a point` : '')).join(' · ')}`),
].flat(Infinity).filter(Boolean));
redraw();
