// report.html#selfcheck: the page is operated as a user would, and what does not work is written into the element
// "selfcheck", for a test that can only load pages.

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
  const x_of = (time) => view.box.left + (time - view.view.from) * view.scale();
  view.reset();
  view.draw();
  const task_x = x_of((lane.begin[middle] + lane.end[middle]) / 2);
  expect('hover finds a task', () => {
    send(view.canvas, PointerEvent, 'pointermove', task_x, lane_y);
    return view.hovered?.lane === lane && !tooltip.node.hidden && tooltip.node.textContent.includes('duration');
  });
  expect('the wheel zooms in and keeps the time at the pointer', () => {
    const [before, span, pixel] = [view.time_at(task_x), view.view.to - view.view.from, 1 / view.scale()];
    send(view.canvas, WheelEvent, 'wheel', task_x, lane_y, {deltaY: -400});
    // The browser rounds the pointer's place to whole pixels.
    return view.view.to - view.view.from < span / 1.5 && Math.abs(view.time_at(task_x) - before) < pixel;
  });
  expect('dragging pans', () => {
    view.show(view.full.to * 0.4, view.full.to * 0.6);
    const from = view.view.from;
    send(view.canvas, PointerEvent, 'pointerdown', view.box.left + 200, lane_y);
    send(view.canvas, PointerEvent, 'pointermove', view.box.left + 150, lane_y);
    send(view.canvas, PointerEvent, 'pointerup', view.box.left + 150, lane_y);
    return view.view.from > from && view.drag === null;
  });
  expect('a double click on nothing shows the whole step', () => {
    send(view.canvas, MouseEvent, 'dblclick', 2, 2);
    return view.view.from === 0 && view.view.to === view.full.to;
  });
  expect('the task in the middle is found when it is zoomed to', () => {
    view.show(lane.begin[middle] - 100, lane.end[middle] + 100);
    const hit = view.hit({x: x_of((lane.begin[middle] + lane.end[middle]) / 2), y: lane_y});
    return hit?.at === middle;
  });
  expect('what is drawn depends on pixels, not on tasks', () => {
    view.reset();
    view.draw();
    return view.num_drawn > 0 && view.num_drawn <= view.lanes.length * (2 * view.plot_width() + 2);
  });
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

function selfcheck({view, chart}) {
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
  if (chart) check_chart(chart, expect);
  if (view) check_timeline(view, expect);
  expect('no errors on the page', () => page_errors.length === 0);
  failed.push(...page_errors);
  const result = failed.length === 0 ? `selfcheck: ${count} passed` : `selfcheck: failed: ${failed.join('; ')}`;
  document.body.append(element('pre', {id: 'selfcheck', class: 'notice'}, result));
}
