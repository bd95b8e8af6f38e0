"""Our drafts inside transformers' `generate`: its text, its settings, its refusals."""

from __future__ import annotations

import queue
import subprocess
import sys
import threading
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import tiny_models as tiny  # noqa: E402
from transformers import (  # noqa: E402
    DynamicCache,
    EosTokenCriteria,
    LogitsProcessor,
    LogitsProcessorList,
    MaxLengthCriteria,
    StoppingCriteria,
    StoppingCriteriaList,
    StopStringCriteria,
)
from transformers.generation.streamers import BaseStreamer  # noqa: E402

from paceline.decode.stats import stats  # noqa: E402
from paceline.errors import ModelError, SettingError  # noqa: E402
from paceline.integrations.served import DraftServer  # noqa: E402
from paceline.integrations.transformers import paceline_drafts  # noqa: E402

PROMPT = torch.tensor([[5, 6, 7, 8, 9, 5, 6, 7, 8, 9, 5, 6, 7]])
GREEDY: dict[str, Any] = {
    "max_new_tokens": 40,
    "do_sample": False,
    "eos_token_id": None,
    "pad_token_id": 0,
}
DRAFTS: dict[str, Any] = {
    "policy": {},
    "always": {"max_draft_tokens": 6},
    "lookup": {"draft": "lookup:min_match=1,reach=4", "max_draft_tokens": 3},
    "recycle": {"draft": "recycle", "max_draft_tokens": 4},
    "recycle first": {"draft": ["recycle:kept=4", "lookup"], "max_draft_tokens": 5},
    "shared": {"share": True},
}


@pytest.fixture(scope="module")
def llama() -> Any:
    return tiny.model("llama")


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """The policy drafts from the first round on, and as far as it can."""
    from paceline.policy.live import LearnedCosts

    monkeypatch.setattr(LearnedCosts, "needs_baseline", lambda self, sequences: False)
    table = [float("inf"), 1.0, *(1.0 + 1e-6 * row for row in range(33))]
    monkeypatch.setattr(LearnedCosts, "round_s", lambda self, sequences=1, context=0: table)


