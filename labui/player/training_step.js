// A training step: a card per replica with the chosen parameter and its gradient, as heat maps or,
// where they are few and have room, as numbers on the colours of the map. A frame says which of the
// scene's views each replica holds; null is a tensor that is not there.

const NEGATIVE = [0, 114, 178];
const POSITIVE = [213, 94, 0];
const TALLEST_CARDS = 400; // so that controls, sentence and figure fit on a projector
const LISTED = 20; // most values that are written out

FIGURES.training_step = (stage, data, width) => {
  const { ranks, parameter, window: part, views, scales } = data.scene;
  const [rows, columns] = [views[0].values.length, views[0].values[0].length];
  const wide = width > 520;
  const across = Math.min(ranks, wide ? 4 : ranks > 6 ? 3 : 2);
  const down = Math.ceil(ranks / across);
  const gap = 6;
  const card = Math.min(330, (width - gap * (across - 1)) / across);
  const inner = card - 14;
  const head = 38;
  const caption = 17;
  const listed = rows === 1 && columns <= LISTED && down === 1 && inner >= 130;
  const budget = TALLEST_CARDS / (wide ? down : Math.min(down, 3.2)) - head - 8;

  // Where the two maps of a card lie: [x, y, width, height], under a caption each.
  const plan = () => {
    if (listed) {
      const high = Math.min(24, (budget - caption) / columns) * columns;
      const half = (inner - 22 - 4) / 2;
      return [[22, caption, half, high], [22 + half + 4, caption, half, high]];
    }
    const fit = (roomWide, roomHigh) => {
      const w = Math.min(roomWide / columns, 22);
      const h = rows === 1 ? Math.min(roomHigh, 34) : Math.min(roomHigh / rows, w);
      return rows === 1 ? [w * columns, h] : [h * columns, h * rows];
    };
    const stacked = fit(inner, budget / 2 - caption);
    const beside = fit((inner - 8) / 2, budget - caption);
    if (stacked[0] * stacked[1] > beside[0] * beside[1]) {
      return [[0, caption, ...stacked], [0, 2 * caption + stacked[1] + 3, ...stacked]];
    }
    return [[0, caption, ...beside], [inner / 2 + 4, caption, ...beside]];
  };
  const places = plan();
  const [, lowest, , tallest] = places[1];
  const cardHigh = head + lowest + tallest + 8;
  const whole = part.startsWith("all");
  const legendTop = down * (cardHigh + gap) + 4;
  const legendHigh = (wide ? 20 : 40) + (whole ? 0 : 18);
  const height = legendTop + legendHigh;
  const names = [parameter, places[1][2] < 53 ? "grad." : "gradient"];

  const brief = (value) => {
    if (value === null) return "not finite";
    if (value === 0) return "0";
    const size = Math.abs(value);
    const text = size >= 1e-2 && size < 1e4 ? Number(value.toPrecision(3)).toString() : value.toExponential(1);
    return text.replace("e+", "e").replaceAll("-", "−");
  };
  const color = (value, scale) => {
    if (value === null) return [90, 90, 90];
    const share = scale ? Math.min(1, Math.abs(value) / scale) : 0;
    return (value < 0 ? NEGATIVE : POSITIVE).map((c) => Math.round(255 + share * (c - 255)));
  };
  const pictures = new Map();
  const picture = (index, kind) => {
    const key = 2 * index + kind;
    if (!pictures.has(key)) {
      const canvas = document.createElement("canvas");
      [canvas.width, canvas.height] = listed ? [rows, columns] : [columns, rows];
      const pen = canvas.getContext("2d");
      const image = pen.createImageData(canvas.width, canvas.height);
      views[index].values.flat().forEach((value, i) => image.data.set([...color(value, scales[kind]), 255], 4 * i));
      pen.putImageData(image, 0, 0);
      pictures.set(key, canvas.toDataURL());
    }
    return pictures.get(key);
  };

  const figure = svgElement("svg", { width, height, viewBox: `0 0 ${width} ${height}` });
  const cards = svgElement("g");
  const fading = svgElement("g");
  const hatch = svgElement("pattern", { id: "step-hatch", width: 7, height: 7, patternUnits: "userSpaceOnUse" });
  hatch.append(svgElement("path", { class: "hatching", d: "M-1,1 l2,-2 M0,7 l7,-7 M6,8 l2,-2" }));
  figure.append(hatch, cards, fading);
  stage.append(figure);

  const legend = (kind, x, y) => {
    const group = svgElement("g", { class: "scale", transform: `translate(${x},${y})` });
    const scale = scales[kind];
    const text = (at, content, more = {}) => svgElement("text", { class: "label", x: at, y: 13, ...more }, content);
    group.append(text(0, kind ? "gradient" : parameter));
    if (!scale) group.append(text(66, "all 0"));
    else {
      const steps = 21;
      for (let i = 0; i < steps; i += 1) {
        const rect = svgElement("rect", { x: 126 + i * 4, y: 3, width: 4.2, height: 12 });
        rect.style.fill = `rgb(${color(((2 * i) / (steps - 1) - 1) * scale, scale).join()})`;
        group.append(rect);
      }
      group.append(text(120, brief(-scale), { "text-anchor": "end" }), text(132 + steps * 4, brief(scale)));
    }
    return group;
  };
  figure.append(legend(0, 0, legendTop), wide ? legend(1, Math.min(width / 2, 330), legendTop) : legend(1, 0, legendTop + 20));
  if (!whole) figure.append(svgElement("text", { class: "label", x: 0, y: height - 4 }, `${parameter}: ${part}`));

  const corner = (rank) => [(rank % across) * (card + gap), Math.floor(rank / across) * (cardHigh + gap)];
  const held = (at, kind) => data.frames[at][kind ? "gradients" : "parameters"];
  const changed = (at, kind, rank) => at > 0 && held(at, kind)[rank] !== held(at - 1, kind)[rank];

  const map = (index, kind, mark) => {
    const [x, y, w, h] = places[kind];
    const group = svgElement("g", { class: `map ${mark}`, transform: `translate(${x},${y})` });
    if (index === null) {
      group.append(
        svgElement("rect", { width: w, height: h, fill: "url(#step-hatch)" }),
        svgElement("rect", { class: "plate", x: w / 2 - 21, y: Math.min(h / 2, 40) - 10, width: 42, height: 20, rx: 4 }),
        svgElement("text", { class: "word", x: w / 2, y: Math.min(h / 2, 40) + 5 }, "None"),
      );
    } else {
      group.append(svgElement("image", {
        width: w, height: h, href: picture(index, kind), preserveAspectRatio: "none", "image-rendering": "pixelated",
      }));
      if (listed) {
        const line = h / columns;
        views[index].values[0].forEach((value, i) => {
          const [red, green, blue] = color(value, scales[kind]);
          const text = svgElement("text", { x: w - 5, y: (i + 0.5) * line + 5, "font-size": 14, "text-anchor": "end" }, brief(value));
          text.style.fill = 0.299 * red + 0.587 * green + 0.114 * blue > 140 ? "#000" : "#fff";
          group.append(text);
        });
      }
      const { norm, minimum, maximum } = views[index];
      group.append(svgElement("title", {}, `norm ${brief(norm)}, from ${brief(minimum)} to ${brief(maximum)}`));
    }
    group.append(svgElement("rect", { class: "edge", width: w, height: h }));
    return group;
  };

  const said = (at, rank, short = inner < 130) => {
    const { rows: shard, losses } = data.frames[at];
    if (!shard) return "";
    const count = `${shard[rank]} row${shard[rank] === 1 ? "" : "s"}`;
    if (!losses || (short && shard[rank] === 0)) return count;
    const loss = losses[rank];
    const text = shard[rank] === 0 ? "no loss" : `loss ${loss !== null && loss < 1e3 ? loss.toPrecision(4) : brief(loss)}`;
    return short ? text : `${count} · ${text}`;
  };

  const draw = (at) => {
    fading.replaceChildren();
    cards.replaceChildren(...Array.from({ length: ranks }, (_, rank) => {
      const [x, y] = corner(rank);
      const group = svgElement("g", { class: "card", transform: `translate(${x},${y})` });
      group.append(
        svgElement("rect", { class: "box", x: 0.5, y: 0.5, width: card - 1, height: cardHigh - 1, rx: 6 }),
        svgElement("text", { class: "name", x: 7, y: 18 }, `Replica ${rank}`),
        svgElement("text", { class: "label", x: 7, y: 35 }, said(at, rank)),
      );
      const body = svgElement("g", { transform: `translate(7,${head})` });
      for (const kind of [0, 1]) {
        const [mapX, mapY] = places[kind];
        body.append(
          svgElement("text", { class: "label", x: mapX, y: mapY - 4 }, names[kind]),
          map(held(at, kind)[rank], kind, changed(at, kind, rank) ? "changed" : ""),
        );
      }
      if (listed) {
        const [, top, , high] = places[0];
        for (let i = 0; i < columns; i += 1) {
          body.append(svgElement("text", { class: "label", x: 17, y: top + ((i + 0.5) * high) / columns + 5, "text-anchor": "end" }, i));
        }
      }
      group.append(body);
      return group;
    }));
  };

  return {
    draw,
    depart: (at) => draw(at - 1),
    // What was there before fades away over what has taken its place.
    travel(at, ms) {
      draw(at);
      for (let rank = 0; rank < ranks; rank += 1) {
        for (const kind of [0, 1]) {
          if (!changed(at, kind, rank)) continue;
          const [x, y] = corner(rank);
          const old = svgElement("g", { transform: `translate(${x + 7},${y + head})` });
          old.append(map(held(at - 1, kind)[rank], kind, ""));
          fading.append(old);
          old.animate([{ opacity: 1 }, { opacity: 0 }], { duration: ms, easing: "ease-in" }).onfinish = () => old.remove();
        }
      }
    },
    table(at) {
      const lines = [];
      const write = (rank, kind, when, index) => {
        const name = `R${rank} ${kind ? `gradient of ${parameter}` : parameter}`;
        if (index === null) { lines.push([name, when, "None"]); return; }
        const { values, norm } = views[index];
        values.forEach((row, i) => lines.push([
          rows > 1 ? `${name}, row ${i}` : name, when, i ? "" : shown(norm), ...row.map((value) => (value === null ? "not finite" : shown(value))),
        ]));
      };
      for (let rank = 0; rank < ranks; rank += 1) {
        lines.push([`R${rank}`, said(at, rank, false)]);
        for (const kind of [0, 1]) {
          if (changed(at, kind, rank)) write(rank, kind, "before", held(at - 1, kind)[rank]);
          write(rank, kind, changed(at, kind, rank) ? "after" : "unchanged", held(at, kind)[rank]);
        }
      }
      return [["Replica", "", "norm", ...views[0].values[0].map((_, i) => i)], ...lines];
    },
  };
};
