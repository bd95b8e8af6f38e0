"""EAGLE (Li et al. 2024), EAGLE-3 (Li et al. 2025) and P-EAGLE: a layer or more behind a projection
of the target's own states.

Names and shapes as vLLM 0.32's `llama_eagle.py` and `llama_eagle3.py`, SGLang 0.5.23's files of the
same names and TensorRT-LLM's `modeling_speculative.py` read them; what only one of them minds is
marked as stopping that one.
"""

from __future__ import annotations

from paceline.inspect.draft import InspectedDraft, check_offsets, numbers

DEFAULT_AUX = 3
"""States of the target that engines expect where a config says nothing."""
AUX_LAYERS = "eagle_aux_hidden_state_layer_ids"


def check_eagle(draft: InspectedDraft) -> None:
    """EAGLE-1 and -2, whose checkpoints are alike: an embedding and one state are joined."""
    draft.found["layers"] = draft.check_layers()
    draft.check_names()
    draft.check_weights("eagle")


def check_eagle3(draft: InspectedDraft) -> None:
    """EAGLE-3, and P-EAGLE, which drafts all positions in one pass and so needs a state and a token
    for those that have none yet."""
    sizes, eagle = draft.sizes, draft.nested("eagle_config")
    hidden, given = sizes["hidden_size"], draft.number("draft_vocab_size")
    if given is not None:
        sizes["draft_vocab_size"] = given
    top, nested = (numbers(place.get(AUX_LAYERS)) for place in (draft.config, eagle))
    uses_aux = eagle.get("use_aux_hidden_state", True) is not False
    count = draft.number("num_aux_hidden_states") or len(nested) or DEFAULT_AUX
    draft.found |= {"layers": draft.check_layers(), "aux_layers": top or nested}
    sizes |= {
        "aux_count": count if uses_aux else 1,
        "target_hidden_size": draft.number("target_hidden_size") or hidden,
    }
    draft.check_names()
    _check_lists(draft, top, nested)
    null = draft.config.get("target_hidden_size", 0) is None
    if null and draft.format == "transformers":  # vLLM drops it from a speculators config
        draft.note("eagle3.null_width")
    if uses_aux:
        sizes["target_hidden_size"] = _projection(draft, count, len(top or nested))
    draft.check_weights("eagle3")
    width = sizes["target_hidden_size"]
    own_embedding = "embed_tokens.weight" in draft.tensors
    if draft.readable and not own_embedding and None not in (hidden, width) and width != hidden:
        draft.note("eagle3.embedding", width=width, hidden=hidden)
    _check_norms(draft, count)
    _check_head(draft, given)
    check_offsets(draft)
    if draft.kind == "p-eagle":
        _check_parallel(draft, width, count)


def usual(aux: tuple[int, ...]) -> bool:
    """The layers that engines take where a config names none: 2, n / 2 and n - 3 of n."""
    return len(aux) == DEFAULT_AUX and aux == (2, (aux[2] + 3) // 2, aux[2])


def _check_lists(draft: InspectedDraft, top: tuple[int, ...], nested: tuple[int, ...]) -> None:
    """SGLang looks for the layers' numbers in eagle_config only, llama.cpp's converter and vLLM's
    second model runner beside it only; each takes the usual ones where it finds none."""
    if draft.format != "transformers" or usual(top or nested) or top == nested:
        return
    problem = "two_lists" if top and nested else "top_only" if top else "nested_only"
    draft.note(f"eagle3.{problem}", top=list(top), nested=list(nested))


def _projection(draft: InspectedDraft, count: int, listed: int) -> int | None:
    """fc.weight [hidden, count · target's width]; gives that width, as the weights say."""
    draft.need("fc.weight", why=", which joins the target's states")
    hidden, width = draft.sizes["hidden_size"], draft.sizes["target_hidden_size"]
    tensor = draft.tensors.get("fc.weight")
    if tensor is None or len(tensor.shape) != 2 or hidden is None or width is None:
        return width
    rows, columns = tensor.shape
    if draft.quantised:
        return width
    if rows != hidden:
        draft.note("eagle3.rows", rows=rows, hidden=hidden)
    if columns == count * width:
        return width
    if listed and columns == listed * width:
        nested = "transformer_layer_config in " if draft.format == "speculators" else ""
        draft.note("eagle3.count", listed=listed, count=count, where=f"{nested}config.json")
    elif columns % count == 0 and draft.number("target_hidden_size") is None:
        width = columns // count
        draft.note("eagle3.no_width", columns=columns, count=count, width=width, hidden=hidden)
    else:
        draft.note("eagle3.columns", columns=columns, count=count, width=width)
    return width


def _check_norms(draft: InspectedDraft, count: int) -> None:
    eagle = draft.nested("eagle_config")
    before = eagle.get("norm_before_fc", draft.config.get("norm_before_fc", False))
    each = draft.config.get("fc_norm", False)
    if before and each:
        draft.note("eagle3.two_norms")
    elif before:
        draft.need("input_norm.weight", why=", which norm_before_fc asks for")
    elif each:
        names = [f"fc_norm.{number}.weight" for number in range(min(count, len(draft.tensors)))]
        draft.need(*names, why=", which fc_norm asks for")
    elif "input_norm.weight" in draft.tensors:
        draft.note("eagle3.input_norm")


def _check_head(draft: InspectedDraft, given: int | None) -> None:
    draft.check_head()
    tied, own = draft.config.get("tie_word_embeddings") is True, "lm_head.weight" in draft.tensors
    same = given is not None and draft.sizes["vocab_size"] in (None, given)
    if tied:
        draft.note("eagle3.tied")
        draft.found["head"] = "own" if own else "tied"
    elif draft.readable and not own and same:
        draft.note("eagle3.head")


def _check_parallel(draft: InspectedDraft, width: int | None, count: int) -> None:
    draft.check_weights("p-eagle")
    tensor = draft.tensors.get("mask_hidden")
    if tensor is not None and width is not None and tensor.entries != count * width:
        found, wanted = tensor.entries, count * width
        draft.note("p-eagle.mask_hidden", entries=found, count=count, width=width, wanted=wanted)
    names = ("mask_token_id",) if draft.format == "speculators" else ("pard_token", "ptd_token_id")
    if draft.number(*names) is None:
        draft.note("p-eagle.mask_token", names=" or ".join(names), name=names[0])
