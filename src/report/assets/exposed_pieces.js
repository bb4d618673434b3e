// Which parts of communication no compute of the same rank runs beside: those are what overlap could still hide.

// Those of a rank that compute, as src/trace/exposed.h says: neither communication nor a copy, and a task at all.
function compute_tasks(rank) {
  const computes = rank.streams.map(({kind}) => kind !== 'copy' && kind !== 'no-task');
  const tasks = [];
  for (let task = 0; task < rank.stream.length; ++task) {
    if (rank.group[task] < 0 && computes[rank.stream[task]] && rank.duration_ns[task] > 0) tasks.push(task);
  }
  return tasks;
}

// The times in which compute of a rank runs, merged, with how much of it lies before any moment.
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
  // Of [begin, end), the time in which no compute runs.
  idle(begin, end) {
    return end - begin - (this.until(end) - this.until(begin));
  }
  // The parts of [begin, end) in which no compute runs.
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

// The exposed pieces of the tasks of a lane, in the order of time.
class ExposedPieces {
  constructor(lane, busy) {
    const pieces = [];
    lane.task.forEach((task, i) => {
      if (lane.rank.group[task] >= 0) pieces.push(...busy.gaps(lane.begin[i], lane.end[i]));
    });
    this.begin = numbers(pieces.length, (i) => pieces[i][0]);
    this.end = numbers(pieces.length, (i) => pieces[i][1]);
  }
  // Calls mark(x0, x1) in pixels for what is visible of [from, to]: at most once per pixel for pieces narrower than one.
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
