"""Questions and answers so far -> prompt token ids, by a named template; and the request that decodes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from bench.plan.cells import Cell, Question
from bench.plan.templates import OWN, TEMPLATES, require_known
from methods.base import Request, Sampling
from methods.common.errors import ConfigError

if TYPE_CHECKING:
    from methods.loading.model import Loaded


def render(tokenizer: Any, template: str, questions: Sequence[str], answers: Sequence[str]) -> tuple[int, ...]:
    """The prompt of turn ``len(answers)``: every question up to it, the answers before it, the answer opened.

    Raises:
        ConfigError: for an unknown template, a tokenizer that lacks what it needs, or a prompt that starts with two BOS
            tokens (a template that writes BOS and a tokenizer that adds another: drafts get worse and nothing else
            shows).
    """
    require_known(template)
    asked = list(questions[: len(answers) + 1])
    if template == OWN:
        ids = _by_tokenizer(tokenizer, asked, answers)
    else:
        ids = _by_text(tokenizer, template, TEMPLATES[template](asked, answers))
    bos = tokenizer.bos_token_id
    if bos is not None and ids[:2] == (bos, bos):
        raise ConfigError(f"model.template={template} gives a prompt with two BOS tokens (id {bos})")
    return ids


def _by_tokenizer(tokenizer: Any, questions: Sequence[str], answers: Sequence[str]) -> tuple[int, ...]:
    if not tokenizer.chat_template:
        raise ConfigError("model.template=tokenizer, but this tokenizer brings no chat template")
    messages = []
    for turn, question in enumerate(questions):
        messages.append({"role": "user", "content": question})
        messages += [{"role": "assistant", "content": answer} for answer in answers[turn : turn + 1]]
    try:
        encoded = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, return_dict=True)
    except Exception as error:  # a template is a stranger's program; it runs in Jinja's sandbox, and may fail anyhow
        said = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ConfigError(f"model.template=tokenizer: this tokenizer's chat template fails: {said}") from error
    return tuple(int(token) for token in encoded["input_ids"])


def _by_text(tokenizer: Any, template: str, text: str) -> tuple[int, ...]:
    """BOS comes from here and not from the tokenizer: which of them add one changes with their version and files."""
    if tokenizer.bos_token_id is None:
        raise ConfigError(f"model.template={template} starts with BOS, but this tokenizer names none")
    encoded = tokenizer(text, add_special_tokens=False)
    return (int(tokenizer.bos_token_id), *(int(token) for token in encoded["input_ids"]))


def answer_text(tokenizer: Any, output_ids: Sequence[int]) -> str:
    """An answer as it enters the next turn: special tokens and outer white space removed."""
    return str(tokenizer.decode(list(output_ids), skip_special_tokens=True)).strip()


def sampling(cell: Cell) -> Sampling:
    """How the cell's target chooses its tokens."""
    decode = cell.decode
    return Sampling(decode.temperature, decode.top_p, decode.top_k, decode.seed)


def request(cell: Cell, question: Question, loaded: Loaded, answers: Sequence[str], repeat: int = 0) -> Request:
    """Turn ``len(answers)`` of a question. A repeat is a new sample at T>0: its number enters the key of the draws."""
    ids = render(loaded.tokenizer, cell.model.template, question.turns, answers)
    key = f"{question.id}#{repeat}" if repeat else question.id
    return Request(ids, cell.decode.max_new_tokens, loaded.eos_ids, sampling(cell), key, len(answers))