@pytest.mark.parametrize("options", DRAFTS.values(), ids=DRAFTS)
@pytest.mark.parametrize("name", tiny.MODELS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.usefixtures("eager")
def test_greedy_text_is_baseline_s(name: str, dtype: Any, options: dict[str, Any]) -> None:
    model = tiny.model(name, dtype)
    baseline = model.generate(PROMPT, **GREEDY)
    drafts = paceline_drafts(**options)
    for _ in range(2):
        assert torch.equal(model.generate(PROMPT, custom_generate=drafts, **GREEDY), baseline)
    stats = drafts.stats
    assert stats is not None
    assert stats.tokens == 39
    assert stats.proposed > 0
    assert stats.accepted > 0
    assert stats.rounds == stats.tokens - stats.accepted
    assert stats.tokens_per_round == 39 / stats.rounds


PROCESSED: dict[str, Any] = {
    "repetition": {"repetition_penalty": 1.2},
    "n-grams": {"no_repeat_ngram_size": 4},
    "bias": {"sequence_bias": [[[5, 6], -4.0], [[3], 1.0]]},
    "least": {"eos_token_id": 8, "min_new_tokens": 30},
    "banned": {"bad_words_ids": [[8], [6, 6]]},
    "forced": {"forced_eos_token_id": 8},
    "decay": {"eos_token_id": 8, "exponential_decay_length_penalty": (5, 1.2)},
}


@pytest.mark.parametrize("options", PROCESSED.values(), ids=PROCESSED)
def test_logits_processors_see_the_tokens_that_they_would(llama: Any, options: Any) -> None:
    settings = GREEDY | options
    baseline = llama.generate(PROMPT, **settings)
    for max_draft_tokens in (2, 8):
        drafts = paceline_drafts(max_draft_tokens=max_draft_tokens)
        assert torch.equal(llama.generate(PROMPT, custom_generate=drafts, **settings), baseline)
        assert drafts.stats.proposed > 0


def test_outputs_have_an_entry_per_token(llama: Any) -> None:
    names = ("scores", "logits", "hidden_states")
    wanted: dict[str, Any] = {f"output_{name}": True for name in names}
    wanted["return_dict_in_generate"] = True
    baseline = llama.generate(PROMPT, **GREEDY, **wanted)
    drafts = paceline_drafts(max_draft_tokens=6)
    drafted = llama.generate(PROMPT, custom_generate=drafts, **GREEDY, **wanted)
    assert drafts.stats.accepted > 0
    assert torch.equal(drafted.sequences, baseline.sequences)
    for name in names:
        ours, theirs = getattr(drafted, name), getattr(baseline, name)
        assert len(ours) == len(theirs) == 40
        ours, theirs = (
            [entry[-1] if name == "hidden_states" else entry for entry in entries]
            for entries in (ours, theirs)
        )
        assert all(torch.allclose(a, b) for a, b in zip(ours, theirs, strict=True))
    assert drafted.past_key_values.get_seq_length() == baseline.past_key_values.get_seq_length()


@pytest.mark.parametrize("most", [1, 2, 3, 7, 20])
def test_a_draft_doesn_t_pass_the_length(llama: Any, most: int) -> None:
    settings = GREEDY | {"max_new_tokens": most}
    drafts = paceline_drafts(max_draft_tokens=16)
    text = llama.generate(PROMPT, custom_generate=drafts, **settings)
    assert torch.equal(text, llama.generate(PROMPT, **settings))
    assert text.shape[1] == PROMPT.shape[1] + most
    assert drafts.stats.tokens == most - 1


@pytest.mark.parametrize("end", range(tiny.TOKENS))
def test_nothing_is_drafted_behind_an_end_token(llama: Any, end: int, spy: Any) -> None:
    settings = GREEDY | {"eos_token_id": [end, 99]}
    drafts = paceline_drafts(max_draft_tokens=16)
    text = llama.generate(PROMPT, custom_generate=drafts, **settings)
    assert torch.equal(text, llama.generate(PROMPT, **settings))
    assert all(end not in drafted for drafted in spy)


@pytest.fixture
def spy(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """What is handed to the model to be verified, round by round."""
    from paceline.integrations.assisted import DraftCandidates

    seen: list[list[int]] = []
    real = DraftCandidates.get_candidates

    def looked_at(self: Any, input_ids: Any, **options: Any) -> Any:
        candidates, logits = real(self, input_ids, **options)
        seen.append(candidates[0, input_ids.shape[1] :].tolist())
        return candidates, logits

    monkeypatch.setattr(DraftCandidates, "get_candidates", looked_at)
    return seen


class EndsWith(StoppingCriteria):
    def __init__(self, *tokens: int) -> None:
        self.tokens = list(tokens)

    def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
        return torch.tensor([input_ids[0, -len(self.tokens) :].tolist() == self.tokens])


def test_decoding_stops_inside_what_would_have_been_a_draft() -> None:
    """transformers asks a criterion once a round, and goes on to the round's end."""
    model = tiny.model("gemma3")  # repeats a token
    baseline = model.generate(PROMPT, **GREEDY)[0].tolist()
    first = len(PROMPT[0])
    stopped = 0
    for at in range(first + 1, first + 12):
        stop = StoppingCriteriaList([LongerThan(at)])
        settings = GREEDY | {"stopping_criteria": stop}
        drafts = paceline_drafts(max_draft_tokens=8)
        text = model.generate(PROMPT, custom_generate=drafts, **settings)
        assert text[0].tolist() == baseline[: at + 1]
        theirs = model.generate(PROMPT, prompt_lookup_num_tokens=8, **settings)
        stopped += theirs.shape[1] > at + 1
    assert stopped > 0, "their own lookup passes it, or there is nothing to show here"
    for tokens in ((8, 8, 8), tuple(baseline[20:22])):
        settings = GREEDY | {"stopping_criteria": StoppingCriteriaList([EndsWith(*tokens)])}
        text = model.generate(
            PROMPT, custom_generate=paceline_drafts(max_draft_tokens=8), **settings
        )
        assert torch.equal(text, model.generate(PROMPT, **settings))


def letters() -> Any:
    """A tokenizer of twelve letters, a to l."""
    from tokenizers import Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE({letter: at for at, letter in enumerate("abcdefghijkl")}, []))
    backend.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=backend)


