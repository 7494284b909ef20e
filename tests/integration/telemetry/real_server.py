"""A real Redis-protocol server whose life, settings and door are the test's; and a door with TLS."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import ipaddress
import shutil
import signal
import ssl
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import TracebackType

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from prism_ray.telemetry.embedded import server_binary


class RealServer:
    """One server after another on the same socket, as a service that is restarted."""

    def __init__(self, *settings: str) -> None:
        self._settings = settings
        # Not the test's own directory: a socket's path is at most about a hundred bytes long.
        self.directory = Path(tempfile.mkdtemp(prefix="prism-test-"))
        self.path = self.directory / "s.sock"
        self.url = f"unix://{self.path}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *settings: str, wait: bool = True) -> None:
        assert self._process is None
        base = ["--port", "0", "--unixsocket", str(self.path), "--dir", str(self.directory)]
        quiet = ["--save", "", "--appendonly", "no", "--logfile", ""]
        self._process = subprocess.Popen(
            [server_binary(), *base, *quiet, *self._settings, *settings],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + 10
        while wait and not self._answers():
            assert time.monotonic() < deadline, "the server does not start"
            time.sleep(0.02)

    def _answers(self) -> bool:
        try:
            with redis.Redis(unix_socket_path=str(self.path), socket_timeout=1.0) as client:
                client.ping()
        except (redis.AuthenticationError, redis.ResponseError):
            return True
        except (redis.RedisError, OSError):
            return False
        return True

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """As by the kernel: nothing is said, nothing is kept."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def client(self, password: str | None = None) -> redis.Redis:
        return redis.Redis(
            unix_socket_path=str(self.path),
            socket_timeout=5.0,
            password=password,
            retry=Retry(NoBackoff(), 0),
        )

    def __enter__(self) -> RealServer:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)


def self_signed(directory: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that is its own CA, and its key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "store")])
    now = datetime.datetime.now(datetime.UTC)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    cert_file, key_file = directory / "cert.pem", directory / "key.pem"
    cert_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return cert_file, key_file


@contextlib.asynccontextmanager
async def tls_door(server: RealServer, cert_file: Path, key_file: Path) -> AsyncIterator[int]:
    """A port on 127.0.0.1 that speaks TLS and passes on to the server, which was built without."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert_file, key_file)
    inside: set[asyncio.Task[None]] = set()

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def enter(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, forth = await asyncio.open_unix_connection(str(server.path))
        for task in (pass_on(reader, forth), pass_on(back, writer)):
            inside.add(asyncio.ensure_future(task))

    door = await asyncio.start_server(enter, "127.0.0.1", 0, ssl=context)
    try:
        yield door.sockets[0].getsockname()[1]
    finally:
        door.close()
        for task in inside:
            task.cancel()
        await asyncio.gather(*inside, return_exceptions=True)
