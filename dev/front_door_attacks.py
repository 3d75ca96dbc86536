"""Effects of attacks on a stack's front door: its memory, and the failures and latencies of a well-behaved client.

Envoy is real, with a stack's bootstrap configuration, keys and certificate, in its own network and mount namespaces
without outside connections; the servers behind it are simulated. Each attack has a fresh Envoy and a fixed duration.
Memory is the peak resident set size of Envoy's process, as a share of its container's limit. The well-behaved client
has its own key and sends one request after the other, with a new connection after every fifth.
"""

import argparse
import asyncio
import json
import math
import os
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from base64 import urlsafe_b64encode
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import httpx2
from attacks import ATTACKS, OF_TOKENS, AttackTarget
from cryptography.hazmat.primitives.asymmetric import ec, utils
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from llmd_base.errors import KitError
from llmd_base.progress import PlainProgress, Progress
from llmd_base.records import document
from llmd_oke.serving import authentication, stack_envoy
from llmd_oke.serving.envoy_bounds import bounds
from llmd_oke.serving.model_envoy import READY_PORT, Upstream
from llmd_oke.serving.stack_envoy import STACK_PORT, ClientLimits, EnvoySettings, ServedModel
from llmd_rehearsal import front_door, namespaces
from llmd_rehearsal.pods.volumes import File, write_files
from llmd_rehearsal.programs import locate

HERE, UNIT_PORT = "127.0.0.1", 9080
HOST, MODEL = "llm.example.com", "openai/gpt-oss-120b"
ISSUER = "https://id.example.com"
ATTACKERS, OTHER = ("attacker", "another"), front_door.CLIENT
LIMIT_S = 60
REQUESTS_OF_CONNECTION = 5
PAUSE_S = 0.05
"""Seconds between two requests of the well-behaved client during an attack."""

PIECE = b"x" * 65536
"""Bytes that a simulated model server writes at once; an answer has one of these pieces or 256."""

MAX_SHARE = bounds().attack_share
"""Share of Envoy's memory limit that no attack may exceed (0.9 is 90 %)."""


@dataclass(frozen=True)
class AttackOutcome:
    """Result of an attack.

    Attributes:
        attack: name of the attack.
        memory_mib: peak resident set size of Envoy in MiB.
        memory_share: `memory_mib` as a share of the memory limit.
        requests: requests of the well-behaved client during the attack.
        failed: failed requests of the well-behaved client.
        median_ms: median latency during the attack in milliseconds.
        p99_ms: 99th percentile of the latency during the attack.
        quiet_median_ms: median latency before the attack.
        quiet_p99_ms: 99th percentile of the latency before the attack.
        smuggled: number of smuggled requests that reached the server.
        counts: counts of the attacker.
    """

    attack: str
    memory_mib: float
    memory_share: float
    requests: int
    failed: int
    median_ms: float
    p99_ms: float
    quiet_median_ms: float
    quiet_p99_ms: float
    smuggled: int
    counts: dict[str, int]

    @property
    def held(self) -> bool:
        """True if the front door withstood the attack: memory stayed below `MAX_SHARE`, no request failed, and no
        request was smuggled.
        """
        return self.memory_share < MAX_SHARE and not self.failed and not self.smuggled


