"""Toy models whose tokens are longer than letters, so that two of them split a text differently."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from paceline.engines.tokenizer import Tokenizer
from paceline.engines.toy import ToyEngine
from paceline.errors import PromptError


class PieceTokenizer(Tokenizer):
    """Splits a text from the left into the longest pieces, or the shortest.

    pieces     the bytes of each token; none for control and padding tokens
    control    names of control tokens, which are recognised in a text
    begin      tokens put before every text
    space      put a space before every text, as SentencePiece does
    """

    def __init__(
        self,
        pieces: Sequence[bytes],
        *,
        control: Mapping[int, str] | None = None,
        ends: Sequence[int] = (),
        begin: Sequence[int] = (),
        space: bool = False,
        shortest: bool = False,
    ) -> None:
        self.choose = min if shortest else max
        self.pieces, self.control = list(pieces), dict(control or {})
        self.size, self.end_tokens = len(self.pieces), frozenset(ends)
        self.begin, self.space = list(begin), space

    def encode(self, text: str) -> list[int]:
        names = {name.encode(): token for token, name in self.control.items()}
        known = {piece: token for token, piece in enumerate(self.pieces) if piece} | names
        data = (" " * self.space + text).encode() if text else b""
        found = list(self.begin)
        while data:
            fitting = [piece for piece in known if data.startswith(piece)]
            if not fitting:
                raise PromptError(f"{data!r} has no token.", "")
            chosen = self.choose(fitting, key=len)
            found.append(known[chosen])
            data = data[len(chosen) :]
        return found

    def encode_chat(self, messages) -> list[int]:
        raise NotImplementedError

    def token_bytes(self, token: int) -> bytes:
        return b"" if token in self.end_tokens else self.pieces[token]

    def piece(self, token: int) -> str:
        name = self.pieces[token].decode("latin-1")
        return self.control.get(token, name)


def model(
    pieces: Sequence[bytes | str], *, vocabulary_size: int | None = None, **options
) -> ToyEngine:
    """A toy engine with these tokens: text as bytes, control tokens by name. Those named "</s>" or
    "<end>" end an answer."""
    control = {token: piece for token, piece in enumerate(pieces) if isinstance(piece, str)}
    ends = [token for token, name in control.items() if name in ("</s>", "<end>")]
    own = {name: options.pop(name) for name in ("begin", "space", "shortest") if name in options}
    engine = ToyEngine(vocabulary_size or len(pieces), end_tokens=ends, **options)
    engine.tokenizer = PieceTokenizer(
        [b"" if isinstance(piece, str) else piece for piece in pieces],
        control=control,
        ends=ends,
        **own,
    )
    return engine
