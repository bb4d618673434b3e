// Two runs side by side; differences are from the first to the second.

const kRunColors = ['run-a', 'run-b'];

// Names that tell the runs apart.
function run_names(runs) {
  const titles = runs.map(({data}, i) => data.title || `run ${i + 1}`);
  return titles[0] === titles[1] ? titles.map((title, i) => `${title} (${i + 1})`) : titles;
}

// From a to b: "+1.25 ms, +3.1%"; green where it is better. better: -1 if less is better, 1 if more is, 0 if neither.
function difference(a, b, format, better) {
  if (!Number.isFinite(a) || !Number.isFinite(b)) return [kMissing, 'number'];
  const change = b - a;
  if (change === 0) return ['=', 'number'];
  const sign = change > 0 ? '+' : '−';
  const percent = a !== 0 ? `, ${sign}${Math.abs(100 * change / a).toFixed(1)}%` : '';
  const kind = better === 0 || format(a) === format(b) ? '' : Math.sign(change) === better ? ' better' : ' worse';
  return [`${sign}${format(Math.abs(change))}${percent}`, `number${kind}`];
}

function compared_row(name, [a, b], format, better) {
  return {cells: [[name, 'name'], [format(a), 'number'], [format(b), 'number'], difference(a, b, format, better)]};
}

const compared_head = (what, names) => [[what], ...names.map((name, i) => [element('span', {}, swatch(`var(--${kRunColors[i]})`), ` ${name}`), 'number']), ['difference', 'number']];

const scrolling = (node) => element('div', {class: 'scroll'}, node);
const mean_per_rank = (ranks, value) => ranks.length > 0 ? sum_of(ranks, value) / ranks.length : NaN;
const optional_ns = (ns) => Number.isFinite(ns) ? format_ns(Math.round(ns), 4) : kMissing;

function compare_figures(runs, names) {
  const both = (value) => runs.map(({data, timeline}) => value(data, timeline));
  const steps = (column, fraction) => both(({steps}) => quantile(steps[column], fraction));
  const peak = ({memory}) => memory.persistent_bytes + memory.step_bytes;
  const rows = [
    compared_row('step time, median', steps('step_ms', 0.5).map((ms) => ms * 1e6), optional_ns, -1),
    compared_row('step time, 95%', steps('step_ms', 0.95).map((ms) => ms * 1e6), optional_ns, -1),
    compared_row('tokens/s, median', steps('tokens_per_s', 0.5), format_count, 1),
    compared_row('TFLOP/s per rank, median', steps('tflops_per_s_per_rank', 0.5), format_number, 1),
    compared_row('traced step', both((_, timeline) => has_tasks(timeline) ? timeline.step_ns : NaN), optional_ns, -1),
    compared_row('… compute, mean of ranks', both(({ranks}) => mean_per_rank(ranks, (rank) => rank.compute_ns)), optional_ns, -1),
    compared_row('… exposed communication', both(({ranks}) => mean_per_rank(ranks, (rank) => rank.communication.exposed_ns)), optional_ns, -1),
    compared_row('… idle', both(({ranks}) => mean_per_rank(ranks, (rank) => rank.bubble_ns)), optional_ns, -1),
    compared_row('training loss, last', both(({steps}) => last_of(steps.loss)), (value) => format_number(value, 6), -1),
    compared_row('held-out loss, last', both(({evaluations}) => last_of(evaluations.loss)), (value) => format_number(value, 6), -1),
    compared_row('peak memory of the first rank', both(peak), format_bytes, -1),
    compared_row('steps', both(({steps}) => steps.step.length), (count) => count.toLocaleString('en-US'), 0),
  ];
  const kinds = runs.map(({timeline}) => is_simulated(timeline));
  const warning = kinds[0] !== kinds[1] ? [note('One timeline is simulated, the other was measured.')] : [];
  return card('At a glance', [], ...warning, scrolling(table(compared_head('', names), rows)));
}

// What the losses of the steps that both runs took say about each other.
function describe_losses(runs) {
  const [a, b] = runs.map(({data}) => new Map(data.steps.step.map((step, i) => [step, data.steps.loss[i]])));
  const common = [...a.keys()].filter((step) => b.has(step));
  if (common.length === 0) return 'No step was taken by both.';
  const worst = common.reduce((most, step) => Math.abs(b.get(step) - a.get(step)) > Math.abs(b.get(most) - a.get(most)) ? step : most, common[0]);
  const most = Math.abs(b.get(worst) - a.get(worst));
  const count = `${common.length.toLocaleString('en-US')} common steps`;
  return most === 0 ? `Equal to six digits in all ${count}.` : `Largest difference in ${count}: ${format_number(most, 3)}, at step ${worst.toLocaleString('en-US')}.`;
}

function compare_series(runs, names, column) {
  const wider = (series, i) => ({...series, width: (series.width ?? 1.75) + (i === 0 ? 2 : 0)});  // seen below an equal line
  return runs.flatMap(({data}, i) => with_mean(names[i], kRunColors[i], data.steps.step, data.steps[column]).map((series) => wider(series, i)));
}

const compared_legend = (names) => legend(names.map((name, i) => [name, `var(--${kRunColors[i]})`, 'line']));

function compare_losses(runs, names) {
  if (runs.every(({data}) => data.steps.step.length === 0)) return [card('Loss', [], note('No step was recorded.')), null];
  const held_out = runs.map(({data}, i) => ({name: `${names[i]}, held-out`, color: kRunColors[i], x: data.evaluations.step, y: data.evaluations.loss, width: 1, dots: true}));
  const chart = new LineChart({series: [...compare_series(runs, names, 'loss'), ...held_out], label: 'Losses of both runs', format: (value) => format_number(value, 6)});
  return [card('Loss (nats per token)', [compared_legend(names), spacer(), scale_switch(chart)], chart.canvas, note(`${describe_losses(runs)} Dots are held-out losses.`)), chart];
}

function compare_speed(runs, names) {
  if (runs.every(({data}) => data.steps.step.length === 0)) return card('Step time', [], note('No step was recorded.'));
  const chart = new LineChart({series: compare_series(runs, names, 'step_ms'), from_zero: true, label: 'Step times of both runs', format: (value) => format_ns(value * 1e6)});
  return card('Step time', [compared_legend(names)], chart.canvas);
}

// Both on one scale of time; whichever is moved, the other follows.
function compare_timelines(runs, names) {
  const traced = runs.map((run, i) => ({...run, name: names[i], color: kRunColors[i]})).filter(({timeline}) => has_tasks(timeline));
  if (traced.length === 0) return [card('Timelines', [], note('No step was traced.')), []];
  const kLanesOfEach = 8;  // so that both are on the screen
  const span_ns = Math.max(...traced.map(({timeline}) => timeline.step_ns));
  const views = traced.map(({timeline}) => new TimelineView(timeline, span_ns, kLanesOfEach));
  for (const view of views) {
    view.followers.push((from, to) => views.filter((other) => other !== view).forEach((other) => other.show(from, to, false)));
  }
  const kinds = [...new Set(views.flatMap((view) => view.used_kinds))];
  const rows = traced.map(({name, color, timeline}, i) => element('div', {},
    element('p', {class: 'run-name'}, swatch(`var(--${color})`), name, note(describe_source(timeline))), views[i].canvas));
  const section = card('Timelines on one scale of time', [spacer(), timeline_legend(kinds), timeline_buttons(views[0])], element('div', {class: 'stack'}, ...rows), timeline_help());
  section.classList.add('timeline');
  return [section, views];
}

