// The page, from top to bottom.

function make_page() {
  const parse = (id) => JSON.parse(document.getElementById(id).textContent);
  const [data, timeline] = [parse('data'), parse('timeline-data')];
  const [loss, chart] = make_loss(data);
  const [timeline_card, view] = make_timeline(timeline);
  document.getElementById('report').append(
    make_header(data), make_tiles(data),
    element('div', {class: 'two'}, loss, make_speed(data)),
    timeline_card,
    element('div', {class: 'two half'}, make_exposure(data.ranks, timeline), make_memory(data.memory)),
    make_passes(data.passes), make_config(data.config), element('footer', {}, 'Made by braid. Everything on this page is in this file.'));
  document.body.append(tooltip.node);
  return {view, chart};
}

const parts = make_page();
if (location.hash === '#selfcheck') selfcheck(parts);
