"""The chat formats that the paper's targets were tuned on, as text. ``bench.measure.prompts`` adds the BOS token.

Sources: FastChat 0.2.31 (``vicuna_v1.1``, ``llama-2``) and SafeAILab/EAGLE's evaluation scripts, which set LLaMA2's
long system prompt, for LLaMA3 too, and end every LLaMA2 prompt with one more space. Each of these enters tau: a head
was trained on its target's own format, and drafts worse in another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from methods.common.errors import ConfigError

OWN = "tokenizer"
"""The template that the tokenizer brings, as against one of these."""

VICUNA_SYSTEM = (
    "A chat between a curious user and an artificial intelligence assistant. "
    "The assistant gives helpful, detailed, and polite answers to the user's questions."
)
LLAMA_SYSTEM = (
    "You are a helpful, respectful and honest assistant. Always answer as helpfully as possible, while being safe.  "
    "Your answers should not include any harmful, unethical, racist, sexist, toxic, dangerous, or illegal content. "
    "Please ensure that your responses are socially unbiased and positive in nature.\n\n"
    "If a question does not make any sense, or is not factually coherent, explain why instead of answering something "
    "not correct. If you don't know the answer to a question, please don't share false information."
)
"""Two spaces before "Your", as published."""


def vicuna(questions: Sequence[str], answers: Sequence[str]) -> str:
    """Vicuna v1.1, which v1.3 and v1.5 share. An answer is closed by ``</s>`` and no space."""
    turns = [f"USER: {question} ASSISTANT:" for question in questions]
    told = "".join(f"{turn} {answer}</s>" for turn, answer in zip(turns, answers, strict=False))
    return f"{VICUNA_SYSTEM} {told}{turns[-1]}"


def llama2(questions: Sequence[str], answers: Sequence[str]) -> str:
    """LLaMA2-Chat. The space at the end is the authors', and not part of the format that was tuned on."""
    first, *later = questions
    turns = [
        f"[INST] <<SYS>>\n{LLAMA_SYSTEM}\n<</SYS>>\n\n{first} [/INST]",
        *(f"[INST] {each} [/INST]" for each in later),
    ]
    told = "".join(f"{turn} {answer} </s><s>" for turn, answer in zip(turns, answers, strict=False))
    return f"{told}{turns[-1]} "


def llama3(questions: Sequence[str], answers: Sequence[str]) -> str:
    """LLaMA3-Instruct, which trims every message."""
    told = [("system", LLAMA_SYSTEM)]
    for turn, question in enumerate(questions):
        told.append(("user", question))
        told += [("assistant", answer) for answer in answers[turn : turn + 1]]
    text = "".join(
        f"<|start_header_id|>{role}<|end_header_id|>\n\n{content.strip()}<|eot_id|>" for role, content in told
    )
    return f"{text}<|start_header_id|>assistant<|end_header_id|>\n\n"


TEMPLATES: dict[str, Callable[[Sequence[str], Sequence[str]], str]] = {
    "vicuna": vicuna,
    "llama2": llama2,
    "llama3": llama3,
}
"""By the name that ``model.template`` gives. Arguments: all questions so far, and one answer fewer."""


def require_known(name: str) -> None:
    """Refuse a template that is neither the tokenizer's own nor one of these.

    Raises:
        ConfigError: with the known ones.
    """
    if name not in (OWN, *TEMPLATES):
        raise ConfigError(f"model.template={name} is not known; choose {', '.join((OWN, *TEMPLATES))}")
