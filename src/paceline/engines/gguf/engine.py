"""GGUF models through llama.cpp or a fork of it, by the C interface that they share."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as AbstractSequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from paceline.engines.base import Capabilities, Engine, Job, Sequence, TokenizerOnly, TokenTree
from paceline.engines.cpu import default_threads
from paceline.engines.gguf.batch import Batch, BatchSegment
from paceline.engines.gguf.library import Library, description, openmp_wait
from paceline.engines.gguf.load import (
    BATCH_TOKENS,
    MOST_THREADS,
    GgufContext,
    load_model,
    make_context,
    trained_context,
)
from paceline.engines.gguf.tokenizer import GgufTokenizer
from paceline.engines.gguf.widths import find_widths
from paceline.engines.load import check_range
from paceline.errors import ModelError
from paceline.types import Array, path_of


class GgufSequence(Sequence):
    """The `slot`-th sequence of the engine's cache."""

    engine: GgufEngine

    def _copy(self, source: GgufSequence) -> None:
        self.engine.copy(source.slot, self.slot, source.length)

    def _rewind(self, length: int) -> None:
        self.engine.forget_tree(self.slot)
        self.engine.truncate(self.slot, length)

    def _keep(self, length: int, path: AbstractSequence[int]) -> None:
        self.engine.keep_branch(self.slot, length, path)

    def _close(self) -> None:
        if not self.engine.closed:
            self._rewind(0)
            super()._close()


