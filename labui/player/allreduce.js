// An allreduce: rows are ranks, columns are chunks, messages are arcs in a gutter on the left.
// A cell is [rank, chunk, count, parts, values]: how many ranks' parts its sum contains, which (bits,
// in hexadecimal), and its first values. A message is [src, dst, chunks, op, payload].

const STRIP_RANKS = 32; // above, a slice of a cell would be thinner than a pixel
FIGURES.allreduce = (stage, data, width) => {
  const { ranks, chunks, longest, start } = data.scene;
  const wide = width > 520;
  const label = wide ? 36 : 22;
  const gutter = ranks === 1 ? 0 : wide ? 118 : Math.max(15, Math.min(64, width - label - 20 * chunks));
  const room = (width - label - gutter - 1) / chunks;
  const needed = 18 + 8.6 * longest; // a cell that shows all of its values, and how many are in it
  const valued = room >= needed;
  const cell = Math.min(room, valued ? Math.max(needed + 34, 90) : 56);
  const row = valued ? 40 : Math.max(8, Math.min(cell < 14 ? cell : Math.max(cell, 27), ranks > 20 ? 20 : 29));
  const left = gutter + label;
  const top = 26;
  const gap = cell < 14 ? 0.5 : 1.5;
  const height = top + ranks * row + 4;
  const figure = svgElement("svg", { width, height, viewBox: `0 0 ${width} ${height}` });
  const below = svgElement("g");
  const cells = new Map();
  const names = [];
  stage.append(figure);
  figure.append(below);

  for (let chunk = 0; chunk < chunks; chunk += 1) {
    if (cell < 19 && chunk % 8) continue;
    figure.append(svgElement("text", {
      class: "label", x: left + (chunk + 0.5) * cell, y: top - 8, "text-anchor": "middle",
    }, chunks === 1 ? "whole vector" : chunk));
  }
  for (let rank = 0; rank < ranks; rank += 1) {
    const name = svgElement("text", {
      class: "label", x: left - 5, y: top + (rank + 0.5) * row + 5, "text-anchor": "end",
    }, row < 13 && rank % 8 ? "" : wide ? `R${rank}` : rank);
    names.push(name);
    figure.append(name);
  }
  for (const [rank, chunk] of start) {
    const group = svgElement("g", {
      class: "cell", transform: `translate(${left + chunk * cell},${top + rank * row})`,
    });
    group.append(svgElement("rect", {
      class: "ground", x: gap, y: gap, width: cell - 2 * gap, height: row - 2 * gap, rx: cell < 14 ? 0 : 3,
    }));
    cells.set(rank * chunks + chunk, group);
    figure.append(group);
  }
  const above = svgElement("g");
  figure.append(above);

  const stateAt = (at) => {
    const state = new Map(start.map((each) => [each[0] * chunks + each[1], each]));
    for (let i = 1; i <= at; i += 1) {
      for (const each of data.frames[i].cells) state.set(each[0] * chunks + each[1], each);
    }
    return state;
  };

  const fill = (group, [rank, chunk, count, parts, values], mark = "", hidden = false) => {
    const done = count === ranks && !hidden;
    group.setAttribute("class", `cell ${done ? "done" : ""} ${mark}`);
    group.replaceChildren(group.firstChild);
    const share = ranks === 1 ? 0 : (100 * (count - 1)) / (ranks - 1);
    group.firstChild.style.fill = done ? "" : `color-mix(in srgb, #4a90d9 ${Math.round(0.62 * share)}%, var(--empty))`;
    const say = (text, x, more = {}) => group.append(
      svgElement("text", { x, y: row / 2 + (valued ? 2 : cell >= 14 && row >= 24 ? 3 : 5), "font-size": 14, ...more }, text));
    if (hidden) say("?", cell / 2, { "font-weight": 700 });
    else if (valued) {
      const text = values.map(shown).join("\u2002");
      say(done ? "✓" : `${count}/${ranks}`, 7, { class: "share" });
      say(text, cell / 2 + 14, { "font-size": 15, "font-weight": 600 });
    } else if (cell >= 19) say(done ? "✓" : count, cell / 2);
    if (!done && !hidden && ranks <= STRIP_RANKS && cell >= 14) {
      const bits = BigInt(`0x${parts}`);
      const slice = (cell - 2 * gap - 4) / ranks;
      for (let r = 0; r < ranks; r += 1) {
        if (!((bits >> BigInt(r)) & 1n)) continue;
        const bar = svgElement("rect", {
          x: gap + 2 + r * slice, y: row - gap - (valued ? 8 : 6), width: Math.max(slice - 0.3, 1.2), height: valued ? 6 : 5,
        });
        bar.style.fill = rankColor(r, ranks, data.dark);
        group.append(bar);
      }
    }
    group.append(svgElement("title", {}, `Rank ${rank}, chunk ${chunk}: the sum of ${count} of ${ranks} ranks; ${values.map(shown).join(", ")}`));
  };

  const middle = (rank) => top + (rank + 0.5) * row;
  const path = ([src, dst]) => {
    const depth = Math.min(gutter - 6, 12 + ((gutter - 18) * (Math.abs(src - dst) - 0.5)) / Math.max(ranks - 1, 1)) * 1.3;
    const x = gutter - 2;
    const skew = src < dst ? -2 : 2;
    return `M${x},${middle(src) - skew} C${x - depth},${middle(src)} ${x - depth},${middle(dst)} ${x - 4},${middle(dst) + skew}`;
  };

  const arcs = (messages) => {
    below.replaceChildren();
    above.replaceChildren();
    const drawn = messages.map((message, i) => {
      const told = i === 0 ? `told-${message[3] === "copy" ? "copy" : "add"}` : "";
      const arc = svgElement("path", { class: `arc ${told}`, d: path(message) });
      const y = middle(message[1]) + (message[0] < message[1] ? -2 : 2);
      const head = svgElement("path", { class: `head ${told}`, d: `M${gutter + 4},${y} l-9,-4.5 v9 z` });
      (i === 0 ? above : below).append(arc, head);
      return [arc, told];
    });
    names.forEach((name, rank) => name.classList.toggle("on", messages.length > 0 && messages[0].slice(0, 2).includes(rank)));
    if (messages.length && wide) {
      const [, , , op, payload] = messages[0];
      above.append(svgElement("text", { class: "label on", x: 2, y: top - 8 }, `${messages.length} × ${payload}`));
      const arc = drawn[0][0];
      const point = arc.getPointAtLength(arc.getTotalLength() / 2);
      const text = op === "copy" ? "copy" : "add";
      const half = 22;
      const x = Math.max(half + 1, point.x - 10);
      const tag = svgElement("g", { class: `payload ${drawn[0][1]}` });
      tag.append(
        svgElement("rect", { x: x - half, y: point.y - 10, width: 2 * half, height: 20, rx: 10 }),
        svgElement("text", { x, y: point.y + 5 }, text),
      );
      above.append(tag);
    }
    return drawn;
  };

  let drawn = [];
  const paint = (at, marked, hidden = null) => {
    const state = stateAt(at);
    for (const [place, each] of state) fill(cells.get(place), each, marked.get(place) ?? "", place === hidden);
  };
  return {
    draw(at) {
      const { messages = [], cells: changed = [] } = data.frames[at];
      const copied = new Set(messages.filter((m) => m[3] === "copy").flatMap((m) => m[2].map((c) => m[1] * chunks + c)));
      const marks = changed.map(([rank, chunk]) => {
        const place = rank * chunks + chunk;
        return [place, copied.has(place) ? "changed copied" : "changed"];
      });
      paint(at, new Map(marks));
      drawn = arcs(messages);
    },
    depart(at, asks = false) {
      const { messages } = data.frames[at];
      paint(at - 1, new Map(), asks ? messages[0][1] * chunks + messages[0][2][0] : null);
      drawn = arcs(messages);
    },
    travel(at, ms) {
      for (const [arc, told] of drawn) {
        const dot = svgElement("circle", { class: `dot ${told}`, r: told ? 6 : 4 });
        const motion = dot.animate(
          [{ offsetDistance: "0%" }, { offsetDistance: "100%" }], { duration: ms, easing: "ease-in-out" });
        dot.style.offsetPath = `path("${arc.getAttribute("d")}")`;
        motion.onfinish = () => dot.remove();
        above.append(dot);
      }
    },
    table(at) {
      const state = stateAt(at);
      const head = ["Rank", ...Array.from({ length: chunks }, (_, c) => (chunks === 1 ? "vector" : `chunk ${c}`))];
      const rows = Array.from({ length: ranks }, (_, r) => [
        `R${r}`,
        ...Array.from({ length: chunks }, (_, c) => {
          const [, , count, , values] = state.get(r * chunks + c);
          return `${values.map(shown).join(", ") || "empty"} (${count}/${ranks})`;
        }),
      ]);
      return [head, ...rows];
    },
  };
};
