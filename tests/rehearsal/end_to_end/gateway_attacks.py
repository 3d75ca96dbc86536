"""Send requests as they stand to a Gateway, and print of each the status and the field that its error names.

Run in a rehearsed cluster: `gateway_attacks.py FILE HOST`; FILE has requests by their names, in hexadecimal.
"""

import http.client
import json
import socket
import sys
from pathlib import Path

LIMIT_S = 10


def answered(request: bytes, host: str) -> tuple[int, str | None]:
    """Status, and the field that an error names; 0 where the connection is closed."""
    with socket.create_connection((host, 80), LIMIT_S) as there:
        answer = http.client.HTTPResponse(there, method=request.split(b" ", 1)[0].decode())
        try:
            there.sendall(request)
            answer.begin()
            error = json.loads(answer.read())
            return answer.status, error["error"]["param"]
        except (ValueError, KeyError, TypeError):
            return answer.status, None
        except (OSError, http.client.HTTPException):
            return 0, None


if __name__ == "__main__":
    file, host = sys.argv[1:]
    requests = json.loads(Path(file).read_text())
    print(json.dumps({name: answered(bytes.fromhex(text), host) for name, text in requests.items()}))
