// The parts of the page, each made from the data alone.

const kMemoryTitles = {
  param: 'weights', main_weight: 'main weights', grad: 'gradients', main_grad: 'main gradients',
  optimizer_state: 'optimizer state', activation: 'activations', gathered: 'gathered', scratch: 'scratch', io: 'inputs and outputs',
  between: 'between buffers',
};

function card(title, head, ...body) {
  return element('section', {class: 'card'}, element('div', {class: 'card-head'}, element('h2', {}, title), ...head), ...body);
}

const spacer = () => element('div', {class: 'spacer'});
const note = (text) => element('p', {class: 'note'}, text);

function make_header(data) {
  const {step} = data.steps;
  const steps = step.length > 0 ? `${step[step.length - 1].toLocaleString('en-US')} steps` : 'no steps recorded';
  const [badge, how] = data.simulation ? [simulated_badge(data.simulation), simulated_scope(data.simulation)] : [null, steps];
  return element('header', {}, element('h1', {}, data.title, badge), element('p', {}, [data.model, how].filter(Boolean).join(' · ')));
}

const kNoStep = 'no step was recorded';

function tile(label, value, unit, detail) {
  return element('div', {class: 'card tile'}, element('div', {class: 'label'}, label),
    element('div', {class: 'value'}, value, unit ? element('small', {}, unit) : null), element('div', {class: 'detail'}, detail));
}

const last_of = (values) => values.length > 0 ? values[values.length - 1] : NaN;

function exposure_of(ranks) {
  const [step, total, exposed] = [(rank) => rank.step_ns, (rank) => rank.communication.total_ns,
    (rank) => rank.communication.exposed_ns].map((value) => sum_of(ranks, value));
  return {share: step > 0 ? exposed / step : NaN, hidden: total > 0 ? 1 - exposed / total : NaN, has_any: total > 0};
}

function loss_tiles(data) {
  const {steps, evaluations, unigram_entropy} = data;
  const first_to_last = `from ${format_number(evaluations.loss[0] ?? NaN)} at step ${evaluations.step[0] ?? kMissing}`;
  const yardstick = unigram_entropy === null ? '' : `, unigram entropy ${format_number(unigram_entropy)}`;
  return [
    tile('Training loss', format_number(last_of(steps.loss)), '', steps.step.length > 0 ? `at step ${last_of(steps.step).toLocaleString('en-US')}, ${loss_unit(steps)}` : kNoStep),
    tile('Held-out loss', format_number(last_of(evaluations.loss)), '',
      evaluations.loss.length > 0 ? first_to_last + yardstick : 'not evaluated in this run'),
  ];
}

function speed_tiles(data) {
  const {step, tokens_per_s, step_ms, tflops_per_s_per_rank} = data.steps;
  if (step.length === 0) return [tile('Throughput', kMissing, '', kNoStep), tile('Step time', kMissing, '', kNoStep)];
  const [time, unit] = format_scaled(quantile(step_ms, 0.5) * 1e6, 1000, ['ns', 'µs', 'ms', 's']);
  return [
    tile('Throughput', format_count(quantile(tokens_per_s, 0.5)), 'tokens/s',
      `median; ${format_number(quantile(tflops_per_s_per_rank, 0.5), 3)} TFLOP/s per rank`),
    tile('Step time', time, unit, `median; 95% of steps within ${format_ns(quantile(step_ms, 0.95) * 1e6)}`),
  ];
}

function machine_tiles(data) {
  const {share, hidden, has_any} = exposure_of(data.ranks);
  const {persistent_bytes, step_bytes} = data.memory;
  const [peak, unit] = format_scaled(persistent_bytes + step_bytes, 1024, kByteUnits);
  const explained = has_any ? `of the step; ${format_percent(hidden)} of communication is hidden` : 'no communication in the step';
  return [
    tile('Exposed communication', data.ranks.length > 0 ? format_percent(share) : kMissing, '',
      data.ranks.length > 0 ? explained : 'no step was traced'),
    tile('Peak memory', peak, unit, `per rank: ${format_bytes(persistent_bytes)} persistent, ${format_bytes(step_bytes)} in a step`),
  ];
}

function make_tiles(data) {
  const tiles = data.simulation ? simulated_tiles(data) : [...loss_tiles(data), ...speed_tiles(data), ...machine_tiles(data)];
  return element('div', {class: 'tiles'}, ...tiles);
}

// Losses over the steps: empty for one simulated step.
function make_progress(data) {
  if (data.simulation) return [[], null];
  const [loss, chart] = make_loss(data);
  return [[element('div', {class: 'two'}, loss, make_speed(data)), ...make_pairs(data), ...make_rates(data)], chart];
}