def test_stop_strings_end_a_text_inside_a_draft() -> None:
    model, tokenizer = tiny.model("gemma3"), letters()
    baseline = model.generate(PROMPT, **GREEDY)[0].tolist()
    string = "".join("abcdefghijkl"[token] for token in baseline[22:26])
    settings: dict[str, Any] = GREEDY | {
        "stopping_criteria": [StopStringCriteria(tokenizer, [string])]
    }
    drafts = paceline_drafts(max_draft_tokens=8)
    text = model.generate(PROMPT, custom_generate=drafts, **settings)
    expected = model.generate(PROMPT, stop_strings=[string], tokenizer=tokenizer, **GREEDY)
    assert torch.equal(text, expected)
    assert PROMPT.shape[1] + 1 < text.shape[1] < len(baseline)
    assert drafts.stats.accepted > 0
    with pytest.raises(ValueError, match="tokenizer"):  # not handed on: transformers says so
        model.generate(
            PROMPT, custom_generate=drafts, stop_strings=[string], tokenizer=tokenizer, **GREEDY
        )


class LongerThan(StoppingCriteria):
    """A length that transformers doesn't know as one."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens

    def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
        return torch.tensor([input_ids.shape[1] > self.tokens])


def test_a_criterion_that_needs_scores_is_named(llama: Any) -> None:
    class Sure(StoppingCriteria):
        def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
            return torch.tensor([bool(scores[-1].max() > 1e9)])

    with pytest.raises(SettingError, match="Sure can't judge a drafted token"):
        llama.generate(
            PROMPT,
            custom_generate=paceline_drafts(max_draft_tokens=4),
            stopping_criteria=StoppingCriteriaList([Sure()]),
            output_scores=True,
            return_dict_in_generate=True,
            **GREEDY,
        )


class Heard(BaseStreamer):
    def __init__(self) -> None:
        self.tokens: queue.Queue[Any] = queue.Queue()

    def put(self, value: Any) -> None:
        self.tokens.put(value.flatten().tolist())

    def end(self) -> None:
        self.tokens.put(None)


def test_a_streamer_hears_every_token_in_order_and_the_end(llama: Any) -> None:
    """transformers doesn't hand a streamer on to a callable: it would wait for ever."""
    streamer, drafts = Heard(), paceline_drafts(max_draft_tokens=6)
    text = llama.generate(PROMPT, custom_generate=drafts, streamer=streamer, **GREEDY)
    heard = list(streamer.tokens.queue)
    assert heard[0] == PROMPT[0].tolist()
    assert heard[-1] is None
    assert [token for piece in heard[:-1] for token in piece] == text[0].tolist()
    assert len(heard) == drafts.stats.rounds + 3  # prompt, first token, rounds, end
    assert max(map(len, heard[1:-1])) > 1


def test_a_streamer_is_found_through_a_wrapper(llama: Any) -> None:
    streamer, drafts = Heard(), paceline_drafts(max_draft_tokens=6)

    def wrapped(model: Any, input_ids: Any, **options: Any) -> Any:
        return drafts(model, input_ids, **options)

    llama.generate(PROMPT, custom_generate=wrapped, streamer=streamer, **GREEDY)
    assert list(streamer.tokens.queue)[-1] is None


def test_figures_are_of_the_last_call(llama: Any) -> None:
    drafts = paceline_drafts(max_draft_tokens=6)
    assert drafts.stats is None
    llama.generate(PROMPT, custom_generate=drafts, **GREEDY)
    first = drafts.stats
    assert 0 < first.accepted <= first.proposed
    assert first.acceptance_rate == first.accepted / first.proposed
    assert 0 < first.draft_s < first.decode_s
    llama.generate(PROMPT, custom_generate=drafts, **(GREEDY | {"max_new_tokens": 1}))
    assert drafts.stats == stats([])
    assert drafts.stats.tokens_per_round is None
    assert drafts.stats.acceptance_rate is None


def test_nothing_of_a_text_reaches_the_next_call(llama: Any, spy: list[list[int]]) -> None:
    other = torch.tensor([[2, 3, 4, 2, 10, 4, 3, 11]])
    for share in (False, True):
        alone = paceline_drafts(max_draft_tokens=8, share=share)
        spy.clear()
        llama.generate(PROMPT, custom_generate=alone, **GREEDY)
        expected = list(spy)
        after = paceline_drafts(max_draft_tokens=8, share=share)
        llama.generate(other, custom_generate=after, **GREEDY)
        spy.clear()
        llama.generate(PROMPT, custom_generate=after, **GREEDY)
        assert spy == expected
        assert all(not draft._states for draft in after.drafts.values() if draft.name == "lookup")
        assert all(not d._tables for d in after.drafts.values() if d.name == "recycle")


