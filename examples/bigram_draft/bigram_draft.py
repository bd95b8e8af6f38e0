"""A draft of another package: propose what followed each token the last time it was seen."""

from itertools import pairwise

from paceline import Draft, Proposal


class BigramDraft(Draft):
    """What followed each token last time; an example."""

    def propose(self, contexts, limits):
        return [
            Proposal(self.guess(context.history.tokens, limit), self.name)
            for context, limit in zip(contexts, limits, strict=True)
        ]

    def guess(self, tokens, limit):
        following = dict(pairwise(tokens))
        guessed = [tokens[-1]]
        while guessed[-1] in following and len(guessed) <= limit:
            guessed.append(following[guessed[-1]])
        return tuple(guessed[1:])
