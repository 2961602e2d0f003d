#!/usr/bin/env python3
"""A transformer without a library: scales pixels before the model, and names the class after it."""
import json, os, urllib.error, urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PREDICTOR, DIVISOR = os.environ["PREDICTOR_URL"], float(os.environ.get("DIVISOR", "1"))
LABELS = os.environ.get("LABELS", "").split()

class Transformer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):  # health checks and metadata are those of the model server
        self.answer(*self.ask(None))

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        for tensor in body["inputs"]:
            tensor["data"] = [value / DIVISOR for value in tensor["data"]]
        status, answer = self.ask(json.dumps(body).encode())
        if status == 200 and LABELS:
            answer = json.loads(answer)
            scores = answer["outputs"][0]["data"]
            answer["parameters"] = {"label": LABELS[scores.index(max(scores))]}
            answer = json.dumps(answer).encode()
        self.answer(status, answer)

    def ask(self, body):
        headers = {"Content-Type": "application/json"}
        try:
            with urllib.request.urlopen(urllib.request.Request(PREDICTOR + self.path, body, headers), timeout=30) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()
        except OSError as error:
            return 502, str(error).encode()

    def answer(self, status, body):
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass

class Server(ThreadingHTTPServer):
    request_queue_size = 128

Server(("", int(os.environ["PORT"])), Transformer).serve_forever()
