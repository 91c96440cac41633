"""Speaks to the gate of weftrun's host 0, as a friend and as a stranger.

Note [Rendezvous handshake] in launcher/connection/handshake.h has the messages.
"""

import hashlib
import hmac
import json
import os
import select
import socket
import struct
import time

MAGIC = b"WEFTRUN1"
CHALLENGE, ANSWER, REPLY = 40, 120, 40


def mac(key, text):
    return hmac.new(key, text, hashlib.sha256).digest()


def control_key(token):
    return mac(token.encode(), b"weftrun control 1")


def epoch_key(token, job, epoch, random):
    return mac(token.encode(), b"weftrun epoch 1" + struct.pack("<Q", epoch) +
               hashlib.sha256(job.encode()).digest() + random)


def read_exactly(connection, size):
    """Fewer bytes than that if the other side closes."""
    data = b""
    while len(data) < size:
        try:
            part = connection.recv(size - len(data))
        except ConnectionError:
            break
        if not part:
            break
        data += part
    return data


class Peer:
    """A connection to the gate, up to its challenge."""

    def __init__(self, port, timeout=10):
        self.began = time.monotonic()
        self.socket = socket.create_connection(("127.0.0.1", port), timeout)
        self.challenge = read_exactly(self.socket, CHALLENGE)[len(MAGIC):]

    def answer(self, key, job, role=b"c", node=1, epoch=0):
        nonce = os.urandom(32)
        claim = MAGIC + struct.pack("<IIQ", role[0], node, epoch)
        claim += hashlib.sha256(job.encode()).digest() + nonce
        self.session = mac(key, b"session" + self.challenge + nonce)
        return claim + mac(key, b"answer" + self.challenge + claim)

    def send(self, data):
        try:
            self.socket.sendall(data)
        except ConnectionError:
            pass

    def enter(self, key, job, **claim):
        """Whether the gate lets us in."""
        answer = self.answer(key, job, **claim)
        self.send(answer)
        reply = read_exactly(self.socket, REPLY)
        return (len(reply) == REPLY and reply[0] == 0 and
                reply[8:] == mac(key, b"reply\0" + self.challenge + answer))

    def closed_after(self, limit=10):
        """Seconds from the start until the gate hangs up; what it says before
        counts as None: it should say nothing."""
        ready, _, _ = select.select([self.socket], [], [], limit)
        said = read_exactly(self.socket, 1) if ready else b"?"
        return None if said else time.monotonic() - self.began

    def close(self):
        self.socket.close()


class Host(Peer):
    """A launcher of node rank 1 that knows the token."""

    def __init__(self, port, token, job, command, version, **changes):
        super().__init__(port)
        if not self.enter(control_key(token), job):
            raise ConnectionError("the gate does not let a friend in")
        self.sent = 0
        digest = hashlib.sha256(
            b"".join(word.encode() + b"\0" for word in command)).hexdigest()
        self.say({"type": "join", "host": "script", "node": 1, "nodes": 2,
                  "workers": 1, "version": version, "command": digest,
                  **changes})

    def say(self, message):
        text = json.dumps(message).encode()
        number = struct.pack("<Q", self.sent)
        self.sent += 1
        self.socket.sendall(struct.pack("<I", len(text)) + text +
                            mac(self.session, b"n" + number + text))

    def hear(self, kind):
        """The next message of a kind."""
        while True:
            size = struct.unpack("<I", read_exactly(self.socket, 4))[0]
            message = json.loads(read_exactly(self.socket, size))
            read_exactly(self.socket, 32)
            if message["type"] == kind:
                return message
