// What becomes of a curve before it is drawn.

// The exponential mean of what came before, without its bias to zero; gaps
// stay gaps.
function smoothed(values, weight) {
  let mean = 0;
  let mass = 0;
  return values.map((v) => {
    if (!isNumber(v)) return null;
    mean = weight * mean + (1 - weight) * v;
    mass = weight * mass + (1 - weight);
    return mean / mass;
  });
}

// The index whose x is nearest; xs grow.
function nearest(xs, x) {
  let low = 0;
  let high = xs.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (xs[middle] < x) low = middle;
    else high = middle;
  }
  return Math.abs(xs[high] - x) < Math.abs(xs[low] - x) ? high : low;
}

// A line through (xs, ys) in pixels, broken where a value is missing.
function linePath(xs, ys) {
  let path = '';
  let pen = 'M';
  for (let i = 0; i < xs.length; ++i) {
    if (ys[i] === null) {
      pen = 'M';
    } else {
      path += `${pen}${xs[i].toFixed(1)} ${ys[i].toFixed(1)}`;
      pen = 'L';
    }
  }
  return path;
}
function bandPath(xs, low, high) {
  let path = '';
  for (let i = 0; i < xs.length;) {
    let end = i;
    while (end < xs.length && low[end] !== null && high[end] !== null) ++end;
    if (end > i) {
      const there = [];
      const back = [];
      for (let k = i; k < end; ++k) {
        there.push(`${xs[k].toFixed(1)} ${high[k].toFixed(1)}`);
        back.push(`${xs[k].toFixed(1)} ${low[k].toFixed(1)}`);
      }
      path += `M${there.join('L')}L${back.reverse().join('L')}Z`;
    }
    i = end + 1;
  }
  return path;
}

// The same line as at most `most` bars over the steps in view: each holds the
// mean of its steps, so the picture's areas are true.
function bars(line, inView, most) {
  const seen = line.x.map((_, i) => i).filter((i) => inView(line.x[i]));
  const each = Math.max(1, Math.ceil(seen.length / most));
  const result = { ...line, span: [line.x[0], line.x[line.x.length - 1]], x: [], left: [], right: [], steps: [], firsts: [], values: [] };
  const edge = (i) => (i < 1 || i >= line.x.length ? null : (line.x[i - 1] + line.x[i]) / 2);
  for (let at = 0; at < seen.length; at += each) {
    const part = seen.slice(at, at + each);
    const [a, b] = [part[0], part[part.length - 1]];
    const numbers = part.map((i) => line.values[i]).filter(isNumber);
    const ends = [edge(a), edge(b + 1)];
    const half = (ends[1] ?? line.x[b]) - line.x[b] || line.x[a] - (ends[0] ?? line.x[a]) || 0.25;
    result.left.push(ends[0] ?? line.x[a] - half);
    result.right.push(ends[1] ?? line.x[b] + half);
    result.x.push((line.x[a] + line.x[b]) / 2);
    result.firsts.push(a > 0 ? line.steps[a - 1] + 1 : Math.min(1, line.steps[a]));
    result.steps.push(line.steps[b]);
    result.values.push(numbers.length ? numbers.reduce((p, q) => p + q, 0) / numbers.length : null);
  }
  return result;
}
