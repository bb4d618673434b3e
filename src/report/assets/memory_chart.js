// Memory in use over a step, by class, with the planned limit. Shows the same time range as its timeline.

const kPersistentColor = 'color-mix(in srgb, var(--memory-param) 35%, transparent)';

class MemoryChart {
  // span_ns: time range of the whole chart; step_ns: end of the step, which may be earlier.
  constructor(curves, step_ns, left, span_ns = step_ns) {
    this.curves = curves;
    this.curve = curves[0];
    this.scale_bytes = 0;  // minimum range of the axis
    this.step_ns = Math.max(step_ns, 1);
    this.range = {from: 0, to: Math.max(span_ns, 1)};
    this.left = left;
    this.height = 200;
    this.hovered = null;  // a time
    this.canvas = element('canvas', {role: 'img', 'aria-label': 'Memory in use over the step', style: `height:${this.height}px`});
    this.redraw = once_a_frame(() => this.draw());
    this.canvas.addEventListener('pointermove', (event) => this.hover(event));
    this.canvas.addEventListener('pointerleave', () => {
      this.hovered = null;
      tooltip.hide();
      this.redraw();
    });
    new ResizeObserver(this.redraw).observe(this.canvas);
    kDarkScheme.addEventListener('change', this.redraw);
  }

  choose(rank) {
    this.curve = this.curves.find((curve) => curve.rank === rank) ?? this.curve;
    this.redraw();
  }
  show(from, to) {
    this.range = {from, to};
    this.redraw();
  }
  planned() {
    return this.curve.persistent_bytes + this.curve.step_bytes;
  }
  // The properties for which the axis was made.
  top_bytes() {
    return Math.max(this.planned(), this.scale_bytes, 1);
  }
  // Index of the point that applies at a time; -1 before the first.
  point_at(time) {
    return lower_bound(this.curve.time_ns, time + 1) - 1;
  }
  live_at(point) {
    return point < 0 ? 0 : sum_of(this.curve.classes, ({bytes}) => bytes[point]);
  }

  scale() {
    return Math.max(this.canvas.clientWidth - this.left - 2, 10) / (this.range.to - this.range.from);
  }
  x_of(time) {
    return this.left + (time - this.range.from) * this.scale();
  }
  y_of(bytes) {
    return this.height - 4 - bytes / (this.top_bytes() * 1.08) * (this.height - 14);
  }

  draw() {
    const width = this.canvas.clientWidth;
    const context = prepare_canvas(this.canvas, width, this.height);
    this.num_drawn = 0;
    this.draw_axis(context, width);
    context.save();
    context.beginPath();
    context.rect(this.left, 0, width - this.left - 2, this.height);
    context.clip();
    this.draw_areas(context, width);
    context.restore();
    this.draw_planned(context, width);
    if (this.hovered !== null) this.draw_moment(context);
  }

  draw_axis(context, width) {
    context.textAlign = 'right';
    context.textBaseline = 'middle';
    const unit = 1024 ** Math.floor(Math.log(this.top_bytes()) / Math.log(1024));
    for (const tick of nice_ticks(0, this.top_bytes() / unit, 4)) {
      const y = Math.round(this.y_of(tick * unit)) + 0.5;
      context.strokeStyle = color_of('grid');
      context.beginPath();
      context.moveTo(this.left, y);
      context.lineTo(width - 2, y);
      context.stroke();
      context.fillStyle = color_of('muted');
      context.fillText(format_bytes(tick * unit), this.left - 8, clamp(y, 6, this.height - 6));
    }
  }

  // From the bottom: persistent memory, then each class of the step.
  draw_areas(context, width) {
    const {time_ns, classes, persistent_bytes} = this.curve;
    context.fillStyle = color_of('memory-param');
    context.globalAlpha = 0.35;
    const [x0, x1] = [this.left, Math.min(this.x_of(this.step_ns), width)];
    context.fillRect(x0, this.y_of(persistent_bytes), Math.max(x1 - x0, 0), this.height - 4 - this.y_of(persistent_bytes));
    context.globalAlpha = 1;
    const base = Float64Array.from(time_ns, () => persistent_bytes);
    for (const {name, bytes} of classes) {
      context.fillStyle = color_of(`memory-${name}`);
      const first = Math.max(this.point_at(this.range.from), 0);
      for (let i = first; i < time_ns.length && time_ns[i] <= this.range.to; ++i) {
        const [x0, x1] = [this.x_of(time_ns[i]), this.x_of(time_ns[i + 1] ?? this.step_ns)];
        if (bytes[i] > 0) {
          const top = this.y_of(base[i] + bytes[i]);
          context.fillRect(x0, top, Math.max(x1 - x0, 0.5) + 0.3, this.y_of(base[i]) - top);
          ++this.num_drawn;
        }
        base[i] += bytes[i];
      }
    }
  }

  draw_planned(context, width) {
    const y = Math.round(this.y_of(this.planned())) + 0.5;
    context.strokeStyle = context.fillStyle = color_of('text');
    context.setLineDash([5, 4]);
    context.beginPath();
    context.moveTo(this.left, y);
    context.lineTo(width - 2, y);
    context.stroke();
    context.setLineDash([]);
    context.textAlign = 'right';
    context.textBaseline = 'bottom';
    context.fillText(`planned ${format_bytes(this.planned())}`, width - 6, y - 1);
  }

