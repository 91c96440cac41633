// The mesh as a grid of ranks with each one's share, and how the parameters
// are cut.

// Rows are all mesh dims but the last, columns the last one.
function meshOf(run) {
  if (run.layout) return run.layout;
  const degree = (key) => {
    const found = run.recipe.find(([name]) => name === key);
    return found && /^\d+$/.test(found[1]) ? Number(found[1]) : null;
  };
  const dims = degree('mesh.dp_shard') > 1 ? ['dp', 'dp_shard', 'tp'] : ['dp', 'tp'];
  const shape = dims.map((dim) => degree(`mesh.${dim}`));
  if (shape.some((n) => !n) || shape.reduce((a, b) => a * b, 1) > 1 << 20) return null;
  return { dims, shape };
}

function coordinateOf(index, shape) {
  const coordinate = [];
  for (let d = shape.length - 1; d >= 0; --d) {
    coordinate[d] = index % shape[d];
    index = Math.floor(index / shape[d]);
  }
  return coordinate;
}

// Of n, the first ones and the last: the others lie between.
function shownOf(n, most) {
  if (n <= most) return [...Array(n).keys()];
  return [...Array(most - 2).keys(), -1, n - 1];
}

function rankCell(run, mesh, index, place, onHover) {
  const bytes = mesh.bytes ? mesh.bytes[index] : null;
  const total = mesh.parameters ? mesh.total_bytes : null;
  const coordinate = coordinateOf(index, mesh.shape);
  const where = mesh.dims.map((dim, d) => `${dim} ${coordinate[d]}`).join(', ');
  return el('div', {
    class: `rank${place.lastColumn ? ' last-column' : ''}${place.lastRow ? ' last-row' : ''}`,
    tabindex: '0',
    title: `rank ${mesh.ranks ? mesh.ranks[index] : index}: ${where}` + (bytes === null ? ''
      : `\n${format.whole(mesh.elements[index])} parameters, ${format.whole(bytes)} bytes\n${format.percent(bytes / total)} of the model`),
    onpointerenter: () => onHover(coordinate), onpointerleave: () => onHover(null),
    onfocus: () => onHover(coordinate), onblur: () => onHover(null),
  },
  el('div', { class: 'id' }, `rank ${mesh.ranks ? mesh.ranks[index] : index}`),
  bytes !== null && [
    el('div', { class: 'bytes' }, format.bytes(bytes)),
    el('div', { class: 'elements' }, `${format.si(mesh.elements[index])} parameters`),
    el('div', { class: 'fill' }, el('div', { style: { width: `${100 * bytes / Math.max(1, total)}%` } }))]);
}

function rankGrid(run, mesh, onHover) {
  const columns = mesh.shape[mesh.shape.length - 1];
  const rows = mesh.shape.slice(0, -1).reduce((a, b) => a * b, 1);
  const [shownRows, shownColumns] = [shownOf(rows, 10), shownOf(columns, 18)];
  const dense = shownRows.length > 4 || shownColumns.length > 4;
  const rowDims = mesh.dims.slice(0, -1);
  const cells = [el('span', {})];
  for (const column of shownColumns) {
    cells.push(el('span', { class: 'axis' }, column < 0 ? '…' : `${mesh.dims[mesh.dims.length - 1]} ${column}`));
  }
  shownRows.forEach((row, r) => {
    if (row < 0) {
      cells.push(el('span', {}), el('span', { class: 'skip', style: { gridColumn: `2 / span ${shownColumns.length}` } },
        `${format.whole(rows - shownRows.length + 1)} more rows`));
      return;
    }
    const place = coordinateOf(row * columns, mesh.shape);
    cells.push(el('span', { class: 'axis' }, rowDims.map((dim, d) => `${dim} ${place[d]}`).join(' ')));
    shownColumns.forEach((column, c) => {
      cells.push(column < 0 ? el('span', { class: 'axis' }, '…')
        : rankCell(run, mesh, row * columns + column, {
            lastColumn: c + 1 === shownColumns.length || shownColumns[c + 1] < 0,
            lastRow: r + 1 === shownRows.length || shownRows[r + 1] < 0 }, onHover));
    });
  });
  return el('div', { class: 'grid-scroll' }, el('div', {
    class: `ranks${dense ? ' dense' : ''}`,
    style: { gridTemplateColumns: `auto repeat(${shownColumns.length}, ${dense ? 'minmax(86px, auto)' : 'minmax(108px, 150px)'})` } }, cells));
}

// Layers of one shape and placement are one row: model.layers.*.mlp.up_proj.weight.
function groupParameters(parameters) {
  const groups = new Map();
  for (const p of parameters) {
    const name = p.name.replace(/(^|\.)\d+(?=\.|$)/g, '$1*');
    const key = JSON.stringify([name, p.shape, p.dtype, p.placements, p.most_bytes, p.least_bytes]);
    const group = groups.get(key);
    if (group) ++group.count;
    else groups.set(key, { ...p, count: 1, pattern: name });
  }
  return [...groups.values()].sort((a, b) => b.count * b.most_bytes - a.count * a.most_bytes);
}

// Which mesh dims cut the rows and which the columns of a drawn tensor.
function cutsOf(placements, ndim) {
  const cuts = { rows: [], columns: [] };
  placements.forEach((placement, d) => {
    const found = /^S\((\d+)\)$/.exec(placement);
    if (found) (ndim > 1 && Number(found[1]) === ndim - 1 ? cuts.columns : cuts.rows).push(d);
  });
  return cuts;
}

