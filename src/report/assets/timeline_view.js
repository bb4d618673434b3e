// All ranks and streams of a step on one canvas, with the interaction. Wheel: zoom at the pointer; drag:
// pan; double click: zoom to a task or back; click on a rank: fold it; keys like the buttons.

class TimelineView {
  // span_ns: time range of the whole view; two views of one span have one scale. max_lanes: limit of unfolded lanes.
  constructor(timeline, span_ns = timeline.step_ns, max_lanes = 28) {
    timeline = with_work_of_no_task(timeline);
    this.timeline = timeline;
    const communication = timeline.groups.map((group) => `comm-${group}`);
    this.kinds = [...timeline.phases.filter((phase) => phase !== 'comm'), ...communication, 'copy', 'no-task'];
    const kind_of_group = communication.map((kind) => this.kinds.indexOf(kind));
    const kind_of_phase = timeline.phases.map((phase) => Math.max(this.kinds.indexOf(phase), 0));
    const kind_of_stream = {copy: this.kinds.indexOf('copy'), 'no-task': this.kinds.indexOf('no-task')};
    this.kind_of = (rank, task) => rank.group[task] >= 0 ? kind_of_group[rank.group[task]]
      : kind_of_stream[rank.streams[rank.stream[task]].kind] ?? kind_of_phase[rank.phase[task]];
    this.kernels = new Map(timeline.ranks.map((rank) => [rank, kernels_by_task(rank)]));
    this.busy = new Map(timeline.ranks.map((rank) => [rank, new BusyTime(rank)]));
    this.lanes = make_lanes(timeline, this.kind_of, this.kinds.length);
    for (const lane of this.lanes) lane.exposed = new ExposedPieces(lane, this.busy.get(lane.rank));
    this.used_kinds = this.kinds.filter((_, kind) => this.lanes.some((lane) => lane.kind.includes(kind)));
    this.collapsed = this.ranks_beyond(max_lanes);
    this.full = {from: 0, to: Math.max(span_ns, 1)};
    this.range = {...this.full};
    this.followers = [];  // called with (from, to) when the time range changes
    this.scroll = 0;
    this.hovered = null;  // {lane, at}
    this.drag = null;
    this.painter = new TimelinePainter(this);
    this.canvas = element('canvas', {tabindex: '0', role: 'img',
      'aria-label': 'Timeline of the step. Arrow keys pan, plus and minus zoom, 0 shows the whole step, c collapses all ranks.'});
    this.redraw = once_a_frame(() => this.draw());
    this.place_lanes();
    this.listen();
  }

  get num_drawn() {
    return this.painter.num_drawn;
  }
  draw() {
    this.painter.draw();
  }

  // The ranks that begin after max_lanes lanes: too many to show at once.
  ranks_beyond(max_lanes) {
    const beyond = new Set();
    this.lanes.forEach(({rank}, index) => {
      if (index >= max_lanes && this.lanes.findIndex((lane) => lane.rank === rank) > 0) beyond.add(rank);
    });
    return beyond;
  }
  toggle(rank) {
    if (!this.collapsed.delete(rank)) this.collapsed.add(rank);
    this.place_lanes();
  }
  toggle_all() {
    const {ranks} = this.timeline;
    this.collapsed = new Set(this.collapsed.size < ranks.length ? ranks : []);
    this.place_lanes();
  }

  // A folded rank is one row: its first lane, next to its title.
  place_lanes() {
    const [lane_height, title_height] = [24, 24];
    let y = 0;
    this.titles = [];
    this.lane_y = this.lanes.map((lane, index) => {
      const [first, collapsed] = [lane.rank !== this.lanes[index - 1]?.rank, this.collapsed.has(lane.rank)];
      if (first) {
        this.titles.push({rank: lane.rank, text: lane.rank.title, y, collapsed});
        if (!collapsed) y += title_height;
      }
      if (collapsed && !first) return null;
      y += lane_height;
      return y - lane_height;
    });
    this.lane_height = lane_height - 4;
    this.content_height = y;
    // Space for the longest name of a stream; a narrow window shows its end.
    this.box = {left: innerWidth > 700 ? 164 : 124, top: 26, overview: 26};
    this.height = this.box.top + Math.min(y, 640) + 8 + this.box.overview;
    this.lanes_bottom = this.height - this.box.overview - 8;
    this.canvas.style.height = `${this.height}px`;
    this.scroll_by(0);
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
    return this.plot_width() / (this.range.to - this.range.from);
  }
  time_at(x) {
    return this.range.from + (x - this.box.left) / this.scale();
  }
  position(event) {
    const bounds = this.canvas.getBoundingClientRect();
    return {x: event.clientX - bounds.left, y: event.clientY - bounds.top};
  }
  in_overview(y) {
    return y > this.lanes_bottom;
  }

