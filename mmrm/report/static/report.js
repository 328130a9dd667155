'use strict';
// Tabs, colours and charts. Texts go in as text, never as HTML.
(() => {
  const byId = (id) => document.getElementById(id);
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const make = (tag, properties = {}, ...children) => {
    const node = Object.assign(document.createElement(tag), properties);
    node.append(...children);
    return node;
  };
  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const data = JSON.parse(byId('data').textContent);
  let printing = false;

  // ------------------------------------------------------------------------------------------------------- colours
  const themes = ['auto', 'light', 'dark'];
  const system = matchMedia('(prefers-color-scheme: dark)');
  let theme = 'auto';
  try { theme = localStorage.getItem('mmrm-report-theme') || 'auto'; } catch (error) { /* a file may have no storage */ }
  const isDark = () => !printing && (theme === 'dark' || (theme === 'auto' && system.matches));
  const colourOf = (pair) => pair[isDark() ? 1 : 0];
  const applyTheme = () => {
    if (theme === 'auto') delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    byId('theme').textContent = `Colours: ${theme}`;
  };
  byId('theme').addEventListener('click', () => {
    theme = themes[(themes.indexOf(theme) + 1) % themes.length];
    try { localStorage.setItem('mmrm-report-theme', theme); } catch (error) { /* not kept, then */ }
    applyTheme();
    redraw();
  });
  if (!themes.includes(theme)) theme = 'auto';
  applyTheme();
  system.addEventListener('change', () => redraw());

  // ---------------------------------------------------------------------------------------------------------- tabs
  const tabs = all('[role="tab"]');
  const panels = all('[role="tabpanel"]');
  const select = (tab, focus) => {
    for (const each of tabs) {
      const on = each === tab;
      each.setAttribute('aria-selected', String(on));
      each.tabIndex = on ? 0 : -1;
      byId(each.getAttribute('aria-controls')).hidden = !on;
    }
    if (focus) tab.focus();
    try { history.replaceState(null, '', `${location.search}#${tab.id.slice(4)}`); } catch (error) { /* some viewers refuse */ }
    drawVisible();
  };
  tabs.forEach((tab, index) => {
    tab.addEventListener('click', () => select(tab, false));
    tab.addEventListener('keydown', (event) => {
      const move = { ArrowRight: index + 1, ArrowLeft: index - 1 + tabs.length, Home: 0, End: tabs.length - 1 }[event.key];
      if (move === undefined) return;
      event.preventDefault();
      select(tabs[move % tabs.length], true);
    });
  });

  // -------------------------------------------------------------------------------------------------------- numbers
  const show = (value) => {
    if (value === null || value === undefined) return '–';
    const size = Math.abs(value);
    if (size !== 0 && (size < 0.001 || size >= 1e7)) return value.toExponential(3);
    return String(Number(value.toPrecision(6)));
  };
  const axisNumber = (value) => {
    const size = Math.abs(value);
    if (size !== 0 && (size < 0.001 || size >= 1e6)) return value.toExponential(0);
    return String(Number(value.toPrecision(4)));
  };
  const smooth = (values, weight) => {
    if (!weight) return values;
    let mean = 0; let share = 0;
    return values.map((value) => {
      if (value === null || value === undefined) return value;
      mean = mean * weight + value * (1 - weight);
      share = share * weight + (1 - weight);
      return mean / share;
    });
  };

  // --------------------------------------------------------------------------------------------------------- state
  const state = { hidden: {}, seeds: 'mean', smoothing: 0, log: {}, whole: {}, zoom: {} };
  const plots = new Map(); // chart id -> { node, plot, task, chart, series }
  let zooming = false;

  // The lines of a chart: what is drawn for each group, aligned by x.
  const linesOf = (task, chart) => {
    const tables = []; const lines = [];
    const hidden = state.hidden[task.id] || new Set();
    const weight = chart.part === 'train' ? state.smoothing : 0;
    const add = (line, x, columns) => {
      if (!x.length) return;
      tables.push([x, ...columns]);
      lines.push({ ...line, columns: columns.length });
    };
    task.groups.forEach((group, index) => {
      if (hidden.has(index)) return;
      const paper = (chart.papers || []).find((each) => each.group === index);
      const members = task.runs.filter((run) => run.group === index);
      chart.keys.forEach((key, nth) => {
        const found = members.filter((run) => run[chart.part].keys[key]);
        const dotted = nth > 0;
        const name = dotted ? `${group.name}, bound` : group.name;
        if (found.length > 1 && state.seeds === 'mean') {
          const sums = new Map();
          found.forEach((run) => {
            const values = smooth(run[chart.part].keys[key].y, weight);
            run[chart.part].x.forEach((x, i) => {
              if (values[i] === null || values[i] === undefined) return;
              const entry = sums.get(x) || sums.set(x, []).get(x);
              entry.push(values[i]);
            });
          });
          const x = [...sums.keys()].sort((a, b) => a - b);
          const mean = []; const low = []; const high = []; const counts = [];
          x.forEach((at) => {
            const values = sums.get(at);
            const middle = values.reduce((a, b) => a + b, 0) / values.length;
            const spread = values.length > 1
              ? Math.sqrt(values.reduce((sum, v) => sum + (v - middle) ** 2, 0) / (values.length - 1)) : 0;
            mean.push(middle); low.push(middle - spread); high.push(middle + spread); counts.push(values.length);
          });
          const byX = new Map(x.map((at, i) => [at, `± ${show(Number((high[i] - mean[i]).toPrecision(3)))}, n = ${counts[i]}`]));
          add({ label: name, colour: group.colour, band: true, dotted, extra: byX }, x, [mean, low, high]);
        } else {
          found.forEach((run) => {
            const curve = run[chart.part].keys[key];
            const label = found.length > 1 ? `${name}, seed ${run.seed === null ? '?' : run.seed}` : name;
            const columns = [smooth(curve.y, weight)];
            if (curve.low && found.length === 1 && !weight) columns.push(curve.low, curve.high);
            add({ label, colour: group.colour, band: columns.length > 1, dotted, thin: found.length > 1 }, run[chart.part].x, columns);
          });
        }
      });
      if (paper && members.some((run) => run.val.x.length)) {
        const every = task.runs.flatMap((run) => run.val.x);
        const ends = [Math.min(...every), Math.max(...every)];
        if (ends[0] === ends[1]) ends[0] -= 1;
        add({ label: `paper: ${group.name}`, colour: group.colour, dash: true, quiet: true, constant: paper.value }, ends, [[paper.value, paper.value]]);
      }
    });
    return { tables, lines };
  };

  const draw = (entry) => {
    const { node, task, chart } = entry;
    const width = Math.max(node.clientWidth, 200);
    const height = node.closest('.wide') && width > 640 ? 320 : 220;
    const { tables, lines } = linesOf(task, chart);
    if (entry.plot) { entry.plot.destroy(); entry.plot = null; }
    all('.nothing', node).forEach((each) => each.remove());
    if (!tables.length) {
      node.append(make('p', { className: 'hint nothing', textContent: 'Nothing to draw: all runs are hidden or have no value.' }));
      return;
    }
    const joined = tables.length > 1 ? uPlot.join(tables) : tables[0];
    const log = Boolean(state.log[chart.id]);
    const series = [{ label: task.unit }];
    const bands = [];
    entry.lines = [];
    lines.forEach((line) => {
      const colour = colourOf(line.colour);
      const at = series.length;
      series.push({
        label: line.label, stroke: colour, width: line.quiet ? 1.2 : line.thin ? 1.2 : 1.8, spanGaps: true,
        dash: line.dash ? [7, 5] : line.dotted ? [2, 4] : undefined,
        points: { show: !line.quiet && chart.part === 'val' && joined[0].length <= 60, size: 5, fill: colour },
      });
      entry.lines.push({ ...line, at });
      if (line.band) {
        const edge = { spanGaps: true, stroke: 'transparent', width: 0, points: { show: false } };
        series.push({ ...edge, label: 'low' }, { ...edge, label: 'high' });
        bands.push({ series: [at + 2, at + 1], fill: `${colour}2e` });
      }
    });
    // A logarithm has no place for what is not above 0.
    const values = log ? joined.map((column, i) => (i ? column.map((v) => (v > 0 ? v : null)) : column)) : joined;
    const soft = style('--soft'); const grid = style('--grid');
    const axis = {
      stroke: soft, grid: { stroke: grid, width: 1 }, ticks: { stroke: grid, width: 1, size: 4 },
      font: '11.5px system-ui, sans-serif', labelFont: '11.5px system-ui, sans-serif',
    };
    entry.plot = new uPlot({
      width, height, series, bands,
      scales: {
        x: { time: false, range: (u, min, max) => (min === max ? [min - 1, max + 1] : [min, max]) },
        y: { distr: log ? 3 : 1, auto: true, ...(log || state.whole[chart.id] ? {} : { range: late(entry, chart) }) },
      },
      axes: [
        { ...axis, size: 28, label: task.unit, labelSize: 16, labelGap: 0, space: 60, values: (u, splits) => splits.map((v) => (v === null ? '' : axisNumber(v))) },
        { ...axis, size: 54, values: (u, splits) => splits.map((v) => (v === null || v === undefined ? '' : axisNumber(v))) },
      ],
      cursor: { sync: { key: `${task.id}` }, drag: { x: true, y: false }, points: { size: 7 }, focus: { prox: 24 } },
      focus: { alpha: 1 },
      legend: { show: false },
      padding: [10, 18, 0, 0],
      hooks: {
        setCursor: [(u) => tip(entry, u)],
        setScale: [(u, key) => {
          if (key !== 'x' || zooming) return;
          zooming = true;
          const { min, max } = u.scales.x;
          const full = u.data[0];
          const whole = min <= full[0] && max >= full[full.length - 1];
          state.zoom[task.id] = whole ? null : [min, max];
          plots.forEach((other) => {
            if (other !== entry && other.plot && other.task.id === task.id) zoom(other);
          });
          zooming = false;
        }],
      },
    }, values, node);
    if (state.zoom[task.id]) { zooming = true; zoom(entry); zooming = false; }
    entry.plot.over.addEventListener('mouseleave', () => { entry.tip.style.display = 'none'; });
    entry.drawn = { width, dark: isDark() };
  };

  // A validation curve begins far from where the differences are: its first quarter does not stretch the scale.
  const late = (entry, chart) => (u, low, high) => {
    const x = u.data[0];
    if (chart.part !== 'val' || state.zoom[entry.task.id] || x.length <= 12) return uPlot.rangeNum(low, high, 0.08, true);
    const from = x[0] + (x[x.length - 1] - x[0]) / 4;
    let least = Infinity; let most = -Infinity;
    u.data.slice(1).forEach((column) => column.forEach((value, i) => {
      if (value === null || value === undefined || x[i] < from) return;
      least = Math.min(least, value); most = Math.max(most, value);
    }));
    return least < most ? uPlot.rangeNum(least, most, 0.08, true) : uPlot.rangeNum(low, high, 0.08, true);
  };

  const zoom = (entry) => {
    const wanted = state.zoom[entry.task.id];
    const x = entry.plot.data[0];
    entry.plot.setScale('x', wanted ? { min: wanted[0], max: wanted[1] } : { min: x[0], max: x[x.length - 1] });
  };

  // What stands under the cursor: the nearest value of every line, the one next to the pointer in bold.
  const tip = (entry, u) => {
    const box = entry.tip;
    const { left, top, idx } = u.cursor;
    const own = u.cursor.event || entry.keyboard;
    if (left === null || left < 0 || idx === null || idx === undefined || !own) { box.style.display = 'none'; return; }
    const x = u.data[0];
    const rows = [];
    entry.lines.forEach((line) => {
      const column = u.data[line.at];
      if (line.constant !== undefined) {
        rows.push({ line, at: x[idx], value: line.constant });
        return;
      }
      const reach = (u.scales.x.max - u.scales.x.min) / 25;
      for (let away = 0; away < x.length; away += 1) {
        const hit = [idx - away, idx + away].find((i) => i >= 0 && i < x.length && column[i] !== null && column[i] !== undefined);
        if (hit !== undefined) {
          if (Math.abs(x[hit] - x[idx]) <= reach) rows.push({ line, at: x[hit], value: column[hit] });
          break;
        }
        if (idx - away < 0 && idx + away >= x.length) break;
      }
    });
    if (!rows.length) { box.style.display = 'none'; return; }
    rows.sort((a, b) => b.value - a.value);
    let nearest = null;
    rows.forEach((row) => {
      row.distance = Math.abs(u.valToPos(row.value, 'y') - top);
      if (!row.line.quiet && (!nearest || row.distance < nearest.distance)) nearest = row;
    });
    const shown = rows.length > 12 ? rows.slice().sort((a, b) => a.distance - b.distance).slice(0, 12).sort((a, b) => b.value - a.value) : rows;
    const at = nearest ? nearest.at : x[idx];
    box.replaceChildren(make('b', { textContent: `${entry.task.unit} ${show(Number(at.toPrecision(5)))}` }), ...shown.map((row) => {
      const mark = make('i');
      mark.style.background = colourOf(row.line.colour);
      const extra = row.line.extra && row.line.extra.get(row.at);
      const text = show(extra ? Number(row.value.toPrecision(5)) : row.value);
      return make('div', { className: row === nearest ? 'near' : '' }, mark, make('span', { textContent: row.line.label }), make('em', { textContent: extra ? `${text} ${extra}` : text }));
    }), ...(rows.length > shown.length ? [make('small', { textContent: `${rows.length - shown.length} more` })] : []));
    box.style.display = 'block';
    const area = u.over; const room = entry.node.clientWidth;
    let place = area.offsetLeft + left + 16;
    if (place + box.offsetWidth > room) place = area.offsetLeft + left - box.offsetWidth - 16;
    box.style.left = `${Math.max(Math.min(place, room - box.offsetWidth), 0)}px`;
    box.style.top = `${Math.max(area.offsetTop + Math.min(top, area.clientHeight - box.offsetHeight) - 4, 0)}px`;
  };

  // Read values with the arrow keys.
  const walk = (entry, event) => {
    const u = entry.plot;
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!u || !step) { if (event.key === 'Escape') entry.tip.style.display = 'none'; return; }
    event.preventDefault();
    const x = u.data[0];
    const valueAt = (i) => entry.lines.filter((line) => !line.quiet).map((line) => u.data[line.at][i]).find((v) => v !== null && v !== undefined);
    let at = u.cursor.idx === null || u.cursor.idx === undefined ? (step > 0 ? -1 : x.length) : u.cursor.idx;
    do { at += step; } while (at >= 0 && at < x.length && valueAt(at) === undefined);
    if (at < 0 || at >= x.length) return;
    entry.keyboard = true;
    u.setCursor({ left: u.valToPos(x[at], 'x'), top: u.valToPos(valueAt(at), 'y') });
    entry.keyboard = false;
  };

  // ------------------------------------------------------------------------------------------------- building charts
  const watcher = 'IntersectionObserver' in window ? new IntersectionObserver((seen) => {
    seen.forEach((each) => {
      const entry = plots.get(each.target.dataset.chart);
      if (entry) { entry.visible = each.isIntersecting; if (each.isIntersecting) refresh(entry); }
    });
  }, { rootMargin: '300px' }) : null;
  const refresh = (entry) => {
    if (!entry.node.clientWidth) return;
    const stale = !entry.plot || entry.stale || entry.drawn.dark !== isDark();
    if (stale) { draw(entry); entry.stale = false; return; }
    if (Math.abs(entry.drawn.width - entry.node.clientWidth) > 2) draw(entry);
  };
  const drawVisible = () => plots.forEach((entry) => { if (entry.visible || !watcher) refresh(entry); });
  const redraw = () => { plots.forEach((entry) => { entry.stale = true; }); drawVisible(); };

  const build = () => {
    plots.forEach((entry) => { if (entry.plot) entry.plot.destroy(); if (watcher) watcher.unobserve(entry.node); });
    plots.clear();
    data.tasks.forEach((task) => {
      const legend = all('[data-legend]').find((each) => each.dataset.legend === task.id);
      const place = all('[data-charts]').find((each) => each.dataset.charts === task.id);
      if (!legend || !place) return;
      const hidden = state.hidden[task.id] || (state.hidden[task.id] = new Set());
      legend.replaceChildren(...task.groups.map((group, index) => {
        const mark = make('i');
        const button = make('button', { type: 'button', title: 'Show or hide; double-click shows this one alone' }, mark, group.name);
        const paint = () => {
          mark.style.background = colourOf(group.colour);
          button.setAttribute('aria-pressed', String(!hidden.has(index)));
        };
        button.paint = paint;
        button.addEventListener('click', () => {
          if (hidden.has(index)) hidden.delete(index); else hidden.add(index);
          paint(); redrawTask(task.id);
        });
        button.addEventListener('dblclick', () => {
          const alone = task.groups.every((_, i) => i === index || hidden.has(i));
          task.groups.forEach((_, i) => { if (alone || i === index) hidden.delete(i); else hidden.add(i); });
          all('button', legend).forEach((each) => each.paint());
          redrawTask(task.id);
        });
        paint();
        return button;
      }));
      const children = [];
      task.charts.forEach((chart) => {
        const log = make('button', { type: 'button', textContent: 'log' });
        log.setAttribute('aria-pressed', String(Boolean(state.log[chart.id])));
        const long = chart.part === 'val' && task.runs.some((run) => run.val.x.length > 12);
        const whole = make('button', { type: 'button', textContent: 'whole range', hidden: !long });
        whole.setAttribute('aria-pressed', String(Boolean(state.whole[chart.id])));
        whole.setAttribute('aria-label', `show the first quarter of ${chart.title} too`);
        log.setAttribute('aria-label', `logarithmic scale for ${chart.title}`);
        const node = make('div', { className: 'plot', tabIndex: 0 });
        node.setAttribute('role', 'img');
        node.setAttribute('aria-label', `${chart.title} over ${task.unit}s; the arrow keys read values`);
        node.dataset.chart = chart.id;
        const box = make('div', { className: 'tip' });
        node.append(box);
        const caption = make('figcaption', {}, make('span', {}, make('small', { textContent: chart.section }), chart.title), make('span', { className: 'buttons' }, whole, log));
        const figure = make('figure', { className: chart.papers ? 'chart wide' : 'chart' }, caption, node);
        const entry = { node, task, chart, tip: box, plot: null, stale: true, visible: false };
        log.addEventListener('click', () => {
          state.log[chart.id] = !state.log[chart.id];
          log.setAttribute('aria-pressed', String(state.log[chart.id]));
          draw(entry);
        });
        whole.addEventListener('click', () => {
          state.whole[chart.id] = !state.whole[chart.id];
          whole.setAttribute('aria-pressed', String(state.whole[chart.id]));
          draw(entry);
        });
        node.addEventListener('keydown', (event) => walk(entry, event));
        node.addEventListener('blur', () => { box.style.display = 'none'; });
        plots.set(chart.id, entry);
        children.push(figure);
      });
      place.replaceChildren(...children);
      plots.forEach((entry) => { if (watcher && entry.task === task) watcher.observe(entry.node); });
    });
    drawVisible();
  };
  const redrawTask = (id) => plots.forEach((entry) => {
    if (entry.task.id !== id) return;
    entry.stale = true;
    if (entry.visible || !watcher) refresh(entry);
  });
  const repaintLegends = () => all('.legend button').forEach((each) => each.paint && each.paint());
  byId('theme').addEventListener('click', repaintLegends);
  system.addEventListener('change', repaintLegends);

  all('[data-seeds]').forEach((button) => button.addEventListener('click', () => {
    state.seeds = button.dataset.seeds;
    all('[data-seeds]').forEach((each) => each.setAttribute('aria-pressed', String(each === button)));
    redraw();
  }));
  byId('smoothing').addEventListener('input', (event) => {
    state.smoothing = Number(event.target.value);
    byId('smoothing-value').textContent = state.smoothing ? state.smoothing.toFixed(2) : 'off';
    redraw();
  });
  byId('reset').addEventListener('click', () => {
    state.zoom = {};
    zooming = true;
    plots.forEach((entry) => { if (entry.plot) zoom(entry); });
    zooming = false;
  });
  let resizing = 0;
  addEventListener('resize', () => { clearTimeout(resizing); resizing = setTimeout(drawVisible, 120); });
  addEventListener('beforeprint', () => {
    printing = true;
    panels.forEach((panel) => { panel.dataset.was = panel.hidden ? 'hidden' : ''; panel.hidden = false; });
    plots.forEach((entry) => draw(entry));
  });
  addEventListener('afterprint', () => {
    printing = false;
    panels.forEach((panel) => { panel.hidden = panel.dataset.was === 'hidden'; });
    redraw();
  });

  // The reference of a comparison.
  document.addEventListener('change', (event) => {
    const chosen = event.target.dataset && event.target.dataset.reference;
    if (!chosen) return;
    state.reference = { ...state.reference, [chosen]: event.target.value };
    pickReferences();
  });
  const pickReferences = () => all('[data-reference]').forEach((choice) => {
    const wanted = (state.reference || {})[choice.dataset.reference];
    if (wanted !== undefined && wanted < choice.options.length) choice.value = wanted;
    all('.reference').filter((each) => each.dataset.of === choice.dataset.reference)
      .forEach((each) => { each.hidden = each.dataset.index !== choice.value; });
  });

  const asked = tabs.find((tab) => tab.id === `tab-${location.hash.slice(1)}`);
  panels.forEach((panel) => { panel.hidden = true; });
  build();
  select(asked || tabs[0], false);
})();
