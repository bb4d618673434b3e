// report.html#selfcheck: operates the page like a user, and writes failures into the element "selfcheck", for a test
// that can only load pages.

const page_errors = [];
addEventListener('error', (event) => page_errors.push(event.message));
addEventListener('unhandledrejection', (event) => page_errors.push(String(event.reason)));

function send(target, kind, name, x, y, more = {}) {
  const bounds = target.getBoundingClientRect();
  target.dispatchEvent(new kind(name, {clientX: bounds.left + x, clientY: bounds.top + y, bubbles: true, cancelable: true, ...more}));
}

function check_timeline(view, expect) {
  const lane_y = view.box.top + view.lane_y[0] + view.lane_height / 2;
  const lane = view.lanes[0];
  const middle = lane.begin.length >> 1;
  const x_of = (time) => view.box.left + (time - view.range.from) * view.scale();
  view.reset();
  view.draw();
  const task_x = x_of((lane.begin[middle] + lane.end[middle]) / 2);
  expect('hover finds a task', () => {
    send(view.canvas, PointerEvent, 'pointermove', task_x, lane_y);
    return view.hovered?.lane === lane && !tooltip.node.hidden && tooltip.node.textContent.includes('duration');
  });
  expect('the tooltip of a task names its kernels', () => {
    const first = view.lanes.find((one) => view.kernels.get(one.rank)[one.task[0]]);
    if (!first) return true;  // only tasks were timed
    const kernel = view.kernels.get(first.rank)[first.task[0]][0];
    view.describe({lane: first, at: 0}, {clientX: 10, clientY: 10});
    return tooltip.node.textContent.includes(first.rank.kernel_names[first.rank.kernels.name[kernel]]);
  });
  expect('work of no task has a lane of its own', () => view.timeline.ranks.every((rank) => {
    const count = rank.kernels.task.filter((task) => task < 0).length;
    const own = view.lanes.find((one) => one.rank === rank && rank.streams[one.stream].kind === 'no-task');
    return (own?.task.length ?? 0) === count;
  }));
  expect('the wheel zooms in and keeps the time at the pointer', () => {
    const [before, span, pixel] = [view.time_at(task_x), view.range.to - view.range.from, 1 / view.scale()];
    send(view.canvas, WheelEvent, 'wheel', task_x, lane_y, {deltaY: -400});
    // The browser rounds the pointer's position to whole pixels.
    return view.range.to - view.range.from < span / 1.5 && Math.abs(view.time_at(task_x) - before) < pixel;
  });
  expect('dragging pans', () => {
    view.show(view.full.to * 0.4, view.full.to * 0.6);
    const from = view.range.from;
    send(view.canvas, PointerEvent, 'pointerdown', view.box.left + 200, lane_y);
    send(view.canvas, PointerEvent, 'pointermove', view.box.left + 150, lane_y);
    send(view.canvas, PointerEvent, 'pointerup', view.box.left + 150, lane_y);
    return view.range.from > from && view.drag === null;
  });
  expect('a double click on nothing shows the whole step', () => {
    send(view.canvas, MouseEvent, 'dblclick', 2, 2);
    return view.range.from === 0 && view.range.to === view.full.to;
  });
  expect('the task in the middle is found when it is zoomed to', () => {
    view.show(lane.begin[middle] - 100, lane.end[middle] + 100);
    const hit = view.hit({x: x_of((lane.begin[middle] + lane.end[middle]) / 2), y: lane_y});
    return hit?.at === middle;
  });
  // Per lane at most a rectangle or a column for each pixel and edge, and a mark for exposed time; plus the overview.
  expect('what is drawn depends on pixels, not on tasks, at any zoom', () => [1, 0.3, 0.01, 1e-4].every((part) => {
    view.show(view.full.to * (0.5 - part / 2), view.full.to * (0.5 + part / 2));
    view.draw();
    const most = (view.lanes.length + view.timeline.ranks.length) * (3 * view.plot_width() + 4);
    return view.num_drawn > 0 && view.num_drawn <= most;
  }));
  expect('leaving hides the tooltip', () => {
    send(view.canvas, PointerEvent, 'pointerleave', 0, 0);
    return view.hovered === null && tooltip.node.hidden;
  });
}

function check_chart(chart, expect) {
  chart.draw();
  expect('hover over the loss shows a step', () => {
    send(chart.canvas, PointerEvent, 'pointermove', chart.box.width / 2, 100);
    return chart.hovered !== null && tooltip.node.textContent.includes('Step');
  });
  expect('the loss can be logarithmic', () => {
    const y = chart.y_of(chart.low * 1.5);
    chart.set_logarithmic(true);
    chart.draw();
    const changed = chart.y_of(chart.low * 1.5) !== y;
    chart.set_logarithmic(false);
    return changed;
  });
  send(chart.canvas, PointerEvent, 'pointerleave', 0, 0);
}