// Two buttons, one of them pressed.
function scale_switch(chart) {
  const buttons = [['linear', false], ['log', true]].map(([name, logarithmic]) => element('button', {
    'aria-pressed': String(chart.logarithmic === logarithmic),
    onclick: (event) => {
      for (const button of buttons) button.setAttribute('aria-pressed', String(button === event.target));
      chart.set_logarithmic(logarithmic);
    },
  }, name));
  return element('div', {class: 'buttons', role: 'group', 'aria-label': 'scale'}, ...buttons);
}

// A noisy line is pale, with its running mean on top.
function with_mean(name, color, x, y) {
  const radius = Math.floor(x.length / 100);
  if (radius < 1) return [{name, color, x, y}];
  return [{name, color, x, y, width: 1, alpha: 0.35}, {name, color, x, y: smoothed(y, radius), width: 2, quiet: true}];
}

// Of a run that learns from pairs of answers.
const loss_unit = (steps) => steps.pairs ? 'per pair of answers' : 'nats per token';

function make_pairs(data) {
  const {step, pairs} = data.steps;
  if (!pairs) return [];
  const rewards = new LineChart({series: [...with_mean('preferred', 'train', step, pairs.chosen), ...with_mean('rejected', 'held-out', step, pairs.rejected)],
    label: 'Rewards of preferred and rejected answers over the steps', format: (value) => format_number(value), height: 180});
  const accuracy = new LineChart({series: with_mean('accuracy', 'speed', step, pairs.accuracy), from_zero: true,
    label: 'Share of pairs whose preferred answer has the larger reward', format: (value) => format_number(value), height: 180});
  const names = legend([['preferred', 'var(--train)', 'line'], ['rejected', 'var(--held-out)', 'line']]);
  return [element('div', {class: 'two half'}, card('Rewards of answers', [names], rewards.canvas), card('Pairs in the right order', [], accuracy.canvas))];
}

function make_loss(data) {
  const {steps, evaluations, unigram_entropy} = data;
  if (steps.step.length + evaluations.step.length === 0) return [card('Loss', [], note('No step was recorded.')), null];
  const mtp = (steps.mtp_losses ?? []).map((losses, i) => [`training, MTP depth ${i + 1}`, 'speed', steps.step, losses]);
  const series = [...with_mean('training', 'train', steps.step, steps.loss), ...mtp.flatMap((each) => with_mean(...each)),
    {name: 'held-out', color: 'held-out', x: evaluations.step, y: evaluations.loss, width: 2, dots: true}];
  const levels = unigram_entropy === null ? [] : [{name: 'unigram entropy', color: 'entropy', y: unigram_entropy}];
  const chart = new LineChart({series, levels, label: 'Training and held-out loss over the steps', format: (value) => format_number(value)});
  const names = legend([['training', 'var(--train)', 'line'], ['held-out', 'var(--held-out)', 'line'], ...(mtp.length > 0 ? [['multi-token prediction', 'var(--speed)', 'line']] : [])]);
  return [card(`Loss (${loss_unit(steps)})`, [names, spacer(), scale_switch(chart)], chart.canvas), chart];
}

function make_speed(data) {
  const {step, tokens_per_s} = data.steps;
  if (step.length === 0) return card('Throughput', [], note('No step was recorded.'));
  const chart = new LineChart({series: with_mean('tokens/s', 'speed', step, tokens_per_s), from_zero: true,
    label: 'Tokens per second over the steps', format: format_count});
  return card('Throughput (tokens/s)', [], chart.canvas);
}

// What the optimizer did in each step.
function make_rates(data) {
  const {step, learning_rate, grad_norm} = data.steps;
  if (step.length === 0) return [];
  const rate = new LineChart({series: [{name: 'learning rate', color: 'train', x: step, y: learning_rate}], from_zero: true,
    label: 'Learning rate over the steps', format: (value) => format_number(value), height: 180});
  const norm = new LineChart({series: with_mean('gradient norm', 'held-out', step, grad_norm),
    label: 'Norm of the gradients over the steps', format: (value) => format_number(value), height: 180});
  return [element('div', {class: 'two half'}, card('Learning rate', [], rate.canvas),
    card('Gradient norm (before clipping)', [scale_switch(norm)], norm.canvas))];
}

// Simulated and measured timelines have one format, so the page must say which it is.
const is_simulated = (timeline) => timeline.source.startsWith('sim');

function describe_source(timeline) {
  const length = format_ns(timeline.step_ns, 4);
  if (is_simulated(timeline)) return `Simulated, not measured; ${length}`;
  return `Step ${timeline.ranks[0].step}, measured (${timeline.source}), ${length}`;
}

