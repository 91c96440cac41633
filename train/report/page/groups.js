// The replica groups of an elastic run: when each trained, and what changed.

// The steps from which on a group trained, and the last one: of each quorum, as
// far as a later start of the run has not done its steps again.
function spansOf(run) {
  const spans = [];
  let end = run.step.length ? run.step[run.step.length - 1] : 0;
  for (let i = run.quorum.length - 1; i >= 0; --i) {
    const { step, groups } = run.quorum[i];
    if (step <= end) spans.push({ from: step, to: end, groups });
    end = Math.min(end, step - 1);
  }
  return spans.reverse();
}

// A point stands for the steps after the point before.
function groupLines(run) {
  const spans = spansOf(run);
  const numbers = [...new Set(run.quorum.flatMap((entry) => entry.groups))].sort((a, b) => a - b);
  return numbers.map((number) => {
    const own = spans.filter((span) => span.groups.includes(number));
    const values = run.step.map((step, i) => {
      const first = i ? run.step[i - 1] + 1 : 1;
      return own.some((span) => span.from <= step && span.to >= first) ? number : null;
    });
    return { run, label: `group ${number}`, color: 'var(--c0)', exact: true, x: axes[view.x].of(run), steps: run.step, values };
  });
}

const lossesOf = (run) => run.quorum.flatMap(({ step, lost }) => lost.map(({ group, why }) => (
  { group, index: run.step.findIndex((s) => s >= step), text: `step ${format.whole(step)}: group ${group} lost${why ? `, ${why}` : ''}` })))
  .filter(({ index }) => index >= 0);

function groupChart(run) {
  return new Chart({ title: 'Replica groups', unit: 'red: a group was lost', size: 'wide', lanes: true,
    format: (v) => (isNumber(v) ? 'trains' : 'away'), tick: (v) => (Number.isInteger(v) ? String(v) : ''),
    lines: () => groupLines(run), losses: () => lossesOf(run) }).mount();
}

function quorumTable(run) {
  const most = 30;
  const shown = run.quorum.slice(-most);
  const change = ({ joined, lost }) => [...lost.map(({ group, why }) => `${group} lost${why ? ` (${why})` : ''}`),
    ...(joined.length ? [`${joined.join(' ')} joined`] : [])].join(', ');
  const state = ({ state_bytes, state_ms }) => (state_bytes ? `${format.bytes(state_bytes)} in ${format.milliseconds(state_ms)}` : '');
  const columns = [['epoch', (q) => q.epoch, true], ['from step', (q) => format.whole(q.step), true], ['groups', (q) => q.groups.join(' ')],
    ['change', change], ['steps done again', (q) => q.steps_redone, true], ['reconfigured in', (q) => format.milliseconds(q.reconfigure_ms), true], ['state sent', state, true]];
  return el('div', { class: 'card scroll' }, el('table', {},
    el('tr', {}, columns.map(([name, , isNumeric]) => el('th', { class: isNumeric ? 'n' : null }, name))),
    shown.map((q) => el('tr', {}, columns.map(([, of, isNumeric]) => el('td', { class: isNumeric ? 'n' : null }, String(of(q))))))),
    run.quorum.length > most && el('p', { class: 'soft' }, `${format.whole(run.quorum.length - most)} earlier ones left out: weft quorum lists them`));
}
