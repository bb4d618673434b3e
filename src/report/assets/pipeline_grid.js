// The jobs of each rank as they ran: a row per rank, a box per job, a colour per microbatch.

const kJobNames = {F: 'forward', B: 'dgrad', W: 'wgrad'};
const kJobOfPhase = {forward: 'F', dgrad: 'B', wgrad: 'W'};

// Jobs of a rank: consecutive compute tasks of one phase, microbatch and virtual stage.
function jobs_of(rank, phases) {
  const tasks = compute_tasks(rank).filter((task) => rank.microbatch[task] >= 0 && kJobOfPhase[phases[rank.phase[task]]]);
  tasks.sort((a, b) => rank.start_ns[a] - rank.start_ns[b]);
  const jobs = [];
  for (const task of tasks) {
    const [kind, microbatch, stage] = [kJobOfPhase[phases[rank.phase[task]]], rank.microbatch[task], rank.virtual_stage[task]];
    const end = rank.start_ns[task] + rank.duration_ns[task];
    const last = jobs[jobs.length - 1];
    if (last && last.microbatch === microbatch && last.stage === stage && (last.kind === kind || kind !== 'F' && last.kind !== 'F')) {
      last.end = Math.max(last.end, end);
      last.busy += rank.duration_ns[task];
      if (last.kind !== kind) last.kind = 'BW';
    } else {
      jobs.push({kind, microbatch, stage, begin: rank.start_ns[task], end, busy: rank.duration_ns[task]});
    }
  }
  return jobs;
}

const job_name = (kind) => kind === 'BW' ? 'backward (dgrad and wgrad)' : kJobNames[kind];

class PipelineGrid {
  constructor(timeline, ranks) {
    this.rows = ranks.map((rank) => ({rank: rank.rank, jobs: jobs_of(rank, timeline.phases)}));
    this.step_ns = Math.max(timeline.step_ns, 1);
    this.row_height = 24;
    this.left = 64;
    this.height = this.rows.length * this.row_height + 26;
    this.canvas = element('canvas', {role: 'img', 'aria-label': 'Jobs of the pipeline ranks as they ran', style: `height:${this.height}px`});
    this.redraw = once_a_frame(() => this.draw());
    this.canvas.addEventListener('pointermove', (event) => this.hover(event));
    this.canvas.addEventListener('pointerleave', () => tooltip.hide());
    new ResizeObserver(this.redraw).observe(this.canvas);
    kDarkScheme.addEventListener('change', this.redraw);
  }

  scale() {
    return Math.max(this.canvas.clientWidth - this.left - 2, 10) / this.step_ns;
  }

  // Neighbouring microbatches get very different hues; backward is darker, later virtual stages are paler.
  color(job) {
    const hue = (job.microbatch * 137.5 + 215) % 360;
    const light = (job.kind === 'F' ? 64 : job.kind === 'W' ? 36 : 48) - (kDarkScheme.matches ? 8 : 0);
    return `hsl(${hue.toFixed(0)} 55% ${light}% / ${Math.max(1 - 0.2 * Math.max(job.stage, 0), 0.4)})`;
  }

  draw() {
    const width = this.canvas.clientWidth;
    const context = prepare_canvas(this.canvas, width, this.height);
    const [muted, track] = [color_of('muted'), color_of('track')];
    context.textBaseline = 'middle';
    this.rows.forEach(({rank, jobs}, index) => {
      const y = index * this.row_height;
      context.textAlign = 'left';
      context.fillStyle = muted;
      context.fillText(`rank ${rank}`, 0, y + 10);
      context.fillStyle = track;
      context.fillRect(this.left, y, width - this.left - 2, 20);
      context.textAlign = 'center';
      for (const job of jobs) this.draw_job(context, job, y);
    });
    context.fillStyle = muted;
    context.textAlign = 'center';
    for (const tick of nice_ticks(0, this.step_ns, Math.min(10, width / 110))) {
      context.fillText(format_ns(tick), clamp(this.left + tick * this.scale(), this.left + 6, width - 24), this.height - 12);
    }
  }

  draw_job(context, job, y) {
    const [x, width] = [this.left + job.begin * this.scale(), (job.end - job.begin) * this.scale()];
    context.fillStyle = this.color(job);
    context.fillRect(x, y, Math.max(width - (width > 4 ? 1 : 0), 0.5), 20);
    if (width > 16) {
      context.fillStyle = '#ffffff';
      context.fillText(width > 26 ? `${job.kind === 'BW' ? 'B' : job.kind}${job.microbatch}` : String(job.microbatch), x + width / 2, y + 10.5);
    }
  }

  hover(event) {
    const bounds = this.canvas.getBoundingClientRect();
    const row = this.rows[Math.floor((event.clientY - bounds.top) / this.row_height)];
    const time = (event.clientX - bounds.left - this.left) / this.scale();
    const job = row?.jobs.find(({begin, end}) => begin <= time && time < end);
    if (!job) return tooltip.hide();
    tooltip.show(event.clientX, event.clientY, `${job_name(job.kind)} of microbatch ${job.microbatch}`, [
      ['rank', String(row.rank)], ...(job.stage >= 0 ? [['virtual stage', String(job.stage)]] : []),
      ['start', format_ns(job.begin, 5)], ['duration', format_ns(job.end - job.begin, 4)],
      ['computing', format_percent(job.busy / Math.max(job.end - job.begin, 1))]]);
  }
}

// The ranks of the timeline that are in the table of stages; all ranks if none is.
function ranks_of_stages(layout, timeline) {
  const at = layout.columns.indexOf('rank');
  const named = new Set(layout.rows.map((row) => Number(row[at])));
  const found = timeline.ranks.filter(({rank}) => named.has(rank));
  return found.length > 0 ? found : timeline.ranks;
}