class GgufEngine(Engine):
    """A GGUF model in a library with llama.cpp's interface; a subclass names the library.

    Rows of logits are views into the library's own buffer: they hold until the next score or close.
    """

    sequence_type = GgufSequence
    library: ClassVar[Library]

    tokenizer: GgufTokenizer
    together: Engine | None = None

    def __init__(self, loaded: LoadedModel, context: GgufContext, label: str) -> None:
        """Takes over the pointer of `make_context`. Use `load`."""
        model = loaded.pointer
        self.model = label
        self.tokenizer = GgufTokenizer(self.library, model, label)
        self.vocabulary_size = self.tokenizer.size
        self.capabilities = Capabilities(
            context_size=context.context_size,
            max_sequences=context.max_sequences,
            trees=context.branch_ids > 0,
        )
        self._metadata = _metadata(self, model, context)
        self._context = context.pointer
        self._call = functions = self.library.functions
        self._memory = functions.llama_get_memory(context.pointer)
        self._ids = context.ids_per_sequence
        first = context.max_sequences * self._ids
        self._spare = first + context.branch_ids if context.widths.least > 1 else None
        most = context.widths.most
        self._batch = Batch(functions.llama_batch, BATCH_TOKENS, self._ids, most, self._spare)
        self._branch_ids = [*range(first, first + context.branch_ids)]
        self._trees: dict[int, Branches] = {}  # by slot, the trees that are held
        self._holes = False  # between cells that are used, where the library minds
        self._views: dict[tuple[int, int], Array] = {}  # making one takes longer than finding it
        # The model is kept by what is still to be called, so contexts go before it.
        self._free = weakref.finalize(self, _free, functions, context.pointer, loaded)

    @classmethod
    def load(
        cls,
        target: str,
        *,
        context_size: int | None = None,
        max_sequences: int = 1,
        threads: int | None = None,
        same_text: bool = False,
        **options: Any,
    ) -> Engine:
        """Load a GGUF file.

        context_size     most tokens of a sequence; by default what the model was trained for, at
                         most 4096
        max_sequences    sequences that can be open at once, each of context_size tokens
        threads          by default one for each physical core this process may use
        same_text        a row's logits don't depend on how many tokens share its forward, so that
                         greedy text is ordinary decoding's to the bit

        Raises ModelError for a file that is not a sound GGUF, a model whose state can't be rewound
        (recurrent, hybrid, encoder, diffusion) and a cache that doesn't fit in memory;
        SettingError for a number out of range or an unknown option.
        """
        cls.refuse_options(options)
        if same_text and not cls.library.kernels_by_width:
            cls.refuse_options({"same_text": True})
        check_range("max_sequences", max_sequences)
        check_range("threads", threads, MOST_THREADS, cls.library.name)  # ik aborts on 0
        path = Path(target)
        functions = cls.library.functions
        model = load_model(cls.library, path)
        loaded = LoadedModel(functions, model)
        # Beside another sequence in the same cache the last bits of a text may be others.
        count, room = (max_sequences, 1) if same_text else (1, max_sequences)
        engines: list[GgufEngine] = []
        try:
            threads = default_threads() if threads is None else threads
            widths = find_widths(cls.library, model, path, threads, same_text=same_text)
            for _ in range(count):
                context = make_context(cls.library, model, context_size, room, threads, widths)
                engines.append(cls(loaded, context, path.name))
                engines[-1].place = path.absolute()
        except BaseException:
            for engine in engines:
                engine.close()
            del loaded  # the error holds this frame, and so would hold the model
            raise
        return engines[0] if count == 1 else _apart(engines)

    @classmethod
    def load_tokenizer(cls, target: str) -> TokenizerOnly:
        """Raises ModelError as `load` does."""
        path = Path(target)
        model = load_model(cls.library, path, vocabulary_only=True)
        tokenizer = GgufTokenizer(cls.library, model, path.name)

        def free() -> None:
            tokenizer.close()
            cls.library.functions.llama_model_free(model)

        size, place = tokenizer.size, path.absolute()
        longest = trained_context(cls.library.functions, model)
        return TokenizerOnly(cls.name, path.name, tokenizer, size, place, free, longest)

    def _score(self, jobs: AbstractSequence[Job]) -> list[Array]:
        if self._holes:
            self.library.close_holes(self._memory)
            self._holes = False
        try:
            for job in jobs:
                tree = job.tree()
                if tree is not None:
                    self._begin_tree(job.sequence.slot, tree)
            rows = self._decode(_segments(jobs, self._trees), sum(job.rows for job in jobs))
        except BaseException:  # an interrupt between two decodes too
            for job in jobs:
                self.forget_tree(job.sequence.slot)
                self.truncate(job.sequence.slot, job.sequence.length)
            raise
        logits, first = [], 0
        for job in jobs:
            logits.append(rows[first : first + job.rows])
            first += job.rows
        return logits

    def _decode(self, segments: list[BatchSegment], rows: int) -> Array:
        """The logits that the segments ask for, in their order: shape (rows, vocabulary_size)."""
        self.library.forget_log()
        kept, done = None, 0
        for outputs in self._batch.fill(segments):
            status = self._call.llama_decode(self._context, self._batch.struct)
            if self._spare is not None:
                self._call.llama_memory_seq_rm(self._memory, self._spare, -1, -1)
            if status:
                raise ModelError(
                    f"{self.library.name} could not score "
                    f"{sum(len(s.tokens) for s in segments)} tokens: "
                    f"llama_decode returned {status} ({self.library.reason()}).",
                    "Feed fewer tokens at once, or load the model again.",
                )
            if outputs == rows:
                return self._logits(rows)
            if outputs:  # the next decode will write over them
                kept = np.empty((rows, self.vocabulary_size), np.float32) if kept is None else kept
                kept[done : done + outputs] = self._logits(outputs)
                done += outputs
        return kept

    def _logits(self, rows: int) -> Array:
        """The last decode's logits, where they lie: in the batch's order."""
        place = ctypes.addressof(self._call.llama_get_logits(self._context).contents), rows
        if place not in self._views:
            self._views[place] = self._view(*place)
        return self._views[place]

    def _view(self, first: int, rows: int) -> Array:
        buffer: Any = (ctypes.c_float * (rows * self.vocabulary_size)).from_address(first)
        return np.frombuffer(buffer, np.float32).reshape(rows, self.vocabulary_size)

    def _begin_tree(self, slot: int, tree: TokenTree) -> None:
        """Give each branch an id of its own, under which the trunk is held too."""
        self._trees[slot] = held = Branches(tree, self._branch_ids)
        [first, *_] = self.numbers(slot)
        for number in held.leaves.values():
            self._call.llama_memory_seq_cp(self._memory, first, number, -1, -1)

    def keep_branch(self, slot: int, length: int, path: AbstractSequence[int]) -> None:
        """Hold the first `length` tokens and those on a tree's path, and forget its other
        branches."""
        number = self._trees[slot].ids[path[-1]][0]
        for own in self.numbers(slot):
            self._call.llama_memory_seq_cp(self._memory, number, own, length, length + len(path))
        self.forget_tree(slot)
        self._check_held(slot, length + len(path))

    def forget_tree(self, slot: int) -> None:
        """Forget the branches of a tree, if the slot holds one."""
        tree = self._trees.get(slot)
        if tree is None:
            return
        while tree.leaves:  # one by one, so that an interrupt between two loses none
            end, number = next(iter(tree.leaves.items()))
            self._call.llama_memory_seq_rm(self._memory, number, -1, -1)
            self._branch_ids.append(number)
            del tree.leaves[end]
        del self._trees[slot]
        self._holes = self.library.holes

    def truncate(self, slot: int, length: int) -> None:
        """Take a sequence's tokens from index `length` on out of the cache."""
        for number in self.numbers(slot):
            if not self._call.llama_memory_seq_rm(self._memory, number, length, -1):
                raise ModelError(
                    f"{self.library.name} could not rewind {self.model} to {length} tokens.",
                    "Choose a model whose state can be rewound.",
                )
        if self.capabilities.max_sequences > 1:
            self._holes = self.library.holes
        self._check_held(slot, length)

    def copy(self, source: int, slot: int, length: int) -> None:
        """Let the empty sequence `slot` hold the `length` tokens of `source` too."""
        [first, *_] = self.numbers(source)
        for number in self.numbers(slot):
            self._call.llama_memory_seq_cp(self._memory, first, number, -1, -1)
        self._check_held(slot, length)

    def _check_held(self, slot: int, length: int) -> None:
        """Some models forget or can't copy without saying so; what is held then doesn't reach
        from the first token to the last."""
        for number in self.numbers(slot):
            oldest, newest = self.library.held(self._memory, number)
            if (oldest, newest) != ((0, length - 1) if length else (-1, -1)):
                name = self.library.name
                raise ModelError(
                    f"{name} holds tokens {oldest} to {newest} of a sequence of {length}.",
                    f"{self.model} can't be rewound with this {name}: choose another model.",
                )

    def numbers(self, slot: int) -> range:
        """The ids under which the library knows a sequence."""
        self.check_open()
        return range(slot * self._ids, (slot + 1) * self._ids)

    def metadata(self) -> dict[str, Any]:
        return dict(self._metadata)

    def _close(self) -> None:
        self.tokenizer.close()
        self._free()