// The marks of a strip and the tooltip agree with the analysis of the run.
function check_exposed(view, ranks, expect) {
  const shown = ranks.filter(({rank}) => view.timeline.ranks.some((one) => one.rank === rank));
  expect('the marks of each rank cover its exposed communication', () => shown.every(({rank, communication}) => {
    const pieces = view.lanes.filter((lane) => lane.rank.rank === rank).flatMap(({exposed}) => [...exposed.begin].map((begin, i) => [begin, exposed.end[i]]));
    pieces.sort((a, b) => a[0] - b[0]);
    let [covered, until] = [0, 0];
    for (const [begin, end] of pieces) {
      covered += Math.max(end - Math.max(begin, until), 0);
      until = Math.max(until, end);
    }
    return Math.abs(covered - communication.exposed_ns) <= 1;
  }));
  expect('no piece that is wide enough to be seen is left out', () => view.lanes.every(({exposed}) => {
    const scale = view.plot_width() / view.full.to;
    const marked = new Set();
    exposed.visit(0, view.full.to, scale, (x0) => marked.add(x0));
    return exposed.begin.every((begin, i) => (exposed.end[i] - begin) * scale < 1 || marked.has(begin * scale));
  }));
  expect('the tooltip of communication says how much is exposed', () => {
    const lane = view.lanes.find((one) => [...one.task].some((task) => one.rank.group[task] >= 0));
    if (!lane) return true;
    view.describe({lane, at: lane.task.findIndex((task) => lane.rank.group[task] >= 0)}, {clientX: 10, clientY: 10});
    return tooltip.node.textContent.includes('exposed');
  });
  expect('the tooltip of communication that waited for other ranks says how long', () => {
    const waited = (lane) => lane.task.findIndex((task) => lane.rank.wait_ns?.[task] > 0);
    const lane = view.lanes.find((one) => waited(one) >= 0);
    if (!lane) return true;
    view.describe({lane, at: waited(lane)}, {clientX: 10, clientY: 10});
    return tooltip.node.textContent.includes('for other ranks');
  });
}

function check_folding(view, expect) {
  const {rank} = view.lanes[0];
  const count = () => view.lane_y.filter((y) => y !== null).length;
  expect('a click on a rank folds it, another unfolds it', () => {
    view.collapsed = new Set();
    view.place_lanes();
    const [all, height] = [count(), view.content_height];
    const click = () => send(view.canvas, PointerEvent, 'pointerdown', 10, view.box.top + view.titles[0].y + 8);
    click();
    const folded = view.collapsed.has(rank) && view.content_height < height && view.titles[0].collapsed;
    click();
    return folded && count() === all && view.content_height === height && view.drag === null;
  });
  expect('a key folds all ranks and unfolds them', () => {
    const press = () => view.canvas.dispatchEvent(new KeyboardEvent('keydown', {key: 'c', bubbles: true, cancelable: true}));
    press();
    const folded = count() === view.timeline.ranks.length;
    view.draw();
    press();
    return folded && count() === view.lanes.length;
  });
  expect('keys pan and zoom', () => {
    const press = (key) => view.canvas.dispatchEvent(new KeyboardEvent('keydown', {key, bubbles: true, cancelable: true}));
    view.reset();
    press('w');
    const [from, span] = [view.range.from, view.range.to - view.range.from];
    press('d');
    const panned = view.range.from > from && span < view.full.to;
    press('0');
    return panned && view.range.from === 0 && view.range.to === view.full.to;
  });
}

function check_memory(view, chart, expect) {
  chart.draw();
  expect('memory in use never exceeds the plan, and reaches its high-water mark', () => chart.curves.every((curve) => {
    chart.choose(curve.rank);
    const live = [...curve.time_ns.keys()].map((point) => chart.live_at(point));
    return Math.max(...live) === curve.high_bytes && curve.high_bytes <= curve.step_bytes;
  }));
  expect('memory follows the timeline', () => {
    view.show(view.full.to * 0.25, view.full.to * 0.5);
    const follows = chart.range.from === view.range.from && chart.range.to === view.range.to;
    view.reset();
    return follows;
  });
  expect('hover over the memory names a moment', () => {
    chart.choose(chart.curves[0].rank);
    chart.draw();
    send(chart.canvas, PointerEvent, 'pointermove', chart.canvas.clientWidth / 2, 80);
    return tooltip.node.textContent.includes('planned') && chart.num_drawn > 0;
  });
  send(chart.canvas, PointerEvent, 'pointerleave', 0, 0);
}