@pytest.mark.usefixtures("eager")
def test_acceptance_is_counted_by_temperature(llama: Any) -> None:
    drafts = paceline_drafts("lookup", share=True)
    for settings in ({}, {"do_sample": True, "temperature": 0.7}):
        llama.generate(PROMPT, custom_generate=drafts, **(GREEDY | settings))
    assert set(drafts._server(llama).policy._shared) == {("lookup", 0.0), ("lookup", 0.7)}


@pytest.mark.usefixtures("eager")
def test_what_was_counted_reaches_the_next_call_where_that_is_asked(llama: Any) -> None:
    def counted(share: bool) -> tuple[list[float], list[float]]:
        drafts = paceline_drafts("lookup", share=share)
        found = []
        for _ in range(2):
            server = drafts._server(llama)
            llama.generate(PROMPT, custom_generate=drafts, **GREEDY)
            server = drafts._server(llama)
            known = server.policy._shared.get(("lookup", 0.0))
            found.append([] if known is None else known.probabilities)
        return found[0], found[1]

    assert counted(share=False) == ([], [])
    first, second = counted(share=True)
    assert first
    assert first != second


def test_costs_are_learned_over_all_calls_of_a_model(llama: Any) -> None:
    drafts = paceline_drafts()
    llama.generate(PROMPT, custom_generate=drafts, **GREEDY)
    costs = drafts._server(llama).costs
    assert not costs.needs_baseline(1)
    assert drafts._server(tiny.model("llama")).costs.needs_baseline(1)
    assert drafts._server(llama).costs is costs


def test_an_error_leaves_nothing_behind(llama: Any) -> None:
    class Broken(LogitsProcessor):
        calls = 0

        def __call__(self, input_ids: Any, scores: Any) -> Any:
            self.calls += 1
            if self.calls > 20:
                raise RuntimeError("broken")
            return scores

    drafts = paceline_drafts(max_draft_tokens=6)
    with pytest.raises(RuntimeError, match="broken"):
        llama.generate(
            PROMPT,
            custom_generate=drafts,
            logits_processor=LogitsProcessorList([Broken()]),
            **GREEDY,
        )
    assert drafts.stats.rounds > 0
    assert not any(getattr(d, "_states", None) or getattr(d, "_tables", None)
                   for d in drafts.drafts.values())  # fmt: skip
    baseline = llama.generate(PROMPT, **GREEDY)
    assert torch.equal(llama.generate(PROMPT, custom_generate=drafts, **GREEDY), baseline)


def test_two_threads_may_use_one_callable(llama: Any) -> None:
    prompts = [PROMPT, PROMPT.flip(1)]
    baseline = [llama.generate(prompt, **GREEDY) for prompt in prompts]
    drafts = paceline_drafts(share=True)
    results: dict[int, list[Any]] = {0: [], 1: []}

    def run(number: int) -> None:
        for _ in range(3):
            text = llama.generate(prompts[number], custom_generate=drafts, **GREEDY)
            results[number].append(text)

    threads = [threading.Thread(target=run, args=(number,)) for number in results]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, texts in results.items():
        assert len(texts) == 3
        assert all(torch.equal(text, baseline[number]) for text in texts)


def test_embeddings_instead_of_tokens(llama: Any) -> None:
    embedded = llama.get_input_embeddings()(PROMPT)
    baseline = llama.generate(inputs_embeds=embedded, **GREEDY)
    drafts = paceline_drafts(max_draft_tokens=6)
    text = llama.generate(inputs_embeds=embedded, custom_generate=drafts, **GREEDY)
    assert torch.equal(text, baseline)
    assert drafts.stats.accepted > 0


def offered(model: Any, prompt: list[int], **settings: Any) -> list[int]:
    """What is drafted behind a prompt once its last token was emitted."""
    drafts = paceline_drafts("lookup", max_draft_tokens=8)
    candidates = drafts.candidates(model, prepared(model, **settings))
    read = torch.tensor([prompt[:-1]])
    assert torch.equal(candidates.get_candidates(read)[0], read)
    whole = torch.tensor([prompt])
    candidates.update_candidate_strategy(whole, torch.zeros((1, 1, tiny.TOKENS)), 0)
    tried, logits = candidates.get_candidates(whole)
    candidates.close()
    assert logits is None
    assert torch.equal(tried[:, : len(prompt)], whole)
    found: list[int] = tried[0, len(prompt) :].tolist()
    return found


