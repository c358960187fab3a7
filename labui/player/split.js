// A split minibatch: on the left its rows, on the right a box per device. Frame n gives device n − 1
// its shard. A row is drawn as large as there is room for: with its values or its picture, with its
// number, or as a small square.

FIGURES.split = (stage, data, width) => {
  const TALLEST = 402;
  const BOX_LEAST = 22;
  const BOX_GAP = 3;
  const DIGIT = 8.6; // width of a digit of 14 px
  const { shape, rows, shards, shapes, missing, values, pixels } = data.scene;
  const devices = shards.length;
  const wide = width > 520;
  const last = data.frames.length - 1;
  const top = 26;
  const label = wide ? 76 : 26;
  const tail = wide ? 12 + 7.6 * Math.max(5, ...shapes.map((text) => text.length)) : 40;
  const gap = wide ? 34 : 14;
  const digits = String(rows - 1).length;
  const mark = 15 + DIGIT * Math.max(String(devices - 1).length, 1); // "→12"
  const header = wide ? `Minibatch ${shape}` : shape;
  const texts = values.map((row) => row.map(shown).join("\u2002"));
  const tag = 12 + DIGIT * digits;

  // A style: how rows are drawn, the size of one in a box (w × h) and in the minibatch (cell × high).
  const styles = [];
  const squares = (style, sizes, larger) => sizes.forEach((s) => larger.filter((each) => each >= s).concat(s)
    .forEach((each) => styles.push({ kind: style, w: s, h: s, cell: each, high: each })));
  if (values.length) {
    const w = tag + 14 + 8.2 * Math.max(...texts.map((text) => text.length));
    styles.push(...[34, 28, 24, 18].map((h) => ({ kind: "values", w, h, cell: w + mark + 8, high: h, one: true })));
  }
  if (pixels.length) squares("picture", [64, 56, 48, 42, 36, 30, 26, 22, 18], [36, 30]);
  if (rows <= 128 && !pixels.length) {
    const w = Math.max(30, 12 + DIGIT * digits);
    styles.push(...[28, 24, 18].map((h) => ({ kind: "number", w, h, cell: 12 + DIGIT * digits + mark, high: h })));
  }
  squares("dot", Array.from({ length: 23 }, (_, i) => 14 - i / 2), [12, 10, 8]);

  const fitted = (style, share) => {
    let columns = style.one ? 1 : Math.floor((share * width) / style.cell);
    if (columns > 8 && style.kind === "dot") columns -= columns % 8; // lines begin with round numbers
    columns = Math.min(columns, rows);
    const ruler = style.one || columns >= rows ? 0 : 6 + DIGIT * digits;
    const left = Math.max(ruler + columns * style.cell, 7.4 * header.length);
    const room = width - left - gap - label - tail - 10;
    const across = Math.floor(room / style.w);
    if (columns < 1 || across < 1 || (style.one && left > 0.5 * width)) return null;
    const needed = shards.map((shard) => Math.max(BOX_LEAST, Math.ceil(shard.length / across) * style.h + 4));
    const even = Math.max(...needed); // a box's height shall not tell before its rows do
    const heights = devices * (even + BOX_GAP) <= TALLEST ? needed.map(() => even) : needed;
    const height = Math.max(
      Math.ceil(rows / columns) * style.high,
      heights.reduce((sum, each) => sum + each + BOX_GAP, 0),
    );
    return { ...style, columns, ruler, left, across, heights, height };
  };
  const plan = () => {
    for (const style of styles) {
      const found = [0.2, 0.26, 0.32, 0.38, 0.44, 0.5].map((share) => fitted(style, share))
        .filter((each) => each && each.height <= TALLEST);
      if (found.length) return found.reduce((best, each) => (each.height < best.height ? each : best));
    }
    return fitted(styles.at(-1), 0.38);
  };
  const { kind, w, h, cell, high, columns, ruler, left, across, heights, height: used } = plan();
  const height = top + used + 4;
  const boxLeft = left + gap;
  const inside = boxLeft + label + 5;
  const boxTops = heights.map((_, i) => top + heights.slice(0, i).reduce((sum, each) => sum + each + BOX_GAP, 0));
  const color = (device) => rankColor(device, devices, data.dark);
  const contrast = (device) => {
    const [red, green, blue] = color(device).match(/\d+/g).map(Number);
    return 0.299 * red + 0.587 * green + 0.114 * blue > 140 ? "#000" : "#fff";
  };
  const place = (row) => [ruler + (row % columns) * cell, top + Math.floor(row / columns) * high];
  const slot = (device, i) => {
    const free = heights[device] - Math.ceil(shards[device].length / across) * h;
    return [inside + (i % across) * w, boxTops[device] + free / 2 + Math.floor(i / across) * h];
  };
  const pictures = pixels.map((text) => {
    const bytes = atob(text);
    const canvas = document.createElement("canvas");
    const side = Math.sqrt(bytes.length);
    canvas.width = canvas.height = side;
    const pen = canvas.getContext("2d");
    const image = pen.createImageData(side, side);
    for (let i = 0; i < bytes.length; i += 1) {
      const shade = bytes.charCodeAt(i);
      image.data.set([shade, shade, shade, 255], 4 * i);
    }
    pen.putImageData(image, 0, 0);
    return canvas.toDataURL();
  });

  const figure = svgElement("svg", { width, height, viewBox: `0 0 ${width} ${height}` });
  const batch = svgElement("g");
  const boxes = svgElement("g");
  const flight = svgElement("g");
  const text = (x, y, content, more = {}) => svgElement("text", { x, y, class: "label", ...more }, content);
  figure.append(
    text(0, 15, header),
    text(boxLeft, 15, "Devices"),
    text(width - 4, 15, wide ? "Shape" : "Rows", { "text-anchor": "end" }),
  );
  if (ruler) {
    let free = top;
    for (let row = 0; row < rows; row += columns) {
      const y = place(row)[1];
      if (y < free) continue;
      figure.append(text(ruler - 5, y + high / 2 + 5, row, { "text-anchor": "end" }));
      free = y + 16;
    }
  }
  figure.append(batch, boxes, flight);
  stage.append(figure);

  const slant = (x, y, length, depth) => {
    let path = "";
    for (let d = 7; d < length + depth; d += 7) {
      const from = [Math.min(d, length), Math.max(0, d - length)];
      const to = [Math.max(0, d - depth), Math.min(d, depth)];
      path += `M${x + from[0]},${y + from[1]} L${x + to[0]},${y + to[1]} `;
    }
    return path;
  };

  // A row as it looks at (0, 0): in a box, or in the minibatch with a note on where it has gone.
  const token = (row, { device = null, again = false, boxed = false, note = "" } = {}) => {
    const [long, tall] = boxed || kind === "values" ? [w, h] : [cell, high];
    const pad = kind === "dot" ? Math.min(1, long / 10) : 1.5;
    const size = { x: pad, y: pad, width: long - 2 * pad, height: tall - 2 * pad, rx: kind === "dot" ? 1 : 4 };
    const group = svgElement("g", { class: `token ${kind} ${again ? "again" : ""} ${boxed ? "" : "left"}` });
    const ground = svgElement("rect", { class: "ground", ...size });
    group.append(ground);
    if (device !== null) {
      const part = boxed ? 100 : kind === "dot" ? 62 : 16;
      ground.style.fill = `color-mix(in srgb, ${color(device)} ${part}%, var(--ground))`;
      if (!boxed) ground.style.stroke = color(device);
    }
    const write = (x, content, more = {}) => {
      const line = svgElement("text", { x, y: tall / 2 + 5, "font-size": 14, "text-anchor": "middle", ...more }, content);
      if (boxed) line.style.fill = contrast(device);
      group.append(line);
    };
    if (kind === "picture") {
      const image = svgElement("image", { ...size, href: pictures[row] });
      if (note) image.style.opacity = 0.3;
      const frame = svgElement("rect", { ...size, class: "frame" });
      if (device !== null) frame.style.stroke = color(device);
      group.append(image, frame);
      if (long >= 26) {
        group.append(svgElement("text", { class: "overlay", x: 4, y: tall - 5, "font-size": 14, "paint-order": "stroke" }, note || row));
      }
    } else if (kind === "values") {
      write(tag / 2 + 2, row, { "font-weight": 700 });
      write((tag + w) / 2, texts[row], { "font-size": 15 });
      if (note) write(w + 2, note, { "text-anchor": "start", class: "mark" });
    } else if (kind === "number") write(long / 2, `${row}${note}`);
    if (again) {
      const depth = kind === "dot" ? size.height : Math.max(3, Math.min(5, tall - 19)); // above the text
      group.append(svgElement("path", { class: "hatch", d: slant(pad, pad, size.width, depth) }));
    }
    return group;
  };

  const moved = (group, [x, y]) => {
    group.setAttribute("transform", `translate(${x},${y})`);
    return group;
  };

  const usesAt = (at) => {
    const uses = Array.from({ length: rows }, () => []);
    shards.slice(0, at).forEach((shard, device) => shard.forEach((row) => uses[row].push(device)));
    return uses;
  };

  const paintBatch = (at, leaving) => {
    const lost = new Set(at === last ? missing : []);
    const going = new Set(leaving);
    batch.replaceChildren(...usesAt(at).map((uses, row) => {
      const note = uses.length > 1 ? `×${uses.length}` : uses.length ? `→${uses[0]}` : "";
      const drawn = token(row, {
        device: uses.length ? uses[0] : null, again: uses.length > 1, note,
      });
      if (going.has(row)) drawn.classList.add("going");
      if (lost.has(row)) {
        const end = (kind === "values" ? w : cell) - 2;
        drawn.append(svgElement("path", { class: "cross", d: `M2,2 L${end},${high - 2} M2,${high - 2} L${end},2` }));
      }
      const where = uses.length ? `on device ${uses.join(", ")}` : lost.has(row) ? "dropped" : "on no device yet";
      drawn.append(svgElement("title", {}, `Row ${row}: ${where}`));
      return moved(drawn, place(row));
    }));
  };

  const tokensOf = (device) => {
    const seen = new Set(shards.slice(0, device).flat());
    return shards[device].map((row, i) => {
      const drawn = moved(token(row, { device, again: seen.has(row), boxed: true }), slot(device, i));
      drawn.append(svgElement("title", {}, `Row ${row} on device ${device}`));
      seen.add(row);
      return drawn;
    });
  };

  const paintBoxes = (at, now, asked) => {
    boxes.replaceChildren(...shards.map((shard, device) => {
      const served = device < at;
      const y = boxTops[device];
      const middle = y + Math.min(heights[device] / 2, 60) + 5;
      const box = svgElement("g", { class: `device ${device === now ? "now" : ""}` });
      const outline = svgElement("rect", {
        class: "box", x: boxLeft + 1, y: y + 1, width: width - boxLeft - tail - 2, height: heights[device] - 2, rx: 5,
      });
      const band = svgElement("rect", { x: boxLeft + 1, y: y + 1, width: label - 2, height: heights[device] - 2, rx: 5 });
      band.style.fill = outline.style.stroke = color(device);
      const name = svgElement("text", { x: boxLeft + label / 2, y: middle, "font-size": 14, "text-anchor": "middle" }, wide ? `Device ${device}` : device);
      name.style.fill = contrast(device);
      box.append(outline, band, name);
      const end = served ? (wide ? shapes[device] : shard.length) : device === asked ? "?" : "";
      box.append(text(width - 4, middle, end, { "text-anchor": "end", class: device === now ? "label on" : "label" }));
      if (served) {
        box.append(...tokensOf(device));
        if (!shard.length) box.append(text(inside + 3, middle, "nothing"));
      } else if (device === asked) box.append(text(inside + 3, middle, "?", { class: "label on" }));
      return box;
    }));
  };

  return {
    draw(at) {
      flight.replaceChildren();
      paintBatch(at, []);
      paintBoxes(at, at - 1, null);
    },
    depart(at, asks = false) {
      flight.replaceChildren();
      paintBatch(at - 1, asks ? [] : shards[at - 1]);
      paintBoxes(at - 1, at - 1, asks ? at - 1 : null);
    },
    travel(at, ms) {
      const device = at - 1;
      const landed = [...boxes.children[device].querySelectorAll(".token")];
      for (const each of landed) each.style.visibility = "hidden";
      tokensOf(device).forEach((drawn, i) => {
        const [x0, y0] = place(shards[device][i]);
        const [x, y] = slot(device, i);
        const [from, to] = [`translate(${x0}px,${y0}px) scale(${high / h})`, `translate(${x}px,${y}px) scale(1)`];
        flight.append(drawn);
        drawn.animate([{ transform: from }, { transform: to }], { duration: ms, easing: "ease-in-out" }).onfinish = () => {
          drawn.remove();
          if (landed[i]) landed[i].style.visibility = "";
        };
      });
    },
    table(at) {
      const lines = shards.map((shard, device) => [
        `Device ${device}`,
        device < at ? shapes[device] : "",
        device >= at ? "" : shard.length ? shard.join(", ") : "nothing",
      ]);
      if (at === last && missing.length) lines.push(["dropped", String(missing.length), missing.join(", ")]);
      return [["Device", "shape", "rows"], ...lines];
    },
  };
};