function check_grid(grid, expect) {
  grid.draw();
  expect('the pipeline grid has the jobs of each rank in order', () => grid.rows.every(({jobs}) => jobs.length > 0
    && jobs.every((job, i) => job.begin <= job.end && (i === 0 || jobs[i - 1].begin <= job.begin))));
  expect('hover over a job names its microbatch', () => {
    const job = grid.rows[0].jobs[0];
    send(grid.canvas, PointerEvent, 'pointermove', grid.left + (job.begin + job.end) / 2 * grid.scale(), 8);
    return tooltip.node.textContent.includes(`microbatch ${job.microbatch}`);
  });
  send(grid.canvas, PointerEvent, 'pointerleave', 0, 0);
}

// The parts of a step add up to all of it, and each has a piece of the bar.
function check_parts(runs, expect) {
  const wholes = runs.map(({data}) => step_parts_of(data)).filter((whole) => whole !== null);
  expect('the parts of the step add up to it', () => wholes.every(({step_ns, parts}) => Math.abs(sum_of(parts, ({ns}) => ns) - step_ns) <= 1e-6 * step_ns + 1));
  expect('each part has its piece of a bar, and says what it is', () => {
    const bars = [...document.querySelectorAll('.bar.parts:not(.thin)')];
    if (wholes.length === 0) return bars.length === 0;
    send(bars[0].firstElementChild, PointerEvent, 'pointermove', 4, 4);
    const named = !tooltip.node.hidden && tooltip.node.textContent.includes('of the step');
    send(bars[0].firstElementChild, PointerEvent, 'pointerleave', 4, 4);
    return named && tooltip.node.hidden && bars.length === wholes.length && bars.every((bar, i) => bar.children.length === wholes[i].parts.length);
  });
}

// A simulated run is marked as simulated, and has no charts of steps that were never run.
function check_simulated(runs, expect) {
  const simulated = runs.filter(({data}) => data.simulation);
  if (simulated.length === 0) return;
  expect('the first line says that a run is simulated, and on what', () => simulated.every(({data}) =>
    document.querySelector('header h1').textContent.includes(`simulated on ${data.simulation.cost.split(':')[0]} costs`)));
  expect('there are no charts of losses', () => [...document.querySelectorAll('h2')].every(({textContent}) => !/^(Loss|Throughput|Step time)/.test(textContent)));
  if (runs.length > 1) return;
  expect('every tile has a figure', () => [...document.querySelectorAll('.tile .value')].every(({textContent}) => textContent !== '' && textContent !== kMissing));
  const {gains, critical_path} = simulated[0].data.simulation;
  expect('every cause and change that is known is shown', () =>
    [...(critical_path?.parts ?? []).map(({cause}) => cause), ...(gains?.changes ?? []).map(({what}) => what)].every((text) => document.body.textContent.includes(text)));
  expect('the critical path fills the step', () => !critical_path || (sum_of(critical_path.parts, ({ns}) => ns) === critical_path.step_ns
    && critical_path.stretches.at(-1).end_ns === critical_path.step_ns));
  expect('all stages are shown', () => !has_pipeline(simulated[0].data)
    || document.querySelectorAll('.bar.parts.thin').length === simulated[0].data.simulation.stages.length);
}

// Two timelines on one scale, and every setting that differs is listed.
function check_comparison({runs, views, memory_charts}, expect) {
  expect('settings that differ are listed', () => different_settings(runs).every(([key]) => document.body.textContent.includes(key)));
  expect('settings are those in force', () => different_settings(runs).every(([, ...values]) => values.every((value) => !value.includes('# in force'))));
  expect('a prediction has no losses and no figures of its own alone', () => !runs.some(is_predicted)
    || ([...document.querySelectorAll('h2')].every(({textContent}) => !/^(Loss|Step time)/.test(textContent))
      && [...document.querySelectorAll('h2')].filter(({textContent}) => textContent === 'At a glance').every((title) => !title.closest('.card').textContent.includes(kMissing))));
  if (views.length < 2) return;
  const [a, b] = views;
  expect('both timelines have one scale', () => a.full.to === b.full.to && a.box.left === b.box.left);
  expect('each timeline follows the other', () => {
    a.show(a.full.to * 0.2, a.full.to * 0.4);
    const first = b.range.from === a.range.from && b.range.to === a.range.to;
    b.reset();
    return first && a.range.to === a.full.to;
  });
  expect('memory of both follows both, on one scale', () => [a, b].every((view) => {
    view.show(view.full.to * 0.3, view.full.to * 0.5);
    const follow = memory_charts.every(({range}) => range.from === view.range.from && range.to === view.range.to);
    view.reset();
    return follow && memory_charts.every((chart) => chart.y_of(0) === memory_charts[0].y_of(0) && chart.top_bytes() === memory_charts[0].top_bytes());
  }));
}