class RecordingUnit:
    """Server behind the front door that answers every request, with a large answer or none if the prompt says so, and
    counts requests for other paths as smuggled.
    """

    def __init__(self) -> None:
        self.smuggled = 0

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Serve requests of the front door within a `with` block."""
        server = await asyncio.start_server(self._serve, HERE, UNIT_PORT, limit=64 * 1024 * 1024)
        try:
            yield
        finally:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                self.smuggled += head.split(b" ", 2)[1] != b"/v1/completions"
                body = await _body(reader, head.decode().lower())
                if b'"wait"' in body[:200]:
                    await reader.read()
                pieces = 256 if b'"large"' in body[:200] else 1
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % (pieces * len(PIECE)))
                for _ in range(pieces):
                    writer.write(PIECE)
                    await writer.drain()
        except (asyncio.IncompleteReadError, OSError, ValueError):
            pass
        finally:
            writer.close()


async def _body(reader: asyncio.StreamReader, head: str) -> bytes:
    lengths = [int(line.split(":")[1]) for line in head.splitlines() if line.startswith("content-length:")]
    if lengths:
        return await reader.readexactly(lengths[0])
    body = b""
    while "transfer-encoding: chunked" in head:
        size = int((await reader.readline()).strip(), 16)
        body += (await reader.readexactly(size + 2))[:-2]
        if not size:
            break
    return body


class Client:
    """Well-behaved client of an attacked front door, with its latencies and failures."""

    def __init__(self, target: AttackTarget) -> None:
        self.target = target
        self.times_ms: list[float] = []
        self.failures: list[str] = []

    async def ask_on(self) -> None:
        """Send requests one after the other until cancelled."""
        trusted = ssl.create_default_context(cadata=self.target.chain)
        while True:
            async with httpx2.AsyncClient(verify=trusted, timeout=LIMIT_S / 2) as session:
                for _ in range(REQUESTS_OF_CONNECTION):
                    await self._ask(session)
                    await asyncio.sleep(PAUSE_S)

    async def _ask(self, session: httpx2.AsyncClient) -> None:
        url = f"https://{self.target.address}:{self.target.port}/v1/completions"
        headers = {"authorization": f"Bearer {self.target.key}", "host": HOST}
        body = {"model": MODEL, "prompt": "x" * 4000}
        started_s = time.perf_counter()
        try:
            response = await session.post(url, json=body, headers=headers, extensions={"sni_hostname": HOST})
            if response.status_code != 200:
                self.failures.append(f"{response.status_code} {response.text[:200]}")
        except httpx2.HTTPError as error:
            self.failures.append(f"{type(error).__name__} {error}")
        self.times_ms.append((time.perf_counter() - started_s) * 1e3)


class Door:
    """Front door (Envoy) with its configuration in folders as Kubernetes would mount them, whose clients authenticate
    with API keys or tokens.
    """

    def __init__(self, folder: Path, program: Path, *, tokens: bool = False) -> None:
        self.folder, self.program = folder, program
        limits = {"requestsPerMinute": 600_000, "clients": dict.fromkeys(ATTACKERS, 600_000)}
        made = front_door.settings({"frontDoor": {"host": HOST, "limits": limits}}, folder)
        self.keys: dict[str, str] = made["llmd-oke:frontDoorKeys"]
        self.certificate: dict[str, str] = made["llmd-oke:frontDoorCertificate"]
        models = (ServedModel("gpt", MODEL, (), (Upstream(HERE, UNIT_PORT),)),)
        settings = EnvoySettings(
            models, encrypted=True, authenticated=True, tokens=tokens, limits=ClientLimits(requests_per_minute=600_000)
        )
        access = authentication.api_keys(self.keys)
        if tokens:
            self.keys = {client: _token(client, self.certificate["key"]) for client in self.keys}
            access = authentication.tokens(ISSUER, [HOST], made["llmd-oke:frontDoorKeySet"])
        self._write("/etc/envoy", envoy_yaml=stack_envoy.bootstrap(settings))
        self._write("/etc/envoy-certificate", certificate_json=stack_envoy.certificate())
        self._write(stack_envoy.TRAFFIC_FOLDER, clusters_json=stack_envoy.clusters(models))
        self._write(stack_envoy.ACCESS_FOLDER, authentication_json=access)
        pair = self.certificate
        self._write(stack_envoy.CERTIFICATE_FOLDER, tls_crt=pair["chain"], tls_key=pair["key"])

    def _write(self, path: str, **files: str) -> None:
        texts = {name.replace("_", "."): self._moved(text) for name, text in files.items()}
        write_files(Path(self._moved(path)), {name: File(text.encode()) for name, text in texts.items()})

    def _moved(self, text: str) -> str:
        moved = text.replace(
            f"/etc/envoy/{stack_envoy.CERTIFICATE_FILE}", f"/etc/envoy-certificate/{stack_envoy.CERTIFICATE_FILE}"
        )
        return moved.replace("/etc/", f"{self.folder}/")

    def target(self, *clients: str) -> AttackTarget:
        """Return the front door as the target of an attack, with the API keys or tokens of one or two clients."""
        keys = [self.keys[client] for client in clients]
        return AttackTarget(HERE, STACK_PORT, HOST, self.certificate["chain"], keys[0], keys[-1], MODEL)

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[int]:
        """Run Envoy as the front door within a `with` block, and yield its process ID once it is ready."""
        argv = [str(self.program), "-c", f"{self.folder}/envoy/envoy.yaml", "--log-level", "warn"]
        log = (self.folder / "envoy.log").open("ab")
        envoy = await asyncio.create_subprocess_exec(
            *argv, "--concurrency", "2", "--disable-hot-restart", stdout=asyncio.subprocess.DEVNULL, stderr=log
        )
        try:
            await _until_ready()
            yield envoy.pid
        finally:
            if envoy.returncode is None:
                envoy.kill()
            await asyncio.wait_for(envoy.wait(), LIMIT_S)


def _token(client: str, pem: str) -> str:
    """Return a client's token, valid for an hour, signed with the private key of the front door's certificate (ES256,
    RFC 7518).
    """
    key = cast("ec.EllipticCurvePrivateKey", load_pem_private_key(pem.encode(), None))
    claims = {"iss": ISSUER, "aud": HOST, "sub": client, "exp": int(time.time()) + 3600}
    parts = [json.dumps(part).encode() for part in ({"alg": "ES256", "kid": front_door.CLIENT}, claims)]
    said = b".".join(map(_encoded, parts))
    numbers = utils.decode_dss_signature(key.sign(said, ec.ECDSA(SHA256())))
    return b".".join((said, _encoded(b"".join(number.to_bytes(32) for number in numbers)))).decode()


def _encoded(data: bytes) -> bytes:
    return urlsafe_b64encode(data).rstrip(b"=")


async def _until_ready() -> None:
    end_s = time.monotonic() + LIMIT_S
    async with httpx2.AsyncClient() as session:
        while time.monotonic() < end_s:
            with suppress(httpx2.HTTPError):
                if (await session.get(f"http://{HERE}:{READY_PORT}/ready")).status_code == 200:
                    return
            await asyncio.sleep(0.05)
    raise KitError(f"Envoy is not ready within {LIMIT_S} s")


def _highest_mib(pid: int) -> float:
    """Return the peak resident set size of a process in MiB; infinity if the process has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024
    except (OSError, StopIteration):
        return math.inf


