"""Compares the gateway with Envoy and nginx as plain reverse proxies, in front of one backend with a fixed answer.

usage: gateway.py GATEWAY ENVOY FOLDER ROUNDS

The load comes from h2load (HTTP/1.1, 10 connections): 1,000 requests per second for five seconds, then 20,000 requests
as fast as possible. Each round does this with all candidates; the order changes, so that noise hits all of them.
"""

import hashlib
import json
import os
import pathlib
import re
import signal
import socket
import ssl
import statistics
import subprocess
import sys
import time
import urllib.request

CONNECTIONS = 10
PER_SECOND = 1000
SECONDS = 5
FLOOD = 20_000
KIB_PER_MIB = 1024
REQUEST = {"inputs": [{"name": "x", "shape": [1, 64], "datatype": "FP32", "data": [n / 7 for n in range(64)]}]}
KEY = "npk_bench"
PROBABILITIES = [0.91, 0.02, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.005, 0.005]
OUTPUT = {"name": "probabilities", "shape": [1, 10], "datatype": "FP32", "data": PROBABILITIES}
ANSWER = {"model_name": "small", "model_version": "1", "outputs": [OUTPUT]}


def free_port():
    """A port that nothing listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def nginx(folder, name, workers, location, more=""):
    """The command of an nginx with one location, and its port."""
    port, prefix = free_port(), folder / name
    prefix.mkdir()
    (prefix / "nginx.conf").write_text(
        f"""daemon off; worker_processes {workers}; pid {prefix}/pid; error_log {prefix}/error.log;
        events {{ worker_connections 1024; }}
        http {{ access_log off; keepalive_requests 100000000; client_body_temp_path {prefix}/body;
          proxy_temp_path {prefix}/proxy; fastcgi_temp_path {prefix}/fastcgi; uwsgi_temp_path {prefix}/uwsgi;
          scgi_temp_path {prefix}/scgi; {more}
          server {{ listen 127.0.0.1:{port}; location / {{ {location} }} }} }}"""
    )
    return ["nginx", "-p", prefix, "-c", prefix / "nginx.conf", "-e", prefix / "error.log"], port


def envoy_config(port, backend):
    """A plain reverse proxy."""
    v3 = "type.googleapis.com/envoy.extensions"
    address = lambda number: {"socket_address": {"address": "127.0.0.1", "port_value": number}}
    router = {"name": "router", "typed_config": {"@type": f"{v3}.filters.http.router.v3.Router"}}
    hosts = [{"name": "all", "domains": ["*"], "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "backend"}}]}]
    manager = {
        "@type": f"{v3}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "bench",
        "route_config": {"virtual_hosts": hosts},
        "http_filters": [router],
    }
    chains = [{"filters": [{"name": "http", "typed_config": manager}]}]
    endpoints = [{"lb_endpoints": [{"endpoint": {"address": address(backend)}}]}]
    load = {"cluster_name": "backend", "endpoints": endpoints}
    cluster = {"name": "backend", "type": "STATIC", "connect_timeout": "1s", "load_assignment": load}
    listener = {"address": address(port), "filter_chains": chains}
    return {"static_resources": {"listeners": [listener], "clusters": [cluster]}}


class Candidate:
    """What is measured: a process (none for direct requests) and a URL."""

    def __init__(self, name, port, process=None, model="small", scheme="http"):
        self.name, self.process = name, process
        self.url = f"{scheme}://127.0.0.1:{port}/v2/models/{model}/infer"
        self.latencies, self.rates, self.cpu = [], [], []
        self.loaded = 0

    def pids(self):
        """The process and its children."""
        if self.process is None:
            return []
        children = subprocess.run(["ps", "--ppid", str(self.process.pid), "-o", "pid="], capture_output=True, text=True)
        return [self.process.pid, *map(int, children.stdout.split())]

    def cpu_seconds(self):
        """User and system time so far."""
        stats = [pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split() for pid in self.pids()]
        return sum(int(stat[11]) + int(stat[12]) for stat in stats) / os.sysconf("SC_CLK_TCK")

    def pss(self):
        """Memory in KiB; pages that processes share count in parts."""
        rollups = [pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text() for pid in self.pids()]
        return sum(int(re.search(r"^Pss: +(\d+)", text, re.M)[1]) for text in rollups)

    def measure(self, folder):
        """One round."""
        before = self.cpu_seconds()
        log = folder / "requests.log"
        log.unlink(missing_ok=True)
        load(self.url, folder, PER_SECOND * SECONDS, [f"--rps={PER_SECOND // CONNECTIONS}", f"--log-file={log}"])
        lines = [line.split("\t") for line in log.read_text().splitlines()]
        self.latencies.append(sorted(int(line[2]) for line in lines))
        self.loaded = max(self.loaded, self.pss())
        self.rates.append(load(self.url, folder, FLOOD, []))
        self.cpu.append((self.cpu_seconds() - before) / (PER_SECOND * SECONDS + FLOOD) * 1e6)
        self.loaded = max(self.loaded, self.pss())

    def latency(self, share):
        """The quantile in microseconds; the median of the rounds."""
        return statistics.median(times[int(len(times) * share)] for times in self.latencies)


def load(url, folder, number, options):
    """Sends requests, all of which have to be answered with 200; returns them per second."""
    connections = [f"-c{CONNECTIONS}", "-m1", "-t1", "--h1", f"-n{number}", "-d", folder / "request.json"]
    headers = ["-H", "content-type: application/json", "-H", f"authorization: Bearer {KEY}"]
    command = ["h2load", *connections, *headers, *options, url]
    text = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout
    assert f"{number} 2xx" in text, text
    return float(re.search(r", ([\d.]+) req/s", text)[1])


def start(processes, command, port):
    """Starts a server and waits until it accepts connections."""
    process = subprocess.Popen([str(part) for part in command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    processes.append(process)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return process
        except OSError:
            time.sleep(0.05)
    raise RuntimeError(f"{command[0]} does not listen on {port}")


def candidates(folder, gateway, envoy, processes):
    """Starts all servers."""
    (folder / "request.json").write_text(json.dumps(REQUEST))
    answer = f"default_type application/json; return 200 '{json.dumps(ANSWER)}';"
    command, backend = nginx(folder, "backend", 1, answer)
    start(processes, command, backend)
    upstream = f"upstream backend {{ server 127.0.0.1:{backend}; keepalive 64; keepalive_requests 100000000; }}"
    proxy = 'proxy_pass http://backend; proxy_http_version 1.1; proxy_set_header Connection "";'
    command, port = nginx(folder, "proxy", os.cpu_count(), proxy, upstream)
    found = [Candidate("direct", backend), Candidate("nginx", port, start(processes, command, port))]
    port = free_port()
    (folder / "envoy.json").write_text(json.dumps(envoy_config(port, backend)))
    options = ["--concurrency", os.cpu_count(), "-l", "off", "--disable-hot-restart"]
    command = [envoy, "-c", folder / "envoy.json", *options]
    found.append(Candidate("envoy", port, start(processes, command, port)))
    for name, model, more in gateways(folder):
        port = free_port()
        config = {
            "service": "bench",
            "protocol": "oip",
            "listen": f"127.0.0.1:{port}",
            "edge": {"address": f"127.0.0.1:{backend}", "model": "small"},
            "cloud": {"url": f"http://127.0.0.1:{backend}", "modelName": "big"},
            "hardExample": {"algorithm": "MaxProbability", "threshold": 0.5},
            # As the agent runs it: each request's samples are recorded before its answer is sent.
            "state": str(folder / f"{port}.state"),
            **more,
        }
        file = folder / f"gateway-{port}.json"
        file.write_text(json.dumps(config))
        command = [gateway, "run", "--config", file]
        found.append(Candidate(name, port, start(processes, command, port), model, "https" if "tls" in more else "http"))
    body = json.dumps(REQUEST).encode()
    headers = {"content-type": "application/json", "authorization": f"Bearer {KEY}"}
    context = ssl.create_default_context(cafile=folder / "web.crt")
    for candidate in found[-3:]:
        request = urllib.request.Request(candidate.url, body, headers)
        with urllib.request.urlopen(request, timeout=5, context=context) as response:
            assert response.headers["x-neptune-decision"] == "easy", response.headers
    return found


def gateways(folder):
    """The names of the gateways, the model that is asked for, and what their configurations have beside the common part."""
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", str(folder / "web.key")]
    command = ["openssl", "req", "-x509", "-days", "2", *key, "-out", str(folder / "web.crt"), *subject]
    subprocess.run(command, check=True, capture_output=True)
    # As many clients as there may be, and the one that asks is the last.
    digests = [hashlib.sha256(f"{number}".encode()).hexdigest() for number in range(63)]
    digests.append(hashlib.sha256(KEY.encode()).hexdigest())
    clients = [{"name": f"c{number}", "keySha256": [digest]} for number, digest in enumerate(digests)]
    tls = {"certFile": str(folder / "web.crt"), "keyFile": str(folder / "web.key")}
    return (
        ("gateway, passed", "other", {}),
        ("gateway, decided", "small", {}),
        ("gateway, keys", "small", {"clients": clients}),
        ("gateway, keys+TLS", "small", {"clients": clients, "tls": tls}),
    )


def print_tables(found, idle):
    """The figures, and the goals with their rows."""
    direct, by_name = found[0], {candidate.name: candidate for candidate in found}
    head = ("added p50", "added p99", "CPU", "throughput", "PSS idle", "loaded")
    print("\n{:17} {:>10} {:>10} {:>8} {:>11} {:>9} {:>9}".format("", *head))
    added = {}
    for candidate in found:
        row = [candidate.latency(share) - direct.latency(share) for share in (0.5, 0.99)]
        row += [statistics.median(candidate.cpu), statistics.median(candidate.rates)]
        row += [idle[candidate.name] / KIB_PER_MIB, candidate.loaded / KIB_PER_MIB]
        added[candidate.name] = row
        cells = "{:7.0f} us {:7.0f} us {:5.0f} us {:7.0f} rps {:5.1f} MiB {:5.1f} MiB".format(*row)
        print(f"{candidate.name:17} {cells}")
    print(f"direct: p50 {direct.latency(0.5):.0f} us, p99 {direct.latency(0.99):.0f} us\n")
    envoy = added["envoy"]
    base = by_name["gateway, decided"]
    for candidate in found[5:]:
        ratios = [candidate.latency(share) / base.latency(share) for share in (0.5, 0.99)]
        ratios.append(statistics.median(candidate.cpu) / statistics.median(base.cpu))
        grown = candidate.latency(0.5) - base.latency(0.5)
        print("{:17} p50 {:.2f} x, p99 {:.2f} x, CPU {:.2f} x of decided;".format(candidate.name, *ratios), end=" ")
        print(f"p50 {grown:+.0f} us")
    for name in list(by_name)[3:5]:
        ours = added[name]
        cpu = 1.5 if "decided" in name else 1.0
        goals = (
            ("added p50", ours[0], envoy[0], 1.0),
            ("added p99", ours[1], envoy[1], 1.2),
            ("CPU per request", ours[2], envoy[2], cpu),
        )
        for what, value, peer, factor in goals:
            result = "pass" if value <= factor * peer else "short"
            print(f"{name:17} {what:16} {value:7.0f} us, goal {factor:.1f} x Envoy's {peer:5.0f} us  {result}")
        result = "pass" if ours[4] <= 8 else "short"
        print(f"{name:17} {'PSS idle':16} {ours[4]:6.1f} MiB, goal 8 MiB  {result}")


def main():
    """Measures and prints."""
    gateway, envoy, folder, rounds = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3]), int(sys.argv[4])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    processes = []
    try:
        found = candidates(folder, gateway, envoy, processes)
        idle = {candidate.name: candidate.pss() for candidate in found}
        for number in range(rounds):
            at = number % len(found)
            for candidate in found[at:] + found[:at]:
                candidate.measure(folder)
            print(f"round {number + 1} of {rounds} done", flush=True)
        print_tables(found, idle)
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(timeout=40)


if __name__ == "__main__":
    main()
