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
    run.add_argument("--model", metavar="PATH", dest="MODEL_URL", help="the model (MODEL_URL)")
    run.add_argument("--dataset", metavar="PATH", dest="DATASET_URL", help="the dataset (DATASET_URL)")
    run.add_argument("--hem", metavar="NAME", dest="HEM_NAME", help="the rule (HEM_NAME), default EdgeOnly")
    run.add_argument("--param", metavar="KEY=VALUE", type=_pair, action="append", help="of the rule (HEM_PARAMETERS)")
    run.add_argument("--cloud", metavar="URL", dest="BIG_MODEL_URL", help="http://HOST:PORT of a cloud worker")
    run.add_argument("--listen", metavar="PORT", dest="BIG_MODEL_BIND_PORT", help="port of a cloud worker")
    options = parser.parse_args(arguments)

    if not options.script.is_file():
        run.error(f"{options.script} is not a file")
    os.environ.update({name: value for name, value in vars(options).items() if name.isupper() and value is not None})
    if options.param:
        os.environ["HEM_PARAMETERS"] = json.dumps([{"key": key, "value": value} for key, value in options.param])
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
