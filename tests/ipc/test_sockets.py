"""Sockets between two processes: private, one-way, and robust against strangers."""

import os
import socket
import stat
import threading
from collections.abc import Iterator

import pytest

from headrace.ipc.sockets import SocketClosedError, SocketFolder, Sockets
from tests.waiting import PATIENCE


@pytest.fixture
def folder() -> Iterator[SocketFolder]:
    made = SocketFolder()
    yield made
    made.remove()


def test_folder_made_is_private_and_short(folder: SocketFolder) -> None:
    mode = os.stat(folder.path).st_mode
    assert stat.S_IMODE(mode) == 0o700
    assert len(folder.address("front").removeprefix("ipc://").encode()) <= 100


def test_folder_with_a_long_temporary_path_is_still_short(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    monkeypatch.setattr("tempfile.tempdir", f"{tmp_path}/{'x' * 200}")
    folder = SocketFolder()
    try:
        assert len(folder.path) < 80
    finally:
        folder.remove()


def test_frames_sent_arrive_in_order_even_before_the_receiver_is_there(
    folder: SocketFolder,
) -> None:
    ours, theirs = Sockets(), Sockets()
    sender = ours.sender(folder.address("a"))
    frames = [b"", b"x", b"y" * 1_000_000, b"z"]
    for frame in frames:
        sender.send(frame)
    receiver = theirs.receiver(folder.address("a"))
    got: list[bytes] = []
    while len(got) < len(frames):
        assert receiver.wait(PATIENCE)
        got += receiver.drain()
    assert got == frames
    sender.close()
    receiver.close()
    ours.close()
    theirs.close()


def test_connection_after_the_folder_is_removed_goes_on(folder: SocketFolder) -> None:
    sockets = Sockets()
    receiver = sockets.receiver(folder.address("a"))
    sender = sockets.sender(folder.address("a"))
    sender.send(b"1")
    assert receiver.receive() == b"1"
    folder.remove()
    assert not os.path.exists(folder.path)
    sender.send(b"2")
    assert receiver.receive() == b"2"
    sender.close()
    receiver.close()
    sockets.close()


def test_receiver_with_strange_connections_hears_its_friend(folder: SocketFolder) -> None:
    sockets = Sockets()
    receiver = sockets.receiver(folder.address("a"))
    path = folder.address("a").removeprefix("ipc://")
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.connect(path)
        stranger.sendall(b"\x80\x04\x95pickle" * 100)
        sender = sockets.sender(folder.address("a"))
        sender.send(b"hello")
        # Bytes of a stranger may pass for a frame of an old protocol: the codec drops those.
        assert any(receiver.receive() == b"hello" for _ in range(1000))
    sender.close()
    receiver.close()
    sockets.close()


def test_receive_while_the_sockets_close_raises(folder: SocketFolder) -> None:
    sockets = Sockets()
    receiver = sockets.receiver(folder.address("a"))
    ends: list[str] = []

    def listen() -> None:
        try:
            receiver.receive()
        except SocketClosedError:
            ends.append("closed")
        finally:
            receiver.close()

    thread = threading.Thread(target=listen)
    thread.start()
    sockets.close()
    thread.join(PATIENCE)
    assert ends == ["closed"]


def test_try_send_at_the_limit_refuses_and_never_waits(folder: SocketFolder) -> None:
    sockets = Sockets()
    sender = sockets.sender(folder.address("nobody"), limit=5)
    results = [sender.try_send(b"x") for _ in range(10)]
    assert results == [True] * 5 + [False] * 5
    sender.close()
    sockets.close()


def test_send_after_close_raises(folder: SocketFolder) -> None:
    sockets = Sockets()
    sender = sockets.sender(folder.address("nobody"))
    sender.close()
    sender.close()
    with pytest.raises(SocketClosedError):
        sender.send(b"x")
    sockets.close()


def test_wait_with_another_descriptor_returns_when_that_one_ends(folder: SocketFolder) -> None:
    sockets = Sockets()
    receiver = sockets.receiver(folder.address("a"))
    reading, writing = os.pipe()
    os.close(writing)
    assert receiver.wait(PATIENCE, other=reading) is False
    os.close(reading)
    receiver.close()
    sockets.close()
