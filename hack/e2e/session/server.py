"""The server of a session without any engine: the mean of one number per worker, over HTTPS.

It begins with the weights of an earlier attempt, if there are any, and writes new ones after each round. Without them it
stays in round 3, until the test kills it."""

import http.server
import json
import os
import ssl
import struct
import threading
import time

ROUNDS, WORKERS = int(os.environ["ROUNDS"]), int(os.environ["WORKERS"])
LAST = ROUNDS if "WEIGHTS_URL" in os.environ else 2
OUTPUT = os.environ["OUTPUT_DIR"]
lock = threading.Lock()
state = {"round": 1, "w": 0.0, "updates": {}, "informed": set()}


def read(path):
    with open(path, "rb") as file:
        length = struct.unpack("<Q", file.read(8))[0]
        file.read(length)
        return struct.unpack("<f", file.read(4))[0]


def write(value):
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    with open(f"{OUTPUT}/weights.new", "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header + struct.pack("<f", value))
    os.rename(f"{OUTPUT}/weights.new", f"{OUTPUT}/weights.safetensors")


class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        update = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with lock:
            if update.get("round") == state["round"] and state["round"] <= ROUNDS:
                state["updates"][update["worker"]] = update["value"]
            if len(state["updates"]) == WORKERS and state["round"] <= LAST:
                finish()
            if state["round"] > ROUNDS:
                state["informed"].add(update["worker"])
            answer = json.dumps({"round": state["round"], "rounds": ROUNDS, "w": state["w"]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


def finish():
    state["w"] += sum(state["updates"].values()) / WORKERS
    write(state["w"])
    with open(f"{OUTPUT}/progress.jsonl", "a") as file:
        line = {"round": state["round"], "rounds": ROUNDS, "loss": 1 / state["round"], "participants": WORKERS}
        file.write(json.dumps({**line, "metrics": {"w": state["w"]}}) + "\n")
    state["round"] += 1
    state["updates"] = {}


if "WEIGHTS_URL" in os.environ:
    state["w"] = read(os.environ["WEIGHTS_URL"])
server = http.server.ThreadingHTTPServer(("", int(os.environ["PORT"])), Handler)
tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
tls.load_cert_chain(os.environ["TLS_CERT_FILE"], os.environ["TLS_KEY_FILE"])
server.socket = tls.wrap_socket(server.socket, server_side=True)
threading.Thread(target=server.serve_forever, daemon=True).start()
while len(state["informed"]) < WORKERS:
    time.sleep(0.1)
