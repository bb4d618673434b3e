// The time of a step: parts that add up to it, as bars, and the reasons for exposed communication.

const has_pipeline = ({simulation, layout}) => (simulation ? simulation.stages.length : layout.rows.length) > 1;

// {name, color, ns} of each part that took time. `kinds`: exposed ns by kind, which may overlap: they share exposed_ns.
function list_parts({compute_ns, exposed_ns, kinds, copy_ns, host_ns, idle, pipeline}) {
  const sum = sum_of(kinds, ({ns}) => ns);
  const idle_parts = pipeline ? [['warm-up', 'idle-warmup', idle.warmup_ns], ['steady', 'idle-steady', idle.steady_ns],
    ['cool-down', 'idle-cooldown', idle.cooldown_ns]].map(([name, color, ns]) => ({name: `idle, ${name}`, color, ns}))
    : [{name: 'idle', color: 'idle', ns: idle.total_ns}];
  return [{name: 'compute', color: 'part-compute', ns: compute_ns},
    ...kinds.map(({kind, ns}) => ({name: `exposed ${kind}`, color: `phase-comm-${kind}`, ns: ns * exposed_ns / (sum || 1)})),
    {name: 'copies', color: 'phase-copy', ns: copy_ns}, ...idle_parts, {name: 'host', color: 'part-host', ns: host_ns}].filter(({ns}) => ns > 0);
}

// For a rank of the timeline.
function rank_parts(rank, pipeline) {
  const {warmup_ns, steady_ns, cooldown_ns} = rank.bubble ?? {};  // older reports lack it
  return list_parts({compute_ns: rank.compute_ns, exposed_ns: rank.communication.exposed_ns,
    kinds: rank.by_group.map(({name, exposed_ns}) => ({kind: name, ns: exposed_ns})), copy_ns: rank.copy_ns, host_ns: 0,
    idle: {total_ns: rank.bubble_ns, warmup_ns, steady_ns, cooldown_ns}, pipeline: pipeline && warmup_ns !== undefined});
}

// For a stage or the mean of all ranks, as written by simulation_json.
function simulated_parts(times, pipeline, host_ns = 0) {
  return list_parts({...times, host_ns, pipeline, idle: {...times, total_ns: times.idle_ns},
    kinds: Object.entries(times.communication).map(([kind, {exposed_ns}]) => ({kind, ns: exposed_ns}))});
}

// {step_ns, parts, of}: means over all ranks if known, otherwise over those of the timeline; null if there are none.
function step_parts_of(data) {
  const {simulation, ranks} = data;
  const pipeline = has_pipeline(data);
  if (simulation) {
    return {step_ns: simulation.step_ns, of: `mean of ${simulation.ranks === 1 ? 'the one rank' : `all ${many(simulation.ranks, 'rank')}`}`,
      parts: simulated_parts(simulation.mean, pipeline, simulation.host_ns)};
  }
  if (ranks.length === 0) return null;
  const sums = new Map();
  for (const part of ranks.flatMap((rank) => rank_parts(rank, pipeline))) {
    sums.set(part.name, {...part, ns: part.ns / ranks.length + (sums.get(part.name)?.ns ?? 0)});
  }
  const place = (name) => kPartOrder.findIndex((start) => name.startsWith(start));
  return {step_ns: ranks[0].step_ns, of: `mean of ${many(ranks.length, 'traced rank')}`,
    parts: [...sums.values()].sort((a, b) => place(a.name) - place(b.name))};
}
const kPartOrder = ['compute', 'exposed', 'copies', 'idle', 'host'];

const kPaleParts = ['phase-comm-tensor', 'phase-comm-expert'];  // white text would not be readable on them

// The first of these texts that fits.
function label_of(part, texts) {
  const context = label_of.context ??= document.createElement('canvas').getContext('2d');
  context.font = '550 12px system-ui, -apple-system, "Segoe UI", Roboto, Arial, sans-serif';
  return texts.find((text) => context.measureText(text).width + 16 <= part.clientWidth) ?? '';
}

// One bar; span_ns: the time of its full width. A part shows its share of the step if there is room.
function parts_bar({parts, step_ns}, span_ns = step_ns, kind = '') {
  const bar = element('div', {class: `bar parts ${kind}`, style: `width:${(100 * step_ns / Math.max(span_ns, 1)).toFixed(3)}%`});
  for (const {name, color, ns} of parts) {
    const share = format_percent(ns / Math.max(step_ns, 1));
    const ink = color.startsWith('idle') ? 'quiet' : kPaleParts.includes(color) ? 'pale' : '';
    const label = element('span');
    const part = element('div', {class: ink, style: `flex:${ns} 0 0;background-color:var(--${color})`}, label);
    part.addEventListener('pointermove', (event) => tooltip.show(event.clientX, event.clientY, name,
      [['time', format_ns(Math.round(ns), 4)], ['of the step', share, `var(--${color})`]]));
    part.addEventListener('pointerleave', () => tooltip.hide());
    if (kind !== 'thin') new ResizeObserver(() => label.textContent = label_of(part, [`${name} ${share}`, share])).observe(part);
    bar.append(part);
  }
  return bar;
}

// The same parts as text, for those that are too narrow for a label. Parts that round to zero are only in the bar.
function parts_legend({parts, step_ns}) {
  return element('div', {class: 'legend figures'}, ...parts.filter(({ns}) => ns >= 0.0005 * step_ns).map(({name, color, ns}) => element('span', {}, swatch(`var(--${color})`), name,
    element('b', {}, format_percent(ns / Math.max(step_ns, 1))), element('span', {}, format_ns(Math.round(ns))))));
}

