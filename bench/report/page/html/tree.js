"use strict";
// Draws the draft tree of one cycle. Depth runs to the right; a node stands on the line of its first child, and what
// became text comes first: it is the top line, whatever the tree. Text from the records only ever becomes textContent.
const draftTree = (function () {
  const WIDTH = 124, HEIGHT = 22, COLUMN = 156, ROW = 30, MARGIN = 10, LETTERS = 9;

  // Nodes of a step: the draft's, and last the target's own token under the accepted node it follows.
  function nodesOf(step, labels) {
    const accepted = new Set(step.path);
    const nodes = step.draft.map((token, index) => {
      const parent = step.parents[index];
      const score = index === 0 || step.scores === null ? null : step.scores[index - 1];
      const above = parent > 0 && step.scores !== null ? step.scores[parent - 1] : 0;
      const fate = accepted.has(index) ? "accepted" : accepted.has(parent) ? "tried" : "unreached";
      return {
        parent: parent, children: [], label: labels[token], token: token, fate: fate,
        value: score === null ? null : Math.exp(score),
        confidence: score === null || above === null ? null : Math.exp(score - above),
      };
    });
    if (step.tokens.length === step.path.length) {
      const token = step.tokens[step.tokens.length - 1];
      const last = step.path[step.path.length - 1];
      nodes.push({
        parent: last, children: [], label: labels[token], token: token, fate: "target", value: null, confidence: null,
      });
    }
    nodes.forEach((node, index) => {
      node.depth = node.parent < 0 ? 0 : nodes[node.parent].depth + 1;
      if (node.parent < 0) return;
      const siblings = nodes[node.parent].children;
      if (node.fate === "accepted" || node.fate === "target") siblings.unshift(index);
      else siblings.push(index);
    });
    return nodes;
  }

  // Gives each node its line; returns how many lines there are.
  function layOut(nodes) {
    let line = 0;
    const visit = (index) => {
      nodes[index].line = line;
      nodes[index].children.forEach((child, place) => {
        if (place > 0) line += 1;
        visit(child);
      });
    };
    visit(0);
    return line + 1;
  }

  // White space made visible, since it is part of a token.
  function visible(text) {
    return text.replace(/ /g, "␣").replace(/\n/g, "⏎").replace(/\t/g, "⇥").replace(/\r/g, "␍");
  }

  function short(text) {
    const letters = Array.from(visible(text));
    return letters.length > LETTERS ? letters.slice(0, LETTERS - 1).join("") + "…" : letters.join("");
  }

  function describe(node) {
    const fates = {
      accepted: "accepted", target: "the target's own token", tried: "refused", unreached: "below a refused node",
    };
    const parts = [`“${visible(node.label)}” (token ${node.token})`, `depth ${node.depth}`];
    if (node.confidence !== null) {
      parts.push(`confidence ${node.confidence.toFixed(3)}`, `product along its path ${node.value.toPrecision(3)}`);
    }
    parts.push(node.depth === 0 ? "root: the last token of the text" : fates[node.fate]);
    return parts.join(", ");
  }

  function make(name, attributes, text) {
    const element = document.createElementNS("http://www.w3.org/2000/svg", name);
    Object.entries(attributes).forEach(([key, value]) => element.setAttribute(key, value));
    if (text !== undefined) element.textContent = text;
    return element;
  }

  function drawNode(node, index) {
    const x = MARGIN + node.depth * COLUMN, y = MARGIN + node.line * ROW;
    const group = make("g", {
      role: "treeitem", class: node.fate, transform: `translate(${x} ${y})`, tabindex: index === 0 ? 0 : -1,
      "aria-level": node.depth + 1, "aria-label": describe(node), "data-node": index,
    });
    group.append(make("rect", { class: "box", width: WIDTH, height: HEIGHT, rx: 4 }));
    if (node.confidence !== null) {
      const width = node.confidence * (WIDTH - 2);
      group.append(make("rect", { class: "level", y: HEIGHT - 4, x: 1, height: 3, width: width }));
    }
    const mark = { accepted: node.depth === 0 ? "" : "✓", target: "+" }[node.fate] || "";
    const number = node.confidence === null ? mark : mark + node.confidence.toFixed(2).replace(/^0/, "");
    group.append(make("text", { x: 6, y: HEIGHT / 2 }, short(node.label)));
    group.append(make("text", { class: "number", x: WIDTH - 5, y: HEIGHT / 2 }, number));
    return group;
  }

  // From the parent to its first child, and to any other down from the sibling before it: no two edges overlap.
  function drawEdge(nodes, index) {
    const node = nodes[index], siblings = nodes[node.parent].children;
    const place = siblings.indexOf(index), middle = (line) => MARGIN + line * ROW + HEIGHT / 2;
    const left = MARGIN + node.depth * COLUMN, right = left - COLUMN + WIDTH, bend = (left + right) / 2;
    const start = place === 0 ? `M${right}` : `M${bend}`;
    const above = nodes[place === 0 ? node.parent : siblings[place - 1]].line;
    return make("path", { class: node.fate, d: `${start} ${middle(above)}V${middle(node.line)}H${left}` });
  }

  // The node that an arrow key leads to, or undefined.
  function towards(key, nodes, index) {
    const node = nodes[index];
    if (key === "ArrowLeft") return node.parent >= 0 ? node.parent : undefined;
    if (key === "ArrowRight") return node.children[0];
    if (key === "Home") return 0;
    const level = nodes.map((_, each) => each).filter((each) => nodes[each].depth === node.depth);
    level.sort((one, other) => nodes[one].line - nodes[other].line);
    const place = level.indexOf(index);
    if (key === "ArrowUp") return level[place - 1];
    if (key === "ArrowDown") return level[place + 1];
    return undefined;
  }

  function draw(svg, step, labels, tell) {
    const nodes = nodesOf(step, labels);
    const lines = layOut(nodes);
    const depth = Math.max(...nodes.map((node) => node.depth));
    svg.setAttribute("width", 2 * MARGIN + depth * COLUMN + WIDTH);
    svg.setAttribute("height", 2 * MARGIN + lines * ROW - (ROW - HEIGHT));
    const edges = nodes.map((_, index) => index).filter((index) => nodes[index].parent >= 0);
    const groups = nodes.map(drawNode);
    svg.replaceChildren(...edges.map((index) => drawEdge(nodes, index)), ...groups);
    const select = (index) => {
      groups.forEach((group, each) => group.setAttribute("tabindex", each === index ? 0 : -1));
      groups[index].focus();
    };
    groups.forEach((group, index) => {
      group.addEventListener("focus", () => tell(describe(nodes[index])));
      group.addEventListener("click", () => select(index));
      group.addEventListener("keydown", (event) => {
        const next = towards(event.key, nodes, index);
        if (next === undefined) return;
        event.preventDefault();
        select(next);
      });
    });
  }

  return { draw: draw, make: make, visible: visible };
})();
