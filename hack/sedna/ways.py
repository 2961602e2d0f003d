"""The processes of each way of joint inference: servers, workers, and the programs that run the samples through them."""

import http.server
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading

import numpy as np

from servers import Servers, free_port, get_json, write_json

HERE = pathlib.Path(__file__).parent
SERVICE = "digits"
# Reports of the imitation; the library's default is 30 s.
PERIOD_SECONDS = 1
LAST_REPORT_SECONDS = 10


class LocalController(http.server.ThreadingHTTPServer):
    """Receives the counters of the imitation in place of Sedna's agent on the node."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Reports)
        self.address = f"127.0.0.1:{self.server_port}"
        self.report, self.changed = None, threading.Condition()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def wait_for(self, samples):
        """The report that covers all samples. Each hard one is counted twice."""
        covers = lambda: self.report and self.report["inferenceNumber"] - self.report["hardExampleNumber"] >= samples
        with self.changed:
            if not self.changed.wait_for(covers, LAST_REPORT_SECONDS):
                raise TimeoutError(f"no report of {samples} samples: the last one is {self.report}")
            return self.report


class _Reports(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        """Keeps the report."""
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        with self.server.changed:
            self.server.report = body["ownerInfo"]
            self.server.changed.notify_all()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_):
        """Prints nothing."""


class Way(Servers):
    """One way, started in a folder of its own. `cloud` can be stopped and started again on its port."""

    def __init__(self, folder, paths):
        folder.mkdir()
        super().__init__(folder, paths)
        self.cloud_port, self.cloud, self.load, self.edge = free_port(), None, None, []

    def start_cloud(self):
        """Starts the cloud's server, and waits until it answers."""
        raise NotImplementedError

    def start_load(self, config, schedule):
        """Starts the program that runs the samples; it waits for `begin`."""
        file, self.output = self.folder / "load.json", self.folder / "load.npy"
        write_json(file, config)
        command = [sys.executable, "-B", HERE / "load.py", file, schedule, self.output]
        with open(self.folder / "load.log", "w", encoding="utf-8") as log:
            self.load = subprocess.Popen(
                [str(part) for part in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )
        self.processes.append(("load", self.load))
        self._expect("ready")

    def begin(self):
        """Lets the program run the samples."""
        self.load.stdin.write("\n")
        self.load.stdin.flush()

    def rows(self):
        """Waits until all samples are answered; one row for each (see load.py)."""
        self._expect("done")
        return np.load(self.output)

    def _expect(self, line):
        found = self.load.stdout.readline().strip()
        if found != line:
            log = (self.folder / "load.log").read_text(encoding="utf-8")
            raise RuntimeError(f"load.py printed {found!r} instead of {line!r}: {log[-2000:]}")

    def stop_cloud(self):
        """Ends the cloud's server: connections are refused."""
        self.cloud.kill()
        self.cloud.wait()
        self.processes = [entry for entry in self.processes if entry[1] is not self.cloud]

    def pause_cloud(self):
        """Connections are accepted, and nothing is answered."""
        os.kill(self.cloud.pid, signal.SIGSTOP)

    def resume_cloud(self):
        """Undoes `pause_cloud`."""
        os.kill(self.cloud.pid, signal.SIGCONT)

    def memory(self):
        """PSS of the edge's and of the cloud's processes, in MiB."""
        return sum(map(pss, self.edge)), pss(self.cloud)


class Gateway(Way):
    """Neptune: model servers on both sides, and the gateway; the program is a client with one connection."""

    name = "gateway"

    def __init__(self, folder, paths, batch=1):
        super().__init__(folder, paths)
        self.batch = batch

    def start_cloud(self):
        self.model_server("big", self.cloud_port)
        self.cloud = self.processes[-1][1]

    def start_all(self, schedule, settings):
        """Starts everything. `settings` has the goal, the threshold and the rate."""
        self.start_cloud()
        edge, _ = self.model_server("small")
        # The imitation has no comparisons of easy samples: without them both ways do the same work.
        rule = {"algorithm": "CrossEntropy", "output": "probabilities", "threshold": settings["threshold"]}
        rule |= {"goal": {"uploadRatio": settings["ratio"]}, "shadowRatio": 0}
        cloud = {"url": f"http://127.0.0.1:{self.cloud_port}", "modelName": "big"}
        config = {"protocol": "oip", "edge": {"address": edge, "model": "small"}, "cloud": cloud, "hardExample": rule}
        address, _, self.status = self.gateway("gateway", config)
        self.edge = [process for name, process in self.processes if name in ("model-server-small", "gateway-gateway")]
        self.start_load({"gateway": address, "rate": settings["rate"], "batch": self.batch}, schedule)

    def reported_ratio(self, _samples):
        """What the counters show."""
        counters = get_json(self.status)["samples"]
        return counters["cloud"] / counters["inference"]


class Imitation(Way):
    """The imitation of Sedna's library: the edge model is in the worker, and the worker has the samples."""

    name = "imitation"

    def __init__(self, folder, paths):
        super().__init__(folder, paths)
        self.local_controller = LocalController()

    def __exit__(self, *arguments):
        super().__exit__(*arguments)
        self.local_controller.shutdown()
        self.local_controller.server_close()

    def start_cloud(self):
        model = self.paths["root"] / "examples/digits/models/big.json"
        command = [sys.executable, "-B", HERE / "cloud_worker.py", SERVICE, model, self.cloud_port]
        self.cloud = self.start("cloud-worker", command, f"http://127.0.0.1:{self.cloud_port}/healthz")

    def start_all(self, schedule, settings):
        """Starts everything; see `Gateway.start_all`."""
        self.start_cloud()
        config = {"threshold": settings["threshold"], "rate": settings["rate"], "batch": 1, "service": SERVICE}
        config |= {"cloud": f"127.0.0.1:{self.cloud_port}", "localController": self.local_controller.address}
        config |= {"model": str(self.paths["root"] / "examples/digits/models/small.json"), "period": PERIOD_SECONDS}
        self.start_load(config, schedule)
        self.edge = [self.load]

    def reported_ratio(self, samples):
        """What the last report has."""
        return self.local_controller.wait_for(samples)["uploadCloudRatio"]


class ImitationWithRust(Imitation):
    """The same worker, with the cloud worker of examples/digits."""

    def start_cloud(self):
        model = self.paths["root"] / "examples/digits/models/big.json"
        options = ["--service-name", SERVICE, "--model-url", model, "--big-model-bind-ip", "127.0.0.1"]
        command = [self.paths["digits"], "cloud", *options, "--big-model-bind-port", self.cloud_port]
        self.cloud = self.start("cloud-worker", command, f"http://127.0.0.1:{self.cloud_port}/healthz")


def pss(process):
    """Memory in MiB; pages that processes share count in parts."""
    text = pathlib.Path(f"/proc/{process.pid}/smaps_rollup").read_text(encoding="utf-8")
    return int(re.search(r"^Pss: +(\d+)", text, re.M)[1]) / 1024
