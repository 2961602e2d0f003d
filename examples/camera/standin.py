"""A camera that is none: serves pictures of a growing and shrinking size as MJPEG, to try the example without one."""

import http.server
import random
import sys
import time


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers each GET with frames until the client leaves."""

    def do_GET(self):
        """Send 20 frames per second. Every tenth is larger, as if somebody passed."""
        self.send_response(200)
        self.send_header("Content-Type", "multipart/x-mixed-replace; boundary=frame")
        self.end_headers()
        numbers = random.Random(7)
        for number in range(sys.maxsize):
            size = numbers.randrange(3000, 3100) + (number % 10 == 9) * numbers.randrange(100, 900)
            head = f"--frame\r\nContent-Type: image/jpeg\r\nContent-Length: {size}\r\n\r\n"
            try:
                self.wfile.write(head.encode() + numbers.randbytes(size) + b"\r\n")
            except OSError:
                return
            time.sleep(0.05)

    def log_message(self, *_):
        """Log no requests."""


if __name__ == "__main__":
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 8554
    http.server.ThreadingHTTPServer(("", port), Handler).serve_forever()
