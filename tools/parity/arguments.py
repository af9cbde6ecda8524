"""Does a release's own argument parser accept a command line? One JSON list of arguments a line in, an answer out.

    PYTHONPATH=<unpacked wheel> python arguments.py < argv.jsonl

Answers {"accepted": true, "flags": {...}} with what differs from the defaults, or {"accepted": false, "error"}.
"""

from __future__ import annotations

import json
import os
import sys

import stand_ins

VALUES = (str, int, float, bool, dict, list)


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    stand_ins.install_for_import()
    from vllm.platforms import current_platform

    current_platform.device_type = "cuda"  # older parsers ask when they are built
    from vllm.engine.arg_utils import AsyncEngineArgs

    try:
        from vllm.utils.argparse_utils import FlexibleArgumentParser
    except ImportError:
        from vllm.utils import FlexibleArgumentParser

    class Parser(FlexibleArgumentParser):
        def error(self, message: str) -> None:
            raise ValueError(message)

    parser = AsyncEngineArgs.add_cli_args(Parser())
    parser.add_argument("model_tag", nargs="?")
    defaults = vars(parser.parse_args(["any/model"]))
    for line in sys.stdin:
        try:
            parsed = vars(parser.parse_args(json.loads(line)))
        except (ValueError, SystemExit) as refusal:
            answer = {"accepted": False, "error": str(refusal)[:300]}
        else:
            changed = {name: value for name, value in parsed.items() if value != defaults[name]}
            answer = {
                "accepted": True,
                "flags": {n: v if isinstance(v, VALUES) else str(v) for n, v in changed.items()},
            }
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
