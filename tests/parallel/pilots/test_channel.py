"""Objects over an authenticated socket."""

import socket
import threading

import pytest
from distributed import Security

from espnet3.parallel.pilots.channel import Channel, TlsChannel, connect, greet_worker
from tests.waiting import wait_until


@pytest.fixture
def pair():
    a, b = socket.socketpair()
    left, right = Channel(a), Channel(b)
    yield left, right
    left.close()
    right.close()


@pytest.mark.parametrize("unread", [b"", b"a last word"])
def test_over_tls_too_the_end_of_the_other_side_is_known(unread):
    """A worker sees that its driver is gone without reading, whatever the driver has sent before."""
    security = Security.temporary()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        server, _ = listener.accept()
    wrapped = {}
    side = threading.Thread(
        target=lambda: wrapped.update(
            driver=security.get_listen_args("client")["ssl_context"].wrap_socket(server, server_side=True)
        )
    )
    side.start()
    worker = TlsChannel(security.get_connection_args("worker")["ssl_context"].wrap_socket(client))
    side.join()
    if unread:
        wrapped["driver"].sendall(unread)
    assert not worker.at_end()
    wrapped["driver"].close()
    wait_until(worker.at_end)
    worker.close()
    assert worker.at_end()


def test_half_a_message_is_an_end_not_a_value(pair):
    """A peer that dies in the middle of a message is noticed, and nothing is unpickled."""
    pair[0].sock.sendall(b"\0\0\0\0\0\0\1\0\0\0\0\0abc")
    pair[0].close()
    with pytest.raises(ConnectionError):
        pair[1].recv()


@pytest.fixture
def tcp_pair():
    """A driver's and a worker's channel over TCP, after the handshake."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        worker: list[Channel] = []
        thread = threading.Thread(target=lambda: worker.append(connect(listener.getsockname(), b"key")))
        thread.start()
        driver = greet_worker(listener.accept()[0], b"key")
        thread.join()
    yield driver, worker[0]
    driver.close()
    worker[0].close()


def test_what_a_worker_said_last_arrives_though_it_has_not_read_all(tcp_pair):
    """A worker that leaves with a chunk unread waits until its last answer has been read."""
    driver, worker = tcp_pair
    driver.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 12)
    worker.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 18)
    driver.send("a chunk that was sent ahead")
    wait_until(worker.readable)
    last = b"x" * 150_000  # most of it is still here when it leaves
    worker.send(last)
    thread = threading.Thread(target=worker.finish)
    thread.start()
    assert driver.recv() == last
    assert thread.is_alive()  # until the other end is closed
    driver.close()
    thread.join(600)
    assert not thread.is_alive()


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="Linux has these")
def test_the_kernel_asks_whether_the_other_host_is_there(tcp_pair):
    """Both ends notice within half a minute that the other host is gone; only the driver's end limits what it sends.

    That a host is gone without a word is tried on real hosts by tests/clusters/kube.
    """
    for channel in tcp_pair:
        assert channel.sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        tcp = [
            channel.sock.getsockopt(socket.IPPROTO_TCP, name)
            for name in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        ]
        assert tcp[0] + tcp[1] * tcp[2] == 30
    driver, worker = (each.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) for each in tcp_pair)
    assert (driver, worker) == (30_000, 0)  # a worker's result waits for as long as the driver is busy
