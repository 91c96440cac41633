// Charts that share one x axis, one zoom and one crosshair.

const view = { x: 'step', smooth: 0, zoom: null, hover: null, hidden: new Set() };
const charts = [];
const redraw = () => charts.forEach((chart) => chart.draw());

const axes = {
  step: { of: (run) => run.step, format: (v) => format.count(v), ticks: wholeTicks, name: 'step' },
  tokens: { of: (run) => run.tokens, format: (v) => format.si(v), ticks: wholeTicks, name: 'tokens' },
  time: { of: (run) => run.time_s, format: (v) => format.duration(v), ticks: timeTicks, name: 'time in steps' },
};

// A chart of lines, or with `stack: true` of bars one on the other.
// spec: title, unit, size, zero (y starts at 0), log (may be logarithmic),
// lanes (a line is a bar where it has values, and losses() are marked), format,
// lines() -> [{label, run, color, dash, dots, values, low, high, x}].
class Chart {
  constructor(spec) {
    this.spec = spec;
    this.isLog = false;
    charts.push(this);
  }

  mount() {
    const { spec } = this;
    this.read = el('span', { class: 'read' });
    this.plot = el('div', { class: 'plot' });
    this.tip = el('div', { class: 'tip', hidden: '' });
    const toggle = spec.log && segments(
      [['linear', 'linear'], ['log', 'log']], 'linear',
      (to) => { this.isLog = to === 'log'; this.draw(); }, true);
    this.plot.addEventListener('pointermove', (event) => this.move(event));
    this.plot.addEventListener('pointerleave', () => { if (!this.drag) setHover(null); });
    this.plot.addEventListener('pointerdown', (event) => this.press(event));
    this.plot.addEventListener('pointerup', (event) => this.release(event));
    this.plot.addEventListener('pointercancel', () => { this.drag = null; this.draw(); });
    this.plot.addEventListener('dblclick', () => setZoom(null));
    new ResizeObserver(() => this.draw()).observe(this.plot);
    return el('section', { class: `card chart ${spec.size || ''}` },
      el('div', { class: 'head' }, el('h3', {}, spec.title),
        el('span', { class: 'unit' }, spec.unit), this.read, toggle),
      spec.legend && el('div', { class: 'legend' }, spec.legend()),
      this.plot, this.tip);
  }

  draw() {
    const box = this.plot.getBoundingClientRect();
    if (box.width < 40 || box.height < 40) return;
    this.area = { left: 46, top: 10, width: box.width - 58, height: box.height - 36 };
    this.plot.replaceChildren();
    this.lines = this.prepare();
    if (!this.lines.some((line) => line.x.some((x, i) => this.inView(x) && isNumber(line.values[i])))) {
      this.lines = [];
      this.canvas = null;
      this.plot.append(el('div', { class: 'none' }, this.spec.none || 'nothing recorded'));
      return;
    }
    this.setScales();
    this.canvas = svg('svg', { class: 'draw', role: 'img', 'aria-label': `${this.spec.title} over ${axes[view.x].name}` });
    const clip = `clip${charts.indexOf(this)}`;
    this.marks = svg('g', { 'clip-path': `url(#${clip})` });
    this.over = svg('g', {});
    this.canvas.append(
      svg('clipPath', { id: clip }, svg('rect', { x: this.area.left - 1, y: this.area.top - 5, width: this.area.width + 6, height: this.area.height + 10 })),
      this.drawAxes(), this.marks, this.over);
    this.drawRestarts();
    for (const line of this.lines) {
      if (this.spec.stack) this.drawBars(line);
      else if (this.spec.lanes) this.drawLane(line);
      else this.drawLine(line);
    }
    if (this.spec.lanes) this.drawLosses();
    this.drawMissing();
    this.plot.append(this.canvas);
    this.drawHover();
  }

  // What is visible of the runs, smoothed, and for a stack summed up.
  prepare() {
    let lines = this.spec.lines().filter((line) => !view.hidden.has(line.run));
    if (this.spec.stack) {
      const most = Math.max(20, Math.floor(this.area.width / 7));
      lines = lines.map((line) => bars(line, (x) => this.inView(x), most));
    }
    const weight = view.smooth;
    let below = null;
    for (const line of lines) {
      const soften = weight > 0 && !line.dots && !line.exact;
      line.shown = soften ? smoothed(line.values, weight) : line.values;
      line.raw = soften ? line.values : null;
      if (this.spec.stack) {
        line.base = below || line.shown.map(() => 0);
        line.top = line.shown.map((v, i) => line.base[i] + (isNumber(v) ? v : 0));
        below = line.top;
      }
    }
    return lines;
  }

