// Two runs side by side; differences are from the first to the second.

const kRunColors = ['run-a', 'run-b'];

// Names that distinguish the runs.
function run_names(runs) {
  const titles = runs.map(({data}, i) => data.title || `run ${i + 1}`);
  return titles[0] === titles[1] ? titles.map((title, i) => `${title} (${i + 1})`) : titles;
}

// From a to b: "+1.25 ms, +3.1%"; green if it is better. better: -1 if less is better, 1 if more is, 0 if neither.
function difference(a, b, format, better) {
  if (!Number.isFinite(a) || !Number.isFinite(b)) return [kMissing, 'number'];
  const change = b - a;
  if (change === 0) return ['=', 'number'];
  const sign = change > 0 ? '+' : '−';
  if (format === format_percent) return [`${sign}${Math.abs(100 * change).toFixed(1)} points`, `number${Math.sign(change) === better ? ' better' : ' worse'}`];
  const percent = a !== 0 ? `, ${sign}${Math.abs(100 * change / a).toFixed(1)}%` : '';
  const kind = better === 0 || format(a) === format(b) ? '' : Math.sign(change) === better ? ' better' : ' worse';
  return [`${sign}${format(Math.abs(change))}${percent}`, `number${kind}`];
}

function compared_row(name, [a, b], format, better) {
  return {cells: [[name, 'name'], [format(a), 'number'], [format(b), 'number'], difference(a, b, format, better)]};
}

const compared_head = (what, names) => [[what], ...names.map((name, i) => [element('span', {class: 'run-head', title: name}, swatch(`var(--${kRunColors[i]})`), ` ${name}`), 'number']), ['difference', 'number']];

const scrolling = (node) => element('div', {class: 'scroll'}, node);
const mean_per_rank = (ranks, value) => ranks.length > 0 ? sum_of(ranks, value) / ranks.length : NaN;
const optional_ns = (ns) => Number.isFinite(ns) ? format_ns(Math.round(ns), 4) : kMissing;

// The time of a step: simulated, or the median of the measured ones.
const step_ns_of = ({simulation, steps}) => simulation ? simulation.step_ns : quantile(steps.step_ms, 0.5) * 1e6;
const tokens_per_s_of = ({simulation, steps}) => simulation ? simulation.tokens_per_s : quantile(steps.tokens_per_s, 0.5);
const tflops_of = ({simulation, steps}) => simulation ? simulation.flops_per_s_per_rank * 1e-12 : quantile(steps.tflops_per_s_per_rank, 0.5);
// Peak memory of a rank: the largest stage of a simulated run, otherwise the plan of the recorded rank.
const peak_of = ({simulation, memory}) => simulation ? Math.max(...simulation.stages.map(({peak_bytes}) => peak_bytes)) : memory.persistent_bytes + memory.step_bytes;

// Rows with a value in at least one run, and rows with values in both.
const known = (rows) => rows.filter(({cells}) => cells[1][0] !== kMissing || cells[2][0] !== kMissing);
const known_of_both = (rows) => rows.filter(({cells}) => cells[1][0] !== kMissing && cells[2][0] !== kMissing);

function part_of(data, start) {
  const whole = step_parts_of(data);
  return whole === null ? NaN : sum_of(whole.parts.filter(({name}) => name.startsWith(start)), ({ns}) => ns);
}

const compared_learning = (both) => [
  compared_row('training loss, last', both(({steps}) => last_of(steps.loss)), (value) => format_number(value, 6), -1),
  compared_row('held-out loss, last', both(({evaluations}) => last_of(evaluations.loss)), (value) => format_number(value, 6), -1),
  compared_row('steps', both(({steps}) => steps.step.length), (count) => count.toLocaleString('en-US'), 0),
];