const kind_title = (kind) => kind.startsWith('comm-') ? `${kind.slice(5)} communication` : kind.replace('-', ' ');

function timeline_buttons(view) {
  const button = (text, title, action) => element('button', {title, onclick: action}, text);
  return element('div', {class: 'buttons'}, button('−', 'zoom out', () => view.zoom(2)), button('+', 'zoom in', () => view.zoom(0.5)),
    button('whole step', 'show the whole step', () => view.reset()), button('fold', 'one row per rank, or all (C)', () => view.toggle_all()));
}

const timeline_legend = (kinds) => legend([...kinds.map((kind) => [kind_title(kind), `var(--phase-${kind})`]), ['exposed', 'var(--exposed)', 'line']]);

const timeline_help = () => element('p', {class: 'note', style: 'font-size:12px;margin-top:8px'},
  'Wheel zooms at the pointer, dragging pans, a double click zooms to a task or back, a click on a rank folds it; ',
  ...['W', 'A', 'S', 'D', '0'].map((key) => element('kbd', {}, key)), ' and ', element('kbd', {}, 'C'),
  ' work too. A red strip marks communication beside which no compute of its rank runs.');

const has_tasks = (timeline) => timeline.ranks.some((rank) => rank.name.length > 0);

function make_timeline({data, timeline}) {
  if (!has_tasks(timeline)) {
    return [card('Timeline', [], note('No step was traced: set logging.trace_steps.')), null];
  }
  const view = new TimelineView(timeline);
  const remarks = timeline.ranks.filter((rank) => rank.remark !== '').map((rank) => note(`Rank ${rank.rank}: ${rank.remark}`));
  if (data.trace_remark) remarks.unshift(note(`This step was ${data.trace_remark}.`));
  const section = card('Timeline', [note(describe_source(timeline)), spacer(), timeline_legend(view.used_kinds), timeline_buttons(view)],
    view.canvas, ...remarks, timeline_help());
  section.classList.add('timeline');
  return [section, view];
}

function memory_segments(memory) {
  const of = (member, kind) => memory.classes.filter((one) => one[member] > 0).map((one) => ({name: one.name, bytes: one[member], kind}));
  const between = memory.step_bytes - memory.max_live_bytes;
  return [...of('persistent_bytes', 'persistent'), ...of('step_bytes', 'step'),
    ...(between > 0 ? [{name: 'between', bytes: between, kind: 'step'}] : [])];
}

function memory_rows(memory, peak) {
  const cell = (bytes) => [bytes > 0 ? format_bytes(bytes) : kMissing, 'number'];
  const row = (name, persistent, step) => ({
    kind: name === 'between' ? 'quiet' : '',
    cells: [[element('span', {}, swatch(`var(--memory-${name})`), kMemoryTitles[name] ?? name), 'name'], cell(persistent), cell(step),
      cell(persistent + step), [format_percent((persistent + step) / peak), 'number']],
  });
  const rows = memory.classes.map((one) => row(one.name, one.persistent_bytes, one.step_bytes));
  const between = memory.step_bytes - memory.max_live_bytes;
  if (between > 0) rows.push(row('between', 0, between));
  rows.push({kind: 'sum', cells: [['peak'], cell(memory.persistent_bytes), cell(memory.step_bytes), cell(peak), ['100%', 'number']]});
  return rows;
}

// Gathered weights and gradients of units: braid's plan of them beside pools of fixed buffers. Older reports have none.
function unit_memory_table(units) {
  if (!units?.length) return [];
  const columns = [['planned alone', 'planned_bytes'], ['live at once', 'live_bytes'], ['MaxPool', 'max_pool_bytes'], ['pool per kind', 'kind_pools_bytes'],
    ['buffer per unit', 'own_bytes']];
  const head = [['units'], ...columns.map(([title]) => [title, 'number'])];
  return [table(head, units.map((one) => ({cells: [[one.what, 'name'], ...columns.map(([, key]) => [format_bytes(one[key]), 'number'])]})))];
}

function make_memory(memory) {
  const peak = memory.persistent_bytes + memory.step_bytes;
  if (peak === 0) return card('Memory', [], note('No memory plan was recorded.'));
  const segments = memory_segments(memory).map(({name, bytes, kind}) => element('div', {
    class: kind, style: `flex:${bytes} 0 0;background-color:var(--memory-${name})`,
    title: `${kMemoryTitles[name] ?? name}, ${kind === 'step' ? 'at the peak of the step' : 'persistent'}: ${format_bytes(bytes)}`,
  }));
  const ratio = memory.max_live_bytes > 0 ? memory.step_bytes / memory.max_live_bytes : 1;
  const about = note(`The step takes ${ratio.toFixed(3)} × the bytes that are live at once; 1 is the minimum`);
  const head = [['class'], ...['persistent', 'step peak', 'together', 'share'].map((name) => [name, 'number'])];
  return card(`Memory plan of rank ${memory.rank ?? 0}`, [spacer(), about], element('div', {class: 'bar', style: 'margin-bottom:12px'}, ...segments),
    table(head, memory_rows(memory, peak)), ...unit_memory_table(memory.units));
}