def _percentile(times_ms: Sequence[float], share: float) -> float:
    ordered = sorted(times_ms)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


async def attacked(door: Door, attack: str, seconds: float) -> AttackOutcome:
    """Run one attack on a freshly started Envoy, and return the result."""
    unit, client = RecordingUnit(), Client(door.target(OTHER))
    async with unit.running(), door.running() as pid:
        asking = asyncio.create_task(client.ask_on())
        try:
            await asyncio.sleep(2)
            quiet = client.times_ms[1:]
            client.times_ms = []
            counts = await _run_attack(door.target(*ATTACKERS), attack, seconds)
            highest_mib = _highest_mib(pid)
            during = list(client.times_ms)
            await asyncio.sleep(1)
        finally:
            asking.cancel()
    for failure in client.failures[:3]:
        print(f"  {attack}: {failure}", file=sys.stderr)
    return AttackOutcome(
        attack=attack,
        memory_mib=round(highest_mib, 1),
        memory_share=round(highest_mib / bounds().memory_limit_mib, 3),
        requests=len(during),
        failed=len(client.failures),
        median_ms=round(statistics.median(during), 1),
        p99_ms=round(_percentile(during, 0.99), 1),
        quiet_median_ms=round(statistics.median(quiet), 1),
        quiet_p99_ms=round(_percentile(quiet, 0.99), 1),
        smuggled=unit.smuggled,
        counts=counts,
    )


