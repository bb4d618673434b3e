// All ranks and streams of a step on one canvas. Wheel: zoom at the pointer; drag: pan; double click: zoom to a task or
// back; keys as the buttons. Only what is visible is drawn.

class TimelineView {
  constructor(timeline) {
    this.timeline = timeline;
    this.kinds = [...timeline.phases.filter((phase) => phase !== 'comm'), 'comm', 'copy'];
    const communication = this.kinds.indexOf('comm');
    const kind_of_phase = timeline.phases.map((phase) => this.kinds.indexOf(phase));
    const copy = this.kinds.indexOf('copy');
    this.kind_of = (rank, task) => rank.group[task] >= 0 ? communication
      : rank.streams[rank.stream[task]].kind === 'copy' ? copy : kind_of_phase[rank.phase[task]];
    this.lanes = make_lanes(timeline, this.kind_of, this.kinds.length);
    this.used_kinds = this.kinds.filter((_, kind) => this.lanes.some((lane) => lane.kind.includes(kind)));
    this.place_lanes();
    this.full = {from: 0, to: Math.max(timeline.step_ns, 1)};
    this.view = {...this.full};
    this.scroll = 0;
    this.hovered = null;  // {lane, at}
    this.drag = null;
    this.num_drawn = 0;   // shapes of the last drawing
    this.canvas = element('canvas', {tabindex: '0', role: 'img', style: `height:${this.height}px`,
      'aria-label': 'Timeline of the step. Arrow keys pan, plus and minus zoom, 0 shows the whole step.'});
    this.redraw = once_a_frame(() => this.draw());
    this.listen();
  }

  place_lanes() {
    const [lane_height, title_height] = [24, 24];
    let y = 0;
    let last = null;
    this.titles = [];
    this.lane_y = this.lanes.map((lane) => {
      if (lane.rank !== last) {
        this.titles.push({text: `rank ${lane.rank.rank}`, y});
        y += title_height;
        last = lane.rank;
      }
      y += lane_height;
      return y - lane_height;
    });
    this.lane_height = lane_height - 4;
    this.content_height = y;
    this.box = {left: 116, top: 26, overview: 26};
    this.height = this.box.top + Math.min(y, 560) + 8 + this.box.overview;
    this.lanes_bottom = this.height - this.box.overview - 8;
  }

  listen() {
    const canvas = this.canvas;
    canvas.addEventListener('wheel', (event) => this.wheel(event), {passive: false});
    canvas.addEventListener('pointerdown', (event) => this.press(event));
    canvas.addEventListener('pointermove', (event) => this.move(event));
    for (const name of ['pointerup', 'pointercancel']) canvas.addEventListener(name, () => this.release());
    canvas.addEventListener('pointerleave', () => this.set_hovered(null));
    canvas.addEventListener('dblclick', (event) => this.double_click(event));
    canvas.addEventListener('keydown', (event) => this.key(event));
    new ResizeObserver(this.redraw).observe(canvas);
    kDarkScheme.addEventListener('change', this.redraw);
  }

  // Geometry.
  plot_width() {
    return Math.max(this.canvas.clientWidth - this.box.left - 2, 10);
  }
  scale() {
    return this.plot_width() / (this.view.to - this.view.from);
  }
  time_at(x) {
    return this.view.from + (x - this.box.left) / this.scale();
  }
  position(event) {
    const bounds = this.canvas.getBoundingClientRect();
    return {x: event.clientX - bounds.left, y: event.clientY - bounds.top};
  }
  in_overview(y) {
    return y > this.lanes_bottom;
  }