// What schedule_svg draws with. The text may come from a report.json that braid did not write: anything else goes.
const kPictureElements = new Set(['svg', 'style', 'rect', 'text', 'title']);
const kPictureAttributes = new Set(['class', 'xmlns', 'role', 'aria-label', 'width', 'height', 'viewBox', 'x', 'y', 'rx',
  'fill-opacity', 'text-anchor']);

function picture_of(schedule) {
  const template = element('template');
  template.innerHTML = schedule;  // in a template nothing is loaded or run
  for (const node of template.content.querySelectorAll('*')) {
    const is_ours = kPictureElements.has(node.localName) && [...node.attributes].every(({name}) => kPictureAttributes.has(name));
    if (!is_ours) node.remove();
  }
  return element('div', {class: 'scroll'}, document.importNode(template.content, true));
}

// The executed schedule above the planned one.
function make_jobs({layout, schedule, timeline}) {
  if (schedule === '') return [[], null];
  const planned = [element('h3', {}, 'Jobs as planned, if forward, dgrad and wgrad took equally long'), picture_of(schedule)];
  if (!has_tasks(timeline)) return [planned, null];
  const grid = new PipelineGrid(timeline, ranks_of_stages(layout, timeline));
  const when = is_simulated(timeline) ? 'simulated' : `measured in step ${timeline.ranks[0].step}`;
  const title = `Jobs as ${when}: a colour per microbatch, backward darker; grey is idle`;
  return [[element('h3', {}, title), element('div', {class: 'scroll'}, grid.canvas), ...planned], grid];
}

// [nodes, grid]; empty for a run of one rank.
function make_layout({data, schedule, timeline}) {
  const {layout} = data;
  if (layout.text === '') return [[], null];
  const rows = layout.rows.map((row) => ({cells: row.map((cell) => [cell, 'number'])}));
  const head = layout.columns.map((name) => [name, 'number']);
  const [jobs, grid] = make_jobs({layout, schedule, timeline});
  return [[card('Layout', [], element('pre', {}, layout.text), ...jobs,
    element('h3', {}, 'One rank of each pipeline stage'), element('div', {class: 'scroll', id: 'stages'}, table(head, rows)))], grid];
}

// Empty unless the run counted what FP8 copies lose.
function make_fp8({fp8_watch}) {
  if (!fp8_watch) return [];
  const head = fp8_watch.columns.map((name, i) => [name, i < 2 ? 'name' : 'number']);
  const rows = fp8_watch.rows.map((row) => ({cells: row.map((cell, i) => [cell, i < 2 ? 'name' : 'number'])}));
  const about = note('Shares of elements that FP8 made zero: mean of all layers, worst layer in the last step, worst of the run');
  return [card('FP8', [spacer(), about], element('div', {class: 'scroll', id: 'fp8'}, table(head, rows)))];
}

function make_passes(passes) {
  if (passes.length === 0) return card('Passes', [], note('No pass was recorded.'));
  const rows = passes.map((pass) => ({
    kind: pass.skipped || !pass.changed ? 'quiet' : '',
    cells: [[element('code', {}, pass.name), 'name'], [pass.skipped ? 'skipped' : pass.changed ? 'changed' : 'unchanged', 'name'],
      [pass.skipped ? kMissing : format_ns(pass.ms * 1e6), 'number'], [pass.summary, 'wide']],
  }));
  return card('Passes', [], element('div', {class: 'scroll whole'}, table([['pass'], ['result'], ['time', 'number'], ['what it did', 'wide']], rows)));
}

function make_config(text) {
  if (text === '') return card('Configuration', [], note('No configuration was recorded.'));
  const copy = element('button', {onclick: async () => {
    try {
      await navigator.clipboard.writeText(text);
      copy.textContent = 'copied';
    } catch {
      getSelection().selectAllChildren(block);  // without clipboard permission the user copies
    }
  }}, 'copy');
  const block = element('pre', {tabindex: '0'}, element('code', {}, text));
  return card('Resolved configuration', [spacer(), element('div', {class: 'buttons'}, copy)], block);
}
