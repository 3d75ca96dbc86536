"""Send requests as they stand, and say of each what was answered and what of it reached a server.

Run in the local cluster: `router_attacks.py FILE HOST:PORT SERVER…`; FILE has requests by their names, in hexadecimal.
"""

import http.client
import json
import socket
import sys
from pathlib import Path

LIMIT_S = 10
MARKS = ("10.0.0.66", "10.0.0.67", "169.254.169.254", "evil", "evil:1")


def asked(server: str) -> list[dict[str, str]]:
    """All that a server was asked."""
    connection = http.client.HTTPConnection(server, timeout=LIMIT_S)
    connection.request("GET", "/seen")
    seen: list[dict[str, str]] = json.loads(connection.getresponse().read())
    connection.close()
    return seen


def answered(request: bytes, address: str) -> tuple[int, str | None]:
    """Status, and the field that an error names; 0 where the connection is closed."""
    host, _, port = address.partition(":")
    with socket.create_connection((host, int(port)), LIMIT_S) as there:
        there.sendall(request)
        answer = http.client.HTTPResponse(there, method=request.split(b" ", 1)[0].decode())
        try:
            answer.begin()
            error = json.loads(answer.read())
            return answer.status, error["error"]["param"]
        except (ValueError, KeyError, TypeError):
            return answer.status, None
        except (OSError, http.client.HTTPException):
            return 0, None


def main() -> None:
    file, address, *servers = sys.argv[1:]
    rows: dict[str, dict[str, object]] = {}
    before = {server: len(asked(server)) for server in servers}
    for name, text in json.loads(Path(file).read_text()).items():
        try:
            status, param = answered(bytes.fromhex(text), address)
        except OSError:
            status, param = 0, None
        new: list[dict[str, str]] = []
        for server in servers:
            seen = asked(server)
            new += seen[before[server] :]
            before[server] = len(seen)
        marked = [row for row in new if any(mark in row["headers"] + row["body"] + row["path"] for mark in MARKS)]
        rows[name] = {"status": status, "param": param, "reached": len(new), "marked": marked}
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
