// The operations that took the time of the step, and the gaps in which the device was idle.

const kKinds = [
  'matrix products', 'attention', 'state space', 'norms', 'elementwise', 'routing', 'embedding and loss', 'optimizer', 'copies', 'communication',
];
const kind_color = (kind) => `var(--kind-${kind.replaceAll(' ', '-')})`;

// Ops of all ranks together, longest first.
function merged_ops(ranks) {
  const sums = new Map();
  for (const one of ranks.flatMap((rank) => rank.ops)) {
    const sum = sums.get(one.op) ?? {op: one.op, kind: one.kind, num_tasks: 0, busy_ns: 0, flops: 0, bytes: 0, least_ns: 0};
    for (const key of ['num_tasks', 'busy_ns', 'flops', 'bytes', 'least_ns']) sum[key] += one[key];
    sums.set(one.op, sum);
  }
  return [...sums.values()].sort((a, b) => b.busy_ns - a.busy_ns);
}

// {name, ns} of each kind that took time, in the order of kKinds, then the time that belongs to none.
function kind_times(ops, ranks) {
  const times = new Map(kKinds.map((kind) => [kind, 0]));
  for (const {kind, busy_ns} of ops) times.set(kind, (times.get(kind) ?? 0) + busy_ns);
  const rest = [['no task', sum_of(ranks, (rank) => rank.no_task_ns)], ['idle', sum_of(ranks, (rank) => rank.idle.total_ns)]];
  return [...times, ...rest].filter(([, ns]) => ns > 0).map(([name, ns]) => ({name, ns}));
}

function kind_bar(kinds, rank_time) {
  return element('div', {class: 'bar'}, ...kinds.map(({name, ns}) => element('div', {
    style: `flex:${ns} 0 0;background:${kind_color(name)}`,
    title: `${name}: ${format_ns(ns)}, ${format_percent(ns / rank_time)} of the step`,
  })));
}

const rate = (amount, ns, units) => ns > 0 && amount > 0 ? format_scaled(amount / ns * 1e9, 1000, units).join(' ') : kMissing;

function op_rows(ops, rank_time, has_roof) {
  return ops.map((one) => ({cells: [
    [element('span', {}, swatch(kind_color(one.kind)), element('code', {}, one.op)), 'name'], [one.kind, 'name'],
    [one.num_tasks.toLocaleString('en-US'), 'number'], [format_ns(one.busy_ns), 'number'], [format_percent(one.busy_ns / rank_time), 'number'],
    [format_ns(one.busy_ns / one.num_tasks), 'number'], [rate(one.flops, one.busy_ns, ['FLOP/s', 'KFLOP/s', 'MFLOP/s', 'GFLOP/s', 'TFLOP/s', 'PFLOP/s']), 'number'],
    [rate(one.bytes, one.busy_ns, ['B/s', 'KB/s', 'MB/s', 'GB/s', 'TB/s']), 'number'],
    ...(has_roof ? [[one.least_ns > 0 && one.busy_ns > 0 ? format_percent(one.least_ns / one.busy_ns) : kMissing, 'number']] : []),
  ]}));
}

// The peaks to which rates are compared.
function roof_note(ranks) {
  const {name, flops_per_s, bytes_per_s} = ranks[0].device;
  if (!(flops_per_s > 0)) return name === '' ? 'Rates count the least arithmetic and memory traffic that an operation needs' : `${name}, whose peaks are not known`;
  const [flops, bytes] = [format_scaled(flops_per_s, 1000, ['', 'K', 'M', 'G', 'T', 'P']), format_scaled(bytes_per_s, 1000, ['', 'K', 'M', 'G', 'T'])];
  return `Roof: the peaks of ${name}, ${flops.join(' ')}FLOP/s (bf16) and ${bytes.join(' ')}B/s`;
}

// The longest gaps of all ranks.
function gap_list(ranks) {
  const kMostGaps = 8;
  const gaps = ranks.flatMap((rank) => rank.idle.longest.map((gap) => ({...gap, rank: rank.rank})));
  return gaps.sort((a, b) => b.duration_ns - a.duration_ns).slice(0, kMostGaps);
}

function gap_rows(ranks, rank_time) {
  return gap_list(ranks).map((gap) => ({cells: [
    [format_ns(gap.duration_ns), 'number'], [format_percent(gap.duration_ns / rank_time), 'number'], [format_ns(gap.start_ns, 5), 'number'],
    ...(ranks.length > 1 ? [[String(gap.rank), 'number']] : []),
    [gap.after ?? 'the start of the step', 'wide-name'], [gap.before ?? 'the end of the step', 'wide-name']]}));
}

function make_gaps(ranks, rank_time) {
  const [total, count] = [sum_of(ranks, (rank) => rank.idle.total_ns), sum_of(ranks, (rank) => rank.idle.num_gaps)];
  if (count === 0) return [note('The device was never idle in this step.')];
  const head = [['gap', 'number'], ['of the step', 'number'], ['at', 'number'], ...(ranks.length > 1 ? [['rank', 'number']] : []), ['after', 'wide-name'], ['before', 'wide-name']];
  return [element('h3', {}, `Idle: ${count.toLocaleString('en-US')} gaps, ${format_ns(total)} together, ${format_percent(total / rank_time)} of the step; the longest`),
    element('div', {class: 'scroll'}, table(head, gap_rows(ranks, rank_time)))];
}

function make_operations(ranks) {
  const ops = merged_ops(ranks);
  if (ops.length === 0) return card('Operations', [], note('No step was traced.'));
  const rank_time = sum_of(ranks, (rank) => rank.step_ns);
  const kinds = kind_times(ops, ranks);
  const has_roof = ops.some((one) => one.least_ns > 0);  // otherwise the device's peaks are unknown
  const head = [['op'], ['kind'], ...['tasks', 'time', 'of the step', 'mean', 'arithmetic', 'memory', ...(has_roof ? ['of the roof'] : [])].map((name) => [name, 'number'])];
  const section = card('Operations', [note(roof_note(ranks)), spacer(), legend(kinds.map(({name}) => [name, kind_color(name)]))],
    kind_bar(kinds, rank_time),
    element('div', {class: 'scroll', style: 'margin-top:12px'}, table(head, op_rows(ops, rank_time, has_roof))), ...make_gaps(ranks, rank_time));
  section.id = 'operations';
  return section;
}
