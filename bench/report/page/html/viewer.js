"use strict";
// The draft-tree viewer: pick a run, a question and a cycle; see the tree, what was accepted, and the text growing.
(function () {
  const source = document.getElementById("traces");
  if (source === null) return;
  const traces = JSON.parse(source.textContent);
  const find = (id) => document.getElementById(id);
  const pickRun = find("pick-run"), pickTurn = find("pick-turn"), pickCycle = find("pick-cycle");
  const EVERY_MS = 900;
  let timer = null;

  // One run is a method in a cell; its turns are those of every question that was traced.
  const runs = new Map();
  traces.forEach((trace) => {
    const name = `${trace.method}: ${trace.cell}`;
    const key = `${trace.cell} ${trace.method_id}`;
    if (!runs.has(key)) runs.set(key, { name: name, turns: [] });
    trace.turns.forEach((turn, number) => {
      const suffix = trace.turns.length > 1 ? `, turn ${number + 1}` : "";
      runs.get(key).turns.push({ ...turn, name: trace.question_id + suffix, repeats: trace.repeats });
    });
  });

  function options(select, names) {
    select.replaceChildren(...names.map((name, index) => {
      const option = document.createElement("option");
      option.value = index;
      option.textContent = name;
      return option;
    }));
  }

  const run = () => Array.from(runs.values())[Number(pickRun.value)];
  const turn = () => run().turns[Number(pickTurn.value)];
  const cycles = () => turn().steps.length - 1; // the first step is the prefill
  const cycle = () => Number(pickCycle.value);

  function showRun() {
    const start = (text) => text.length > 60 ? text.slice(0, 59) + "…" : text;
    options(pickTurn, run().turns.map((each) => `${each.name}: ${start(each.question)}`));
    showTurn();
  }

  function showTurn() {
    stop();
    find("differs").hidden = turn().repeats;
    find("question").textContent = turn().question;
    pickCycle.max = Math.max(cycles(), 1);
    pickCycle.value = 1;
    drawStrip();
    showCycle();
  }

  function showCycle() {
    const number = cycle(), step = turn().steps[number];
    const before = turn().steps.slice(0, number).map((each) => each.text).join("");
    find("cycle-of").textContent = `${step === undefined ? 0 : number} of ${cycles()}`;
    find("back").disabled = number <= 1;
    find("next").disabled = number >= cycles();
    find("strip").querySelectorAll("rect").forEach((bar, index) => bar.classList.toggle("now", index + 1 === number));
    find("node").textContent = "";
    if (step === undefined) {
      find("summary").textContent = "The answer ended with the prefill's token: nothing was drafted.";
      find("tree").replaceChildren();
      find("answer").textContent = before;
      return;
    }
    find("summary").textContent = summary(step);
    draftTree.draw(find("tree"), step, turn().labels, (text) => { find("node").textContent = text; });
    const added = document.createElement("mark");
    added.textContent = step.text;
    const answer = find("answer");
    answer.replaceChildren(document.createTextNode(before), added);
    answer.scrollTop = answer.scrollHeight;
    find("tree").parentElement.scrollTo(0, 0);
  }

  function summary(step) {
    const drafted = step.draft.length - 1, accepted = step.path.length - 1;
    const total = turn().steps.slice(0, cycle() + 1).reduce((sum, each) => sum + each.tokens.length, 0);
    const cut = step.tokens.length < step.path.length ? ", cut at the end of the text" : "";
    return `${drafted} drafted, ${accepted} accepted, ${step.tokens.length} added${cut}; ${total} tokens so far.`;
  }

  // One bar a cycle, as high as the tokens it added; the slider does the same for the keyboard.
  function drawStrip() {
    const counts = turn().steps.slice(1).map((step) => step.tokens.length);
    const most = Math.max(1, ...counts);
    const bars = counts.map((count, index) => {
      const bar = draftTree.make("rect", { x: index + 0.1, width: 0.8, y: 1 - count / most, height: count / most });
      bar.append(draftTree.make("title", {}, `cycle ${index + 1}: ${count} tokens`));
      bar.addEventListener("click", () => go(index + 1));
      return bar;
    });
    find("strip").setAttribute("viewBox", `0 0 ${Math.max(counts.length, 1)} 1`);
    find("strip").setAttribute("preserveAspectRatio", "none");
    find("strip").style.maxWidth = `${counts.length * 2.5}rem`;
    find("strip").replaceChildren(...bars);
  }

  function go(number) {
    pickCycle.value = number;
    showCycle();
  }

  function stop() {
    clearInterval(timer);
    timer = null;
    find("play").setAttribute("aria-pressed", "false");
    find("play").textContent = "Play";
  }

  function play() {
    if (timer !== null) return stop();
    if (cycle() >= cycles()) go(1);
    find("play").setAttribute("aria-pressed", "true");
    find("play").textContent = "Pause";
    timer = setInterval(() => {
      go(cycle() + 1);
      if (cycle() >= cycles()) stop();
    }, EVERY_MS);
    return undefined;
  }

  pickRun.addEventListener("change", showRun);
  pickTurn.addEventListener("change", showTurn);
  pickCycle.addEventListener("input", showCycle);
  find("back").addEventListener("click", () => go(cycle() - 1));
  find("next").addEventListener("click", () => go(cycle() + 1));
  find("play").addEventListener("click", play);
  options(pickRun, Array.from(runs.values(), (each) => each.name));
  showRun();
})();
