"""The README's six lines: one answer, drafted by lookup, and what it took."""

import paceline

target = paceline.load("smollm2-135m")
draft = paceline.create_draft("lookup", target)
question = [{"role": "user", "content": "Say the days of the week in order, twice."}]
answer = paceline.generate(target, question, draft=draft, limit=3)
print(answer.text)
print(answer.summary)
