// Columns of integers in the format of packed_column.h: a list, {delta} or {runs}.

// {length} numbers, with number(i) at index i. Float64Array.from is many times slower.
function numbers(length, number, type = Float64Array) {
  const values = new type(length);
  for (let i = 0; i < length; ++i) values[i] = number(i);
  return values;
}

function unpack(column) {
  if (Array.isArray(column)) return new Float64Array(column);
  if (column.delta) {
    let value = 0;
    return numbers(column.delta.length, (i) => value += column.delta[i]);
  }
  const {runs} = column;
  let count = 0;
  for (let i = 1; i < runs.length; i += 2) count += runs[i];
  const values = new Float64Array(count);
  for (let i = 0, at = 0; i < runs.length; at += runs[i + 1], i += 2) values.fill(runs[i], at, at + runs[i + 1]);
  return values;
}

const kNewTaskColumns = ['wait_ns'];  // older reports lack these
const kTaskColumns = ['stream', 'name', 'start_ns', 'duration_ns', 'phase', 'microbatch', 'virtual_stage', 'layer', 'bytes', 'group'];

function unpack_columns(packed, names) {
  return Object.fromEntries(names.map((name) => [name, unpack(packed[name])]));
}

// By rank: "rank 8, stage 2" if the table of stages contains it and there are several stages, otherwise "rank 8".
function rank_names({columns, rows}) {
  const [rank, stage] = ['rank', 'stage'].map((name) => columns.indexOf(name));
  const stages = new Map(rows.length > 1 && stage >= 0 ? rows.map((row) => [Number(row[rank]), row[stage]]) : []);
  return (number) => stages.has(number) ? `rank ${number}, stage ${stages.get(number)}` : `rank ${number}`;
}

// A run of the page with all its columns as arrays.
function unpack_run({data, timeline, schedule}) {
  const title_of = rank_names(data.layout);
  const ranks = timeline.ranks.map((rank) => ({...rank, title: title_of(rank.rank), ...unpack_columns(rank, [...kTaskColumns, ...kNewTaskColumns.filter((name) => rank[name])]),
    kernels: unpack_columns(rank.kernels, ['task', 'name', 'start_ns', 'duration_ns'])}));
  const memory_over_time = data.memory_over_time.map((curve) => ({...curve, title: title_of(curve.rank), time_ns: unpack(curve.time_ns),
    classes: curve.classes.map(({name, bytes}) => ({name, bytes: unpack(bytes)}))}));
  return {data: {...data, memory_over_time}, timeline: {...timeline, ranks}, schedule};
}