  // What is visible.
  show(from, to) {
    const kMinSpanNs = 50;
    const span = clamp(to - from, Math.min(kMinSpanNs, this.full.to), this.full.to);
    const centred = (from + to - span) / 2;
    const begin = clamp(centred, 0, this.full.to - span);
    this.view = {from: begin, to: begin + span};
    this.redraw();
  }
  // factor < 1 zooms in; the time at pixel x stays where it is.
  zoom(factor, x = this.box.left + this.plot_width() / 2) {
    const time = this.time_at(x);
    const span = clamp((this.view.to - this.view.from) * factor, 50, this.full.to);
    const from = clamp(time - (x - this.box.left) / this.plot_width() * span, 0, this.full.to - span);
    this.show(from, from + span);
  }
  pan(pixels) {
    const time = pixels / this.scale();
    const span = this.view.to - this.view.from;
    const from = clamp(this.view.from + time, 0, this.full.to - span);
    this.show(from, from + span);
  }
  scroll_by(pixels) {
    const room = Math.max(this.content_height - (this.lanes_bottom - this.box.top), 0);
    this.scroll = clamp(this.scroll + pixels, 0, room);
    this.redraw();
  }
  reset() {
    this.show(this.full.from, this.full.to);
  }

  // What the user does.
  wheel(event) {
    event.preventDefault();
    const unit = event.deltaMode === 1 ? 16 : 1;  // lines or pixels
    if (event.shiftKey) this.scroll_by((event.deltaY || event.deltaX) * unit);
    else if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) this.pan(event.deltaX * unit);
    else this.zoom(Math.exp(clamp(event.deltaY * unit, -300, 300) * 0.0025), Math.max(this.position(event).x, this.box.left));
    this.hover(event);
  }
  press(event) {
    const {x, y} = this.position(event);
    this.drag = {x, y, overview: this.in_overview(y)};
    if (event.isTrusted) this.canvas.setPointerCapture(event.pointerId);
    this.canvas.classList.add('dragging');
    if (this.drag.overview) this.center_on(x);
  }
  center_on(x) {
    const time = clamp((x - this.box.left) / this.plot_width(), 0, 1) * this.full.to;
    const span = this.view.to - this.view.from;
    const from = clamp(time - span / 2, 0, this.full.to - span);
    this.show(from, from + span);
  }
  move(event) {
    if (!this.drag) return this.hover(event);
    const {x, y} = this.position(event);
    if (this.drag.overview) {
      this.center_on(x);
    } else {
      this.pan(this.drag.x - x);
      this.scroll_by(this.drag.y - y);
    }
    Object.assign(this.drag, {x, y});
    tooltip.hide();
  }
  release() {
    this.drag = null;
    this.canvas.classList.remove('dragging');
  }
  double_click(event) {
    const hit = this.hit(this.position(event));
    if (!hit) return this.reset();
    const [begin, end] = [hit.lane.begin[hit.at], hit.lane.end[hit.at]];
    const margin = Math.max(end - begin, 10);
    this.show(begin - margin, end + margin);
  }
  key(event) {
    const step = this.plot_width() / 8;
    const actions = {
      ArrowLeft: () => this.pan(-step), ArrowRight: () => this.pan(step),
      ArrowUp: () => this.scroll_by(-48), ArrowDown: () => this.scroll_by(48),
      a: () => this.pan(-step), d: () => this.pan(step), w: () => this.zoom(0.7), s: () => this.zoom(1 / 0.7),
      '+': () => this.zoom(0.7), '=': () => this.zoom(0.7), '-': () => this.zoom(1 / 0.7), 0: () => this.reset(),
    };
    const action = event.ctrlKey || event.metaKey || event.altKey ? undefined : actions[event.key];
    if (action) {
      event.preventDefault();
      action();
    }
  }

  hit({x, y}) {
    if (x < this.box.left || y < this.box.top || y > this.lanes_bottom) return null;
    const content_y = y - this.box.top + this.scroll;
    const index = this.lane_y.findIndex((lane_y) => content_y >= lane_y && content_y < lane_y + this.lane_height);
    if (index < 0) return null;
    const at = this.lanes[index].at(this.time_at(x), 3 / this.scale());
    return at < 0 ? null : {lane: this.lanes[index], at};
  }
  hover(event) {
    this.set_hovered(this.hit(this.position(event)), event);
  }
  set_hovered(hit, event) {
    const changed = hit?.lane !== this.hovered?.lane || hit?.at !== this.hovered?.at;
    this.hovered = hit;
    if (hit) this.describe(hit, event);
    else tooltip.hide();
    if (changed) this.redraw();
  }
  describe({lane, at}, event) {
    const {rank} = lane;
    const task = lane.task[at];
    // Names are "op site".
    const [op, ...site] = rank.names[rank.name[task]].split(' ');
    const rows = [];
    const add = (name, value) => value !== undefined && value !== '' && rows.push([name, value]);
    const index = (column) => column[task] >= 0 ? String(column[task]) : '';
    add('site', site.join(' '));
    rows.push(['phase', this.timeline.phases[rank.phase[task]], `var(--phase-${this.kinds[lane.kind[at]]})`]);
    add('layer', index(rank.layer));
    add('microbatch', index(rank.microbatch));
    add('virtual stage', index(rank.virtual_stage));
    if (rank.group[task] >= 0) add('group', this.timeline.groups[rank.group[task]]);
    if (rank.bytes[task] > 0) add('bytes', format_bytes(rank.bytes[task]));
    const duration = lane.end[at] - lane.begin[at];
    if (rank.bytes[task] > 0 && duration > 0) add('rate', `${format_number(rank.bytes[task] / duration, 3)} GB/s`);
    add('start', format_ns(lane.begin[at], 6));
    add('duration', format_ns(duration, 4));
    add('stream', `rank ${rank.rank}, ${rank.streams[lane.stream].name}`);
    tooltip.show(event.clientX, event.clientY, op, rows);
  }

  // Drawing.
  draw() {
    const width = this.canvas.clientWidth;
    const context = prepare_canvas(this.canvas, width, this.height);
    this.num_drawn = 0;
    this.colors = this.kinds.map((kind) => color_of(`phase-${kind}`));
    this.track = color_of('track');
    this.draw_axis(context, width);
    context.save();
    context.beginPath();
    context.rect(0, this.box.top, width, this.lanes_bottom - this.box.top);
    context.clip();
    this.draw_titles(context, width);
    this.lanes.forEach((lane, index) => {
      const y = this.box.top + this.lane_y[index] - this.scroll;
      if (y + this.lane_height > this.box.top && y < this.lanes_bottom) this.draw_lane(context, lane, y);
    });
    context.restore();
    this.draw_overview(context, width);
  }

  draw_axis(context, width) {
    context.fillStyle = color_of('muted');
    context.strokeStyle = color_of('grid');
    context.textBaseline = 'middle';
    context.textAlign = 'center';
    const span = this.view.to - this.view.from;
    for (const tick of nice_ticks(this.view.from, this.view.to, this.plot_width() / 110)) {
      const x = Math.round(this.box.left + (tick - this.view.from) * this.scale()) + 0.5;
      context.beginPath();
      context.moveTo(x, this.box.top - 6);
      context.lineTo(x, this.lanes_bottom);
      context.stroke();
      // As many digits as tell neighbouring ticks apart.
      const digits = clamp(Math.ceil(Math.log10(Math.max(tick, 1) / span)) + 3, 3, 12);
      if (x < width - 20) context.fillText(format_ns(tick, digits), x, 9);
    }
  }

  draw_titles(context, width) {
    context.textAlign = 'left';
    context.textBaseline = 'middle';
    for (const title of this.titles) {
      const y = this.box.top + title.y - this.scroll;
      context.fillStyle = color_of('card');
      context.fillRect(0, y, width, 24);
      context.fillStyle = color_of('text');
      context.fillText(title.text, 0, y + 13);
    }
  }

  draw_lane(context, lane, y) {
    const height = this.lane_height;
    const left = this.box.left;
    const width = this.plot_width();
    context.fillStyle = color_of('muted');
    context.textAlign = 'left';
    context.textBaseline = 'middle';
    context.fillText(fitting_text(context, lane.rank.streams[lane.stream].name, left - 20), 10, y + height / 2);
    context.fillStyle = this.track;
    context.fillRect(left, y, width, height);
    context.save();
    context.beginPath();
    context.rect(left, y, width, height);
    context.clip();
    const wide = [];
    lane.visit(this.view.from, this.view.to, this.scale(), (i, x0, x1) => {
      context.fillStyle = this.colors[lane.kind[i]];
      const gap = x1 - x0 > 4 ? 1 : 0.25;
      context.fillRect(left + x0, y, x1 - x0 - gap, height);
      if (x1 - x0 > 34) wide.push([i, x0, x1]);
      ++this.num_drawn;
    }, (x, busy, kind) => {
      context.globalAlpha = 0.25 + 0.75 * busy;
      context.fillStyle = this.colors[kind];
      context.fillRect(left + x, y, 1, height);
      context.globalAlpha = 1;
      ++this.num_drawn;
    });
    this.draw_names(context, lane, wide, y);
    if (this.hovered?.lane === lane) this.draw_frame(context, y);
    context.restore();
  }

  draw_names(context, lane, wide, y) {
    context.fillStyle = kDarkScheme.matches ? '#0f1216' : '#ffffff';
    for (const [i, x0, x1] of wide) {
      const [visible_begin, visible_end] = [Math.max(x0, 0), Math.min(x1, this.plot_width())];
      const name = lane.rank.names[lane.rank.name[lane.task[i]]];
      const text = fitting_text(context, name, visible_end - visible_begin - 10);
      if (text) context.fillText(text, this.box.left + visible_begin + 5, y + this.lane_height / 2 + 0.5);
    }
  }

  draw_frame(context, y) {
    const {lane, at} = this.hovered;
    const x0 = this.box.left + (lane.begin[at] - this.view.from) * this.scale();
    const x1 = this.box.left + (lane.end[at] - this.view.from) * this.scale();
    context.strokeStyle = color_of('text');
    context.lineWidth = 1.5;
    context.strokeRect(x0 + 0.5, y + 1, Math.max(x1 - x0 - 2, 1), this.lane_height - 2);
    context.lineWidth = 1;
  }

  // The whole step in small: the first lane of each rank, and what part of it is shown above.
  draw_overview(context, width) {
    const [left, plot] = [this.box.left, this.plot_width()];
    const [top, height] = [this.height - this.box.overview + 2, this.box.overview - 4];
    const lanes = this.lanes.filter((lane, index) => index === 0 || lane.rank !== this.lanes[index - 1].rank).slice(0, height / 2);
    const each = height / Math.max(lanes.length, 1);
    context.fillStyle = this.track;
    context.fillRect(left, top, plot, height);
    context.globalAlpha = 0.75;
    lanes.forEach((lane, index) => {
      const y = top + index * each;
      lane.visit(this.full.from, this.full.to, plot / this.full.to, (i, x0, x1) => {
        context.fillStyle = this.colors[lane.kind[i]];
        context.fillRect(left + x0, y, x1 - x0, each - 1);
      }, (x, busy, kind) => {
        context.fillStyle = this.colors[kind];
        context.fillRect(left + x, y + (1 - busy) * (each - 1), 1, busy * (each - 1));
      });
    });
    context.globalAlpha = 1;
    const [x0, x1] = [this.view.from, this.view.to].map((time) => left + time / this.full.to * plot);
    context.fillStyle = color_of('card');
    context.globalAlpha = 0.7;
    context.fillRect(left, top, x0 - left, height);
    context.fillRect(x1, top, left + plot - x1, height);
    context.globalAlpha = 1;
    context.strokeStyle = color_of('accent');
    context.lineWidth = 1.5;
    context.strokeRect(x0 + 0.75, top - 0.75, Math.max(x1 - x0 - 1.5, 2), height + 1.5);
    context.lineWidth = 1;
    context.fillStyle = color_of('muted');
    context.textAlign = 'left';
    context.textBaseline = 'middle';
    context.fillText('whole step', 10, top + height / 2);
  }
}

// The text, shortened with an ellipsis to a width; '' if nothing sensible fits.
function fitting_text(context, text, width) {
  if (width < 14) return '';
  if (context.measureText(text).width <= width) return text;
  let [low, high] = [0, text.length];
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (context.measureText(`${text.slice(0, middle)}…`).width <= width) low = middle;
    else high = middle - 1;
  }
  return low >= 2 ? `${text.slice(0, low)}…` : '';
}
