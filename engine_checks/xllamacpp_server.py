"""llama.cpp's own server out of the package xllamacpp, told by llama-server's flags.

Run in place of `llama-server` by a Python that has the package. It knows the flags that an export
writes and no others; what they mean is said here once more, because the package has no parser.
"""

from __future__ import annotations

import argparse
import signal

import xllamacpp


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--model", required=True)
    parser.add_argument("--spec-type")
    parser.add_argument("--spec-draft-model")
    parser.add_argument("--spec-draft-n-max", type=int)
    parser.add_argument("--spec-ngram-simple-size-n", type=int)
    parser.add_argument("--spec-ngram-simple-size-m", type=int)
    parser.add_argument("--metrics", action="store_true")
    parser.add_argument("--host")
    parser.add_argument("--port", type=int)
    parser.add_argument("-c", type=int)
    parser.add_argument("-np", type=int)
    server = xllamacpp.Server(params_of(parser.parse_args()))
    print(f"listening on {server.listening_address}", flush=True)
    signal.sigwait([signal.SIGINT, signal.SIGTERM])


def params_of(args: argparse.Namespace) -> xllamacpp.CommonParams:
    params = xllamacpp.CommonParams()
    params.model.path, params.server_metrics = args.model, args.metrics
    params.hostnames, params.port = [args.host], args.port
    params.n_ctx, params.n_parallel = args.c, args.np
    drafts = params.speculative
    if args.spec_type:
        names = args.spec_type.upper().replace("-", "_").split(",")
        kinds = xllamacpp.common_speculative_type
        drafts.types = [getattr(kinds, f"COMMON_SPECULATIVE_TYPE_{name}") for name in names]
    if args.spec_draft_model is not None:
        drafts.draft.mparams.path = args.spec_draft_model
    if args.spec_draft_n_max is not None:
        drafts.draft.n_max = args.spec_draft_n_max
    if args.spec_ngram_simple_size_n is not None:
        drafts.ngram_simple.size_n = args.spec_ngram_simple_size_n
    if args.spec_ngram_simple_size_m is not None:
        drafts.ngram_simple.size_m = args.spec_ngram_simple_size_m
    return params


if __name__ == "__main__":
    main()
