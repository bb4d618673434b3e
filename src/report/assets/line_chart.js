// Lines over steps: linear or logarithmic, with the values at the pointer.

// Running mean over the finite values, for lines that jump from step to step. At the start, where losses are steep, the
// window shrinks to stay centred; at the end it does not, so that the last value is no more noisy than the others.
function smoothed(values, radius) {
  const sums = new Float64Array(values.length + 1);
  const counts = new Float64Array(values.length + 1);
  values.forEach((value, i) => {
    const finite = value !== null && Number.isFinite(value);
    sums[i + 1] = sums[i] + (finite ? value : 0);
    counts[i + 1] = counts[i] + (finite ? 1 : 0);
  });
  return values.map((_, i) => {
    const begin = i - Math.min(radius, i);
    const end = Math.min(i + Math.min(radius, i), values.length - 1) + 1;
    const count = counts[end] - counts[begin];
    return count > 0 ? (sums[end] - sums[begin]) / count : null;
  });
}

class LineChart {
  // series: {name, color (CSS variable), x, y, width, alpha, dots, quiet (not in the tooltip)}; levels: {name, color, y}.
  constructor({series, levels = [], format, label, logarithmic = false, from_zero = false, height = 300}) {
    Object.assign(this, {series, levels, format, logarithmic, from_zero, height});
    this.hovered = null;  // step under the pointer
    this.left_of_lines = 52;  // room for labels, which may need more
    this.canvas = element('canvas', {role: 'img', 'aria-label': label, style: `height:${height}px`});
    this.redraw = once_a_frame(() => this.draw());
    this.canvas.addEventListener('pointermove', (event) => this.hover(event));
    this.canvas.addEventListener('pointerleave', () => {
      this.hovered = null;
      tooltip.hide();
      this.redraw();
    });
    new ResizeObserver(this.redraw).observe(this.canvas);
    kDarkScheme.addEventListener('change', this.redraw);
    this.measure();
  }

  set_logarithmic(logarithmic) {
    this.logarithmic = logarithmic;
    this.measure();
    this.redraw();
  }

  measure() {
    let [left, right, low, high] = [Infinity, -Infinity, Infinity, -Infinity];
    const take = (y) => {
      if (y !== null && Number.isFinite(y) && !(this.logarithmic && y <= 0)) {
        low = Math.min(low, y);
        high = Math.max(high, y);
      }
    };
    for (const {x, y} of this.series) {
      y.forEach(take);
      if (x.length > 0) {
        left = Math.min(left, x[0]);
        right = Math.max(right, x[x.length - 1]);
      }
    }
    this.levels.forEach((level) => take(level.y));
    if (!(low <= high)) [low, high] = [0, 1];
    if (this.from_zero && !this.logarithmic) low = Math.min(low, 0);
    const margin = this.logarithmic ? (Math.log(high / low) || 0.1) * 0.05 : ((high - low) || Math.abs(high) || 1) * 0.06;
    this.low = this.logarithmic ? low * Math.exp(-margin) : (this.from_zero && low === 0 ? 0 : low - margin);
    this.high = this.logarithmic ? high * Math.exp(margin) : high + margin;
    this.left = Number.isFinite(left) ? left : 0;
    this.right = right > this.left ? right : this.left + 1;
  }

  layout() {
    const width = this.canvas.clientWidth;
    this.box = {left: this.left_of_lines, right: Math.max(width - 12, 60), top: 8, bottom: this.height - 26, width};
  }

  x_of(step) {
    return this.box.left + (step - this.left) / (this.right - this.left) * (this.box.right - this.box.left);
  }

  y_of(value) {
    const part = this.logarithmic ? Math.log(value / this.low) / Math.log(this.high / this.low)
                                  : (value - this.low) / (this.high - this.low);
    return this.box.bottom - part * (this.box.bottom - this.box.top);
  }

  draw() {
    this.layout();
    const context = prepare_canvas(this.canvas, this.box.width, this.height);
    const labels = this.ticks().map((tick) => context.measureText(this.format(tick)).width);
    this.box.left = this.left_of_lines = Math.max(52, Math.ceil(Math.max(0, ...labels)) + 12);
    this.draw_axes(context);
    context.save();
    context.beginPath();
    context.rect(this.box.left, 0, this.box.right - this.box.left + 4, this.box.bottom + 1);
    context.clip();
    for (const level of this.levels) this.draw_level(context, level);
    for (const one of this.series) this.draw_series(context, one);
    context.restore();
    if (this.hovered !== null) this.draw_hovered(context);
  }

  ticks() {
    return this.logarithmic ? log_ticks(this.low, this.high) : nice_ticks(this.low, this.high, 6);
  }

