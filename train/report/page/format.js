// Numbers, units and elements. Everything that comes from a run reaches the
// page through textContent or setAttribute, never as markup.

const SVG = 'http://www.w3.org/2000/svg';

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith('on')) node.addEventListener(name.slice(2), value);
    else if (name === 'style') Object.assign(node.style, value);
    else node.setAttribute(name, value);
  }
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined && child !== false) {
      node.append(child);
    }
  }
  return node;
}
const el = (tag, attributes, ...children) =>
  fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes, ...children) =>
  fill(document.createElementNS(SVG, tag), attributes, children);

const isNumber = (v) => typeof v === 'number' && Number.isFinite(v);
const minus = (text) => text.replace(/-/g, '\u2212');

const format = {
  // 1234567 -> 1,234,567
  whole: (v) => (isNumber(v) ? minus(Math.round(v).toLocaleString('en-US')) : '–'),
  // The same, short where it is long.
  count: (v) => (Math.abs(v) >= 1e5 ? format.si(v, 4) : format.whole(v)),
  // About `digits` significant digits, an exponent only where it helps.
  number(v, digits = 4) {
    if (!isNumber(v)) return '–';
    if (v === 0) return '0';
    const size = Math.abs(v);
    if (size >= 1e6 || size < 1e-3) {
      return minus(v.toExponential(digits - 1).replace(/\.?0+e/, 'e').replace('e+', 'e'));
    }
    const text = size >= 10 ** digits ? Math.round(v).toLocaleString('en-US')
                                      : String(+v.toPrecision(digits));
    return minus(text);
  },
  rate: (v) => (isNumber(v) && v !== 0 && Math.abs(v) < 0.1
    ? minus(v.toExponential(2).replace(/\.?0+e/, 'e')) : format.number(v, 3)),
  loss: (v) => (!isNumber(v) ? '–'
    : Math.abs(v) >= 1e-3 && Math.abs(v) < 1e4 ? minus(v.toFixed(4)) : format.number(v)),
  // 17012 -> 17.0k
  si(v, digits = 3) {
    if (!isNumber(v)) return '–';
    const size = Math.abs(v);
    for (const [unit, suffix] of [[1e12, 'T'], [1e9, 'G'], [1e6, 'M'], [1e3, 'k']]) {
      if (size >= unit * 0.99995) return minus(String(+(v / unit).toPrecision(digits))) + suffix;
    }
    return format.number(v, digits);
  },
  bytes(v) {
    if (!isNumber(v)) return '–';
    for (const [unit, suffix] of [[2 ** 40, 'TiB'], [2 ** 30, 'GiB'], [2 ** 20, 'MiB'], [2 ** 10, 'KiB']]) {
      if (v >= unit) return +(v / unit).toPrecision(3) + ' ' + suffix;
    }
    return v + ' B';
  },
  mebibytes: (v) => (isNumber(v) ? format.bytes(v * 2 ** 20) : '–'),
  milliseconds(v) {
    if (!isNumber(v)) return '–';
    if (v >= 60000) return format.duration(v / 1000);
    if (v >= 1000) return +(v / 1000).toPrecision(3) + ' s';
    return +v.toPrecision(3) + ' ms';
  },
  duration(s) {
    if (!isNumber(s)) return '–';
    if (s < 1) return +(s * 1000).toPrecision(3) + ' ms';
    if (s < 60) return +s.toPrecision(3) + ' s';
    const whole = Math.round(s);
    const days = Math.floor(whole / 86400);
    const hours = Math.floor(whole / 3600) % 24;
    const minutes = Math.floor(whole / 60) % 60;
    if (days) return `${days} d` + (hours ? ` ${hours} h` : '');
    if (hours) return `${hours} h` + (minutes ? ` ${minutes} min` : '');
    return `${minutes} min` + (whole % 60 ? ` ${whole % 60} s` : '');
  },
  percent: (v, digits = 3) => (isNumber(v) ? +(v * 100).toPrecision(digits) + ' %' : '–'),
  plural: (n, word) => `${format.whole(n)} ${word}${n === 1 ? '' : 's'}`,
};

// Round positions for an axis: 1, 2 or 5 times a power of ten.
function ticks(low, high, count) {
  if (!(high > low)) return [low];
  const raw = (high - low) / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = power * [1, 2, 5, 10].find((m) => m * power >= raw * 0.999);
  const list = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; ++i) {
    list.push(i === 0 ? 0 : +(i * step).toPrecision(12));
  }
  return list;
}
const wholeTicks = (low, high, count) => ticks(low, high, Math.min(count, high - low)).filter(Number.isInteger);
function timeTicks(low, high, count) {
  const raw = (high - low) / Math.max(1, count);
  const step = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400,
                21600, 43200, 86400, 172800, 604800].find((s) => s >= raw);
  if (!step || raw < 0.5) return ticks(low, high, count);
  const list = [];
  for (let t = Math.ceil(low / step) * step; t <= high; t += step) list.push(t);
  return list;
}
function logTicks(low, high) {
  const decades = Math.log10(high / low);
  if (decades < 0.6) return ticks(low, high, 6).filter((v) => v > 0);
  const parts = decades < 1.6 ? [1, 2, 3, 5, 7] : decades < 3.5 ? [1, 2, 5] : [1];
  const skip = Math.max(1, Math.ceil(decades / 6));
  const list = [];
  for (let e = Math.floor(Math.log10(low)); e <= Math.ceil(Math.log10(high)); ++e) {
    if (e % skip) continue;
    for (const m of parts) {
      const v = +(m * 10 ** e).toPrecision(6);
      if (v >= low * 0.9999 && v <= high * 1.0001) list.push(v);
    }
  }
  return list;
}