def test_a_draft_leaves_room_for_the_token_behind_it(llama: Any) -> None:
    text = [5, 6, 9, 8, 7, 4, 5, 6]
    assert [
        len(offered(llama, text, max_length=8 + remaining_tokens)) for remaining_tokens in (1, 2, 4)
    ] == [0, 1, 3]


def test_a_draft_ends_before_an_end_token(llama: Any) -> None:
    text = [5, 6, 9, 8, 7, 4, 5, 6]
    assert offered(llama, text)[:4] == [9, 8, 7, 4]
    assert offered(llama, text, eos_token_id=8) == [9]
    assert offered(llama, text, eos_token_id=[9, 8]) == []


def test_ends_and_lengths_of_criteria_count_as_the_call_s_do(llama: Any) -> None:
    """A criterion of the user's own takes the place of the one that `generate` would make."""
    text = [5, 6, 9, 8, 7, 4, 5, 6]

    def offered_with(*criteria: StoppingCriteria) -> list[int]:
        candidates = paceline_drafts("lookup", max_draft_tokens=8).candidates(
            llama, prepared(llama), StoppingCriteriaList(criteria)
        )
        read, whole = torch.tensor([text[:-1]]), torch.tensor([text])
        candidates.get_candidates(read)
        candidates.update_candidate_strategy(whole, torch.zeros((1, 1, tiny.TOKENS)), 0)
        found: list[int] = candidates.get_candidates(whole)[0][0, len(text) :].tolist()
        candidates.close()
        return found

    assert offered_with()[:4] == [9, 8, 7, 4]
    assert offered_with(EosTokenCriteria(7)) == [9, 8]
    assert offered_with(MaxLengthCriteria(len(text) + 3)) == [9, 8]


def test_a_prompt_may_hold_what_the_model_can_t_embed(llama: Any) -> None:
    """Placeholders of images, which are replaced before the embedding."""
    assert offered(llama, [5, 6, 9, 900, 900, 7, 5, 6]) == [9]
    assert offered(llama, [5, 6, 12, 7, 5, 6]) == []
    assert offered(llama, [5, 6, 11, 7, 5, 6])[:2] == [11, 7]


def prepared(model: Any, **settings: Any) -> Any:
    config, _ = model._prepare_generation_config(None, **(GREEDY | settings))
    model._prepare_special_tokens(config, True, device="cpu")
    config.max_length = settings.get("max_length", 64)
    return config


def test_candidates_can_be_handed_over_by_hand(llama: Any, monkeypatch: Any) -> None:
    drafts = paceline_drafts(max_draft_tokens=6)
    made = []

    def candidates(generation_config: Any, **_: Any) -> Any:
        made.append(drafts.candidates(llama, generation_config))
        return made[-1]

    baseline = llama.generate(PROMPT, **GREEDY)
    monkeypatch.setattr(llama, "_get_candidate_generator", candidates, raising=False)
    text = llama.generate(PROMPT, prompt_lookup_num_tokens=1, **GREEDY)
    monkeypatch.undo()
    made[0].close()
    assert torch.equal(text, baseline)
    assert sum(round.accepted for round in made[0].rounds) > 0


class Asks(LogitsProcessor):
    """Named as transformers' own is."""

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        return scores


Asks.__name__ = "UnbatchedClassifierFreeGuidanceLogitsProcessor"


REFUSED: dict[str, Any] = {
    "batch": ({"inputs": PROMPT.repeat(2, 1)}, "the batch is 2"),
    "beams": ({"num_beams": 2}, "num_beams is 2"),
    "returned": ({"num_return_sequences": 2, "do_sample": True}, "num_return_sequences is 2"),
    "uncached": ({"use_cache": False}, "use_cache is False"),
    "static": ({"cache_implementation": "static"}, "The cache is static"),
    "chunks": ({"prefill_chunk_size": 4}, "prefill_chunk_size is 4"),
    "lookup": ({"prompt_lookup_num_tokens": 4}, "prompt_lookup_num_tokens is 4"),
    "early": ({"assistant_early_exit": 1}, "assistant_early_exit is 1"),
    "guidance": ({"logits_processor": LogitsProcessorList([Asks()])}, "guidance_scale keeps"),
    "processes": ({"synced_gpus": True}, "split over several processes"),
}