  inView(x) { return !view.zoom || (x >= view.zoom[0] && x <= view.zoom[1]); }

  setScales() {
    let [left, right] = view.zoom || [Infinity, -Infinity];
    let low = Infinity;
    let high = -Infinity;
    const tops = [];
    for (const line of this.lines) {
      if (!view.zoom && line.x.length) {
        const ends = line.span || [line.x[0], line.x[line.x.length - 1]];
        left = Math.min(left, ends[0]);
        right = Math.max(right, ends[1]);
      }
      line.x.forEach((x, i) => {
        if (!this.inView(x)) return;
        const all = this.spec.stack ? [line.top[i]] : [line.values[i], line.low?.[i], line.high?.[i]];
        for (const v of all) {
          if (!isNumber(v) || (this.isLog && v <= 0)) continue;
          low = Math.min(low, v);
          high = Math.max(high, v);
        }
        if (this.spec.stack) tops.push(line.top[i]);
      });
    }
    if (!isNumber(low)) { low = 1; high = 10; }
    // A few far longer steps would press a stack flat: cut and say so.
    this.peak = null;
    if (this.spec.stack && tops.length > 20) {
      const usual = tops.sort((a, b) => a - b)[Math.floor(tops.length * 0.985)] * 1.5;
      if (high > usual * 2) high = usual;
      const most = Math.max(...this.lines.flatMap((line) => line.peaks || []));
      if (most > high * 1.3) this.peak = most;
    }
    if (this.spec.lanes) { low -= 0.6; high += 0.6; }
    if (this.spec.stack || (this.spec.zero && !this.isLog && low > 0)) low = 0;
    if (left === right) {
      const pad = Math.min(0.5, Math.abs(left) / 2 || 0.5);
      left -= pad;
      right += pad;
    }
    if (this.isLog) {
      const pad = Math.max((high / low) ** 0.04, 1.01);
      low /= pad;
      high *= pad;
    } else {
      const pad = high > low ? (high - low) * 0.05 : Math.abs(high) * 0.1 || 1;
      high += pad;
      if (low !== 0) low -= pad;
    }
    const { left: x0, top: y0, width, height } = this.area;
    const turn = this.isLog ? Math.log : (v) => v;
    const [bottom, top] = [turn(low), turn(high)];
    this.domain = { left, right, low, high };
    this.px = (x) => x0 + (x - left) / (right - left) * width;
    this.py = (v) => (!isNumber(v) || (this.isLog && v <= 0) ? null
      : y0 + height - (turn(v) - bottom) / (top - bottom) * height);
    this.xAt = (px) => left + (px - x0) / width * (right - left);
  }

  drawAxes() {
    const { left, top, width, height } = this.area;
    const { domain } = this;
    const group = svg('g', {});
    const marks = this.isLog ? logTicks(domain.low, domain.high)
                             : ticks(domain.low, domain.high, Math.max(4, height / 48));
    for (const v of marks) {
      const y = Math.round(this.py(v)) + 0.5;
      group.append(
        svg('line', { class: 'grid', x1: left, x2: left + width, y1: y, y2: y }),
        svg('text', { x: left - 8, y: y + 3.5, 'text-anchor': 'end' }, (this.spec.tick || this.spec.format)(v)));
    }
    const axis = axes[view.x];
    let free = -Infinity;
    for (const v of axis.ticks(domain.left, domain.right, Math.max(4, width / 100))) {
      const x = this.px(v);
      const half = axis.format(v).length * 3.2;
      if (x < left - 1 || x > left + width + 1 || x - half < free) continue;
      free = x + half + 8;
      const over = x + half - (left + width + 12);
      group.append(svg('text', { x: x - Math.max(0, over), y: top + height + 18, 'text-anchor': 'middle' }, axis.format(v)));
    }
    const y = top + height + 0.5;
    group.append(svg('line', { class: 'axis', x1: left, x2: left + width, y1: y, y2: y }));
    if (this.peak !== null) {
      group.append(svg('text', { x: left + width, y: top + 2, 'text-anchor': 'end' },
        `\u25b2 single steps up to ${this.spec.format(this.peak)}`));
    }
    return group;
  }

