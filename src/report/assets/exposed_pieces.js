// The parts of communication during which the same rank runs no compute: overlap could still hide these.

// The compute tasks of a rank, as in src/trace/exposed.h: tasks that neither communicate nor copy.
function compute_tasks(rank) {
  const computes = rank.streams.map(({kind}) => kind !== 'copy' && kind !== 'no-task');
  const tasks = [];
  for (let task = 0; task < rank.stream.length; ++task) {
    if (rank.group[task] < 0 && computes[rank.stream[task]] && rank.duration_ns[task] > 0) tasks.push(task);
  }
  return tasks;
}

// The times in which a rank runs compute, merged, with the compute time before each of them.
class BusyTime {
  constructor(rank) {
    const tasks = compute_tasks(rank);
    tasks.sort((a, b) => rank.start_ns[a] - rank.start_ns[b]);
    [this.begin, this.end, this.before] = [[], [], [0]];
    for (const task of tasks) {
      const [begin, end] = [rank.start_ns[task], rank.start_ns[task] + rank.duration_ns[task]];
      const last = this.end.length - 1;
      if (last >= 0 && begin <= this.end[last]) this.end[last] = Math.max(this.end[last], end);
      else this.begin.push(begin), this.end.push(end);
    }
    this.begin.forEach((begin, i) => this.before.push(this.before[i] + this.end[i] - begin));
  }
  until(time) {
    const next = lower_bound(this.end, time);
    return this.before[next] + (next < this.begin.length ? Math.max(time - this.begin[next], 0) : 0);
  }
  // The time in [begin, end) without compute.
  idle(begin, end) {
    return end - begin - (this.until(end) - this.until(begin));
  }
  // The parts of [begin, end) without compute.
  gaps(begin, end) {
    const found = [];
    let from = begin;
    for (let i = lower_bound(this.end, begin); i < this.begin.length && this.begin[i] < end; ++i) {
      if (this.begin[i] > from) found.push([from, this.begin[i]]);
      from = Math.max(from, this.end[i]);
    }
    if (from < end) found.push([from, end]);
    return found;
  }
}

// The exposed pieces of the tasks of a lane, in order of time.
class ExposedPieces {
  constructor(lane, busy) {
    const pieces = [];
    lane.task.forEach((task, i) => {
      if (lane.rank.group[task] >= 0) pieces.push(...busy.gaps(lane.begin[i], lane.end[i]));
    });
    this.begin = numbers(pieces.length, (i) => pieces[i][0]);
    this.end = numbers(pieces.length, (i) => pieces[i][1]);
  }
  // Calls mark(x0, x1) in pixels for the visible pieces in [from, to]: at most once per pixel for narrower pieces.
  visit(from, to, scale, mark) {
    const is_wide = (i) => (this.end[i] - this.begin[i]) * scale >= 1;
    let i = lower_bound(this.end, from);
    while (i < this.begin.length && this.begin[i] <= to) {
      const [x0, x1] = [(this.begin[i] - from) * scale, (this.end[i] - from) * scale];
      mark(x0, Math.max(x1, x0 + 1));
      const next = is_wide(i) ? i + 1 : Math.max(lower_bound(this.begin, from + (Math.floor(x0) + 1) / scale, i), i + 1);
      i = next - 1 > i && is_wide(next - 1) ? next - 1 : next;  // a wide one may start in the pixel of narrow ones
    }
  }
}