  draw_axes(context) {
    const {left, right, top, bottom} = this.box;
    context.lineWidth = 1;
    context.fillStyle = color_of('muted');
    context.textBaseline = 'middle';
    context.textAlign = 'right';
    for (const tick of this.ticks()) {
      const y = Math.round(this.y_of(tick)) + 0.5;
      context.strokeStyle = color_of('grid');
      context.beginPath();
      context.moveTo(left, y);
      context.lineTo(right, y);
      context.stroke();
      if (y > top - 1) context.fillText(this.format(tick), left - 8, y);
    }
    context.textBaseline = 'top';
    context.textAlign = 'center';
    for (const tick of nice_ticks(this.left, this.right, Math.min(10, (right - left) / 80))) {
      if (Number.isInteger(tick)) context.fillText(tick.toLocaleString('en-US'), clamp(this.x_of(tick), left + 4, right - 12), bottom + 9);
    }
    context.strokeStyle = color_of('line');
    context.beginPath();
    context.moveTo(left, bottom + 0.5);
    context.lineTo(right, bottom + 0.5);
    context.stroke();
  }

  draw_level(context, level) {
    const y = Math.round(this.y_of(level.y)) + 0.5;
    context.strokeStyle = context.fillStyle = color_of(level.color);
    context.setLineDash([5, 4]);
    context.beginPath();
    context.moveTo(this.box.left, y);
    context.lineTo(this.box.right, y);
    context.stroke();
    context.setLineDash([]);
    context.textAlign = 'right';
    context.textBaseline = 'bottom';
    context.fillText(`${level.name} ${this.format(level.y)}`, this.box.right - 4, y - 3);
  }

  draw_series(context, {x, y, color, width = 1.75, alpha = 1, dots = false}) {
    context.strokeStyle = context.fillStyle = color_of(color);
    context.globalAlpha = alpha;
    context.lineWidth = width;
    context.lineJoin = 'round';
    context.beginPath();
    this.trace(context, x, y);
    context.stroke();
    if (dots) {
      for (let i = 0; i < x.length; ++i) {
        if (!this.can_draw(y[i])) continue;
        context.beginPath();
        context.arc(this.x_of(x[i]), this.y_of(y[i]), x.length > 60 ? 1.5 : 3, 0, 2 * Math.PI);
        context.fill();
      }
    }
    context.globalAlpha = 1;
  }

  can_draw(value) {
    return value !== null && Number.isFinite(value) && !(this.logarithmic && value <= 0);
  }

  // If many steps share a pixel column, draws their lowest and highest value.
  trace(context, x, y) {
    let i = 0;
    let pen_down = false;
    const move = (at_x, at_y) => {
      if (pen_down) context.lineTo(at_x, at_y);
      else context.moveTo(at_x, at_y);
      pen_down = true;
    };
    while (i < x.length) {
      if (!this.can_draw(y[i])) {
        pen_down = false;  // a gap where the loss was not finite
        ++i;
        continue;
      }
      const at_x = this.x_of(x[i]);
      let [low, high, last, end] = [y[i], y[i], y[i], i + 1];
      while (end < x.length && this.x_of(x[end]) < at_x + 0.5 && this.can_draw(y[end])) {
        last = y[end++];
        low = Math.min(low, last);
        high = Math.max(high, last);
      }
      move(at_x, this.y_of(y[i]));
      if (end > i + 1) {
        move(at_x, this.y_of(high));
        move(at_x, this.y_of(low));
        move(at_x, this.y_of(last));
      }
      i = end;
    }
  }

  // Index of the point nearest to a step.
  static nearest(x, step) {
    const at = lower_bound(x, step);
    return at > 0 && (at === x.length || step - x[at - 1] <= x[at] - step) ? at - 1 : at;
  }

  hover(event) {
    const bounds = this.canvas.getBoundingClientRect();
    if (this.series.every(({x}) => x.length === 0)) return;
    this.layout();
    const part = (event.clientX - bounds.left - this.box.left) / (this.box.right - this.box.left);
    const step = this.left + clamp(part, 0, 1) * (this.right - this.left);
    const main = this.series.find(({quiet, x}) => !quiet && x.length > 0);
    this.hovered = main.x[LineChart.nearest(main.x, step)];
    const rows = [];
    for (const {name, x, y, color, quiet} of this.series) {
      if (quiet || x.length === 0) continue;
      const at = LineChart.nearest(x, this.hovered);
      rows.push([x[at] === this.hovered ? name : `${name} (step ${x[at]})`, this.format(y[at]), `var(--${color})`]);
    }
    tooltip.show(event.clientX, event.clientY, `Step ${this.hovered.toLocaleString('en-US')}`, rows);
    this.redraw();
  }

  draw_hovered(context) {
    const at_x = Math.round(this.x_of(this.hovered)) + 0.5;
    context.strokeStyle = color_of('muted');
    context.lineWidth = 1;
    context.globalAlpha = 0.5;
    context.beginPath();
    context.moveTo(at_x, this.box.top);
    context.lineTo(at_x, this.box.bottom);
    context.stroke();
    context.globalAlpha = 1;
    for (const {x, y, color, quiet} of this.series) {
      if (quiet || x.length === 0) continue;
      const at = LineChart.nearest(x, this.hovered);
      if (!this.can_draw(y[at])) continue;
      context.beginPath();
      context.arc(this.x_of(x[at]), this.y_of(y[at]), 4, 0, 2 * Math.PI);
      context.fillStyle = color_of(color);
      context.fill();
      context.strokeStyle = color_of('card');
      context.lineWidth = 1.5;
      context.stroke();
    }
  }
}
