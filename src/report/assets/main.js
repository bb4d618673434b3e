// The page, from top to bottom.

const footer = () => element('footer', {}, 'Made by braid. Everything on this page is in this file.');

function make_page(run) {
  const {data, timeline} = run;
  const [progress, chart] = make_progress(data);
  const [timeline_card, view] = make_timeline(run);
  const [memory_over_time, memory_chart] = make_memory_over_time(data, timeline, view);
  const [layout, grid] = make_layout(run);
  const [experts, loads] = make_experts(data);
  document.getElementById('report').append(
    make_header(data), make_tiles(data), ...progress, make_step_parts(data), ...make_critical_path(data),
    timeline_card, ...memory_over_time,
    element('div', {class: 'two half'}, make_longest(timeline), make_memory(data.memory)),
    make_operations(data.ranks), ...layout, ...experts, ...make_fp8(data), make_passes(data.passes), make_config(data.config), footer());
  return {runs: [run], views: view ? [view] : [], charts: chart ? [chart] : [], memory_chart, grid, loads};
}

const runs = JSON.parse(document.getElementById('runs').textContent).map(unpack_run);
const parts = runs.length === 1 ? make_page(runs[0]) : make_comparison(runs);
document.body.append(tooltip.node);
if (location.hash === '#selfcheck') selfcheck(parts);