function placementGlyph(parameter, mesh) {
  const [width, height] = parameter.shape.length > 1 ? [40, 26] : [40, 10];
  const cuts = cutsOf(parameter.placements, parameter.shape.length);
  const count = (dims) => Math.min(16, dims.reduce((n, d) => n * mesh.shape[d], 1));
  // A vector is drawn lying, so its one dim runs along the picture.
  const flat = parameter.shape.length < 2;
  const [rows, columns] = flat ? [1, count(cuts.rows)] : [count(cuts.rows), count(cuts.columns)];
  const pieces = [];
  const gap = rows * columns > 6 ? 0.8 : 1.4;
  for (let r = 0; r < rows; ++r) {
    for (let c = 0; c < columns; ++c) {
      pieces.push({ r, c, node: svg('rect', { class: 'cut', rx: 1, x: c * width / columns, y: r * height / rows, width: width / columns - gap, height: height / rows - gap }) });
    }
  }
  const indexIn = (dims, coordinate) => dims.reduce((index, d) => index * mesh.shape[d] + coordinate[d], 0);
  const light = (coordinate) => {
    for (const { r, c, node } of pieces) {
      const own = coordinate && (flat ? indexIn(cuts.rows, coordinate) === c
        : indexIn(cuts.rows, coordinate) === r && indexIn(cuts.columns, coordinate) === c);
      node.classList.toggle('on', Boolean(own));
    }
  };
  return { node: svg('svg', { class: 'glyph', width, height, 'aria-hidden': 'true' }, pieces.map((p) => p.node)), light };
}

function placementWords(parameter, mesh) {
  const words = [];
  parameter.placements.forEach((placement, d) => {
    if (mesh.shape[d] === 1) return;
    const found = /^S\((\d+)\)$/.exec(placement);
    if (found) words.push(`dim ${found[1]} cut over ${mesh.dims[d]}`);
    else if (placement !== 'R') words.push(`${placement} over ${mesh.dims[d]}`);
  });
  return words.length ? words.join(', ') : 'whole on every rank';
}

function parameterTable(mesh, listeners) {
  const groups = groupParameters(mesh.parameters);
  const most = 40;
  const dtypes = new Set(groups.map((p) => p.dtype));
  const rows = groups.slice(0, most).map((p) => {
    const glyph = placementGlyph(p, mesh);
    listeners.push(glyph.light);
    const share = p.count * p.most_bytes;
    return el('tr', {},
      el('td', {}, glyph.node),
      el('td', {}, el('span', { class: 'mono' }, p.pattern.split('.').map((part, i) => (i ? [el('wbr', {}), `.${part}`] : part)))),
      el('td', { class: 'n' }, p.count > 1 && format.whole(p.count)),
      el('td', { class: 'n' }, p.shape.join(' × ') || 'scalar', dtypes.size > 1 && el('span', { class: 'soft' }, ` ${p.dtype}`)),
      el('td', { class: 'keep' }, placementWords(p, mesh)),
      el('td', { class: 'n', title: `${format.whole(share)} bytes` }, format.bytes(share)));
  });
  return el('div', { class: 'card', style: { padding: '4px 10px' } },
    el('div', { class: 'scroll' }, el('table', {},
      el('tr', {}, ['', 'parameter', 'times', dtypes.size > 1 ? 'shape' : `shape, ${[...dtypes].join()}`, 'placed', 'on a rank'].map((name, i) =>
        el('th', { class: [2, 3, 5].includes(i) ? 'n' : null }, name))), rows)),
    groups.length > most && el('p', { class: 'soft' }, `${groups.length - most} smaller rows left out`));
}

// What the ranks of one column have to do with each other.
function columnWords(mesh) {
  const dims = mesh.dims.slice(0, -1).filter((dim, d) => mesh.shape[d] > 1);
  const divided = dims.filter((dim) => dim === 'dp_shard');
  const alike = dims.filter((dim) => dim !== 'dp_shard');
  return [divided.length && `divide one model (${divided.join(', ')})`,
    alike.length && `hold the same part (${alike.join(', ')})`].filter(Boolean).join(', ');
}

function meshSection(run) {
  const mesh = meshOf(run);
  if (!mesh) return el('p', { class: 'soft' }, 'Neither layout.json nor recipe.yaml says what the mesh was.');
  const listeners = [];
  const onHover = (coordinate) => listeners.forEach((light) => light(coordinate));
  const size = mesh.shape.reduce((a, b) => a * b, 1);
  const left = el('div', { class: 'card' },
    el('div', { class: 'where' },
      el('h3', {}, mesh.dims.map((dim, d) => `${dim} ${mesh.shape[d]}`).join(' × ')),
      el('span', { class: 'soft' }, format.plural(size, 'rank') + (mesh.parameters
        ? `, ${format.si(mesh.total_elements)} parameters, ${format.bytes(mesh.total_bytes)}` : ''))),
    rankGrid(run, mesh, onHover),
    el('div', { class: 'threads' },
      mesh.shape[mesh.shape.length - 1] > 1 && el('span', {}, el('i', { style: { background: 'var(--c1)' } }), `share one model (${mesh.dims[mesh.dims.length - 1]})`),
      size > mesh.shape[mesh.shape.length - 1] && el('span', {}, el('i', { style: { background: 'var(--c0)' } }), columnWords(mesh)),
      mesh.parameters && el('span', {}, el('i', { style: { background: 'var(--c2)' } }), 'part of the model on the rank')));
  const isBroad = mesh.shape[mesh.shape.length - 1] > 4;
  return el('div', { class: isBroad ? 'mesh broad' : 'mesh' }, left, mesh.parameters ? parameterTable(mesh, listeners)
    : el('div', { class: 'card soft' }, 'Each rank\u2019s share is not known: the run folder has no layout.json.'));
}
