"""EAGLE (Li et al. 2024), EAGLE-3 (Li et al. 2025) and P-EAGLE: a layer or more behind a projection
of the target's own states.

Names and shapes as vLLM 0.32's `llama_eagle.py` and `llama_eagle3.py`, SGLang 0.5.23's files of the
same names and TensorRT-LLM's `modeling_speculative.py` read them; what only one of them minds is
marked as stopping that one.
"""

from __future__ import annotations

from paceline.inspect.draft import InspectedDraft, check_offsets

DEFAULT_AUX = 3
"""States of the target that engines take for granted where a config says nothing."""


def check_eagle(draft: InspectedDraft) -> None:
    """EAGLE-1 and -2, whose checkpoints are alike: an embedding and one state are joined."""
    hidden = draft.number("hidden_size")
    layers = draft.check_layers()
    vocabulary = draft.number("vocab_size")
    draft.check_names()
    draft.need("fc.weight", why=", which joins the embedding and the target's state")
    if hidden is not None:
        draft.expect("fc.weight", hidden, 2 * hidden, said=f"hidden_size {hidden}")
        _embedding(draft, vocabulary, hidden, None)
    if "layers.0.input_layernorm.weight" in draft.tensors:
        draft.wrong(
            "Its first layer has a norm before attention (input_layernorm), which EAGLE's hasn't: "
            "vLLM refuses it.",
            "Check that it is EAGLE, and of which version.",
            stops=("vllm",),
        )
    if "fc.bias" in draft.tensors:
        draft.wrong(
            "Its projection has a bias (fc.bias), which vLLM's does not.",
            "Serve it with SGLang, or train it without.",
            stops=("vllm",),
        )
    draft.found |= {
        "hidden_size": hidden,
        "target_hidden_size": hidden,
        "vocabulary_size": vocabulary,
        "draft_vocabulary_size": vocabulary,
        "layers": layers,
        "aux_count": 1,
        "head": draft.owner("lm_head.weight"),
    }


def check_eagle3(draft: InspectedDraft) -> None:
    """EAGLE-3, and P-EAGLE, which drafts all positions in one pass and so needs a state and a token
    for those that have none yet."""
    hidden = draft.number("hidden_size")
    vocabulary = draft.number("vocab_size")
    given = draft.number("draft_vocab_size")
    draft_vocabulary = vocabulary if given is None else given
    eagle = draft.nested("eagle_config")
    nested_aux = draft.numbers(eagle.get("eagle_aux_hidden_state_layer_ids"))
    top_aux = draft.numbers(draft.config.get("eagle_aux_hidden_state_layer_ids"))
    aux = top_aux or nested_aux
    draft.check_names()
    _places(draft, top_aux, nested_aux)
    uses_aux = eagle.get("use_aux_hidden_state", True) is not False
    count = draft.number("num_aux_hidden_states") or len(nested_aux) or DEFAULT_AUX
    draft.found |= {
        "hidden_size": hidden,
        "vocabulary_size": vocabulary,
        "draft_vocabulary_size": draft_vocabulary,
        "layers": draft.check_layers(),
        "aux_layers": aux,
        "aux_count": count if uses_aux else 1,
    }
    target_hidden = draft.number("target_hidden_size") or hidden
    null = draft.config.get("target_hidden_size", 0) is None
    if null and draft.format == "transformers":  # vLLM drops it from a speculators config
        draft.wrong(
            "config.json says target_hidden_size null, which engines multiply with.",
            "Remove the entry, or give the target's hidden_size.",
        )
    if uses_aux:
        target_hidden = _projection(draft, hidden, target_hidden, count, len(aux))
    draft.found["target_hidden_size"] = target_hidden
    _layers(draft, hidden, count)
    if hidden is not None:
        _embedding(draft, vocabulary, hidden, target_hidden)
    _head(draft, hidden, vocabulary, given)
    check_offsets(draft, vocabulary, draft_vocabulary)
    if draft.kind == "p-eagle":
        _parallel(draft, target_hidden, count)