// A bar per pipeline stage of a simulated run (its busiest rank), otherwise per traced rank.
function rank_bars(data) {
  const {simulation, ranks} = data;
  const pipeline = has_pipeline(data);
  const rows = simulation && pipeline
    ? simulation.stages.map((stage, i) => [`stage ${i}, rank ${stage.rank}`, simulated_parts(stage, true), simulation.step_ns - simulation.host_ns, stage.compute_ns])
    : ranks.map((rank) => [`rank ${rank.rank}`, rank_parts(rank, pipeline), rank.step_ns, rank.compute_ns]);
  if (rows.length < 2) return [];
  const bars = element('div', {class: 'rank-bars'});
  for (const [name, parts, step_ns, compute_ns] of rows) {
    bars.append(element('span', {}, name), parts_bar({parts, step_ns}, step_ns, 'thin'),
      element('span', {class: 'number'}, `${format_percent(compute_ns / step_ns)} compute`));
  }
  const title = simulation && pipeline ? 'The busiest rank of each stage' : 'Rank by rank';
  return [element('h3', {}, title), element('div', {class: 'scroll', style: 'max-height:220px'}, bars)];
}

// For runs in which a rank waited for another one, also the part of exposed time spent waiting.
function communication_rows(communication, with_waits) {
  return communication.map((one) => ({cells: [[element('span', {}, swatch(`var(--phase-comm-${one.name})`), one.name), 'name'],
    [one.num_tasks.toLocaleString('en-US'), 'number'], [format_bytes(one.bytes), 'number'], [format_ns(one.total_ns), 'number'],
    [format_ns(one.exposed_ns), 'number'], ...(with_waits ? [[format_ns(one.exposed_wait_ns ?? 0), 'number']] : []), [format_percent(1 - one.exposed_ns / one.total_ns), 'number']]}));
}

// One sentence per kind: the hidden part, and the reasons for the rest.
function communication_sentences(communication) {
  return element('ul', {class: 'sentences'}, ...communication.map(({name, sentence}) => element('li', {},
    swatch(`var(--phase-comm-${name})`), element('span', {}, element('b', {}, name), sentence.startsWith(name) ? sentence.slice(name.length) : `: ${sentence}`))));
}

const names_of_ranks = (ranks) => ranks.length === 1 ? `rank ${ranks[0].rank}`
  : ranks.length <= 8 ? `ranks ${ranks.map(({rank}) => rank).join(', ')} together` : `${ranks.length} ranks together`;

function explained_communication({ranks, communication}) {
  if (communication.length === 0) return [note('No task of this step communicates.')];
  const with_waits = communication.some(({exposed_wait_ns}) => exposed_wait_ns > 0);
  const head = ['tasks', 'bytes', 'time', 'exposed', ...(with_waits ? ['waiting'] : []), 'hidden'].map((name) => [name, 'number']);
  return [element('h3', {}, `Communication: how much is hidden, and why the rest is not; ${names_of_ranks(ranks)}`), communication_sentences(communication),
    element('div', {class: 'scroll', style: 'margin-top:10px'}, table([['kind'], ...head], communication_rows(communication, with_waits)))];
}

function make_step_parts(data) {
  const whole = step_parts_of(data);
  if (whole === null) return card('Where the step goes', [], note('No step was traced.'));
  const bars = rank_bars(data);
  const explained = element('div', {}, ...explained_communication(data));
  return card('Where the step goes', [note(`${format_ns(whole.step_ns, 4)}, ${whole.of}`)], parts_bar(whole), parts_legend(whole),
    bars.length > 0 ? element('div', {class: 'columns'}, explained, element('div', {}, ...bars)) : explained);
}

// The operations that took the most time: tasks of one name and phase, over all ranks.
function longest_operations(timeline, count) {
  const sums = new Map();
  for (const rank of timeline.ranks) {
    rank.name.forEach((name, task) => {
      const key = `${rank.names[name]}\n${timeline.phases[rank.phase[task]]}`;
      const sum = sums.get(key) ?? {tasks: 0, ns: 0};
      ++sum.tasks;
      sum.ns += rank.duration_ns[task];
      sums.set(key, sum);
    });
  }
  return [...sums].sort(([, a], [, b]) => b.ns - a.ns).slice(0, count);
}

function make_longest(timeline) {
  if (!has_tasks(timeline)) return card('Longest operations', [], note('No step was traced.'));
  const rank_time = timeline.step_ns * timeline.ranks.length;
  const rows = longest_operations(timeline, 8).map(([key, {tasks, ns}]) => {
    const [name, phase] = key.split('\n');
    return {cells: [[element('span', {}, swatch(`var(--phase-${phase})`), name)], [phase, 'name'], [tasks.toLocaleString('en-US'), 'number'],
      [format_ns(ns / tasks), 'number'], [format_ns(ns), 'number'], [format_percent(ns / rank_time), 'number']]};
  });
  const head = ['tasks', 'mean', 'time', 'of the step'].map((name) => [name, 'number']);
  return card('Longest operations', [note(names_of_ranks(timeline.ranks))], element('div', {class: 'scroll'}, table([['operation'], ['phase'], ...head], rows)));
}