  // The visible range. Followers copy their leader's range: recomputing it could change the last digit.
  show(from, to, tell = true) {
    this.range = tell ? this.nearest_range(from, to) : {from, to};
    this.redraw();
    if (tell) for (const follow of this.followers) follow(this.range.from, this.range.to);
  }
  nearest_range(from, to) {
    const kMinSpanNs = 50;
    const span = clamp(to - from, Math.min(kMinSpanNs, this.full.to), this.full.to);
    const centred = (from + to - span) / 2;
    const begin = clamp(centred, 0, this.full.to - span);
    return {from: begin, to: begin + span};
  }
  // factor < 1 zooms in; the time at pixel x keeps its position.
  zoom(factor, x = this.box.left + this.plot_width() / 2) {
    const time = this.time_at(x);
    const span = clamp((this.range.to - this.range.from) * factor, 50, this.full.to);
    const from = clamp(time - (x - this.box.left) / this.plot_width() * span, 0, this.full.to - span);
    this.show(from, from + span);
  }
  pan(pixels) {
    const time = pixels / this.scale();
    const span = this.range.to - this.range.from;
    const from = clamp(this.range.from + time, 0, this.full.to - span);
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

  // Interaction.
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
    const title = this.title_at({x, y});
    if (title) return this.toggle(title.rank);
    this.drag = {x, y, overview: this.in_overview(y)};
    if (event.isTrusted) this.canvas.setPointerCapture(event.pointerId);
    this.canvas.classList.add('dragging');
    if (this.drag.overview) this.center_on(x);
  }
  center_on(x) {
    const time = clamp((x - this.box.left) / this.plot_width(), 0, 1) * this.full.to;
    const span = this.range.to - this.range.from;
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
      '+': () => this.zoom(0.7), '=': () => this.zoom(0.7), '-': () => this.zoom(1 / 0.7), 0: () => this.reset(), c: () => this.toggle_all(),
    };
    const action = event.ctrlKey || event.metaKey || event.altKey ? undefined : actions[event.key];
    if (action) {
      event.preventDefault();
      action();
    }
  }

  title_at({x, y}) {
    if (x >= this.box.left || y < this.box.top || y > this.lanes_bottom) return undefined;
    const content_y = y - this.box.top + this.scroll;
    return this.titles.find((title) => content_y >= title.y && content_y < title.y + 24);
  }
  hit({x, y}) {
    if (x < this.box.left || y < this.box.top || y > this.lanes_bottom) return null;
    const content_y = y - this.box.top + this.scroll;
    const index = this.lane_y.findIndex((lane_y) => lane_y !== null && content_y >= lane_y && content_y < lane_y + this.lane_height);
    if (index < 0) return null;
    const at = this.lanes[index].at(this.time_at(x), 3 / this.scale());
    return at < 0 ? null : {lane: this.lanes[index], at};
  }
  hover(event) {
    const at = this.position(event);
    this.canvas.classList.toggle('on-title', this.title_at(at) !== undefined);
    this.set_hovered(this.hit(at), event);
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
    if (rank.phase[task] >= 0) rows.push(['phase', this.timeline.phases[rank.phase[task]], `var(--phase-${this.kinds[lane.kind[at]]})`]);
    add('layer', index(rank.layer));
    add('microbatch', index(rank.microbatch));
    add('virtual stage', index(rank.virtual_stage));
    if (rank.group[task] >= 0) add('group', this.timeline.groups[rank.group[task]]);
    if (rank.bytes[task] > 0) add('bytes', format_bytes(rank.bytes[task]));
    const duration = lane.end[at] - lane.begin[at];
    const waited = rank.wait_ns?.[task] ?? 0;
    if (rank.bytes[task] > 0 && duration > waited) add('rate', `${format_number(rank.bytes[task] / (duration - waited), 3)} GB/s`);
    add('start', format_ns(lane.begin[at], 6));
    add('end', format_ns(lane.end[at], 6));
    add('duration', format_ns(duration, 4));
    if (rank.group[task] >= 0) {
      const exposed = this.busy.get(rank).idle(lane.begin[at], lane.end[at]);
      rows.push(['exposed', exposed > 0 ? `${format_ns(exposed, 4)}, ${format_percent(exposed / duration)}` : 'nothing: all is hidden', exposed > 0 ? 'var(--exposed)' : '']);
    }
    if (waited > 0) add('waited', `${format_ns(waited, 4)} for other ranks`);
    add('stream', `rank ${rank.rank}, ${rank.streams[lane.stream].name}`);
    rows.push(...this.kernel_rows(rank, task));
    tooltip.show(event.clientX, event.clientY, op, rows);
  }

  // The first kernels of a task.
  kernel_rows(rank, task) {
    const kMostRows = 6;
    const own = this.kernels.get(rank)[task] ?? [];
    const rows = own.slice(0, kMostRows).map((kernel) => ['kernel',
      `${rank.kernel_names[rank.kernels.name[kernel]]}, ${format_ns(rank.kernels.duration_ns[kernel], 4)}`]);
    if (own.length > kMostRows) rows.push(['kernels', `${own.length - kMostRows} more`]);
    return rows;
  }
}
