// The step-by-step player: buttons, timeline, keyboard, speed, prediction, table and export of a
// figure whose every frame was computed in Python and sent once. A figure is an entry of FIGURES: a
// function (stage, scene) → { draw(n), depart(n), travel(n, ms), table(n), describe(n) }.

const FIGURES = {};
const SEND_MS = 400;
const HOLD_MS = 800;
const REPORT_MS = 500;
const GUESS = "Your guess";
const players = new WeakMap();

const still = () => matchMedia("(prefers-reduced-motion: reduce)").matches;
const svgElement = (name, attributes = {}, text = null) => {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== null) element.textContent = text;
  return element;
};
const shown = (value) => {
  if (value === null || !Number.isFinite(value)) return String(value ?? "none");
  if (Number.isInteger(value) && Math.abs(value) < 1e6) return String(value);
  const short = Math.abs(value) >= 1e-3 && Math.abs(value) < 1e5;
  return (short ? Number(value.toPrecision(4)).toString() : value.toExponential(2)).replace("-", "−");
};

const VIRIDIS = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];
// Viridis from dark to mid, on dark ground from mid to light.
const rankColor = (rank, ranks, dark) => {
  const where = (dark ? 1 : 0) + (ranks === 1 ? 0 : (3 * rank) / (ranks - 1));
  const low = Math.min(3, Math.floor(where));
  const mix = VIRIDIS[low].map((c, i) => Math.round(c + (where - low) * (VIRIDIS[low + 1][i] - c)));
  return `rgb(${mix.join()})`;
};

class Player {
  constructor(root, report) {
    this.root = root;
    this.report = report;
    this.part = (selector) => root.querySelector(selector);
    this.playing = null;
    this.asking = false;
    for (const button of root.querySelectorAll("[data-do]")) {
      button.onclick = () => this[button.dataset.do]();
    }
    this.part(".timeline").oninput = (event) => this.jump(Number(event.target.value));
    root.onkeydown = (event) => this.key(event);
    this.part(".ask").onsubmit = (event) => { event.preventDefault(); this.check(); };
    this.part(".predict input").onchange = () => { if (this.asking) this.land(); };
    this.part("details").ontoggle = () => this.fillTable();
    this.width = 0;
    this.watcher = new ResizeObserver(() => this.resized());
    this.watcher.observe(this.part(".stage"));
  }

  load(data) {
    const dark = this.dark();
    if (this.data && this.data.id === data.id) {
      if (dark === this.data.dark) return;
      this.data.dark = dark;
      this.build();
      this.show(this.at);
      return;
    }
    this.stop();
    this.data = { ...data, dark };
    this.last = data.frames.length - 1;
    this.part(".predict").hidden = !data.frames.some((frame) => frame.question);
    this.part(".timeline").max = this.last;
    this.build();
    this.show(Math.min(data.start, this.last));
  }

  build() {
    const stage = this.part(".stage");
    stage.replaceChildren();
    this.width = stage.clientWidth;
    if (this.width === 0) return;
    this.figure = FIGURES[this.data.figure](stage, this.data, this.width);
    this.fit();
  }

  // The words take as much room as the longest of all frames' need, so that nothing jumps.
  fit() {
    const box = this.part(".told");
    box.style.height = "auto";
    const heights = this.data.frames.map((frame) => {
      this.say(frame);
      const told = box.offsetHeight;
      if (!frame.question) return told;
      this.say({ phase: GUESS, sentence: frame.question.text });
      return Math.max(told, box.offsetHeight);
    });
    box.style.height = `${Math.max(...heights)}px`;
  }

  say(frame) {
    this.part(".phase").textContent = frame.phase ? `${frame.phase}.` : "";
    this.part(".why").textContent = frame.why || "";
    this.part(".sentence").textContent = frame.sentence;
    this.part(".code").textContent = frame.code || "";
  }

  resized() {
    if (!this.data || Math.abs(this.part(".stage").clientWidth - this.width) < 2) return;
    this.build();
    this.show(this.at);
  }

