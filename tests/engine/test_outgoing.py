"""The guarded client: no request that somebody else has named leaves for where it must not."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import socket
import ssl
import time
from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from earnest.domain.errors import SettingInvalid
from earnest.engine.process.addresses import AddressPolicy, AddressRefused, read_address
from earnest.engine.process.outgoing import GuardedClient, Resolve, check_url
from tests.engine.far_end import far_end, stall_after_request
from tests.engine.receiver import Receiver

PUBLIC = AddressPolicy()
HERE = AddressPolicy(networks=[ipaddress.ip_network("127.0.0.0/8")])

FORBIDDEN = """
0.0.0.0 0.1.2.3 10.0.0.1 100.64.0.1 100.100.100.200 127.0.0.1 127.255.255.254 169.254.169.254
169.254.0.1 172.16.0.1 172.31.255.255 192.0.0.1 192.0.0.192 192.0.2.1 192.88.99.1 192.168.1.1
198.18.0.1 198.19.255.255 198.51.100.1 203.0.113.1 224.0.0.1 239.255.255.255 240.0.0.1
255.255.255.255 168.63.129.16
:: ::1 ::127.0.0.1 ::ffff:127.0.0.1 ::ffff:10.0.0.1 ::ffff:169.254.169.254 64:ff9b::7f00:1
64:ff9b::a9fe:a9fe 64:ff9b:1::1 100::1 2001:0:53aa:64c:0:fffe:f5ff:fffe 2001:db8::1 2002:7f00:1::
2002:a00:1:: 2002:a9fe:a9fe:: 3fff::1 5f00::1 fc00::1 fd00:ec2::254 fd12::1 fe80::1 fe80::1%eth0
fec0::1 ff02::1
""".split()
ALLOWED = (
    "8.8.8.8 1.1.1.1 192.0.1.1 172.32.0.1 2606:4700::1111 2a00:1450::1 64:ff9b::808:808".split()
)


@pytest.mark.parametrize("address", FORBIDDEN)
def test_what_is_not_the_public_internet_is_refused(address: str) -> None:
    assert not PUBLIC.allows(read_address(address))


@pytest.mark.parametrize("address", ALLOWED)
def test_the_public_internet_is_allowed(address: str) -> None:
    assert PUBLIC.allows(read_address(address))


def test_a_deployment_allows_its_networks_and_no_others() -> None:
    policy = AddressPolicy(networks=[ipaddress.ip_network("10.1.0.0/16")])
    assert policy.allows(read_address("10.1.2.3"))
    assert policy.allows(read_address("::ffff:10.1.2.3"))
    assert not policy.allows(read_address("10.2.0.1"))
    assert not policy.allows(read_address("64:ff9b::7f00:1"))


@pytest.mark.parametrize("address", ["169.254.169.254", "fd00:ec2::254", "100.100.100.200"])
def test_metadata_is_no_private_network(address: str) -> None:
    everything = AddressPolicy(all_private=True)
    assert everything.allows(read_address("10.0.0.1"))
    assert not everything.allows(read_address(address))
    named = AddressPolicy(networks=[ipaddress.ip_network(address)])
    assert named.allows(read_address(address)), "unless it is named"


@pytest.mark.parametrize(
    ("said", "means"),
    [
        ("", AddressPolicy()),
        ("off", AddressPolicy()),
        ("on", AddressPolicy(all_private=True)),
        ("::1/128, 10.0.0.0/8", AddressPolicy(networks=[
            ipaddress.ip_network("::1/128"), ipaddress.ip_network("10.0.0.0/8")])),
    ],
)  # fmt: skip
def test_the_setting_says_off_on_or_networks(
    monkeypatch: pytest.MonkeyPatch, said: str, means: AddressPolicy
) -> None:
    monkeypatch.setenv("EARNEST_ALLOW_PRIVATE_ADDRESSES", said)
    assert AddressPolicy.from_environment() == means


def test_a_setting_that_means_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EARNEST_ALLOW_PRIVATE_ADDRESSES", "10.0.0.1/8")
    with pytest.raises(SettingInvalid, match="networks separated by commas"):
        AddressPolicy.from_environment()


REFUSED_URLS = """
http://example.com/ ftp://example.com/ file:///etc/passwd gopher://example.com/ example.com //x
https:/// https://ann:pw@example.com/ https://example.com/#part https://example.com:22/
https://example.com:99999/ https://127.0.0.1/ https://[::1]/ https://[::ffff:7f00:1]/ https://0/
https://[fe80::1%25eth0]/
""".split()


@pytest.mark.parametrize("url", [*REFUSED_URLS, "https://exa mple.com/", "https://x/" + "a" * 2000])
async def test_a_url_that_may_not_be_called_is_refused(url: str) -> None:
    async with GuardedClient(PUBLIC, _never) as client:
        with pytest.raises((AddressRefused, httpx2.ConnectError)):
            await client.request("GET", url)


@pytest.mark.parametrize("url", ["https://example.com", "https://example.com:8443/a?b=c"])
def test_a_url_of_the_internet_may_be_called(url: str) -> None:
    assert check_url(url, PUBLIC).host == "example.com"


async def _never(host: str, port: int) -> list[str]:
    """The system's resolver reads `0` and `0x7f.1` as addresses; this one is asked by name only."""
    raise OSError(f"{host} was looked up")


