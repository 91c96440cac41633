"""Strangers at the gate of a run over two hosts: for launcher_faults.py."""

import contextlib
import pathlib
import resource
import select
import socket
import statistics
import struct
import threading
import time

from rendezvous_peer import ANSWER, Peer, control_key

# The gate's two seconds, and what each of a thousand may add to them; a busy host
# adds more, by which a sleep here ends late, too.
LONGEST = 3.0
MOST_GROWTH_KIB = 8192


class Steps:
    """What rank 1 has written: see launcher_worker.py."""

    def __init__(self, folder):
        self.path = folder / "steps.log"

    def read(self, since=0.0, until=float("inf")):
        if not self.path.exists():
            return []
        lines = [line.split() for line in self.path.read_text().splitlines()]
        return [(float(words[1]), words[2] if len(words) > 2 else "")
                for words in lines
                if len(words) > 1 and since <= float(words[0]) < until]

    def have_begun(self):
        return len(self.read()) > 20

    def median_ms(self, since, until):
        times = [seconds for seconds, kind in self.read(since, until) if not kind]
        return 1e3 * statistics.median(times) if times else float("inf")

    def go_on(self, since):
        """Waits for some steps since then; a minute without is for ever."""
        while len(self.read(since)) < 10 and time.monotonic() < since + 60:
            time.sleep(0.02)

    def good(self):
        return all(kind != "F" for _, kind in self.read())

    def summary(self):
        kinds = [kind for _, kind in self.read()]
        return (f"{len(kinds)} steps, {kinds.count('N')} new connections of rank 1 "
                f"and {kinds.count('F')} of them refused")


class Lateness:
    """The longest time by which a sleep ended late in the block: `seconds`."""

    def __enter__(self):
        self.seconds, self.is_over = 0.0, False
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()
        return self

    def watch(self):
        while not self.is_over:
            began = time.monotonic()
            time.sleep(0.01)
            self.seconds = max(self.seconds, time.monotonic() - began - 0.01)

    def __exit__(self, *_):
        self.is_over = True
        self.thread.join()


def memory_kib(pid):
    text = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(text.split("VmRSS:")[1].split()[0])


class Crowd:
    """Attackers, each a way to spend some seconds; they return how long the
    gate took to refuse each."""

    def __init__(self, port, token, job, dice):
        self.port, self.token, self.job, self.dice = port, token, job, dice

    def send_each(self, seconds, make):
        """One after the other, each with bytes of its own."""
        end, times = time.monotonic() + seconds, []
        while time.monotonic() < end:
            peer = Peer(self.port)
            peer.send(make(peer))
            times.append(peer.closed_after())
            peer.close()
        return times

    def silent(self, _):
        peers = [Peer(self.port) for _ in range(20)]
        return [peer.closed_after() for peer in peers]

    def wrong_token(self, seconds):
        key = control_key("f" * 64)
        return self.send_each(seconds, lambda peer: peer.answer(key, self.job))

    def wrong_stream(self, seconds):
        key = control_key(self.token)
        return self.send_each(seconds, lambda peer: peer.answer(
            key, self.job, role=b"s", epoch=1))

    def replay(self, seconds):
        friend = Peer(self.port)
        recorded = friend.answer(control_key(self.token), self.job)
        friend.send(recorded)
        friend.close()
        return self.send_each(seconds, lambda _: recorded)

    def garbage(self, seconds):
        return self.send_each(seconds, lambda _: self.dice.randbytes(
            self.dice.randint(ANSWER, 4096)))

    def http(self, seconds):
        request = (b"GET / HTTP/1.1\r\nHost: node1:29400\r\nUser-Agent: curl\r\n"
                   b"Accept: */*\r\nConnection: keep-alive\r\n\r\n").ljust(200)
        return self.send_each(seconds, lambda _: request)

    def huge_length(self, seconds):
        return self.send_each(
            seconds, lambda _: struct.pack("<Q", 1 << 63) * (ANSWER // 8))

    def half(self, seconds):
        key, times = control_key(self.token), []
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            peer = Peer(self.port)
            peer.send(peer.answer(key, self.job)[:self.dice.randrange(ANSWER)])
            peer.socket.shutdown(socket.SHUT_WR)
            times.append(peer.closed_after())
            peer.close()
        return times

    def flood(self, seconds):
        """As many as one process can, each of which leaves at once."""
        end, count = time.monotonic() + seconds, 0
        while time.monotonic() < end:
            with socket.socket() as knock:
                knock.setblocking(False)
                with contextlib.suppress(OSError):
                    knock.connect(("127.0.0.1", self.port))
                count += 1
        return [0.0] * count

    def slow(self, seconds):
        """1000 connections that send a byte now and then."""
        poll, peers, times = select.poll(), {}, []
        for _ in range(1000):
            knock = socket.socket()
            knock.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                knock.connect(("127.0.0.1", self.port))
            peers[knock.fileno()] = knock, time.monotonic()
            poll.register(knock, select.POLLRDHUP | select.POLLHUP)
        end = time.monotonic() + max(seconds, 5)
        while peers and time.monotonic() < end:
            for number, _ in poll.poll(100):
                knock, began = peers.pop(number)
                poll.unregister(number)
                knock.close()
                times.append(time.monotonic() - began)
            for knock, _ in peers.values():
                with contextlib.suppress(OSError):
                    knock.send(b"W")
        for knock, _ in peers.values():
            knock.close()
        return times + [None] * len(peers)


NAMES = {
    "silent": "at the gate: 20 who say nothing",
    "wrong_token": "another token",
    "wrong_stream": "a stream with the token alone",
    "replay": "a recorded answer, replayed",
    "garbage": "random bytes",
    "http": "HTTP",
    "huge_length": "lengths of 2^63",
    "half": "an answer that ends in the middle",
    "flood": "a flood of connections that leave at once",
    "slow": "1000 connections, a byte now and then",
}


def visit(port, pid, steps, token, job, seconds, dice):
    """(name, what was seen, whether that is as it must be) of each."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 4096), most))
    crowd = Crowd(port, token, job, dice)
    began = time.monotonic()
    time.sleep(max(seconds, 0.5))
    steps.go_on(began)
    quiet, size = steps.median_ms(began, time.monotonic()), memory_kib(pid)
    rows = []
    for kind, name in NAMES.items():
        began = time.monotonic()
        with Lateness() as lateness:
            times = getattr(crowd, kind)(seconds)
        steps.go_on(began)
        busy = steps.median_ms(began, time.monotonic())
        # Once here, and once in weftrun.
        bound = LONGEST + 2 * lateness.seconds
        good = times and None not in times and max(times) < bound
        longest = max((each or 0 for each in times), default=0)
        refused = f"{len(times) - times.count(None)} of {len(times)} refused"
        rows.append((name, f"{refused}, after at most {longest:.2f} s; a step "
                     f"takes {busy:.2f} ms, before {quiet:.2f} ms",
                     good and busy < max(10 * quiet, 20)))
    growth = memory_kib(pid) - size
    rows.append(("weftrun's memory after all of them", f"grew by {growth} KiB",
                 growth < MOST_GROWTH_KIB))
    return rows