  dark() {
    const ground = getComputedStyle(this.root).getPropertyValue("--st-background-color").trim();
    const probe = document.createElement("canvas").getContext("2d");
    probe.fillStyle = ground || "#fff";
    probe.fillRect(0, 0, 1, 1);
    const [red, green, blue] = probe.getImageData(0, 0, 1, 1).data;
    return this.root.classList.toggle("dark", red + green + blue < 384);
  }

  // --- moving ---------------------------------------------------------------------------------

  show(at) {
    this.at = at;
    this.asking = false;
    this.part(".ask").hidden = true;
    if (this.figure) this.figure.draw(at);
    this.tell(at);
    this.fillTable();
  }

  tell(at) {
    const frame = this.data.frames[at];
    this.say(frame);
    this.part(".counter").textContent = `${this.data.unit} ${at} of ${this.last}`;
    this.part(".timeline").value = at;
    this.part(".timeline").setAttribute("aria-valuetext", `${this.data.unit} ${at} of ${this.last}`);
    for (const name of ["first", "back"]) this.button(name).disabled = at === 0;
    for (const name of ["end", "forward"]) this.button(name).disabled = at === this.last;
    this.part(".stage").setAttribute("aria-label", `${this.data.description} ${frame.sentence}`);
    const totals = this.data.totals.map((name, i) => {
      const entry = document.createElement("div");
      entry.append(document.createElement("dt"), document.createElement("dd"));
      entry.firstChild.textContent = name;
      entry.lastChild.textContent = frame.totals[i];
      return entry;
    });
    this.part(".totals").replaceChildren(...totals);
  }

  button(name) { return this.part(`[data-do=${name}]`); }

  jump(at) {
    this.stop();
    this.show(Math.max(0, Math.min(this.last, at)));
    this.rest();
  }

  first() { this.jump(0); }
  end() { this.jump(this.last); }
  back() { this.jump(this.at - 1); }

  forward() {
    if (this.asking) return;
    const wasPlaying = this.playing !== null;
    this.stop();
    if (this.at === this.last) return;
    if (this.part(".predict input").checked && this.data.frames[this.at + 1].question) {
      this.ask(this.at + 1);
      return;
    }
    this.show(this.at + 1);
    if (!still() && !wasPlaying && this.figure) this.figure.travel(this.at, SEND_MS);
    this.rest();
  }

  toggle() {
    if (this.playing !== null) { this.stop(); this.rest(); return; }
    if (this.at === this.last) this.show(0);
    this.button("toggle").textContent = "⏸ Pause";
    this.playing = 0;
    this.next();
  }

  pace() { return Number(this.part(".speed select").value); }

  next() {
    if (this.at === this.last) { this.stop(); this.rest(); return; }
    if (this.part(".predict input").checked && this.data.frames[this.at + 1].question) {
      this.stop();
      this.ask(this.at + 1);
      return;
    }
    const moves = !still() && this.pace() <= 4;
    if (moves && this.figure) {
      this.figure.depart(this.at + 1);
      this.tell(this.at + 1);
      this.figure.travel(this.at + 1, SEND_MS / this.pace());
    }
    this.playing = setTimeout(() => {
      this.show(this.at + 1);
      this.playing = setTimeout(() => this.next(), (moves ? HOLD_MS : HOLD_MS + SEND_MS) / this.pace());
    }, moves ? SEND_MS / this.pace() : 0);
  }

  stop() {
    if (this.playing === null) return;
    clearTimeout(this.playing);
    this.playing = null;
    this.button("toggle").textContent = "▶ Play";
    this.show(this.at);
  }

  rest() {
    clearTimeout(this.resting);
    this.resting = setTimeout(() => {
      if (this.playing === null) this.report({ id: this.data.id, at: this.at });
    }, REPORT_MS);
  }

