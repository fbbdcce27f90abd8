"""An HTTP proxy in front of a real server, which spoils the answers that it is told to spoil."""
import http.client
import http.server
import socket
import struct
import threading
import time

RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close with a reset


class Pace:
    """One line of a fixed width, shared: each body waits for those before it."""

    def __init__(self, bytes_per_second):
        self.bytes_per_second = bytes_per_second
        self.lock = threading.Lock()
        self.free_at = 0.0

    def wait_for(self, length):
        with self.lock:
            self.free_at = max(self.free_at, time.monotonic()) + length / self.bytes_per_second
            until = self.free_at
        time.sleep(max(0.0, until - time.monotonic()))


class FaultProxy:
    """`fault` is one of FAULTS or None; it applies to the next `times` requests for a range of a data object."""

    FAULTS = ("slow", "short", "long", "wrong", "whole", "503", "reset", "hang")

    def __init__(self, port, delay_s=0.0, bytes_per_second=None):
        """Each answer comes `delay_s` later than it would; all bodies together at most at that rate."""
        self.upstream = port
        self.delay_s = delay_s
        self.pace = Pace(bytes_per_second) if bytes_per_second else None
        self.fault = None
        self.times = 0
        self.spoiled = 0
        self.lock = threading.Lock()
        self.released = threading.Event()
        proxy = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self):
                proxy.serve(self)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_any

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)

    def start(self):
        self.thread.start()
        return self

    def close(self):
        self.released.set()
        self.server.shutdown()
        self.server.server_close()

    def spoil(self, fault, times=10 ** 9):
        with self.lock:
            self.fault, self.times, self.spoiled = fault, times, 0

    def next_fault(self, request):
        with self.lock:
            if self.fault is None or self.times == 0 or "Range" not in request.headers or ".data" not in request.path:
                return None
            self.times -= 1
            self.spoiled += 1
            return self.fault

    def serve(self, request):
        fault = self.next_fault(request)
        if fault == "hang":
            self.released.wait()
        if fault == "reset":
            request.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        if fault in ("hang", "reset"):
            request.close_connection = True
            request.connection.close()
            return
        if fault == "slow":
            time.sleep(0.3)
        body = request.rfile.read(int(request.headers.get("Content-Length") or 0))
        status, answer_headers, answer = self.forward(request, dict(request.headers), body)
        if self.delay_s:
            time.sleep(self.delay_s)
        if self.pace and answer:
            self.pace.wait_for(len(answer))
        self.answer(request, fault, status, answer_headers, answer)

    def forward(self, request, headers, body):
        connection = http.client.HTTPConnection("127.0.0.1", self.upstream, timeout=60)
        try:
            connection.putrequest(request.command, request.path, skip_host=True, skip_accept_encoding=True)
            for name, value in headers.items():
                connection.putheader(name, value)
            connection.endheaders(body)
            response = connection.getresponse()
            return response.status, response.getheaders(), response.read()
        finally:
            connection.close()

    @staticmethod
    def answer(request, fault, status, headers, body):
        if fault == "503":
            status, headers, body = 503, [], b"<Error><Code>SlowDown</Code></Error>"
        if fault == "whole":
            status = 200
            headers = [(n, v) for n, v in headers if n.lower() != "content-range"]
        if fault == "wrong" and body:
            middle = len(body) // 2
            body = body[:middle] + bytes([body[middle] ^ 1]) + body[middle + 1:]
        if fault == "long":
            body += b"more"
        length = len(body) if request.command != "HEAD" else next((v for n, v in headers if n.lower() == "content-length"), "0")
        request.send_response_only(status)
        for name, value in headers:
            if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                request.send_header(name, value)
        request.send_header("Content-Length", str(length))
        request.end_headers()
        if request.command == "HEAD":
            return
        if fault == "short":
            request.wfile.write(body[:len(body) // 2])
            request.close_connection = True
            return
        request.wfile.write(body)