def _apart(engines: list[GgufEngine]) -> Engine:
    from paceline.engines.gguf.apart import EngineApart

    return EngineApart(engines)


class Branches:
    """A tree as a library can hold it: a branch for each leaf, every token in all branches that
    pass through it.

    leaves    the id of each leaf's branch
    ids       of each token, those of the branches through it
    """

    def __init__(self, tree: TokenTree, free: list[int]) -> None:
        inner, count = set(tree.parents), len(tree.parents)
        ends = [index for index in range(count) if index not in inner]
        if len(ends) > len(free):
            raise ModelError(
                f"A tree of {len(ends)} branches is more than the {len(free)} that are free.",
                "Offer smaller trees, or decode fewer sequences at once.",
            )
        self.depths = tree.depths
        self.leaves = {end: free.pop() for end in ends}
        through: list[list[int]] = [[] for _ in range(count)]
        for end, number in self.leaves.items():
            for index in path_of(tree.parents, end):
                through[index].append(number)
        self.ids = [tuple(numbers) for numbers in through]


def _segments(jobs: AbstractSequence[Job], trees: Mapping[int, Branches]) -> list[BatchSegment]:
    """First all tokens without rows, then all with: however long the prompts are, the rows then
    come from the last decode, and stay where the library wrote them."""
    heads: list[BatchSegment] = []
    tails: list[BatchSegment] = []
    for job in jobs:
        for segment in _job_segments(job, trees.get(job.sequence.slot)):
            (tails if segment.output else heads).append(segment)
    return heads + tails


def _job_segments(job: Job, tree: Branches | None) -> Iterator[BatchSegment]:
    slot, start = job.sequence.slot, job.sequence.length
    silent, trunk, ids = len(job.tokens) - job.rows, job.trunk, None
    if tree is not None:
        own = job.sequence.engine.numbers(slot)
        ids = (*own, *tree.leaves.values())
    for first, end, output in ((0, min(silent, trunk), False), (silent, trunk, True)):
        if first < end:
            yield BatchSegment(slot, start + first, job.tokens[first:end], output, ids)
    for index, token in enumerate(job.tokens[trunk:] if tree is not None else ()):
        assert tree is not None
        position = start + trunk + tree.depths[index]
        yield BatchSegment(slot, position, [token], trunk + index >= silent, tree.ids[index])


class LoadedModel:
    """The model in a file, freed when nothing holds it any more."""

    def __init__(self, functions: Any, pointer: Any) -> None:
        self.pointer = pointer
        weakref.finalize(self, functions.llama_model_free, pointer)


def _free(functions: Any, context: Any, _: LoadedModel) -> None:
    functions.llama_free(context)


def _metadata(engine: GgufEngine, model: Any, context: GgufContext) -> dict[str, Any]:
    library, functions = engine.library, engine.library.functions
    gpu = functions.llama_supports_gpu_offload()
    return {
        "engine": engine.name,
        "model": engine.model,
        "description": description(functions, model),
        "device": f"GPU if {library.name} finds one" if gpu else "cpu",
        **library.versions(),
        "build": functions.llama_print_system_info().decode().strip(" |"),
        "threads": context.threads,
        "openmp_wait": openmp_wait(),
        "context_size": context.context_size,
        "max_sequences": context.max_sequences,
        "forward_tokens": context.widths.most,
        "same_text": context.widths.least > 0,
        "weights_bytes": functions.llama_model_size(model),
        "cache_bytes": context.cache_bytes,
        "cache_dtype": "float16",
        "sliding_window_tokens": context.window_tokens,
        "sliding_window_kept_whole_bytes": context.window_bytes,
    }
