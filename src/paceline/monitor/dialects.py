"""How each server names what it counts, and what the numbers are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from paceline.monitor.prometheus import Metrics

Names = tuple[str, ...]
"""Of one counter: what it is called, and what other versions call it."""

SUMS = (
    "drafts",
    "steps",
    "drafted",
    "accepted",
    "generated",
    "firsts",
    "rounds",
    "timed_s",
    "timed_tokens",
    "engine_steps",
)
"""What a dialect names, and `Counters` holds."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """One server's names. An empty tuple: it doesn't count that.

    prefixes      how its names begin
    drafts        rounds (of one sequence) that verified a drafted token, and no others
    steps         verified rounds, drafted or not
    drafted       drafted tokens that were verified
    accepted      those of them that were accepted; bonus and replacement excluded
    generated     tokens of all answers
    firsts        answers whose first token came, or that ended: that token is the prompt's
    rounds        rounds of one sequence after its first token, drafted or not
    timed_s       seconds between tokens, of all answers together
    timed_tokens  tokens that came in them; empty: those generated, less the first ones
    engine_steps  forwards of the whole batch
    busy          gauge: mean of sequences in a forward since the start, over `engine_steps`
    running, waiting   gauges: requests at work, and in the queue
    recent        gauges of the server's last interval, by our names: no sums, so never subtracted
    at_the_end    whether an answer is counted when it ends: then few readings may find any
    says          what these numbers are, a sentence each
    turn_on       how its counters of drafts are turned on
    """

    server: str
    prefixes: Names
    says: tuple[str, ...]
    drafts: Names = ()
    steps: Names = ()
    drafted: Names = ()
    accepted: Names = ()
    generated: Names = ()
    firsts: Names = ()
    rounds: Names = ()
    timed_s: Names = ()
    timed_tokens: Names = ()
    engine_steps: Names = ()
    busy: Names = ()
    running: Names = ()
    waiting: Names = ()
    drafted_by_position: Names = ()
    accepted_by_position: Names = ()
    position: str = "position"
    recent: Mapping[str, str] = field(default_factory=dict)
    at_the_end: bool = False
    turn_on: str = ""

    @property
    def wanted(self) -> frozenset[str]:
        """Every name that it reads."""
        return self.counters | {*self.busy, *self.running, *self.waiting, *self.recent.values()}

    @property
    def counters(self) -> frozenset[str]:
        """Those of them that never fall while the server runs."""
        return frozenset().union(
            *(
                getattr(self, name)
                for name in (*SUMS, "drafted_by_position", "accepted_by_position")
            )
        )


VLLM = Dialect(
    server="vLLM",
    prefixes=("vllm:",),
    drafts=("vllm:spec_decode_num_drafts_total",),
    drafted=("vllm:spec_decode_num_draft_tokens_total",),
    accepted=("vllm:spec_decode_num_accepted_tokens_total",),
    accepted_by_position=("vllm:spec_decode_num_accepted_tokens_per_pos_total",),
    generated=("vllm:generation_tokens_total",),
    firsts=("vllm:time_to_first_token_seconds_count",),
    # One observation each time that a running request is given tokens, however many.
    rounds=("vllm:inter_token_latency_seconds_count", "vllm:time_per_output_token_seconds_count"),
    timed_s=("vllm:inter_token_latency_seconds_sum", "vllm:time_per_output_token_seconds_sum"),
    engine_steps=("vllm:iteration_tokens_total_count",),
    running=("vllm:num_requests_running",),
    waiting=("vllm:num_requests_waiting",),
    says=(
        "vLLM counts a round only if a token was drafted in it: tokens per drafted round is more "
        "than tokens per round where some rounds have no draft.",
        "Accepted tokens exclude the bonus, and include what an end token cut off.",
        "The counters are there only where drafts are configured.",
    ),
    turn_on="It counts drafts only where they are configured: start it with --speculative-config.",
)
LLAMACPP = Dialect(
    server="llama.cpp",
    prefixes=("llamacpp:",),
    drafts=("llamacpp:spec_decode_num_drafts_total",),
    drafted=("llamacpp:spec_decode_num_draft_tokens_total",),
    accepted=("llamacpp:spec_decode_num_accepted_tokens_total",),
    accepted_by_position=("llamacpp:spec_decode_num_accepted_tokens_per_pos_total",),
    generated=("llamacpp:tokens_predicted_total",),
    timed_s=("llamacpp:tokens_predicted_seconds_total",),
    timed_tokens=("llamacpp:tokens_predicted_total",),
    engine_steps=("llamacpp:n_decode_total",),
    busy=("llamacpp:n_busy_slots_per_decode",),
    running=("llamacpp:requests_processing",),
    waiting=("llamacpp:requests_deferred",),
    at_the_end=True,
    says=(
        "llama.cpp's server counts a round only if a token was drafted in it: tokens per drafted "
        "round is more than tokens per round where some rounds have no draft.",
        "Accepted tokens exclude the target's own. A request is counted when it ends.",
    ),
    turn_on="Older builds tell of drafts with each answer only, not here: use a newer one.",
)
SGLANG = Dialect(
    server="SGLang",
    prefixes=("sglang:",),
    steps=("sglang:spec_verify_calls_total",),
    generated=("sglang:generation_tokens_total",),
    firsts=("sglang:time_to_first_token_seconds_count",),
    timed_s=("sglang:inter_token_latency_seconds_sum",),
    # One observation a token, of its share of the interval.
    timed_tokens=("sglang:inter_token_latency_seconds_count",),
    running=("sglang:num_running_reqs",),
    waiting=("sglang:num_queue_reqs",),
    recent={
        "tokens_per_round": "sglang:spec_accept_length",
        "acceptance_rate": "sglang:spec_accept_rate",
    },
    says=(
        "SGLang has no counters of drafted and accepted tokens; tokens per round is generated "
        "tokens over verified rounds, bonus included, and a little high on short answers, whose "
        "first token comes from the prompt.",
        "Its gauges are of its last log interval only; its acceptance rate is over the configured "
        "width, so it is low by construction for trees.",
    ),
    turn_on="Its count of verified rounds appears when the first answer with drafts has ended.",
)
TENSORRT_LLM = Dialect(
    server="TensorRT-LLM",
    prefixes=("trtllm_", "trtllm:"),  # the second: Dynamo's, of versions that had none
    drafted=("trtllm_spec_decode_num_draft_tokens_total",),
    accepted=("trtllm_spec_decode_num_accepted_tokens_total",),
    drafted_by_position=("trtllm_spec_decode_drafted_tokens_total",),
    accepted_by_position=("trtllm_spec_decode_accepted_tokens_total",),
    position="token_position",
    generated=("trtllm_generation_tokens_total",),
    firsts=("trtllm_request_decode_time_seconds_count",),
    timed_s=("trtllm_request_decode_time_seconds_sum",),
    running=("trtllm_num_requests_running",),
    waiting=("trtllm_num_requests_waiting",),
    recent={
        "tokens_per_round": "trtllm_spec_decode_acceptance_length",
        "draft_share": "trtllm_spec_decode_draft_overhead",
    },
    at_the_end=True,
    says=(
        "TensorRT-LLM's accepted tokens exclude the target's own. Older versions count drafted "
        "tokens that were only padding.",
        "Its counters by position are of ended requests, and where they are there, so are drafted "
        "and accepted tokens; its gauges are of the last forward only.",
    ),
    turn_on="Start it with enable_iter_perf_stats and return_perf_metrics.",
)
DIALECTS = (VLLM, LLAMACPP, SGLANG, TENSORRT_LLM)

STARTED = "process_start_time_seconds"

WANTED = frozenset[str]().union(*(dialect.wanted for dialect in DIALECTS), {STARTED})
"""All names that any dialect reads: what `scrape` should keep of a page."""


def dialect_of(metrics: Metrics) -> Dialect | None:
    """Whose page it is, told by its names; None if it is nobody's we know."""
    return next((d for d in DIALECTS if any(n.startswith(d.prefixes) for n in metrics.names)), None)


def dialect_named(server: str | None) -> Dialect | None:
    return next((d for d in DIALECTS if d.server == server), None)


def says(server: str | None) -> tuple[str, ...]:
    """What a server's counters mean, a sentence each."""
    dialect = dialect_named(server)
    return () if dialect is None else dialect.says
