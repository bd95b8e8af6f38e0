"""The README's lines: one answer, drafted by lookup, and what it took."""

import paceline

target = paceline.load("smollm2-135m")
draft = paceline.create_draft("lookup", target)
prompt = "Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday, Monday,"
answer = paceline.generate(target, prompt, draft=draft, stop=paceline.StopConditions(max_tokens=32))
print(answer.text, answer.summary, sep="\n")