  draw_moment(context) {
    const x = Math.round(this.x_of(this.hovered)) + 0.5;
    context.strokeStyle = color_of('text');
    context.globalAlpha = 0.5;
    context.beginPath();
    context.moveTo(x, 4);
    context.lineTo(x, this.height - 4);
    context.stroke();
    context.globalAlpha = 1;
  }

  hover(event) {
    const x = event.clientX - this.canvas.getBoundingClientRect().left;
    const time = clamp(this.range.from + (x - this.left) / this.scale(), 0, this.step_ns);
    this.hovered = time;
    const point = this.point_at(time);
    const live = this.live_at(point);
    const rows = this.curve.classes.map(({name, bytes}) => [kMemoryTitles[name] ?? name, format_bytes(point < 0 ? 0 : bytes[point]), `var(--memory-${name})`]);
    tooltip.show(event.clientX, event.clientY, `Rank ${this.curve.rank} at ${format_ns(time, 5)}`, [
      ['persistent', format_bytes(this.curve.persistent_bytes), kPersistentColor], ...rows.reverse(),
      ['together', format_bytes(this.curve.persistent_bytes + live)], ['planned', format_bytes(this.planned())]]);
    this.redraw();
  }
}

// The rank of a chart, chosen from a list if there are several, and the text about it.
function memory_choice(chart, timeline) {
  const about = note('');
  const describe = () => {
    const {high_bytes, step_bytes, persistent_bytes} = chart.curve;
    about.textContent = `At most ${format_bytes(persistent_bytes + high_bytes)} in use of ${format_bytes(persistent_bytes + step_bytes)} planned; `
      + `a buffer counts from its first task to its last, as ${is_simulated(timeline) ? 'simulated' : 'measured'}`;
  };
  const select = element('select', {'aria-label': 'rank', onchange: () => {
    chart.choose(Number(select.value));
    describe();
  }}, ...chart.curves.map(({rank, title}) => element('option', {value: String(rank)}, title)));
  describe();
  return [select, about];
}

function memory_legend(charts) {
  const used = [...new Set(charts.flatMap(({curves}) => curves.flatMap(({classes}) => classes.map(({name}) => name))))];
  return legend([['persistent', kPersistentColor], ...used.map((name) => [kMemoryTitles[name] ?? name, `var(--memory-${name})`])]);
}

const kLevels = [['persistent', kPersistentColor, (curve) => curve.persistent_bytes],
  ['in use in the step, at most', 'var(--memory-scratch)', (curve) => curve.high_bytes],
  ['planned beyond that', 'var(--memory-between)', (curve) => curve.step_bytes - curve.high_bytes]];

// A bar per rank: peak use, planned memory, and memory of the device (0: unknown).
function memory_levels(curves, device_bytes) {
  if (curves.length < 2) return [];
  const planned = ({persistent_bytes, step_bytes}) => persistent_bytes + step_bytes;
  const planned_most = Math.max(...curves.map(planned), 1);
  const of_device = planned_most > 0.1 * device_bytes;  // otherwise the bars would be too small to see
  const most = of_device ? Math.max(device_bytes, planned_most) : planned_most;
  const rows = element('div', {class: 'rank-bars'});
  for (const curve of curves) {
    const parts = kLevels.map(([name, color, bytes_of]) => [name, color, bytes_of(curve)]).filter(([, , bytes]) => bytes > 0);
    rows.append(element('span', {}, curve.title),
      element('div', {class: 'bar thin'}, ...parts.map(([name, color, bytes]) => element('div', {title: `${name}: ${format_bytes(bytes)}`, style: `flex:none;width:${(100 * bytes / most).toFixed(3)}%;background:${color}`}))),
      element('span', {class: 'number'}, `${format_bytes(curve.persistent_bytes + curve.high_bytes)} in use, ${format_bytes(planned(curve))} planned`));
  }
  const width = device_bytes === 0 ? '' : of_device && device_bytes >= planned_most ? `; the full width is the memory of a device, ${format_bytes(device_bytes)}` : `; a device has ${format_bytes(device_bytes)}`;
  const title = `Peak, rank by rank${width}`;
  return [element('h3', {}, title), legend(kLevels.map(([name, color]) => [name, color])),
    element('div', {class: 'scroll', style: 'max-height:220px;margin-top:6px'}, rows)];
}

// The chart below its timeline, on the same time scale.
function make_memory_over_time(data, timeline, view) {
  const curves = data.memory_over_time;
  if (view === null || curves.length === 0) return [[], null];
  const chart = new MemoryChart(curves, view.full.to, view.box.left);
  view.followers.push((from, to) => chart.show(from, to));
  const levels = memory_levels(curves, data.simulation?.device_bytes ?? 0);
  return [[card('Memory over the step', [...memory_choice(chart, timeline), spacer(), memory_legend([chart])], chart.canvas, ...levels)], chart];
}