  key(event) {
    if (["INPUT", "SELECT"].includes(event.target.tagName) || event.ctrlKey || event.metaKey || event.altKey) return;
    const deeds = { ArrowRight: "forward", ArrowLeft: "back", Home: "first", End: "end" };
    const deed = event.key === " " && event.target.tagName !== "BUTTON" && event.target.tagName !== "SUMMARY"
      ? "toggle" : deeds[event.key];
    if (!deed) return;
    event.preventDefault();
    event.stopPropagation();
    this[deed]();
  }

  // --- prediction -----------------------------------------------------------------------------

  ask(at) {
    this.asking = true;
    if (this.figure) this.figure.depart(at, true);
    const question = this.data.frames[at].question;
    this.say({ phase: GUESS, sentence: question.text });
    this.part(".ask").hidden = false;
    this.part(".ask span").textContent = question.label;
    this.part(".ask output").textContent = "";
    this.part(".ask input").value = "";
    this.part(".ask input").focus();
    for (const name of ["forward", "end"]) this.button(name).disabled = true;
  }

  check() {
    const { answer } = this.data.frames[this.at + 1].question;
    const typed = this.part(".ask input").value.trim().replace(",", ".").replace("−", "-");
    const right = typed !== "" && Math.abs(Number(typed) - answer) <= 1e-3 * Math.max(1, Math.abs(answer));
    this.land();
    const verdict = right ? `Right: ${shown(answer)}.` : `You said ${typed || "nothing"}; it is ${shown(answer)}.`;
    this.part(".sentence").textContent = `${verdict} ${this.data.frames[this.at].sentence}`;
  }

  land() {
    this.show(this.at + 1);
    this.part(".stage").focus();
    this.rest();
  }

  // --- table and export -----------------------------------------------------------------------

  fillTable() {
    const details = this.part("details");
    if (!details.open || !this.figure) return;
    const table = document.createElement("table");
    this.figure.table(this.at).forEach((cells, i) => {
      const row = table.insertRow();
      cells.forEach((text, j) => {
        const cell = document.createElement(i === 0 || j === 0 ? "th" : "td");
        cell.textContent = text;
        row.append(cell);
      });
    });
    details.querySelector("div").replaceChildren(table);
  }

  picture() {
    const own = this.part(".stage svg");
    const copy = own.cloneNode(true);
    const look = ["fill", "stroke", "stroke-width", "font-family", "font-size", "font-weight", "text-anchor", "opacity"];
    const originals = own.querySelectorAll("*");
    copy.querySelectorAll("*").forEach((element, i) => {
      const style = getComputedStyle(originals[i]);
      element.setAttribute("style", look.map((name) => `${name}:${style.getPropertyValue(name)}`).join(";"));
    });
    const ground = svgElement("rect", { width: "100%", height: "100%" });
    ground.style.fill = getComputedStyle(this.root).getPropertyValue("--st-background-color");
    copy.prepend(svgElement("title", {}, this.part(".stage").getAttribute("aria-label")), ground);
    copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
    return new XMLSerializer().serializeToString(copy);
  }

  save(url, ending) {
    const link = document.createElement("a");
    link.href = url;
    link.download = `${this.data.file}-${this.at}.${ending}`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(url), 1000);
  }

  svg() { this.save(URL.createObjectURL(new Blob([this.picture()], { type: "image/svg+xml" })), "svg"); }

  png() {
    const own = this.part(".stage svg");
    const image = new Image();
    image.onload = () => {
      const canvas = document.createElement("canvas");
      canvas.width = own.clientWidth * 2;
      canvas.height = own.clientHeight * 2;
      canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
      canvas.toBlob((blob) => this.save(URL.createObjectURL(blob), "png"));
    };
    image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(this.picture())}`;
  }

  close() {
    clearTimeout(this.playing);
    clearTimeout(this.resting);
    this.watcher.disconnect();
  }
}

export default function ({ parentElement, data, setStateValue }) {
  const root = parentElement.querySelector(".player");
  if (!players.has(root)) players.set(root, new Player(root, (value) => setStateValue("at", value)));
  players.get(root).load(data);
  return () => {
    if (!root.isConnected) players.get(root)?.close();
  };
}
