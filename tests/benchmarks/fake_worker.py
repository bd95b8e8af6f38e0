"""A peer that needs no model: eight tokens an answer, by the protocol that the real ones speak."""

from __future__ import annotations

import os
import subprocess
import sys
import time

sys.path.insert(0, os.environ["PEERS"])

from worker import Answer, serve

SECONDS = {"baseline": 0.8, "ngram": 0.4, "draft": 1.6}


def start(args):
    # What libraries do: they and their children print, and a child reads what it finds.
    print("loading the model")
    os.write(1, b"loading the library\n")
    subprocess.run(["cat"], check=True)
    if os.environ.get("FAIL_START") == args.model:
        raise RuntimeError("the model is broken")

    def ask(mode, messages, max_tokens):
        text = messages[-1]["content"]
        print('{"id": "noise"}', flush=True)
        if "fail" in text and mode == "ngram":
            raise RuntimeError("no such n-gram")
        if "die" in text and mode == "ngram" and "HEALTHY" not in os.environ:
            os._exit(3)
        if "spin" in text:
            subprocess.Popen([sys.executable, "-c", "while True: pass"])
        if "hang" in text and mode == "ngram":
            time.sleep(60)
        with open(os.environ["ASKED"], "a") as asked:
            asked.write(f"{mode} {text}\n")
        return Answer(
            prompt=[1, 2, len(text)],
            output=[5] * 8 + [0],
            prefill_s=0.1,
            decode_s=SECONDS[mode],
            text="five " * 8,
            drafted=None if mode == "baseline" else 10,
            accepted=None if mode == "baseline" else 4,
            end_tokens=[0],
            retokenised=True,
        )

    return ask, {"versions": {"fake": "1"}, "threads": args.threads}


if __name__ == "__main__":
    serve(start)