@pytest.mark.parametrize(("options", "said"), REFUSED.values(), ids=REFUSED)
def test_what_can_t_be_honoured_is_refused_by_name(llama: Any, options: Any, said: str) -> None:
    drafts = paceline_drafts()
    settings = {"inputs": PROMPT} | GREEDY | options
    with pytest.raises(SettingError, match=said):
        llama.generate(custom_generate=drafts, **settings)
    assert drafts.stats is None


def test_an_assistant_is_refused_though_generate_doesn_t_hand_it_on(llama: Any) -> None:
    with pytest.raises(SettingError, match="assistant_model is 'LlamaForCausalLM'"):
        llama.generate(
            PROMPT, custom_generate=paceline_drafts(), assistant_model=tiny.model("llama"), **GREEDY
        )


def test_a_filled_cache_is_refused(llama: Any) -> None:
    """transformers' own lookup reads the prompt a second time there, and its text differs."""

    def cache() -> Any:
        held = DynamicCache(config=llama.config)
        llama(PROMPT[:, :-1], past_key_values=held)
        return held

    baseline = llama.generate(PROMPT, past_key_values=cache(), **GREEDY)
    theirs = llama.generate(PROMPT, past_key_values=cache(), prompt_lookup_num_tokens=4, **GREEDY)
    assert not torch.equal(theirs, baseline), "repaired there: it needn't be refused here"
    with pytest.raises(SettingError, match="past_key_values holds 12 tokens already"):
        llama.generate(PROMPT, past_key_values=cache(), custom_generate=paceline_drafts(), **GREEDY)


def test_a_recurrent_model_is_refused() -> None:
    model = tiny.model("mamba", torch.float32)
    with pytest.raises(ModelError, match="MambaForCausalLM has a recurrent state"):
        model.generate(PROMPT, custom_generate=paceline_drafts(), **GREEDY)


@pytest.mark.parametrize(
    ("draft", "said"),
    [
        ("lokup", "Did you mean 'lookup'"),
        ([], "No draft is named"),
        ("recycle:branches=4", "offers trees"),
        ("model:draft.gguf", "needs forwards"),
        ("cascade:lookup+model:x", "needs forwards"),
        ("none", "can't be previewed"),
        ("first:lookup+recycle", "can't be previewed"),
        ("first:lookup+draft.gguf", "needs forwards"),
        ("early-exit:layers=2", "needs forwards"),
        ("lookup:store=mine", "remembers text"),
        ("recycle:lasting=yes", "remembers text"),
        ("lookup:reach=x", "reach is 'x'"),
    ],
)
def test_a_draft_that_can_t_draft_here_is_refused(draft: Any, said: str) -> None:
    with pytest.raises(SettingError, match=said):
        paceline_drafts(draft)


@pytest.mark.parametrize("max_draft_tokens", [0, -1, 33])
def test_a_limit_out_of_range_is_refused(max_draft_tokens: int) -> None:
    with pytest.raises(SettingError, match=f"max_draft_tokens is {max_draft_tokens}"):
        paceline_drafts(max_draft_tokens=max_draft_tokens)


def test_transformers_without_the_loop_is_named(llama: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(type(llama), "_assisted_decoding", None)
    with pytest.raises(ModelError, match="has no assisted decoding"):
        llama.generate(PROMPT, custom_generate=paceline_drafts(), **GREEDY)


def test_the_policy_may_choose_not_to_draft(llama: Any, monkeypatch: Any) -> None:
    """Rounds of no drafted token, all of them: ordinary decoding by another loop."""
    monkeypatch.setattr(DraftServer, "propose", lambda self, sequences: [() for _ in sequences])
    drafts = paceline_drafts()
    text = llama.generate(PROMPT, custom_generate=drafts, **GREEDY)
    assert torch.equal(text, llama.generate(PROMPT, **GREEDY))
    assert drafts.stats.rounds == drafts.stats.tokens == 39
    assert drafts.stats.drafted_rounds == drafts.stats.proposed == 0


def test_importing_it_loads_no_model_library() -> None:
    script = (
        "import sys, paceline.integrations.transformers as t\n"
        "t.paceline_drafts()\n"
        "print([name for name in ('torch', 'transformers') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr
