// Draws a TimelineView. The cost depends on the number of pixels: tasks narrower than a pixel share a column.

class TimelinePainter {
  constructor(view) {
    this.view = view;
    this.num_drawn = 0;  // shapes of the last drawing
  }

  draw() {
    const width = this.view.canvas.clientWidth;
    const context = prepare_canvas(this.view.canvas, width, this.view.height);
    this.num_drawn = 0;
    this.colors = this.view.kinds.map((kind) => color_of(`phase-${kind}`));
    this.ink = Object.fromEntries(['text', 'muted', 'grid', 'track', 'card', 'accent', 'exposed'].map((name) => [name, color_of(name)]));
    this.draw_axis(context, width);
    context.save();
    context.beginPath();
    context.rect(0, this.view.box.top, width, this.view.lanes_bottom - this.view.box.top);
    context.clip();
    this.draw_titles(context);
    this.view.lanes.forEach((lane, index) => {
      if (this.view.lane_y[index] === null) return;
      const y = this.view.box.top + this.view.lane_y[index] - this.view.scroll;
      if (y + this.view.lane_height > this.view.box.top && y < this.view.lanes_bottom) this.draw_lane(context, lane, y);
    });
    context.restore();
    this.draw_overview(context, width);
  }

  draw_axis(context, width) {
    context.fillStyle = this.ink.muted;
    context.strokeStyle = this.ink.grid;
    context.textBaseline = 'middle';
    context.textAlign = 'center';
    const span = this.view.range.to - this.view.range.from;
    for (const tick of nice_ticks(this.view.range.from, this.view.range.to, this.view.plot_width() / 110)) {
      const x = Math.round(this.view.box.left + (tick - this.view.range.from) * this.view.scale()) + 0.5;
      context.beginPath();
      context.moveTo(x, this.view.box.top - 6);
      context.lineTo(x, this.view.lanes_bottom);
      context.stroke();
      // As many digits as needed to distinguish neighbouring ticks.
      const digits = clamp(Math.ceil(Math.log10(Math.max(tick, 1) / span)) + 3, 3, 12);
      if (x < width - 20) context.fillText(format_ns(tick, digits), x, 9);
    }
  }

  draw_titles(context) {
    context.textAlign = 'left';
    context.textBaseline = 'middle';
    for (const title of this.view.titles) {
      const y = this.view.box.top + title.y - this.view.scroll;
      context.fillStyle = this.ink.text;
      context.fillText(`${title.collapsed ? '▸' : '▾'} ${title.text}`, 0, y + (title.collapsed ? 10 : 13));
    }
  }

  draw_lane(context, lane, y) {
    const height = this.view.lane_height;
    const left = this.view.box.left;
    const width = this.view.plot_width();
    context.fillStyle = this.ink.muted;
    context.textAlign = 'left';
    context.textBaseline = 'middle';
    if (!this.view.collapsed.has(lane.rank)) {
      context.fillText(fitting_end(context, lane.rank.streams[lane.stream].name, left - 24), 14, y + height / 2);
    }
    context.fillStyle = this.ink.track;
    context.fillRect(left, y, width, height);
    context.save();
    context.beginPath();
    context.rect(left, y, width, height);
    context.clip();
    const wide = [];
    lane.visit(this.view.range.from, this.view.range.to, this.view.scale(), (i, x0, x1) => {
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
    this.draw_exposed(context, lane, y);
    this.draw_names(context, lane, wide, y);
    if (this.view.hovered?.lane === lane) this.draw_frame(context, y);
    context.restore();
  }

  // A strip at the bottom of a lane for exposed time.
  draw_exposed(context, lane, y) {
    const strip = 4;
    context.fillStyle = this.ink.exposed;
    lane.exposed.visit(this.view.range.from, this.view.range.to, this.view.scale(), (x0, x1) => {
      context.fillRect(this.view.box.left + x0, y + this.view.lane_height - strip, x1 - x0, strip);
      ++this.num_drawn;
    });
  }

  draw_names(context, lane, wide, y) {
    context.fillStyle = kDarkScheme.matches ? '#0f1216' : '#ffffff';
    for (const [i, x0, x1] of wide) {
      const [visible_begin, visible_end] = [Math.max(x0, 0), Math.min(x1, this.view.plot_width())];
      const name = lane.rank.names[lane.rank.name[lane.task[i]]];
      const text = fitting_text(context, name, visible_end - visible_begin - 10);
      if (text) context.fillText(text, this.view.box.left + visible_begin + 5, y + this.view.lane_height / 2 + 0.5);
    }
  }

  draw_frame(context, y) {
    const {lane, at} = this.view.hovered;
    const x0 = this.view.box.left + (lane.begin[at] - this.view.range.from) * this.view.scale();
    const x1 = this.view.box.left + (lane.end[at] - this.view.range.from) * this.view.scale();
    context.strokeStyle = this.ink.text;
    context.lineWidth = 1.5;
    context.strokeRect(x0 + 0.5, y + 1, Math.max(x1 - x0 - 2, 1), this.view.lane_height - 2);
    context.lineWidth = 1;
  }

  // The whole step in small: the first lane of each rank, with the part that is shown above.
  draw_overview(context, width) {
    const [left, plot] = [this.view.box.left, this.view.plot_width()];
    const [top, height] = [this.view.height - this.view.box.overview + 2, this.view.box.overview - 4];
    const lanes = this.view.lanes.filter((lane, index) => index === 0 || lane.rank !== this.view.lanes[index - 1].rank).slice(0, height / 2);
    const each = height / Math.max(lanes.length, 1);
    context.fillStyle = this.ink.track;
    context.fillRect(left, top, plot, height);
    context.globalAlpha = 0.75;
    lanes.forEach((lane, index) => {
      const y = top + index * each;
      lane.visit(this.view.full.from, this.view.full.to, plot / this.view.full.to, (i, x0, x1) => {
        context.fillStyle = this.colors[lane.kind[i]];
        context.fillRect(left + x0, y, x1 - x0, each - 1);
        ++this.num_drawn;
      }, (x, busy, kind) => {
        context.fillStyle = this.colors[kind];
        context.fillRect(left + x, y + (1 - busy) * (each - 1), 1, busy * (each - 1));
        ++this.num_drawn;
      });
    });
    context.globalAlpha = 1;
    const [x0, x1] = [this.view.range.from, this.view.range.to].map((time) => left + time / this.view.full.to * plot);
    context.fillStyle = this.ink.card;
    context.globalAlpha = 0.7;
    context.fillRect(left, top, x0 - left, height);
    context.fillRect(x1, top, left + plot - x1, height);
    context.globalAlpha = 1;
    context.strokeStyle = this.ink.accent;
    context.lineWidth = 1.5;
    context.strokeRect(x0 + 0.75, top - 0.75, Math.max(x1 - x0 - 1.5, 2), height + 1.5);
    context.lineWidth = 1;
    context.fillStyle = this.ink.muted;
    context.textAlign = 'left';
    context.textBaseline = 'middle';
    context.fillText('whole step', 10, top + height / 2);
  }
}

// The text, shortened to a width by shortened(text, number of letters); '' if no useful text fits.
function fitting(context, text, width, shortened) {
  if (width < 14) return '';
  if (context.measureText(text).width <= width) return text;
  let [low, high] = [0, text.length];
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (context.measureText(shortened(text, middle)).width <= width) low = middle;
    else high = middle - 1;
  }
  return low >= 2 ? shortened(text, low) : '';
}

const fitting_text = (context, text, width) => fitting(context, text, width, (whole, count) => `${whole.slice(0, count)}…`);
// Names of streams differ in their end: pipeline.forward, pipeline.forward.recv.
const fitting_end = (context, text, width) => fitting(context, text, width, (whole, count) => `…${whole.slice(whole.length - count)}`);