  drawLine(line) {
    const xs = line.x.map(this.px);
    const ys = line.shown.map(this.py);
    const paint = { fill: 'none', stroke: line.color, 'stroke-linejoin': 'round', 'stroke-dasharray': line.dash };
    if (line.low && line.high) {
      this.marks.append(svg('path', { d: bandPath(xs, line.low.map(this.py), line.high.map(this.py)), fill: line.color, 'fill-opacity': 0.17, stroke: line.color, 'stroke-opacity': 0.4, 'stroke-width': 1 }));
    }
    if (line.raw) {
      this.marks.append(svg('path', { ...paint, d: linePath(xs, line.raw.map(this.py)), 'stroke-width': 1, opacity: 0.42 }));
    }
    this.marks.append(svg('path', { ...paint, d: linePath(xs, ys), 'stroke-width': line.raw || line.dots ? 1.9 : 1.5 }));
    const lonely = xs.length === 1;
    if ((line.dots && xs.length <= 120) || lonely) {
      xs.forEach((x, i) => ys[i] !== null && this.marks.append(svg('circle',
        { cx: x, cy: ys[i], r: 3.2, fill: 'var(--card)', stroke: line.color, 'stroke-width': 1.9 })));
    }
  }

  drawBars(line) {
    let path = '';
    line.values.forEach((v, i) => {
      if (!(v > 0)) return;
      const [left, right] = [this.px(line.left[i]), this.px(line.right[i])];
      const gap = right - left > 4 ? 0.5 : 0;
      path += `M${(left + gap).toFixed(2)} ${this.py(line.base[i]).toFixed(1)}H${(right - gap).toFixed(2)}V${this.py(line.top[i]).toFixed(1)}H${(left + gap).toFixed(2)}Z`;
    });
    this.marks.append(svg('path', { d: path, fill: line.color, opacity: 0.88 }));
  }

  drawLane(line) {
    const xs = line.x.map(this.px);
    const half = Math.min(8, Math.abs(this.py(0) - this.py(1)) * 0.3);
    let path = '';
    for (let i = 0; i < xs.length; ++i) {
      if (line.values[i] === null) continue;
      const left = xs[Math.max(0, i - 1)];
      while (i + 1 < xs.length && line.values[i + 1] !== null) ++i;
      const y = this.py(line.values[i]);
      path += `M${left.toFixed(1)} ${(y - half).toFixed(1)}H${Math.max(xs[i], left + 1).toFixed(1)}V${(y + half).toFixed(1)}H${left.toFixed(1)}Z`;
    }
    this.marks.append(svg('path', { d: path, fill: line.color, opacity: 0.8 }));
  }

  drawLosses() {
    for (const { group, index, text } of this.spec.losses()) {
      const x = this.px(this.lines[0].x[index]);
      const y = this.py(group);
      if (!isNumber(x) || !isNumber(y)) continue;
      this.marks.append(svg('path', { d: `M${x} ${y - 6}l5 6l-5 6l-5 -6Z`, fill: 'var(--bad)' }, svg('title', {}, text)));
    }
  }

  drawRestarts() {
    for (const run of data.runs) {
      if (view.hidden.has(run)) continue;
      for (const index of run.restarts) {
        const x = this.px(axes[view.x].of(run)[index]);
        if (!isNumber(x)) continue;
        this.marks.append(svg('line', { class: 'restart', x1: x, x2: x, y1: this.area.top, y2: this.area.top + this.area.height }));
        if (this.spec.size === 'wide' && !this.spec.stack && !isOverlay && run.restarts.length < 5) {
          this.marks.append(svg('text', { x: x + 5, y: this.area.top + 8 }, 'restart'));
        }
      }
    }
  }

  // Where a value was not a number: a mark on the axis.
  drawMissing() {
    const y = this.area.top + this.area.height;
    for (const line of this.lines) {
      if (line.dots) continue;
      line.values.forEach((v, i) => {
        if (v !== null || !this.spec.marksMissing) return;
        const x = this.px(line.x[i]);
        this.marks.append(svg('path', { d: `M${x - 4} ${y - 9}h8l-4 8z`, fill: 'var(--bad)' }));
      });
    }
  }

  move(event) {
    if (!this.canvas) return;
    const px = event.clientX - this.plot.getBoundingClientRect().left;
    if (this.drag) {
      this.drag.to = px;
      this.drawHover();
    }
    const x = Math.min(Math.max(this.xAt(px), this.domain.left), this.domain.right);
    setHover({ x, chart: this, px });
  }

  press(event) {
    if (!this.canvas || event.button !== 0 || event.pointerType === 'touch') return;
    const px = event.clientX - this.plot.getBoundingClientRect().left;
    this.drag = { from: px, to: px };
    this.plot.setPointerCapture(event.pointerId);
    event.preventDefault();
  }

  release() {
    const { drag } = this;
    this.drag = null;
    if (!drag || Math.abs(drag.to - drag.from) < 6) return;
    const ends = [drag.from, drag.to].map((px) =>
      Math.min(Math.max(this.xAt(px), this.domain.left), this.domain.right));
    setZoom(ends.sort((a, b) => a - b));
  }

