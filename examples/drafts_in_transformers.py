"""Stock transformers with Paceline's drafts: the same text in fewer forwards.

python examples/drafts_in_transformers.py [DIRECTORY or hub name]
"""

import sys

from transformers import AutoModelForCausalLM, AutoTokenizer

import paceline
from paceline.integrations.transformers import paceline_drafts

if len(sys.argv) > 1:
    name = sys.argv[1]
else:  # the demo model, as `paceline models pull smollm2-135m` fetched it
    name = paceline.load("smollm2-135m", engine="transformers").metadata()["converted_to"]
tokenizer = AutoTokenizer.from_pretrained(name)
model = AutoModelForCausalLM.from_pretrained(name)

question = """Write this list again, one name a line, in the same order:
Amsterdam, Athens, Berlin, Brussels, Copenhagen, Dublin, Helsinki, Lisbon, London, Madrid, Oslo"""
inputs = tokenizer.apply_chat_template(
    [{"role": "user", "content": question}],
    add_generation_prompt=True,
    return_dict=True,
    return_tensors="pt",
)
drafts = paceline_drafts()
settings = {"max_new_tokens": 60, "do_sample": False, "pad_token_id": tokenizer.eos_token_id}
baseline = model.generate(**inputs, **settings)
drafted = model.generate(**inputs, **settings, custom_generate=drafts)

print(tokenizer.decode(drafted[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))
print("the same tokens:", drafted.tolist() == baseline.tolist())
found = drafts.stats
print(f"{found.tokens} tokens in {found.rounds} forwards after the first;", end=" ")
print(f"{found.accepted} of {found.proposed} drafted tokens accepted")