def usual(aux: tuple[int, ...]) -> bool:
    """The layers that engines take where a config names none: 2, n / 2 and n - 3 of n."""
    return len(aux) == DEFAULT_AUX and aux == (2, (aux[2] + 3) // 2, aux[2])


def _places(draft: InspectedDraft, top: tuple[int, ...], nested: tuple[int, ...]) -> None:
    """SGLang looks for the layers' numbers in eagle_config only, llama.cpp's converter and vLLM's
    second model runner beside it only; each takes the usual ones where it finds none."""
    if draft.format != "transformers" or usual(top or nested):
        return
    name = "eagle_aux_hidden_state_layer_ids"
    if top and nested and top != nested:
        draft.wrong(
            f"config.json says {name} twice: {list(top)}, and {list(nested)} in eagle_config.",
            "Keep those that it was trained with, in both places.",
        )
    elif nested and not top:
        draft.wrong(
            f"The layers that it takes in, {list(nested)}, stand in eagle_config only, where "
            "llama.cpp's converter and vLLM's second model runner don't look: they take 2, n / 2 "
            "and n - 3 of n.",
            f'Add "{name}" beside eagle_config too.',
            stops=("llama-server",),
        )
    elif top and not nested:
        draft.wrong(
            f"The layers that it takes in, {list(top)}, don't stand in eagle_config, and SGLang "
            "looks nowhere else: it takes 2, n / 2 and n - 3 of n.",
            f'Add "eagle_config": {{"{name}": {list(top)}}} to config.json.',
            stops=("sglang",),
        )


def _where(draft: InspectedDraft) -> str:
    nested = draft.format == "speculators"
    return "transformer_layer_config in config.json" if nested else "config.json"


def _projection(
    draft: InspectedDraft, hidden: int | None, target_hidden: int | None, count: int, listed: int
) -> int | None:
    """fc.weight [hidden, count · target_hidden]; gives the target's width, as the weights say."""
    draft.need("fc.weight", why=", which joins the target's states")
    tensor = draft.tensors.get("fc.weight")
    if tensor is None or len(tensor.shape) != 2 or hidden is None or target_hidden is None:
        return target_hidden
    if draft.quantised:
        return target_hidden
    rows, columns = tensor.shape
    if rows != hidden:
        draft.wrong(
            f"fc.weight gives out {rows:,} entries, and config.json says hidden_size {hidden:,}.",
            "Correct hidden_size, or export the draft again.",
        )
    if columns == count * target_hidden:
        return target_hidden
    if listed and columns == listed * target_hidden:
        draft.wrong(
            f"It takes {listed} of the target's states, and engines count {count} unless "
            "num_aux_hidden_states or eagle_config says so.",
            f'Add "num_aux_hidden_states": {listed} to {_where(draft)}.',
        )
    elif columns % count == 0 and draft.number("target_hidden_size") is None:
        draft.wrong(
            f"fc.weight takes in {columns:,} entries, {count} states of {columns // count:,}; "
            f"without target_hidden_size engines expect {count} of {hidden:,}.",
            f'Add "target_hidden_size": {columns // count} to config.json.',
        )
        return columns // count
    else:
        draft.wrong(
            f"fc.weight takes in {columns:,} entries, and config.json says {count} states of "
            f"{target_hidden:,}.",
            "Correct target_hidden_size or num_aux_hidden_states, or export the draft again.",
        )
    return target_hidden


def _layers(draft: InspectedDraft, hidden: int | None, count: int) -> None:
    draft.need("norm.weight", "layers.0.hidden_norm.weight", "layers.0.input_layernorm.weight")
    if hidden is not None:
        for name in ("q_proj", "k_proj", "v_proj"):
            draft.expect(
                f"layers.0.self_attn.{name}.weight",
                None,
                2 * hidden,
                said=f"hidden_size {hidden}, embedding and state side by side,",
            )
    eagle = draft.nested("eagle_config")
    before = eagle.get("norm_before_fc", draft.config.get("norm_before_fc", False))
    each = draft.config.get("fc_norm", False)
    if before and each:
        draft.wrong(
            "config.json says both norm_before_fc and fc_norm.", "Keep the one it was trained with."
        )
    elif before:
        draft.need("input_norm.weight", why=", which norm_before_fc asks for")
    elif each:
        names = [f"fc_norm.{number}.weight" for number in range(min(count, len(draft.tensors)))]
        draft.need(*names, why=", which fc_norm asks for")
    elif "input_norm.weight" in draft.tensors:
        draft.wrong(
            "It has input_norm.weight, and config.json doesn't say norm_before_fc: engines would "
            "leave it out, or refuse it.",
            'Add "norm_before_fc": true to config.json.',
        )


def _embedding(
    draft: InspectedDraft, vocabulary: int | None, hidden: int, target_hidden: int | None
) -> None:
    name = "embed_tokens.weight"
    own = name in draft.tensors
    draft.found["embedding"] = "own" if own else "target"
    if own:
        draft.expect(
            name, vocabulary, hidden, said=f"vocab_size {vocabulary} and hidden_size {hidden}"
        )
    elif draft.readable and target_hidden not in (None, hidden):
        draft.wrong(
            f"It brings no embedding (embed_tokens), and the target's has {target_hidden:,} "
            f"columns, not its own {hidden:,}.",
            "Export it again with embed_tokens.",
        )


def _head(
    draft: InspectedDraft, hidden: int | None, vocabulary: int | None, given: int | None
) -> None:
    name = "lm_head.weight"
    draft_vocabulary = vocabulary if given is None else given
    tied = draft.config.get("tie_word_embeddings") is True
    own = name in draft.tensors
    draft.found["head"] = "own" if own else "tied" if tied else "target"
    draft.check_head(vocabulary, draft_vocabulary, hidden)
    same = given is not None and vocabulary in (None, given)
    if draft.readable and not own and same and not tied:
        draft.wrong(
            "It brings no head (lm_head); SGLang takes the target's only where config.json has no "
            "draft_vocab_size, and else leaves the head unset.",
            "Remove draft_vocab_size from config.json.",
            stops=("sglang",),
        )
    if tied:
        draft.wrong(
            "config.json says tie_word_embeddings: SGLang then takes its embedding as its head, "
            "and vLLM does not.",
            'Set "tie_word_embeddings": false.',
            stops=("sglang",),
        )


def _parallel(draft: InspectedDraft, target_hidden: int | None, count: int) -> None:
    draft.need("mask_hidden", why=", the state of positions that have none yet")
    tensor = draft.tensors.get("mask_hidden")
    if tensor is not None and target_hidden is not None and tensor.entries != count * target_hidden:
        draft.wrong(
            f"mask_hidden has {tensor.entries:,} entries, and {count} states of "
            f"{target_hidden:,} make {count * target_hidden:,}.",
            "Correct config.json, or export the draft again.",
        )
    names = ("mask_token_id",) if draft.format == "speculators" else ("pard_token", "ptd_token_id")
    if draft.number(*names) is None:
        draft.wrong(
            f"config.json names no mask token ({' or '.join(names)}), which stands at positions "
            "that have no token yet.",
            f'Add "{names[0]}" as it was trained.',
        )