function compare_figures(runs, names) {
  const both = (value) => runs.map(({data, timeline}) => value(data, timeline));
  const simulated = runs.some(({data}) => data.simulation);
  const predicted = runs.some(is_predicted);
  const rows = (predicted ? known_of_both : known)([
    compared_row(simulated ? 'step time' : 'step time, median', both(step_ns_of), optional_ns, -1),
    compared_row('step time, 95%', both(({steps}) => quantile(steps.step_ms, 0.95) * 1e6), optional_ns, -1),
    compared_row(simulated ? 'tokens/s' : 'tokens/s, median', both(tokens_per_s_of), format_count, 1),
    compared_row(simulated ? 'TFLOP/s per rank' : 'TFLOP/s per rank, median', both(tflops_of), format_number, 1),
    compared_row('MFU', both(({simulation}) => simulation?.mfu ?? NaN), format_percent, 1),
    compared_row(simulated ? 'step of the timeline' : 'traced step', both((_, timeline) => has_tasks(timeline) ? timeline.step_ns : NaN), optional_ns, -1),
    compared_row('… compute, mean of ranks', both((data) => part_of(data, 'compute')), optional_ns, -1),
    compared_row('… exposed communication', both((data) => part_of(data, 'exposed')), optional_ns, -1),
    compared_row('… idle', both((data) => part_of(data, 'idle')), optional_ns, -1),
    compared_row('peak memory', both(peak_of), format_bytes, -1),
    ...(simulated || predicted ? [] : compared_learning(both)),
  ]);
  return card('At a glance', [], scrolling(table(compared_head('', names), rows)));
}

// Both steps as bars on one scale.
function compare_parts(runs, names) {
  const wholes = runs.map(({data}) => step_parts_of(data));
  if (wholes.every((whole) => whole === null)) return [];
  const span_ns = Math.max(...wholes.map((whole) => whole?.step_ns ?? 0));
  const rows = wholes.map((whole, i) => element('div', {}, run_title(runs[i], names[i], i, whole === null ? 'no step was traced' : `${format_ns(whole.step_ns, 4)}, ${whole.of}`),
    ...(whole === null ? [] : [parts_bar(whole, span_ns), parts_legend(whole)])));
  return [card('Where the step goes', [], element('div', {class: 'stack'}, ...rows))];
}

// The means over the last fifth of the common steps, as `braid report --compare` prints them.
function describe_last_losses(a, b, common) {
  const last = common.slice(Math.floor(common.length * 4 / 5)).filter((step) => Number.isFinite(a.get(step)) && Number.isFinite(b.get(step)));
  if (last.length === 0) return '';
  const [of_a, of_b] = [a, b].map((losses) => sum_of(last, (step) => losses.get(step)) / last.length);
  const percent = 100 * (of_b / of_a - 1);
  return `Mean of the last fifth of them: ${format_number(of_a, 5)} and ${format_number(of_b, 5)}, ${percent < 0 ? '−' : '+'}${Math.abs(percent).toFixed(2)}%.`;
}

// Compares the losses of the steps that both runs have.
function describe_losses(runs) {
  const [a, b] = runs.map(({data}) => new Map(data.steps.step.map((step, i) => [step, data.steps.loss[i]])));
  const common = [...a.keys()].filter((step) => b.has(step));
  if (common.length === 0) return 'The runs have no step in common.';
  const worst = common.reduce((most, step) => Math.abs(b.get(step) - a.get(step)) > Math.abs(b.get(most) - a.get(most)) ? step : most, common[0]);
  const most = Math.abs(b.get(worst) - a.get(worst));
  const count = `${common.length.toLocaleString('en-US')} common steps`;
  if (most === 0) return `Equal to six digits in all ${count}.`;
  return `Largest difference in ${count}: ${format_number(most, 3)}, at step ${worst.toLocaleString('en-US')}. ${describe_last_losses(a, b, common)}`;
}

function compare_series(runs, names, column) {
  const wider = (series, i) => ({...series, width: (series.width ?? 1.75) + (i === 0 ? 2 : 0)});  // seen below an equal line
  return runs.flatMap(({data}, i) => with_mean(names[i], kRunColors[i], data.steps.step, data.steps[column]).map((series) => wider(series, i)));
}

const compared_legend = (names) => legend(names.map((name, i) => [name, `var(--${kRunColors[i]})`, 'line']));

// A run and the prediction of its step from a profile: the prediction has a timeline, but no steps.
const is_predicted = ({data, timeline}) => !data.simulation && data.steps.step.length === 0 && has_tasks(timeline) && is_simulated(timeline);

// Losses and speeds over the steps: a simulated run has none to compare.
function compare_progress(runs, names) {
  if (runs.some((run) => run.data.simulation || is_predicted(run))) return [[], null];
  const [loss, chart] = compare_losses(runs, names);
  return [[element('div', {class: 'two half'}, loss, compare_speed(runs, names))], chart];
}

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

