"""Try a draft without any model: the toy engine is exact at every width, so drafted text must be
plain text, and a draft that breaks that is wrong."""

from paceline import StopConditions, generate
from paceline.drafts.lookup import LookupDraft
from paceline.testing import ToyEngine

target = ToyEngine(8, order=2, seed=4)
stop = StopConditions(max_tokens=60)
baseline = generate(target, [1, 2, 3], stop=stop)
drafted = generate(target, [1, 2, 3], stop=stop, draft=LookupDraft(), max_draft_tokens=8)
print(baseline.text)
print(drafted.text)
print(f"equal: {baseline.tokens == drafted.tokens}")
print(f"{len(baseline.rounds)} passes of the target became {len(drafted.rounds)}")