// The table of operations accounts for all the time in which anything ran.
function check_operations({ranks}, expect) {
  const ops = merged_ops(ranks);
  expect('the operations are listed, longest first', () => ops.length > 0
    && [...document.querySelectorAll('#operations tbody')][0].rows.length === ops.length
    && ops.every((op, i) => i === 0 || op.busy_ns <= ops[i - 1].busy_ns));
  expect('gaps are listed, longest first', () => {
    const gaps = ranks.flatMap((rank) => rank.idle.longest);
    const tables = document.querySelectorAll('#operations tbody');
    return gaps.length === 0 ? tables.length === 1 : tables[1].rows.length === Math.min(gaps.length, 8)
      && Math.max(...gaps.map((gap) => gap.duration_ns)) === gap_list(ranks)[0].duration_ns;
  });
}

// Every stage has a row, and the picture of the jobs is really drawn.
function check_layout({data: {layout}, schedule}, expect) {
  expect('stages are listed', () => document.querySelectorAll('#stages tbody tr').length === layout.rows.length
    && document.querySelectorAll('#stages thead th, #stages tr:first-child th').length >= layout.columns.length);
  const svg = document.querySelector('#report svg.schedule');
  expect('jobs are drawn where there is a pipeline', () => schedule === ''
    || (svg.getBoundingClientRect().height > 0 && svg.querySelectorAll('rect').length > layout.rows.length));
}

// Every row of the table of FP8 is listed.
function check_fp8({data: {fp8_watch}}, expect) {
  expect('what FP8 lost is listed', () => document.querySelectorAll('#fp8 tbody tr').length === (fp8_watch?.rows.length ?? 0));
}

// Every load is drawn, and the pointer finds it.
function check_experts({data: {experts}}, loads, expect) {
  expect('experts are shown where there are some', () => Boolean(experts) === Boolean(loads)
    && document.querySelectorAll('#experts tbody tr').length === (experts?.table.rows.length ?? 0));
  if (loads?.map) check_load_map(loads.map, expect);
}

function check_load_map(map, expect) {
  map.draw();
  expect('every load is drawn', () => map.num_drawn === sum_of(map.rows, (row) => row.length));
  expect('the pointer finds the last expert of the last layer', () => {
    const [layer, expert] = [map.rows.length - 1, map.rows[map.rows.length - 1].length - 1];
    const found = map.at(map.x_of(expert + 0.5), (layer + 0.5) * map.cell);
    return found[0] === layer && found[1] === expert && map.at(0, 0) === null;
  });
  expect('more rows have another colour than fewer, and none a third', () => shade_of(2)[0] !== shade_of(0.5)[0]
    && shade_of(0)[0] !== shade_of(0.5)[0] && shade_of(1)[1] === 0 && shade_of(4)[1] > shade_of(2)[1]);
}

function selfcheck(page) {
  const {runs, views, charts, memory_chart, grid, loads} = page;
  const failed = [];
  let count = 0;
  const expect = (what, holds) => {
    ++count;
    try {
      if (!holds()) failed.push(what);
    } catch (error) {
      failed.push(`${what}: ${error.message}`);
    }
  };
  charts.forEach((chart) => check_chart(chart, expect));
  views.forEach((view) => {
    check_folding(view, expect);
    check_timeline(view, expect);
    check_exposed(view, runs[views.length === runs.length ? views.indexOf(view) : 0].data.ranks, expect);
  });
  if (memory_chart) check_memory(views[0], memory_chart, expect);
  if (grid) check_grid(grid, expect);
  check_parts(runs, expect);
  check_simulated(runs, expect);
  if (runs.length > 1) check_comparison(page, expect);
  else if (views.length > 0) check_operations(runs[0].data, expect);
  if (runs.length === 1 && runs[0].data.layout.text !== '') check_layout(runs[0], expect);
  if (runs.length === 1) check_fp8(runs[0], expect);
  if (runs.length === 1) check_experts(runs[0], loads, expect);
  expect('no errors on the page', () => page_errors.length === 0);
  failed.push(...page_errors);
  const result = failed.length === 0 ? `selfcheck: ${count} passed` : `selfcheck: failed: ${failed.join('; ')}`;
  document.body.append(element('pre', {id: 'selfcheck', class: 'notice'}, result));
}