// Both on one time scale; when one is moved, the other follows.
function compare_timelines(runs, names) {
  const traced = runs.map((run, i) => ({...run, name: names[i], color: kRunColors[i]})).filter(({timeline}) => has_tasks(timeline));
  if (traced.length === 0) return [[card('Timelines', [], note('No step was traced.'))], [], []];
  const kLanesOfEach = 8;  // so that both fit on the screen
  const span_ns = Math.max(...traced.map(({timeline}) => timeline.step_ns));
  const views = traced.map(({timeline}) => new TimelineView(timeline, span_ns, kLanesOfEach));
  for (const view of views) {
    view.followers.push((from, to) => views.filter((other) => other !== view).forEach((other) => other.show(from, to, false)));
  }
  const kinds = [...new Set(views.flatMap((view) => view.used_kinds))];
  const rows = traced.map(({name, color, timeline}, i) => element('div', {},
    element('p', {class: 'run-name'}, swatch(`var(--${color})`), name, note(describe_source(timeline))), views[i].canvas));
  const charts = traced.map((run, i) => make_compared_memory(run, views[i], span_ns));
  const drawn = charts.filter((chart) => chart !== null);
  for (const view of views) view.followers.push((from, to) => drawn.forEach((chart) => chart.show(from, to)));
  const section = card('Timelines on one scale of time', [spacer(), timeline_legend(kinds), timeline_buttons(views[0])], element('div', {class: 'stack'}, ...rows), timeline_help());
  section.classList.add('timeline');
  return [[section, ...compare_memory_over_time(traced, charts)], views, drawn];
}

// null: unknown.
function make_compared_memory({data: {memory_over_time}, timeline}, view, span_ns) {
  if (memory_over_time.length === 0) return null;
  const chart = new MemoryChart(memory_over_time, timeline.step_ns, view.box.left, span_ns);
  chart.height = 150;
  chart.canvas.style.height = `${chart.height}px`;
  return chart;
}

// One below the other, on one scale of bytes and on the time scale of the timelines.
function compare_memory_over_time(traced, charts) {
  const drawn = charts.filter((chart) => chart !== null);
  if (drawn.length === 0) return [];
  const most = Math.max(...drawn.flatMap(({curves}) => curves.map(({persistent_bytes, step_bytes}) => persistent_bytes + step_bytes)));
  const rows = traced.map(({name, color, timeline}, i) => {
    if (charts[i] === null) return element('p', {class: 'run-name'}, swatch(`var(--${color})`), name, note('no memory was recorded'));
    charts[i].scale_bytes = most;
    return element('div', {}, element('p', {class: 'run-name'}, swatch(`var(--${color})`), name, ...memory_choice(charts[i], timeline)), charts[i].canvas);
  });
  return [card('Memory over the step', [spacer(), memory_legend(drawn)], element('div', {class: 'stack'}, ...rows))];
}

function compare_communication(runs, names) {
  const kinds = [...new Set(runs.flatMap(({data}) => data.communication.map(({name}) => name)))];
  if (kinds.length === 0) return card('Communication', [], note('No task of either traced step communicates.'));
  const both_simulated = runs.every(({data}) => data.simulation);  // then all ranks are known, not only those shown
  const of = (kind, value) => runs.map(({data}) => {
    if (both_simulated) return value(data.simulation.mean.communication[kind] ?? {exposed_ns: 0, total_ns: 0});
    const one = data.communication.find(({name}) => name === kind);
    return one ? value(one) / data.ranks.length : 0;
  });
  const rows = kinds.flatMap((kind) => [
    compared_row(element('span', {}, swatch(`var(--phase-comm-${kind})`), `${kind}, exposed`), of(kind, (one) => one.exposed_ns), optional_ns, -1),
    compared_row(element('span', {}, swatch('transparent'), `${kind}, total`), of(kind, (one) => one.total_ns), optional_ns, 0)]);
  const sentences = runs.flatMap(({data}, i) => data.communication.length === 0 ? []
    : [element('h3', {}, `${names[i]}: ${names_of_ranks(data.ranks)}`), communication_sentences(data.communication)]);
  const whose = both_simulated ? 'mean of all ranks' : 'mean of the ranks of the timelines';
  return card(`Communication by kind, ${whose}`, [], scrolling(table(compared_head('', names), rows)), ...sentences);
}

