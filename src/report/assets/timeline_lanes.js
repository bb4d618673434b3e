// The tasks of one stream as sorted arrays. The time to draw them depends at any zoom on the number of pixels, not of
// tasks.

class Lane {
  // `tasks`: indices into the columns of `rank` that run on this stream. `kinds`: names of the colours.
  constructor(rank, stream, tasks, kind_of, num_kinds) {
    this.rank = rank;
    this.stream = stream;
    const {start_ns, duration_ns} = rank;
    tasks.sort((a, b) => start_ns[a] - start_ns[b]);
    this.task = new Int32Array(tasks);
    this.begin = numbers(tasks.length, (i) => start_ns[tasks[i]]);
    this.end = numbers(tasks.length, (i) => start_ns[tasks[i]] + duration_ns[tasks[i]]);
    this.kind = numbers(tasks.length, (i) => kind_of(rank, tasks[i]), Uint8Array);
    // busy[k][i]: time of the first i tasks that have kind k.
    this.busy = Array.from({length: num_kinds}, () => new Float64Array(tasks.length + 1));
    this.busy.forEach((busy, kind) => {
      for (let i = 0; i < tasks.length; ++i) busy[i + 1] = busy[i] + (this.kind[i] === kind ? this.end[i] - this.begin[i] : 0);
    });
  }

  // Index in this lane of the task at a time, or of one at most `slack` away; -1 if there is none.
  at(time, slack) {
    const next = lower_bound(this.end, time);
    if (next < this.end.length && this.begin[next] <= time) return next;
    const after = next < this.begin.length ? this.begin[next] - time : Infinity;
    const before = next > 0 ? time - this.end[next - 1] : Infinity;
    if (Math.min(after, before) > slack) return -1;
    return after < before ? next : next - 1;
  }

  // Calls rectangle(i, x0, x1) for each task of [from, to] at least a pixel wide, and column(x, busy, kind) for each
  // pixel column in which narrower ones start: their total time and the kind with most of it. `scale`: pixels per ns.
  visit(from, to, scale, rectangle, column) {
    const kMinWidth = 1.5;
    const x_of = (time) => (time - from) * scale;
    const count = this.begin.length;
    const is_wide = (i) => (this.end[i] - this.begin[i]) * scale >= kMinWidth;
    let i = lower_bound(this.end, from);
    while (i < count && this.begin[i] <= to) {
      if (is_wide(i)) {
        rectangle(i, x_of(this.begin[i]), x_of(this.end[i]));
        ++i;
        continue;
      }
      const x = Math.floor(x_of(this.begin[i]));
      // The first task past this column; rounding must not stop the loop.
      let next = Math.max(lower_bound(this.begin, from + (x + 1) / scale, i, count), i + 1);
      if (next - 1 > i && is_wide(next - 1)) --next;  // it only starts here
      let [most, total, kind] = [-1, 0, 0];
      for (let k = 0; k < this.busy.length; ++k) {
        const time = this.busy[k][next] - this.busy[k][i];
        total += time;
        if (time > most) [most, kind] = [time, k];
      }
      column(x, Math.min(total * scale, 1), kind);
      i = next;
    }
  }
}

// A lane per stream with tasks, rank by rank.
function make_lanes(timeline, kind_of, num_kinds) {
  const lanes = [];
  for (const rank of timeline.ranks) {
    const by_stream = rank.streams.map(() => []);
    rank.stream.forEach((stream, task) => by_stream[stream].push(task));
    by_stream.forEach((tasks, stream) => {
      if (tasks.length > 0) lanes.push(new Lane(rank, stream, tasks, kind_of, num_kinds));
    });
  }
  return lanes;
}

// Device work that belongs to no task, as tasks of a separate stream per rank.
function with_work_of_no_task(timeline) {
  const ranks = timeline.ranks.map((rank) => {
    const {task, name, start_ns, duration_ns} = rank.kernels;
    const foreign = [];
    task.forEach((one, kernel) => one < 0 && foreign.push(kernel));
    if (foreign.length === 0) return rank;
    const extended = {...rank, streams: [...rank.streams, {name: 'no task', kind: 'no-task'}], names: [...rank.names, ...rank.kernel_names]};
    const values = {stream: () => rank.streams.length, name: (kernel) => rank.names.length + name[kernel],
      start_ns: (kernel) => start_ns[kernel], duration_ns: (kernel) => duration_ns[kernel], bytes: () => 0};
    for (const column of kTaskColumns) {
      const more = foreign.map(values[column] ?? (() => -1));
      extended[column] = new Float64Array(rank[column].length + more.length);
      extended[column].set(rank[column]);
      extended[column].set(more, rank[column].length);
    }
    return extended;
  });
  return {...timeline, ranks};
}

// Indices of the kernels of each task, in a sparse array.
function kernels_by_task(rank) {
  const by_task = [];
  rank.kernels.task.forEach((task, kernel) => {
    if (task >= 0) (by_task[task] ??= []).push(kernel);
  });
  return by_task;
}
