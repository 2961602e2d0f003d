"""The command `neptune-worker`: runs a worker on this machine, without a cluster and a broker."""

import argparse
import json
import os
import pathlib
import runpy
import sys
from typing import Optional


def main(arguments: Optional[list[str]] = None) -> None:
    """Run the command. Arguments that are invalid end it with exit code 2."""
    parser = argparse.ArgumentParser(prog="neptune-worker", description="Workers of Neptune in Python.")
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser(
        "run",
        help="run a worker on this machine",
        description="Runs a worker on this machine. Without MQTT_URL its reports are printed when they change.",
        epilog="Example: neptune-worker run worker.py --model small.json --hem IBT --param threshold_img=0.6",
    )
    run.add_argument("script", type=pathlib.Path, help="program of the worker")
    run.add_argument("arguments", nargs="*", help="arguments of the program, after --")
    run.add_argument("--model", metavar="PATH", help="the model (MODEL_URL)")
    run.add_argument("--dataset", metavar="PATH", help="the dataset (DATASET_URL)")
    run.add_argument("--hem", metavar="NAME", help="the rule (HEM_NAME), default EdgeOnly")
    run.add_argument("--param", metavar="KEY=VALUE", type=_pair, action="append", default=[], help="of the rule")
    run.add_argument("--cloud", metavar="URL", help="http://HOST:PORT of a cloud worker (BIG_MODEL_URL)")
    run.add_argument("--listen", metavar="PORT", help="port of a cloud worker (BIG_MODEL_BIND_PORT)")
    options = parser.parse_args(arguments)

    if not options.script.is_file():
        run.error(f"{options.script} is not a file")
    parameters = [{"key": key, "value": value} for key, value in options.param]
    variables = {
        "MODEL_URL": options.model,
        "DATASET_URL": options.dataset,
        "HEM_NAME": options.hem,
        "HEM_PARAMETERS": json.dumps(parameters) if parameters else None,
        "BIG_MODEL_URL": options.cloud,
        "BIG_MODEL_BIND_PORT": options.listen,
    }
    os.environ.update({name: value for name, value in variables.items() if value is not None})
    script = str(options.script)
    sys.argv = [script, *options.arguments]
    # As `python3 SCRIPT` does.
    sys.path[0] = str(options.script.resolve().parent)
    runpy.run_path(script, run_name="__main__")


def _pair(text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not key or not separator:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return key, value


if __name__ == "__main__":
    main()
