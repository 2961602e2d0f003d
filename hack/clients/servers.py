"""Starts the model servers and gateways of the checks on free ports of loopback, and ends them."""

import json
import os
import pathlib
import random
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request

START_SECONDS = 120
TRITON_MODEL = """
backend: "python"
max_batch_size: 128
input [{name: "X", data_type: TYPE_FP64, dims: [64]}]
output [{name: "y_pred", data_type: TYPE_INT64, dims: [1], reshape: {shape: []}},
        {name: "y_prob", data_type: TYPE_FP64, dims: [10]}]
"""


# Below the ports that Linux gives to connections: one of those could have the port before its server starts.
PORTS = iter(random.sample(range(10000, 32768), 5000))


def free_port():
    """A port that nothing listens on. Each one is returned once."""
    for port in PORTS:
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return port
    raise RuntimeError("no port is free")


class Servers:
    """The processes of one run. Leaving the context ends them by their IDs."""

    def __init__(self, folder, paths):
        self.folder, self.paths = pathlib.Path(folder), paths
        self.processes = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for _, process in self.processes:
            process.terminate()
        for _, process in self.processes:
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def start(self, name, command, ready, cwd=None, environment=None):
        """Starts a process and waits until the URL `ready` answers with 200. Its log is `folder/NAME.log`."""
        log = self.folder / f"{name}.log"
        with open(log, "w", encoding="utf-8") as output:
            arguments = [str(part) for part in command]
            process = subprocess.Popen(arguments, stdout=output, stderr=output, cwd=cwd, env=environment)
        self.processes.append((name, process))
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if process.poll() is not None:
                raise RuntimeError(f"{name} exited with {process.returncode}: {log.read_text()[-2000:]}")
            try:
                with urllib.request.urlopen(ready, timeout=5):
                    return process
            except (OSError, urllib.error.URLError):
                time.sleep(0.05)
        raise RuntimeError(f"{name} did not answer at {ready} within {START_SECONDS} s: {log.read_text()[-2000:]}")

    def omle(self, side):
        """omle-server, a model server in C++."""
        rest, grpc = free_port(), free_port()
        models = self.folder / f"omle-{side}"
        models.mkdir()
        convert = [self.paths["omle"] / "bin/omle-convert", self.folder / f"{side}.joblib", models / f"{side}.omle"]
        subprocess.run(convert, check=True, stdout=subprocess.DEVNULL)
        # With as many threads of gRPC as calls in progress or fewer it may refuse one of them.
        ports = ["--rest-port", rest, "--grpc-port", grpc, "--grpc-threads", "16"]
        command = [self.paths["omle"] / "bin/omle-server", "--model-dir", models, *ports, "--no-batching"]
        self.start(f"omle-server-{side}", command, f"http://127.0.0.1:{rest}/v2/health/ready", cwd=self.folder)
        return f"127.0.0.1:{rest}", f"127.0.0.1:{grpc}"

    def kserve(self, side):
        """The model server of KServe's SDK, with a model of scikit-learn."""
        rest, grpc = free_port(), free_port()
        program = pathlib.Path(__file__).with_name("kserve_server.py")
        command = [self.paths["clients"] / "bin/python", program, side, self.folder / f"{side}.joblib", rest, grpc]
        self.start(f"kserve-{side}", command, f"http://127.0.0.1:{rest}/v2/health/ready")
        return f"127.0.0.1:{rest}", f"127.0.0.1:{grpc}"

    def kserve_transformer(self, side):
        """A transformer of KServe's SDK before its model server; returns the addresses of both.

        The arguments are those of cloud/kinds/src/worker/transformers.rs.
        """
        server, _ = self.kserve(side)
        port = free_port()
        program = pathlib.Path(__file__).with_name("kserve_transformer.py")
        model = ["--model_name", side, "--predictor_host", server, "--predictor_protocol", "v2"]
        listen = ["--http_port", port, "--predictor_request_timeout_seconds", "60", "--grpc_port", free_port()]
        command = [self.paths["clients"] / "bin/python", program, *model, *listen]
        self.start(f"kserve-transformer-{side}", command, f"http://127.0.0.1:{port}/v2/models/{side}/ready")
        return server, f"127.0.0.1:{port}"

    def triton(self, side):
        """Triton with its backend for Python."""
        rest, grpc = free_port(), free_port()
        packages = next((self.paths["triton"] / "lib").glob("python3.*/site-packages"))
        server = packages / "pytriton/tritonserver"
        models = self.folder / f"triton-{side}"
        version = models / side / "1"
        version.mkdir(parents=True)
        (models / side / "config.pbtxt").write_text(TRITON_MODEL, encoding="utf-8")
        shutil.copy(pathlib.Path(__file__).with_name("triton_model.py"), version / "model.py")
        shutil.copy(self.folder / f"{side}.joblib", version / "model.joblib")
        listen = ["--http-address", "127.0.0.1", "--http-port", rest, "--grpc-address", "127.0.0.1", "--grpc-port", grpc]
        # The names of shared memory are those of all processes of the machine.
        memory = ["--backend-config", f"python,shm-region-prefix-name=neptune-{os.getpid()}-{rest}"]
        options = ["--backend-directory", server / "backends", "--allow-metrics", "false", *memory]
        command = [server / "bin/tritonserver", "--model-repository", models, *options, *listen]
        environment = {**os.environ, "PYTHONPATH": str(packages)}
        self.start(f"triton-{side}", command, f"http://127.0.0.1:{rest}/v2/health/ready", environment=environment)
        return f"127.0.0.1:{rest}", f"127.0.0.1:{grpc}"

    def mlserver(self, side):
        """MLServer with its runtime for scikit-learn."""
        rest, grpc, metrics = free_port(), free_port(), free_port()
        models = self.folder / f"mlserver-{side}"
        models.mkdir()
        ports = {"http_port": rest, "grpc_port": grpc, "metrics_port": metrics, "host": "127.0.0.1"}
        write_json(models / "settings.json", {**ports, "parallel_workers": 0, "debug": False})
        parameters = {"uri": str(self.folder / f"{side}.joblib"), "version": "1"}
        model = {"name": side, "implementation": "mlserver_sklearn.SKLearnModel", "parameters": parameters}
        write_json(models / "model-settings.json", model)
        command = [self.paths["mlserver"] / "bin/mlserver", "start", models]
        self.start(f"mlserver-{side}", command, f"http://127.0.0.1:{rest}/v2/models/{side}/ready", cwd=models)
        return f"127.0.0.1:{rest}", f"127.0.0.1:{grpc}"

    def model_server(self, side, port=None):
        """The model server of examples/three-resources. It has no gRPC."""
        rest = port or free_port()
        versions = self.folder / f"model-server-{side}" / "1"
        versions.mkdir(parents=True, exist_ok=True)
        file = self.paths["root"] / f"examples/digits/models/{side}.json"
        (versions / "model.json").write_bytes(file.read_bytes())
        names = ["--model-name", side, "--directory", versions.parent]
        command = [self.paths["model_server"], *names, "--ip", "127.0.0.1", "--port", rest]
        self.start(f"model-server-{side}", command, f"http://127.0.0.1:{rest}/v2/models/{side}/ready")
        return f"127.0.0.1:{rest}", None

    def llama(self, side, context=2048):
        """llama.cpp with SmolLM2, and so many tokens of context for all of its four requests at a time."""
        port = free_port()
        program = self.paths["root"] / "examples/llm/image/llama-server"
        options = ["--model", self.paths["gguf"], "--alias", side, "--port", port, "--threads", "1"]
        options += ["--ctx-size", context]
        command = [self.paths["clients"] / "bin/python", program, *options]
        self.start(f"llama-{side}", command, f"http://127.0.0.1:{port}/health")
        return f"127.0.0.1:{port}"

    def gateway(self, name, config):
        """neptune-gateway; returns the addresses of REST and gRPC, and the URL of its status."""
        rest, grpc, metrics = free_port(), free_port(), free_port()
        config = {"service": name, "listen": f"127.0.0.1:{rest}", "metricsListen": f"127.0.0.1:{metrics}", **config}
        if "grpcAddress" in config["edge"]:
            config["grpcListen"] = f"127.0.0.1:{grpc}"
        file = self.folder / f"gateway-{name}.json"
        write_json(file, config)
        command = [self.paths["gateway"], "run", "--config", file]
        self.start(f"gateway-{name}", command, f"http://127.0.0.1:{metrics}/healthz")
        return f"127.0.0.1:{rest}", f"127.0.0.1:{grpc}", f"http://127.0.0.1:{metrics}/status"


def wait_for_signal(status):
    """Waits until the gateway knows which log-probabilities the edge gives."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if get_json(status)["signal"] == "Top2":
            return
        time.sleep(0.05)
    raise RuntimeError(f"{status} did not show the signal Top2 within {START_SECONDS} s")


def get_json(url):
    """The JSON at the URL."""
    with urllib.request.urlopen(url, timeout=5) as answer:
        return json.load(answer)


def write_json(file, value):
    """Writes the value as JSON."""
    file.write_text(json.dumps(value), encoding="utf-8")
