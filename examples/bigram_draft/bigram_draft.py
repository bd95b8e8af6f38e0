"""A draft of another package: propose what followed each token the last time it was seen."""

from itertools import pairwise

from paceline import Draft, Proposal


class BigramDraft(Draft):
    name = "bigram"
    summary = "what followed each token last time; an example"

    def propose(self, contexts, limits):
        return [
            Proposal(self.guess(context.history.tokens, max_draft_tokens), self.name)
            for context, max_draft_tokens in zip(contexts, limits, strict=True)
        ]

    def guess(self, tokens, max_draft_tokens):
        following = dict(pairwise(tokens))
        guessed = [tokens[-1]]
        while guessed[-1] in following and len(guessed) <= max_draft_tokens:
            guessed.append(following[guessed[-1]])
        return tuple(guessed[1:])
