"""Runs Python code for whoever asks, as the user that it was started by: the second account of test_listeners.

The tests run as an ordinary user, who cannot become another one; root starts this beside them.
"""

import json
import os
import socket
import subprocess
import sys


def ask(door, code):
    """Have code run by the second account; return its exit code, what it printed, and its errors."""
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(str(door))
        line.sendall(code.encode())
        line.shutdown(socket.SHUT_WR)
        return json.loads(line.makefile().read())


def serve(door):
    """Answer one after the other, until this process is ended."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(door)
        os.chmod(door, 0o777)
        listener.listen()
        while True:
            line, _ = listener.accept()
            with line:
                code = line.makefile().read()
                done = subprocess.run(
                    [sys.executable, "-c", code], capture_output=True, text=True, timeout=600, check=False
                )
                line.sendall(json.dumps([done.returncode, done.stdout, done.stderr]).encode())


if __name__ == "__main__":
    serve(sys.argv[1])
