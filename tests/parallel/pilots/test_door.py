"""Connections of workers: one that says nothing, or nonsense, holds up no other."""

import queue
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from distributed import Security

from espnet3.parallel.pilots.channel import Channel, connect
from espnet3.parallel.pilots.pool import Door
from espnet3.parallel.pilots.protocol import Hello
from tests.descriptors import no_descriptor_left

KEY = b"the pool's key"
HELLO = Hello("0", "tcp://127.0.0.1:1", 1, "here")
Open = Callable[..., Door]


@pytest.fixture
def came() -> queue.Queue[Hello]:
    """The greetings of those who were let in."""
    return queue.Queue()


@pytest.fixture
def opened(tmp_path: Path, came: queue.Queue[Hello]) -> Iterator[Open]:
    doors: list[Door] = []
    kept: list[Channel] = []

    def admit(channel: Channel, hello: Hello) -> None:
        kept.append(channel)
        came.put(hello)

    def open_door(**options: float) -> Door:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(tmp_path / "pool"))
        listener.listen()
        doors.append(Door(listener, KEY, admit, **options))
        return doors[-1]

    yield open_door
    for door in doors:
        door.close()
    for channel in kept:
        channel.close()


def silent(door: Door) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(str(door.address))
    return sock


def greet(door: Door) -> Channel:
    channel = connect(door.address, KEY)
    channel.send(HELLO)
    return channel


def test_a_silent_peer_keeps_no_worker_waiting(opened: Open, came: queue.Queue[Hello]) -> None:
    """A worker is let in while another connection, made before, has not said a word, and never will."""
    door = opened(limit=3600)
    with silent(door):
        worker = greet(door)
        assert came.get(timeout=600) == HELLO
        worker.close()


def test_the_time_to_introduce_oneself_is_limited_as_a_whole(opened: Open) -> None:
    """A peer that keeps sending a byte now and then is shut out after the limit, not only one that is silent."""
    door = opened(limit=0.5)
    with silent(door) as peer:
        peer.settimeout(0.2)
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            while True:
                peer.send(b"\0")
                try:
                    peer.recv(64)
                except TimeoutError:
                    continue


class FromAnotherVersion:
    """Cannot be unpickled here."""

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return int, ("not a number",)


@pytest.mark.parametrize("greeting", [FromAnotherVersion(), "hello"], ids=["unreadable", "text"])
def test_a_greeting_that_cannot_be_read_is_reported_and_the_next_one_is_served(
    opened: Open, came: queue.Queue[Hello], greeting: object, caplog: pytest.LogCaptureFixture
) -> None:
    """A peer with the key that sends no greeting of ours is dropped with a warning; the door stays open."""
    door = opened()
    peer = connect(door.address, KEY)
    peer.send(greeting)
    peer.sock.settimeout(600)
    assert peer.sock.recv(1) == b""  # dropped
    worker = greet(door)
    assert came.get(timeout=600) == HELLO
    assert "another version" in caplog.text
    peer.close()
    worker.close()


def test_a_wrong_key_is_refused_before_anything_is_unpickled(opened: Open, came: queue.Queue[Hello]) -> None:
    """A peer without the key is shut out in the handshake, never gets as far as a pickle, and holds up no other."""
    door = opened()
    with pytest.raises(PermissionError, match="key"):
        connect(door.address, b"wrong")
    worker = greet(door)
    assert came.get(timeout=600) == HELLO and came.empty()
    worker.close()


def test_a_moment_without_descriptors_does_not_end_the_door(opened: Open, came: queue.Queue[Hello]) -> None:
    """A worker that connects while this process has no descriptor left is let in as soon as there are some."""
    door = opened()
    worker = socket.socket(socket.AF_UNIX)
    with no_descriptor_left():
        worker.connect(str(door.address))
        worker.settimeout(0.3)
        with pytest.raises(TimeoutError):  # nobody can accept it
            worker.recv(1)
    worker.settimeout(600)
    assert worker.recv(1)  # the door's first word
    worker.close()
    late = greet(door)
    assert came.get(timeout=600) == HELLO
    late.close()


def test_a_closed_door_accepts_nobody(opened: Open) -> None:
    """After `close` a connection is refused."""
    door = opened()
    address = str(door.address)
    door.close()
    with socket.socket(socket.AF_UNIX) as late, pytest.raises(ConnectionRefusedError):
        late.connect(address)


def test_over_tls_too_a_silent_peer_keeps_no_worker_waiting(came: queue.Queue[Hello]) -> None:
    """Where workers are on other hosts, a peer that never begins its TLS handshake holds up nobody, until the limit."""
    security = Security.temporary()
    listening = security.get_listen_args("client")["ssl_context"]
    listening.num_tickets = 0
    kept: list[Channel] = []

    def admit(channel: Channel, hello: Hello) -> None:
        kept.append(channel)
        came.put(hello)

    door = Door(socket.create_server(("127.0.0.1", 0)), KEY, admit, listening, limit=5.0)
    with socket.create_connection(door.address) as peer:  # type: ignore[arg-type]  # a host and a port
        worker = connect(door.address, KEY, tls=security.get_connection_args("worker")["ssl_context"])
        worker.send(HELLO)
        assert came.get(timeout=600) == HELLO
        kept[0].send("hello")
        assert worker.recv() == "hello"
        peer.settimeout(600)
        assert peer.recv(1) == b""  # shut down
        worker.close()
        kept[0].close()
    door.close()