async def _run_attack(target: AttackTarget, attack: str, seconds: float) -> dict[str, int]:
    argv = [sys.executable, str(Path(__file__).with_name("attacks.py")), attack]
    process = await asyncio.create_subprocess_exec(
        *argv, json.dumps(asdict(target)), str(seconds), stdout=asyncio.subprocess.PIPE
    )
    try:
        output, _ = await asyncio.wait_for(process.communicate(), seconds + LIMIT_S)
    except TimeoutError:
        process.kill()
        raise KitError(f"{attack} did not end within {seconds + LIMIT_S:.0f} s") from None
    if process.returncode:
        raise KitError(f"{attack} ended with {process.returncode}")
    counts: dict[str, int] = json.loads(output)
    return counts


async def _outcomes(program: Path, names: Sequence[str], seconds: float, progress: Progress) -> list[AttackOutcome]:
    outcomes: list[AttackOutcome] = []
    chosen = [attack for attack in ATTACKS if not names or attack in names]
    with tempfile.TemporaryDirectory() as folder:
        doors = {tokens: Door(Path(folder) / str(tokens), program, tokens=tokens) for tokens in (False, True)}
        for i, attack in enumerate(chosen):
            left_s = (len(chosen) - i) * (seconds + 4)
            progress.step(f"{attack}: {i + 1} of {len(chosen)}, some {left_s / 60:.0f} min left")
            outcome = await attacked(doors[attack in OF_TOKENS], attack, seconds)
            progress.detail(f"{outcome.memory_share:.0%} of memory, {outcome.failed} of {outcome.requests} failed")
            outcomes.append(outcome)
    return outcomes


def _table(outcomes: Sequence[AttackOutcome]) -> str:
    head = "attack | memory | of the limit | requests beside it | failed | median | 99th percentile | held"
    rows = [
        f"{o.attack.replace('_', ' ')} | {o.memory_mib:.0f} MiB | {o.memory_share:.0%} | {o.requests} | {o.failed} |"
        f" {o.median_ms:.1f} ms (quiet {o.quiet_median_ms:.1f}) | {o.p99_ms:.0f} ms (quiet {o.quiet_p99_ms:.0f}) |"
        f" {'yes' if o.held else 'NO'}"
        for o in outcomes
    ]
    return "\n".join([head, *rows])


def main() -> None:
    """Attack a front door and print the results as a table, or as JSON; exit with 1 if the front door didn't withstand
    an attack.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", default=[], metavar="ATTACK", help="these alone")
    parser.add_argument("--seconds", type=float, default=15.0, help="of each attack (15)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if unknown := [name for name in options.only if name not in ATTACKS]:
        parser.error(f"--only: there is no {unknown[0]}; there are {', '.join(ATTACKS)}")
    if not 1 <= options.seconds <= 300:
        parser.error("--seconds: between 1 and 300")
    if options.inside is None:  # run again in new namespaces
        envoy = locate("envoy")
        if envoy is None:
            sys.exit("error there is no Envoy: `llmd-oke rehearse programs` gets it")
        argv = [sys.executable, str(Path(__file__).resolve()), *sys.argv[1:], "--inside", str(envoy.path)]
        created = namespaces.create_command(argv, user_namespace=os.geteuid() != 0)
        sys.exit(subprocess.run(created, check=False).returncode)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True, timeout=30)
    subprocess.run(["mount", "-t", "proc", "proc", "/proc"], check=True, timeout=30)
    try:
        outcomes = asyncio.run(_outcomes(options.inside, options.only, options.seconds, PlainProgress()))
    except KitError as error:
        sys.exit(f"error {error}")
    found: list[dict[str, Any]] = [{**asdict(outcome), **document("held", outcome)} for outcome in outcomes]
    print(json.dumps(found, indent=1) if options.json else _table(outcomes))
    sys.exit(not all(outcome.held for outcome in outcomes))


if __name__ == "__main__":
    main()
