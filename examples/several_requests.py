"""Several requests in one loop: each has its own settings, draft limit and random numbers, and gets
what it would get alone."""

from paceline import (
    Decoder,
    Request,
    Sampling,
    StopConditions,
    create_draft,
    fixed,
    generate_batch,
    load,
)
from paceline.verify.block import BlockVerifier

target = load("smollm2-135m", max_sequences=3)
draft = create_draft("lookup", target)
questions = ["Count from one to ten.", "Name three rivers.", "Write a rhyme about a cat."]
requests = [
    Request(
        prompt=tuple(target.tokenizer.encode_chat([{"role": "user", "content": question}])),
        sampling=Sampling(temperature=0.7, top_p=0.95, seed=number),
        stop=StopConditions(max_tokens=40),
        max_draft_tokens=0 if number == 2 else None,
    )
    for number, question in enumerate(questions)
]
decoder = Decoder(target, {draft.name: draft}, BlockVerifier(), fixed(draft.name, 3))
for question, answer in zip(questions, generate_batch(decoder, requests), strict=True):
    print(f"{question} -> {answer.text!r}")
    print(f"  {answer.summary}")
