// The loads of experts: how unequal they are over the steps, and a picture of layers and experts.

// Colour and strength of a load, which is rows / mean: strongest at four times and a quarter.
function shade_of(load) {
  if (load === 0) return ['exposed', 1];
  const strength = clamp(Math.abs(Math.log2(load)) / 2, 0, 1);
  return [load > 1 ? 'held-out' : 'train', 0.9 * strength];
}

// A row for each layer, a column for each expert.
class LoadMap {
  constructor({layers, rows}) {
    Object.assign(this, {layers, rows});
    this.columns = Math.max(...rows.map((row) => row.length), 1);
    this.cell = rows.length > 24 ? 10 : 16;
    this.height = rows.length * this.cell + 22;
    this.canvas = element('canvas', {role: 'img', 'aria-label': 'Load of each expert of each layer', style: `height:${this.height}px`});
    this.redraw = once_a_frame(() => this.draw());
    this.canvas.addEventListener('pointermove', (event) => this.hover(event));
    this.canvas.addEventListener('pointerleave', () => tooltip.hide());
    new ResizeObserver(this.redraw).observe(this.canvas);
    kDarkScheme.addEventListener('change', this.redraw);
  }

  layout() {
    const width = this.canvas.clientWidth;
    this.box = {left: 76, right: Math.max(width - 2, 80), width};
  }

  x_of(expert) {
    return this.box.left + expert / this.columns * (this.box.right - this.box.left);
  }

  draw() {
    this.layout();
    const context = prepare_canvas(this.canvas, this.box.width, this.height);
    this.num_drawn = 0;
    this.rows.forEach((row, layer) => row.forEach((load, expert) => this.draw_load(context, layer, expert, load)));
    this.draw_names(context);
  }

  draw_load(context, layer, expert, load) {
    if (load === null) return;
    const gap = this.columns > 128 ? 0 : 1;
    const [x0, x1] = [this.x_of(expert), this.x_of(expert + 1)];
    const place = [x0, layer * this.cell, Math.max(x1 - x0 - gap, 0.5), this.cell - 1];
    context.fillStyle = color_of('track');
    context.fillRect(...place);
    const [color, strength] = shade_of(load);
    context.fillStyle = color_of(color);
    context.globalAlpha = strength;
    context.fillRect(...place);
    context.globalAlpha = 1;
    ++this.num_drawn;
  }

  draw_names(context) {
    context.fillStyle = color_of('muted');
    context.textBaseline = 'middle';
    context.textAlign = 'right';
    const every = Math.ceil(12 / this.cell);
    this.layers.forEach((name, layer) => {
      if (layer % every === 0) context.fillText(name, this.box.left - 8, (layer + 0.5) * this.cell);
    });
    context.textAlign = 'center';
    for (const expert of nice_ticks(0, this.columns - 1, Math.min(16, this.box.width / 60))) {
      if (Number.isInteger(expert)) context.fillText(String(expert), this.x_of(expert + 0.5), this.height - 10);
    }
  }

  // [layer, expert], or nothing beside the picture.
  at(x, y) {
    this.layout();
    const expert = Math.floor((x - this.box.left) / (this.box.right - this.box.left) * this.columns);
    const layer = Math.floor(y / this.cell);
    return (this.rows[layer]?.[expert] ?? null) === null ? null : [layer, expert];
  }

  hover(event) {
    const bounds = this.canvas.getBoundingClientRect();
    const found = this.at(event.clientX - bounds.left, event.clientY - bounds.top);
    if (found === null) {
      tooltip.hide();
      return;
    }
    const [layer, expert] = found;
    tooltip.show(event.clientX, event.clientY, `${this.layers[layer]}, expert ${expert}`,
      [['rows', `${format_number(this.rows[layer][expert], 3)} × mean`]]);
  }
}

function make_violation_chart({steps, mean, worst}) {
  return new LineChart({series: [{name: 'worst layer', color: 'held-out', x: steps, y: worst, dots: steps.length < 60},
    {name: 'mean of layers', color: 'train', x: steps, y: mean, dots: steps.length < 60}],
  from_zero: true, label: 'Max violation of expert loads over the steps', format: (value) => format_number(value, 3), height: 220});
}

function make_load_map(loads) {
  if (loads === null) return [[note('Rows of each expert were not recorded: set moe.watch_counts.')], null];
  const map = new LoadMap(loads);
  const key = legend([['fewer rows than the mean, strongest at a quarter', 'var(--train)'], ['more rows, strongest at four times', 'var(--held-out)'],
    ['none', 'var(--exposed)']]);
  key.style.marginBottom = '8px';
  return [[element('h3', {}, `Rows of each expert beside the mean of its layer, step ${loads.step.toLocaleString('en-US')}`), key, map.canvas], map];
}

// [nodes, {chart, map}]; empty unless the run counted the loads of experts.
function make_experts({experts}) {
  if (!experts) return [[], null];
  const chart = make_violation_chart(experts);
  const [picture, map] = make_load_map(experts.loads);
  const head = experts.table.columns.map((name, i) => [name, i === 0 ? 'name' : 'number']);
  const rows = experts.table.rows.map((row) => ({cells: row.map((cell, i) => [cell, i === 0 ? 'name' : 'number'])}));
  const names = legend([['worst layer', 'var(--held-out)', 'line'], ['mean of layers', 'var(--train)', 'line']]);
  const about = note('Max violation: rows of the busiest expert / mean − 1; 0 is equal');
  const room = experts.room ? [note(experts.room)] : [];
  return [[card('Experts', [names, spacer(), about], chart.canvas, ...picture, ...room, element('h3', {}, 'Layers with the least equal loads'),
    element('div', {class: 'scroll', id: 'experts'}, table(head, rows)))], {chart, map}];
}
