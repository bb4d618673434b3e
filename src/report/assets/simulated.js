// Parts for a simulated run: data.simulation, the object that `braid simulate --json` prints.

// "h200x8, analytic: H200 SXM ..." becomes "on h200x8, analytic costs".
const simulated_on = ({cost}) => `on ${cost.split(':')[0]} costs`;

const simulated_badge = (simulation) => element('span', {class: 'badge', title: simulation.cost}, `simulated ${simulated_on(simulation)}`);

const many = (count, what) => `${count.toLocaleString('en-US')} ${what}${count === 1 ? '' : 's'}`;

function simulated_scope({ranks, distinct_ranks, simulated_tasks}) {
  return `${many(ranks, 'rank')}, ${distinct_ranks.toLocaleString('en-US')} of them distinct, ${many(simulated_tasks, 'task')} · nothing was measured`;
}

function simulated_memory_tile({stages, device_bytes}) {
  const most = stages.reduce((a, b) => b.peak_bytes > a.peak_bytes ? b : a);
  const [peak, unit] = format_scaled(most.peak_bytes, 1024, kByteUnits);
  const fits = most.peak_bytes <= device_bytes;
  const of = fits ? `of ${format_bytes(device_bytes)}` : `more than the ${format_bytes(device_bytes)} of a device`;
  return tile('Peak memory', peak, unit, element('span', {class: fits ? '' : 'worse'}, `${of}, on rank ${most.peak_rank}`));
}

// "expected: 13.9 s to 15.6 s"; empty for a step without a range.
const range_text = ({range}) => range ? `expected: ${format_ns(range.low_ns)} to ${format_ns(range.high_ns)}` : '';

function simulated_tiles(data) {
  const {simulation} = data;
  const {mean} = simulation;
  const parts = step_parts_of(data);
  const [time, unit] = format_scaled(simulation.step_ns, 1000, ['ns', 'µs', 'ms', 's'], 4);
  const share = (ns) => format_percent(ns / parts.step_ns);
  const communicates = Object.values(mean.communication).some(({total_ns}) => total_ns > 0);
  const idle = has_pipeline(data)
    ? `warm-up ${share(mean.warmup_ns)}, steady ${share(mean.steady_ns)}, cool-down ${share(mean.cooldown_ns)}` : 'nothing runs';
  return [
    tile('Step time', time, unit, [range_text(simulation), `global batch of ${many(simulation.global_batch, 'sequence')}`].filter(Boolean).join('; ')),
    tile('Throughput', format_count(simulation.tokens_per_s), 'tokens/s', `${format_count(simulation.tokens_per_s_per_rank)} per rank`),
    tile('MFU', format_percent(simulation.mfu), '', `${format_number(simulation.flops_per_s_per_rank * 1e-12, 4)} TFLOP/s per rank`),
    tile('Exposed communication', share(mean.exposed_ns), '', communicates ? 'of the step, mean of all ranks' : 'no rank communicates'),
    tile(has_pipeline(data) ? 'Bubble' : 'Idle', share(mean.idle_ns), '', idle),
    simulated_memory_tile(simulation),
  ];
}