function compare_operations(runs, names) {
  const ops = runs.map(({data}) => new Map(merged_ops(data.ranks).map((one) => [one.op, one.busy_ns / data.ranks.length])));
  const all = [...new Set(ops.flatMap((one) => [...one.keys()]))];
  const change = (op) => Math.abs((ops[1].get(op) ?? 0) - (ops[0].get(op) ?? 0));
  all.sort((a, b) => change(b) - change(a));
  const rows = all.map((op) => compared_row(element('code', {}, op), ops.map((one) => one.get(op) ?? 0), optional_ns, -1));
  if (rows.length === 0) return card('Operations', [], note('No step was traced.'));
  return card('Operations, mean of the ranks of the timelines, largest difference first', [], scrolling(table(compared_head('op', names), rows)));
}

function compare_memory(runs, names) {
  const classes = [...new Set(runs.flatMap(({data}) => data.memory.classes.map(({name}) => name)))];
  const bytes_of = (name) => runs.map(({data}) => {
    const one = data.memory.classes.find((each) => each.name === name);
    return one ? one.persistent_bytes + one.step_bytes : 0;
  });
  const rows = classes.map((name) => compared_row(element('span', {}, swatch(`var(--memory-${name})`), kMemoryTitles[name] ?? name), bytes_of(name), format_bytes, -1));
  const ranks = runs.map(({data}) => data.memory.rank ?? 0);
  const whose = ranks[0] === ranks[1] ? `rank ${ranks[0]}` : `ranks ${ranks.join(' and ')}`;
  if (rows.length === 0) return card('Memory', [], note('No memory plan was recorded.'));
  return card(`Memory by class, ${whose}`, [], scrolling(table(compared_head('class', names), rows)));
}

// The effective value, also if a mode determines it: 'true' of 'false  # in force: true, by mode = "auto"'.
const in_force = (value) => /\s# in force: (.*), by .*$/.exec(value)?.[1] ?? value;

// {"section.key": "value"} of a resolved configuration, which has one setting a line.
function settings_of(config) {
  const settings = new Map();
  let section = '';
  for (const line of config.split('\n')) {
    const [, name] = /^\[(.+)\]\s*$/.exec(line) ?? [];
    const [, key, value] = /^([\w-]+)\s*=\s*(.*)$/.exec(line) ?? [];
    if (name !== undefined) section = `${name}.`;
    else if (key !== undefined) settings.set(section + key, in_force(value));
  }
  return settings;
}

function different_settings(runs) {
  const settings = runs.map(({data}) => settings_of(data.config));
  const keys = [...new Set(settings.flatMap((one) => [...one.keys()]))];
  return keys.map((key) => [key, ...settings.map((one) => one.get(key) ?? kMissing)]).filter(([, a, b]) => a !== b);
}

function compare_settings(runs, names) {
  const rows = different_settings(runs).map(([key, ...values]) => ({cells: [[element('code', {}, key), 'key'],
    ...values.map((value) => [element('code', {}, value), ''])]}));
  const head = [['setting'], ...names.map((name) => [name])];
  return card('Settings that differ', [], rows.length > 0 ? scrolling(table(head, rows)) : note('The resolved configurations are equal.'));
}

// Whether a run was simulated, and on which cluster, or measured: the first question of a reader.
function run_kind({data, timeline}) {
  if (data.simulation) return simulated_badge(data.simulation);
  if (!has_tasks(timeline)) return null;
  return element('span', {class: 'badge measured'}, is_simulated(timeline) ? 'simulated' : `measured, ${timeline.source}`);
}

const run_title = (run, name, i, about) => element('p', {class: 'run-name'}, swatch(`var(--${kRunColors[i]})`), name, note(about));

function make_comparison(runs) {
  const names = run_names(runs);
  const [progress, chart] = compare_progress(runs, names);
  const [timelines, views, memory_charts] = compare_timelines(runs, names);
  const titles = runs.map((run, i) => element('span', {class: 'compared'}, swatch(`var(--${kRunColors[i]})`), ` ${names[i]}`, run_kind(run)));
  document.getElementById('report').append(
    element('header', {}, element('h1', {}, titles[0], ' and ', titles[1]),
      element('p', {}, [...new Set(runs.map(({data}) => data.model))].filter(Boolean).join(' · '))),
    ...compare_parts(runs, names),
    element('div', {class: 'two'}, compare_figures(runs, names), compare_settings(runs, names)),
    ...progress, ...timelines, compare_communication(runs, names),
    element('div', {class: 'two'}, compare_operations(runs, names), compare_memory(runs, names)), footer());
  return {runs, views, charts: chart ? [chart] : [], memory_chart: null, memory_charts, grid: null};
}