  drawHover() {
    this.tip.hidden = true;
    this.read.replaceChildren();
    if (!this.canvas) return;
    this.over.replaceChildren();
    const { left, top, width, height } = this.area;
    if (this.drag) {
      const [a, b] = [this.drag.from, this.drag.to].sort((p, q) => p - q);
      this.over.append(svg('rect', { class: 'zoom', x: Math.max(a, left), y: top, width: Math.max(0, Math.min(b, left + width) - Math.max(a, left)), height }));
    }
    if (!view.hover) return;
    const found = this.lines.map((line) => this.pick(line)).filter(Boolean);
    if (!found.length) return;
    const anchor = found.reduce((a, b) => (Math.abs(b.x - view.hover.x) < Math.abs(a.x - view.hover.x) ? b : a));
    const px = Math.round(this.px(this.spec.stack ? view.hover.x : anchor.x)) + 0.5;
    this.over.append(svg('line', { class: 'cross', x1: px, x2: px, y1: top, y2: top + height }));
    for (const { line, i } of found) {
      const y = this.py(line.shown[i]);
      if (this.spec.stack || y === null || y < top - 4) continue;
      this.over.append(svg('circle', { cx: this.px(line.x[i]), cy: y, r: 3.6, fill: line.color, stroke: 'var(--card)', 'stroke-width': 1.6 }));
    }
    if (view.hover.chart === this) this.showTip(found, anchor, px);
    else if (data.runs.length === 1) this.showRead(found);
  }

  // The point of `line` under the crosshair; of sparse ones only when near.
  pick(line) {
    if (!line.x.length) return null;
    const i = nearest(line.x, view.hover.x);
    const distance = Math.abs(this.px(line.x[i]) - this.px(view.hover.x));
    if (!this.inView(line.x[i]) || distance > (line.dots ? 14 : 60)) return null;
    return { line, i, x: line.x[i] };
  }

  showRead(found) {
    const values = found.map(({ line, i }) => line.values[i]);
    if (this.spec.lanes) {
      this.read.append(format.plural(values.filter(isNumber).length, 'group'));
      return;
    }
    const shown = this.spec.stack ? [values.reduce((sum, v) => sum + (v || 0), 0)] : values;
    this.read.append(shown.map(this.spec.format).join(' · '));
  }

  showTip(found, anchor, px) {
    const { run } = anchor.line;
    const step = anchor.line.steps[anchor.i];
    const from = anchor.line.firsts ? anchor.line.firsts[anchor.i]
      : anchor.line.dots ? step : step - (run.per_point - 1);
    const at = from < step ? `steps ${format.whole(Math.max(1, from))} to ${format.whole(step)}` : `step ${format.whole(step)}`;
    const x = view.x === 'step' ? '' : `, ${axes[view.x].format(anchor.x)}`;
    const rows = found.map(({ line, i }) => [
      el('div', { class: 'row' }, el('i', { style: { background: line.color } }), el('span', {}, line.label),
        el('b', {}, this.spec.format(line.values[i]))),
      line.low && isNumber(line.low[i]) && line.low[i] !== line.high[i] && data.runs.length === 1 &&
        el('div', { class: 'range' }, `${this.spec.format(line.low[i])} to ${this.spec.format(line.high[i])}`)]);
    if (this.spec.stack) {
      rows.reverse();
      const total = found.reduce((sum, { line, i }) => sum + (line.values[i] || 0), 0);
      rows.unshift(el('div', { class: 'row' }, el('i', {}), el('span', {}, 'all'), el('b', {}, this.spec.format(total))));
    }
    this.tip.replaceChildren(el('div', { class: 'at' }, at + x), ...rows.flat().filter(Boolean));
    this.tip.hidden = false;
    const host = this.plot;
    const onLeft = px + this.tip.offsetWidth + 30 > host.clientWidth;
    this.tip.style.left = `${host.offsetLeft + (onLeft ? Math.max(0, px - this.tip.offsetWidth - 14) : px + 14)}px`;
    this.tip.style.top = `${host.offsetTop + this.area.top + 6}px`;
  }
}

function setHover(hover) {
  view.hover = hover;
  charts.forEach((chart) => chart.canvas && chart.drawHover());
}
function setZoom(zoom) {
  view.zoom = zoom;
  document.getElementById('unzoom').hidden = !zoom;
  redraw();
}

// Buttons of which one is pressed.
function segments(choices, chosen, onChange, isSmall) {
  const buttons = choices.map(([value, label]) => el('button', {
    type: 'button', 'aria-pressed': String(value === chosen),
    onclick: (event) => {
      for (const button of buttons) button.setAttribute('aria-pressed', String(button === event.currentTarget));
      onChange(value);
    } }, label));
  return el('div', { class: `segments ${isSmall ? 'small' : ''}` }, buttons);
}
