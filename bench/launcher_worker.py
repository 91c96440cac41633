#!/usr/bin/env python3
"""A worker for bench/launcher_faults.py: its folder is the only argument.

Rank 0 serves the store's socket and writes to store.log who calls: `friend` for
rank 1, `stranger` for anybody else. Rank 1 steps: it sends 1 KiB through the gate
and awaits it, every few milliseconds, and every tenth time opens another
connection. It writes steps.log: when, seconds, and N for a new connection or F
if it failed. Rank 1 ends when there is a file `end`, and rank 0, which answers it
until then, after it.
"""

import os
import pathlib
import socket
import sys
import threading
import time

FOLDER = pathlib.Path(sys.argv[1])
HELLO, SIZE = b"rank 1 is here  ", 1024


def read_exactly(connection, size):
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise ConnectionError("closed")
        data += part
    return data


def serve_one(connection, log):
    try:
        is_friend = read_exactly(connection, len(HELLO)) == HELLO
        log.write("friend\n" if is_friend else "stranger\n")
        while is_friend:
            connection.sendall(read_exactly(connection, SIZE))
    except OSError:
        log.write("left\n")


def serve(log):
    listener = socket.socket(fileno=int(os.environ["WEFT_MASTER_FD"]))
    listener.listen(1000)
    listener.settimeout(0.05)
    while not (FOLDER / "left").exists():
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            continue
        log.write("connection\n")
        connection.settimeout(None)
        threading.Thread(
            target=serve_one, args=(connection, log), daemon=True).start()


def connect():
    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    connection = socket.create_connection(address, 10)
    connection.sendall(HELLO)
    return connection


def exchange(connection):
    connection.sendall(b"x" * SIZE)
    read_exactly(connection, SIZE)


def step(log):
    connection = connect()
    exchange(connection)
    number = 0
    while not (FOLDER / "end").exists():
        number += 1
        began, kind = time.monotonic(), ""
        if number % 10:
            exchange(connection)
        else:
            try:
                with connect() as another:
                    exchange(another)
                kind = "N"
            except OSError:
                kind = "F"
        log.write(f"{began} {time.monotonic() - began} {kind}\n")
        time.sleep(0.004)
    (FOLDER / "left").touch()


rank = int(os.environ["RANK"])
name = "store.log" if rank == 0 else "steps.log"
with open(FOLDER / name, "a", buffering=1) as out:
    (serve if rank == 0 else step)(out)
