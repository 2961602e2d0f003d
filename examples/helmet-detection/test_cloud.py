"""Tests of the client of the cloud worker: python3 -m unittest test_cloud."""

import http.server
import threading
import time
import unittest

from cloud import Cloud


class Server(http.server.ThreadingHTTPServer):
    """Answers according to `behaviour`, and counts the requests."""

    def __init__(self, behaviour):
        super().__init__(("127.0.0.1", 0), Handler)
        self.behaviour, self.requests, self.stopped = behaviour, 0, threading.Event()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def url(self):
        return f"http://127.0.0.1:{self.server_port}/demo/predict"

    def stop(self):
        self.stopped.set()
        self.shutdown()
        self.server_close()


class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.server.requests += 1
        self.rfile.read(int(self.headers["Content-Length"]))
        if self.server.behaviour == "silent":
            self.server.stopped.wait()
        elif self.server.behaviour == "error":
            self.send_error(503)
        elif self.server.behaviour == "slow":
            self.send_response(200)
            self.end_headers()
            while not self.server.stopped.wait(0.05):
                self.wfile.write(b" ")
        else:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"result": [[[1, 2, 3, 4, 0.9, 1]]]}')

    def log_message(self, *_):
        """Do not log requests."""


class CloudTest(unittest.TestCase):
    def cloud(self, behaviour):
        server = Server(behaviour)
        self.addCleanup(server.stop)
        cloud = Cloud(server.url())
        cloud.TIMEOUT = 0.3
        return server, cloud

    def test_answer_is_returned(self):
        _, cloud = self.cloud("answer")
        self.assertEqual(cloud.detect([[0.5]]), [[1, 2, 3, 4, 0.9, 1]])

    def test_whole_call_is_limited(self):
        for behaviour in ("silent", "slow"):
            with self.subTest(behaviour):
                _, cloud = self.cloud(behaviour)
                began = time.monotonic()
                self.assertIsNone(cloud.detect([[0.5]]))
                self.assertLess(time.monotonic() - began, 2)
                cloud.running.join(2)
                self.assertFalse(cloud.running.is_alive(), "an abandoned call ends")

    def test_failing_cloud_is_called_once_per_pause(self):
        server, cloud = self.cloud("error")
        for _ in range(20):
            self.assertIsNone(cloud.detect([[0.5]]))
        self.assertEqual(server.requests, 1)
        cloud.next_try = 0.0
        self.assertIsNone(cloud.detect([[0.5]]))
        self.assertGreater(cloud.next_try - time.monotonic(), 1.5, "the second pause is longer")
        server.behaviour, cloud.next_try = "answer", 0.0
        self.assertIsNotNone(cloud.detect([[0.5]]))
        self.assertEqual(cloud.failures, 0)


if __name__ == "__main__":
    unittest.main()
