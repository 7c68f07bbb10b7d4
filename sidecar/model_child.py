"""The program of the child process that asks transformers and the hub about a model.

A process of its own, because transformers takes a second and tens of megabytes that go away with
it. Torch is hidden from it, because transformers imports torch wherever it is installed (3.5 s and
241 MB, against 1.3 s and 59 MB without). It imports nothing of this package: one JSON question on
standard input, one JSON answer on standard output.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def answer(question: Mapping[str, Any]) -> dict[str, Any]:
    """`{"config": …}` or `{"ids": …}`, or `{"problem": …}` with the reason why there is none."""
    try:
        if question["action"] == "download":
            from huggingface_hub import hf_hub_download

            file = hf_hub_download(question["path"], "config.json")
            return {"config": json.loads(Path(file).read_bytes())}
        if question["action"] == "encode":
            from transformers import AutoTokenizer

            tokenizer = AutoTokenizer.from_pretrained(question["path"], trust_remote_code=question["trust_remote_code"])
            return {"ids": list(tokenizer.encode(question["text"], add_special_tokens=False))}
        if question["trust_remote_code"]:
            from transformers import AutoConfig

            remote = AutoConfig.from_pretrained(question["path"], trust_remote_code=True)
            return {"config": remote.to_dict()}
        # None in sys.modules makes every import of a module fail.
        sys.modules["torch"] = None  # type: ignore[assignment]
        from transformers import CONFIG_MAPPING

        config = dict(question["config"])
        model_type = config.get("model_type")
        if model_type not in CONFIG_MAPPING:
            return {"problem": f"it does not know the model type {json.dumps(model_type)}"}
        return {"config": CONFIG_MAPPING[model_type].from_dict(config).to_dict()}
    except Exception as error:
        text = " ".join(str(error).split())
        return {"problem": f"{type(error).__name__}: {text[:300]}"}


def main() -> None:
    """Answer the question on standard input."""
    question = json.load(sys.stdin)
    reply, sys.stdout = sys.stdout, sys.stderr  # what a library prints must not mix with the answer
    json.dump(answer(question), reply, default=str)


if __name__ == "__main__":
    main()
