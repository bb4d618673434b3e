// What a simulated step waits for, from its beginning to its end: simulation.critical_path; and what would make it shorter.

const kCauseColors = {'matrix products': 'part-compute', 'attention': 'kind-attention', 'memory-bound ops': 'kind-norms', 'optimizer': 'kind-optimizer',
  'launches': 'kind-no-task', 'copies': 'phase-copy', 'latency of communication': 'kind-routing', 'compute slowed by communication': 'memory-grad',
  'communication slowed by other tasks': 'exposed', 'host': 'part-host'};
const cause_color = (cause) => `var(--${kCauseColors[cause] ?? `phase-comm-${cause.split(' ')[0]}`})`;

// The path over time on one stage; stage null: on all of them. What is elsewhere is left empty.
function path_strip({stretches}, stage) {
  const strip = element('div', {class: 'bar thin path'});
  const pieces = [];
  let begin_ns = 0;
  for (const {end_ns, stage: its_stage, cause} of stretches) {
    const shown = stage === null || its_stage === stage ? cause : null;
    if (pieces.at(-1)?.cause === shown) pieces.at(-1).ns += end_ns - begin_ns;
    else pieces.push({cause: shown, ns: end_ns - begin_ns});
    begin_ns = end_ns;
  }
  for (const {cause, ns} of pieces) {
    const piece = element('div', {style: `flex:${ns} 0 0;${cause === null ? '' : `background-color:${cause_color(cause)}`}`});
    if (cause !== null) {
      piece.addEventListener('pointermove', (event) => tooltip.show(event.clientX, event.clientY, cause, [['about', format_ns(ns)]]));
      piece.addEventListener('pointerleave', () => tooltip.hide());
    }
    strip.append(piece);
  }
  return strip;
}

function path_strips(path, stages) {
  const rows = element('div', {class: 'rank-bars'});
  for (const stage of stages > 1 ? Array(stages).keys() : [null]) {
    const ns = sum_of(path.parts, ({stage_ns}) => stage === null ? sum_of(stage_ns, (it) => it) : stage_ns[stage]);
    rows.append(element('span', {}, stage === null ? 'all ranks' : `stage ${stage}`), path_strip(path, stage), element('span', {class: 'number'}, format_percent(ns / path.step_ns)));
  }
  return element('div', {class: 'scroll', style: 'max-height:260px'}, rows);
}

function path_table({parts, step_ns}) {
  const share = (ns) => format_percent(ns / step_ns);
  const with_gains = parts.some(({gain_ns}) => gain_ns !== undefined);
  const rows = parts.map(({cause, ns, gain_ns}) => ({cells: [[element('span', {}, swatch(cause_color(cause)), cause), 'name'], [format_ns(ns), 'number'],
    [share(ns), 'number'], ...(with_gains ? [[gain_ns === undefined ? '' : `−${share(gain_ns)}`, 'number']] : [])]}));
  return table([['Cause'], ['Time', 'number'], ['Part', 'number'], ...(with_gains ? [['Step without it', 'number']] : [])], rows);
}

function gains_card({gains, step_ns}) {
  if (!gains) return [];
  const changes = gains.changes.map(({kind, what, step_ns: with_it_ns}) => ({cells: [[kind], [what], [format_ns(with_it_ns, 4), 'number'],
    [`−${format_percent((step_ns - with_it_ns) / step_ns)}`, 'number']]}));
  return [card('Changes that gain most', [], table([['Kind'], ['Change'], ['Step', 'number'], ['Gain', 'number']], changes),
    note(changes.length > 0 ? 'Each simulated, alone.' : 'No change of layout, overlap or hardware that was tried makes the step shorter.'))];
}

function make_critical_path({simulation}) {
  const path = simulation?.critical_path;
  if (!path) return [];
  return [card('Critical path', [note(`${many(path.tasks, 'task')} that each waited for the one before; ${many(path.moves, 'move')} between ranks`)],
    path_strips(path, simulation.stages.length), path_table(path),
    note('What the step waits for, from its beginning to its end. Other tasks may take longer without making the step longer.')), ...gains_card(simulation)];
}
