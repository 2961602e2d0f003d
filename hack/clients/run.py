"""Runs the checks: starts each model server twice, as edge and as cloud, a gateway between, and the clients.

usage: run.py ROOT ENVIRONMENTS GATEWAY MODEL_SERVER GGUF [SERVER]...
"""

import importlib
import multiprocessing
import pathlib
import signal
import subprocess
import sys
import tempfile

import numpy as np

from results import Results
from servers import Servers

MODULE_SECONDS = 180
SCIKIT = {"input": "X", "datatype": "FP64", "outputs": ("y_pred", "y_prob")}
# `binary` is whether the server supports binary tensors over REST, `streams` whether it ends streams of gRPC: MLServer
# leaves those of tritonclient open, without an answer. Rows with a lower probability than `threshold` are hard.
SERVERS = {
    "omle-server": ("omle", {**SCIKIT, "binary": False, "streams": True, "threshold": 0.5}),
    "kserve": ("kserve", {**SCIKIT, "binary": True, "streams": True, "threshold": 0.5}),
    "triton": ("triton", {**SCIKIT, "binary": True, "streams": True, "threshold": 0.5}),
    "mlserver": (
        "mlserver",
        {
            "input": "input-0",
            "datatype": "FP64",
            "outputs": ("predict", "predict_proba"),
            "binary": False,
            "streams": False,
            "threshold": 0.5,
        },
    ),
    "model-server": (
        "model_server",
        {
            "input": "pixels",
            "datatype": "FP32",
            "outputs": ("label", "probabilities"),
            "binary": False,
            "streams": False,
            "threshold": 0.9,
        },
    ),
}


def check_oip(results, servers, name, rows):
    """Starts the server twice, and a gateway, and runs the checks."""
    method, form = SERVERS[name]
    print(f"{name}: starting", flush=True)
    edge, cloud = (getattr(servers, method)(side) for side in ("small", "big"))
    scores = next(output for output in form["outputs"] if "prob" in output)
    config = {
        "protocol": "oip",
        "edge": {"address": edge[0], "model": "small"},
        "cloud": {"url": f"http://{cloud[0]}", "modelName": "big"},
        "hardExample": {"algorithm": "MaxProbability", "threshold": form["threshold"], "output": scores},
    }
    if edge[1]:
        config["edge"]["grpcAddress"], config["cloud"]["grpcUrl"] = edge[1], f"http://{cloud[1]}"
    *gateway, _ = servers.gateway(name, config)
    case = {"server": name, "edge": edge, "cloud": cloud, "gateway": gateway, **form}
    for module in ("triton_checks", "kserve_checks"):
        results.rows += isolated(module, case, rows)
    # Every row is hard.
    config["cloud"]["modelName"], config["hardExample"]["threshold"] = "absent", 1
    for kind in ("http", "grpc") if edge[1] else ("http",):
        gateway = servers.gateway(f"{name}-{kind}", config)
        results.rows += isolated("refusal_checks", {**case, "gateway": [kind, *gateway]}, rows)


def isolated(module, case, rows):
    """Runs the checks of one module in a process, because the two packages cannot be imported by one."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=check_with, args=(sender, module, case, rows), daemon=True)
    process.start()
    sender.close()
    try:
        if not receiver.poll(MODULE_SECONDS):
            raise TimeoutError(f"{module} did not end within {MODULE_SECONDS} s")
        return receiver.recv()
    finally:
        process.kill()
        process.join()


def check_with(sender, module, case, rows):
    """Runs the checks of one module, and sends its rows of the table."""
    from oip import Case  # pylint: disable=import-outside-toplevel

    results = Results()
    with results.case(case["server"], module, "all checks ran"):
        importlib.import_module(module).check(results, Case(**case), rows)
    sender.send(results.rows)


def main():
    """Returns whether all checks passed."""
    # Leaves the contexts, which end the servers.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    root, environments, gateway, model_server, gguf, *chosen = sys.argv[1:]
    root, environments = pathlib.Path(root), pathlib.Path(environments)
    paths = {name: environments / name for name in ("clients", "omle", "mlserver", "triton")}
    paths |= {"root": root, "gateway": gateway, "model_server": model_server, "gguf": gguf}
    rows = np.loadtxt(root / "examples/digits/data/test.csv", delimiter=",")[:64, :-1]
    results = Results()
    with tempfile.TemporaryDirectory(prefix="neptune-clients-") as folder:
        # Training warns that it ends before it converges, as intended.
        python = [environments / "clients/bin/python", "-B", "-W", "ignore"]
        train = [pathlib.Path(__file__).with_name("train.py"), root / "examples/digits/data/train.csv", folder]
        subprocess.run([*python, *train], check=True)
        for name in chosen or [*SERVERS, "transformer", "llama.cpp", "keys"]:
            # Each server has the machine for itself, and is ended before the next one starts.
            with Servers(folder, paths) as servers:
                with results.case(name, "all", "starts and runs"):
                    if name == "llama.cpp":
                        import chat  # pylint: disable=import-outside-toplevel

                        chat.check(results, servers)
                    elif name == "keys":
                        import keys  # pylint: disable=import-outside-toplevel

                        keys.check(results, servers, rows)
                    elif name == "transformer":
                        import transformer_checks  # pylint: disable=import-outside-toplevel

                        transformer_checks.check(results, servers, rows)
                    else:
                        check_oip(results, servers, name, rows)
    return results.print_table()


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