function compare_communication(runs, names) {
  const kinds = [...new Set(runs.flatMap(({data}) => data.communication.map(({name}) => name)))];
  if (kinds.length === 0) return card('Communication', [], note('No task of either traced step communicates.'));
  const of = (kind, value) => runs.map(({data}) => {
    const one = data.communication.find(({name}) => name === kind);
    return one ? value(one) / data.ranks.length : 0;
  });
  const rows = kinds.flatMap((kind) => [
    compared_row(element('span', {}, swatch(`var(--phase-comm-${kind})`), `${kind}, exposed`), of(kind, (one) => one.exposed_ns), optional_ns, -1),
    compared_row(element('span', {}, swatch('transparent'), `${kind}, total`), of(kind, (one) => one.total_ns), optional_ns, 0)]);
  const sentences = runs.flatMap(({data}, i) => [element('h3', {}, names[i]), communication_sentences(data.communication)]);
  return card('Communication by kind, mean of the traced ranks', [], scrolling(table(compared_head('', names), rows)), ...sentences);
}

function compare_operations(runs, names) {
  const ops = runs.map(({data}) => new Map(merged_ops(data.ranks).map((one) => [one.op, one.busy_ns / data.ranks.length])));
  const all = [...new Set(ops.flatMap((one) => [...one.keys()]))];
  const change = (op) => Math.abs((ops[1].get(op) ?? 0) - (ops[0].get(op) ?? 0));
  all.sort((a, b) => change(b) - change(a));
  const rows = all.map((op) => compared_row(element('code', {}, op), ops.map((one) => one.get(op) ?? 0), optional_ns, -1));
  return card('Operations, mean of the traced ranks, largest difference first', [], scrolling(table(compared_head('op', names), rows)));
}

function compare_memory(runs, names) {
  const classes = [...new Set(runs.flatMap(({data}) => data.memory.classes.map(({name}) => name)))];
  const bytes_of = (name) => runs.map(({data}) => {
    const one = data.memory.classes.find((each) => each.name === name);
    return one ? one.persistent_bytes + one.step_bytes : 0;
  });
  const rows = classes.map((name) => compared_row(element('span', {}, swatch(`var(--memory-${name})`), kMemoryTitles[name] ?? name), bytes_of(name), format_bytes, -1));
  return card('Memory by class, first rank', [], scrolling(table(compared_head('class', names), rows)));
}

// {"section.key": "value"} of a resolved configuration, which has one setting a line.
function settings_of(config) {
  const settings = new Map();
  let section = '';
  for (const line of config.split('\n')) {
    const [, name] = /^\[(.+)\]\s*$/.exec(line) ?? [];
    const [, key, value] = /^([\w-]+)\s*=\s*(.*)$/.exec(line) ?? [];
    if (name !== undefined) section = `${name}.`;
    else if (key !== undefined) settings.set(section + key, value);
  }
  return settings;
}

function different_settings(runs) {
  const settings = runs.map(({data}) => settings_of(data.config));
  const keys = [...new Set(settings.flatMap((one) => [...one.keys()]))];
  return keys.map((key) => [key, ...settings.map((one) => one.get(key) ?? kMissing)]).filter(([, a, b]) => a !== b);
}

function compare_settings(runs, names) {
  const rows = different_settings(runs).map(([key, ...values]) => ({cells: [[element('code', {}, key), 'name'],
    ...values.map((value) => [element('code', {}, value), ''])]}));
  const head = [['setting'], ...names.map((name) => [name])];
  return card('Settings that differ', [], rows.length > 0 ? scrolling(table(head, rows)) : note('The resolved configurations are equal.'));
}

function make_comparison(runs) {
  const names = run_names(runs);
  const [loss, chart] = compare_losses(runs, names);
  const [timelines, views] = compare_timelines(runs, names);
  document.getElementById('report').append(
    element('header', {}, element('h1', {}, ...names.flatMap((name, i) => [i > 0 ? ' and ' : '', swatch(`var(--${kRunColors[i]})`), ` ${name}`])),
      element('p', {}, [...new Set(runs.map(({data}) => data.model))].filter(Boolean).join(' · '))),
    element('div', {class: 'two'}, compare_figures(runs, names), compare_settings(runs, names)),
    element('div', {class: 'two half'}, loss, compare_speed(runs, names)),
    timelines, compare_communication(runs, names),
    element('div', {class: 'two'}, compare_operations(runs, names), compare_memory(runs, names)), footer());
  return {runs, views, charts: chart ? [chart] : [], memory_chart: null, grid: null};
}