def _answers(*turns: list[str]) -> tuple[Resolve, list[str]]:
    """A resolver that answers in turns, and the names it was asked."""
    asked: list[str] = []

    async def resolve(host: str, port: int) -> list[str]:
        asked.append(host)
        return turns[min(len(asked), len(turns)) - 1]

    return resolve, asked


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "10.0.0.1", "::ffff:127.0.0.1", "169.254.169.254"]
)
async def test_a_name_of_a_private_address_is_not_called(address: str) -> None:
    async with Receiver() as receiver:
        port = httpx2.URL(receiver.url).port
        resolve, _ = _answers([address])
        async with GuardedClient(PUBLIC, resolve) as client:
            with pytest.raises(AddressRefused, match="not on the public internet"):
                await client.request("GET", f"https://harmless.example:{port}/")
        assert receiver.got == []


async def test_a_name_with_one_private_address_is_not_called() -> None:
    resolve, _ = _answers(["8.8.8.8", "127.0.0.1"])
    async with GuardedClient(PUBLIC, resolve) as client:
        with pytest.raises(AddressRefused):
            await client.request("GET", "https://harmless.example/")


async def test_a_name_that_answers_otherwise_later_gains_nothing() -> None:
    """DNS rebinding: the address that was checked is the one that is called."""
    async with Receiver() as receiver:
        port = httpx2.URL(receiver.url).port
        resolve, asked = _answers(["127.0.0.1"], ["10.0.0.1"])
        async with GuardedClient(HERE, resolve) as client:
            answer = await client.request("POST", f"http://twofaced.example:{port}/", content=b"x")
            assert answer.status == 204
            assert asked == ["twofaced.example"], "it was asked once"
        assert receiver.got[0].headers["host"] == f"twofaced.example:{port}"
        resolve, _ = _answers(["10.0.0.1"])
        async with GuardedClient(HERE, resolve) as client:
            with pytest.raises(AddressRefused):
                await client.request("POST", f"http://twofaced.example:{port}/")


async def test_a_redirect_is_an_answer_and_who_follows_it_is_checked_again() -> None:
    private = {"Location": "http://169.254.169.254/latest/meta-data"}
    async with Receiver(status=302, headers=private) as receiver:
        async with GuardedClient(HERE) as client:
            assert (await client.request("GET", receiver.url)).status == 302
            with pytest.raises(AddressRefused):
                await client.http.get(receiver.url, follow_redirects=True)
        assert len(receiver.got) == 2


async def test_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Receiver() as proxy, Receiver() as receiver:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        async with GuardedClient(HERE) as client:
            await client.request("GET", receiver.url)
        assert (len(proxy.got), len(receiver.got)) == (0, 1)


async def test_an_answer_that_does_not_end_is_cut_in_time() -> None:
    with far_end(stall_after_request) as address:
        async with GuardedClient(HERE) as client:
            began = time.monotonic()
            with pytest.raises((TimeoutError, httpx2.TimeoutException)):
                await client.request("GET", f"http://{address}/", seconds=0.3)
            assert time.monotonic() - began < 5


def _drips(line: socket.socket) -> None:
    """A byte now and then: no single read takes long, and it never ends."""
    line.recv(65536)
    line.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n")
    while True:
        line.sendall(b"x")
        time.sleep(0.05)


async def test_an_answer_that_drips_is_cut_in_time() -> None:
    with far_end(_drips) as address:
        async with GuardedClient(HERE) as client:
            with pytest.raises(TimeoutError):
                await client.request("GET", f"http://{address}/", seconds=0.4)


def _says(answer: bytes) -> Callable[[socket.socket], None]:
    def script(line: socket.socket) -> None:
        line.recv(65536)
        line.sendall(answer)
        line.close()

    return script


async def test_of_a_large_answer_only_so_much_is_read() -> None:
    large = b"HTTP/1.1 200 OK\r\ncontent-length: 5000000\r\n\r\n" + b"x" * 5_000_000
    with far_end(_says(large)) as address:
        async with GuardedClient(HERE) as client:
            answer = await client.request("GET", f"http://{address}/", most_bytes=1000)
    assert (len(answer.body), answer.whole) == (1000, False)


async def test_headers_without_end_are_refused() -> None:
    endless = b"HTTP/1.1 200 OK\r\nx: " + b"y" * 1_000_000
    with far_end(_says(endless)) as address:
        async with GuardedClient(HERE) as client:
            with pytest.raises(httpx2.RemoteProtocolError):
                await client.request("GET", f"http://{address}/")


async def test_a_packed_answer_is_not_unpacked() -> None:
    packed = b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 4\r\n\r\nnope"
    with far_end(_says(packed)) as address:
        async with GuardedClient(HERE) as client:
            answer = await client.request("GET", f"http://{address}/")
    assert answer.body == b"nope"


# ---- TLS ----------------------------------------------------------------------------------------


def _certificate(folder: Path, name: str) -> tuple[Path, Path]:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    own, private = folder / "cert.pem", folder / "key.pem"
    own.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    private.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return own, private


async def test_over_tls_the_name_is_verified_and_not_the_address(tmp_path: Path) -> None:
    own, private = _certificate(tmp_path, "hooks.example")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(own, private)
    names: list[str | None] = []
    context.sni_callback = lambda _line, name, _context: names.append(name)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context) as server:
        port = server.sockets[0].getsockname()[1]
        resolve, _ = _answers(["127.0.0.1"])
        trust = ssl.create_default_context(cafile=str(own))
        async with GuardedClient(HERE, resolve, trust=trust) as client:
            answer = await client.request("GET", f"https://hooks.example:{port}/")
            assert answer.status == 200
            with pytest.raises(httpx2.ConnectError, match="certificate"):
                await client.request("GET", f"https://other.example:{port}/")
        async with GuardedClient(HERE, resolve) as client:
            with pytest.raises(httpx2.ConnectError, match="certificate"):
                await client.request("GET", f"https://hooks.example:{port}/")
    assert names[0] == "hooks.example"
