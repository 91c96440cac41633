"""Writes tests/fuzz/corpus/: what the fuzzers begin with, and what the test
reads again and again. A file's name says whether a reader takes it (ok-) or
refuses it (no-). tests/fuzz/fuzz_input.h says what the bytes mean.

    python3 tests/fuzz/make_corpus.py
"""

import json
import pathlib
import struct

FOLDER = pathlib.Path(__file__).parent / "corpus"
HUGE = 2**63
DTYPES = {"BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1,
          "F8_E4M3FNUZ": 1, "F8_E5M2FNUZ": 1, "F8_E8M0": 1, "I16": 2,
          "U16": 2, "F16": 2, "BF16": 2, "I32": 4, "U32": 4, "F32": 4,
          "I64": 8, "U64": 8, "F64": 8, "C64": 8}


class Corpus:
    def __init__(self, name):
        self.folder = FOLDER / name
        self.folder.mkdir(parents=True, exist_ok=True)
        for old in self.folder.iterdir():
            old.unlink()

    def add(self, name, content):
        path = self.folder / name
        assert not path.exists(), name
        path.write_bytes(content)


def tensor(shape, begin, end, dtype="F32"):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def padded(text):
    return text + b" " * (-len(text) % 8)


def header_corpus():
    corpus = Corpus("header")

    def add(name, header, data=0, lie=0, pad=True):
        text = header
        if isinstance(header, dict):
            text = json.dumps(header, separators=(",", ":"))
        if isinstance(text, str):
            text = text.encode()
        text = padded(text) if pad else text
        corpus.add(name, struct.pack("<qH", lie, data) + text)

    def sharded(info, shape=(2,), data=8):
        return {"a": tensor(list(shape), 0, data),
                "__metadata__": {"DCP_SHARDING_INFO":
                                 info if isinstance(info, str)
                                 else json.dumps(info)}}

    one = {"a": tensor([1], 0, 4)}
    add("ok-empty", {})
    add("ok-unpadded", one, 4, pad=False)
    add("ok-metadata-alone", {"__metadata__": {"format": "pt"}})
    add("ok-metadata-of-nothing", {"__metadata__": {}, **one}, 4)
    add("ok-two", {"a": tensor([2, 2], 0, 16), "b": tensor([], 16, 20)}, 20)
    add("ok-any-order", {"b": tensor([], 16, 20), "a": tensor([2, 2], 0, 16)},
        20)
    add("ok-no-elements", {"a": tensor([0, 3], 0, 0), **{
        "b": tensor([1], 0, 4)}, "c": tensor([0], 4, 4)}, 4)
    add("ok-dims-8", {"a": tensor([1] * 8, 0, 4)}, 4)
    add("no-dims-9", {"a": tensor([1] * 9, 0, 4)}, 4)
    add("ok-name-512", {"n" * 512: tensor([1], 0, 4)}, 4)
    add("no-name-513", {"n" * 513: tensor([1], 0, 4)}, 4)
    add("ok-name-utf-8", {"é漢🙂": tensor([1], 0, 4)}, 4)
    add("ok-name-like-a-path", {"../a": tensor([1], 0, 4)}, 4)
    add("no-name-empty", {"": tensor([1], 0, 4)}, 4)
    add("no-name-nul", {"a\0b": tensor([1], 0, 4)}, 4)
    add("no-name-line-feed", {"a\nb": tensor([1], 0, 4)}, 4)
    add("no-name-delete", {"a\x7fb": tensor([1], 0, 4)}, 4)
    add("no-name-lone-surrogate", r'{"\ud800":' + json.dumps(one["a"]) + "}",
        4)
    add("ok-name-surrogates",
        r'{"\ud83d\ude42":' + json.dumps(one["a"]) + "}", 4)
    every, end = {}, 0
    for dtype, size in DTYPES.items():
        every[dtype] = tensor([3], end, end + 3 * size, dtype)
        end += 3 * size
    add("ok-dtypes", every, end)
    for name, dtype in (("unknown", "F31"), ("half-a-byte", "F4")):
        add(f"no-dtype-{name}", {"a": tensor([1], 0, 4, dtype)}, 4)
    add("no-dtype-number", {"a": {**one["a"], "dtype": 32}}, 4)

    # Lengths in the first bytes.
    length = len(padded(json.dumps(one, separators=(",", ":")).encode()))
    for name, lie in (("0", -length), ("7", 7 - length), ("one-less", -1),
                      ("beyond-the-file", 5), ("2-63", HUGE - 1 - length),
                      ("2-64", -1 - length),
                      ("100-mb-and-1", 100_000_001 - length)):
        add(f"no-length-{name}", one, 4, lie)
    add("no-length-into-the-data", one, 4, 4)
    add("no-length-all-of-the-file", one, 4, 4, pad=False)
    corpus.add("no-file-empty", b"")
    corpus.add("no-file-7-bytes", b"\x10" + b"\0" * 6)

    # Ranges.
    def two(a, b):
        return {"a": tensor([1], *a), "b": tensor([1], *b)}
    add("no-range-overlap", two((0, 4), (0, 4)), 8)
    add("no-range-gap", two((0, 4), (8, 12)), 12)
    add("no-range-gap-first", two((4, 8), (8, 12)), 12)
    add("no-range-backwards", two((4, 0), (4, 8)), 8)
    add("no-range-trailing-bytes", one, 5)
    add("no-range-cut", one, 3)
    add("no-range-no-data", one, 0)
    add("no-range-data-of-nothing", {}, 4)
    add("no-range-too-long", {"a": tensor([1], 0, 8)}, 8)
    add("no-range-not-a-multiple", {"a": tensor([1], 0, 5)}, 5)
    add("no-range-huge", {"a": tensor([1], HUGE - 5, HUGE - 1)}, 4)
    add("no-range-2-63", {"a": tensor([1], HUGE, HUGE + 4)}, 4)
    add("no-range-empty-inside",
        {"a": tensor([1], 0, 4), "z": tensor([0], 2, 2)}, 4)
    add("no-range-empty-behind", {"a": tensor([1], 0, 4),
                                  "z": tensor([0], 8, 8)}, 4)
    for name, offsets in (("one", [0]), ("three", [0, 4, 8]),
                          ("strings", ["0", "4"]), ("object", {}),
                          ("negative", [-4, 0])):
        add(f"no-offsets-{name}", {"a": {**one["a"], "data_offsets": offsets}},
            4)

    # Shapes.
    for name, shape in (("product-overflows", [2**32, 2**32, 4]),
                        ("product-overflows-to-1", [2**32 + 1, 2**32 - 1, 2]),
                        ("2-63", [HUGE]), ("negative", [-1]),
                        ("nested", [[1]]), ("null", None), ("true", [True]),
                        ("number", 1)):
        add(f"no-shape-{name}", {"a": {**one["a"], "shape": shape}}, 4)
    add("no-shape-zero-hides-overflow",
        {"a": tensor([0, 2**32, 2**32], 0, 0)})
    for number in ("1.0", "1e0", "1e999", "-0", "01", "NaN", "9" * 400):
        add(f"no-number-{number[:8]}",
            '{"a":{"dtype":"F32","shape":[%s],"data_offsets":[0,4]}}' % number,
            4)

    # Members.
    for missing in ("dtype", "shape", "data_offsets"):
        entry = dict(one["a"])
        del entry[missing]
        add(f"no-member-without-{missing}", {"a": entry}, 4)
    add("no-member-unknown", {"a": {**one["a"], "x": 1}}, 4)
    add("no-member-twice", '{"a":{"dtype":"F32","dtype":"F32","shape":[1],'
        '"data_offsets":[0,4]}}', 4)
    add("no-tensor-twice", '{"a":%s,"a":%s}' % (
        json.dumps(tensor([1], 0, 4)), json.dumps(tensor([1], 4, 8))), 8)
    add("no-tensor-twice-by-escape", r'{"a":%s,"\u0061":%s}' % (
        json.dumps(tensor([1], 0, 4)), json.dumps(tensor([1], 4, 8))), 8)
    for name, value in (("list", []), ("null", None), ("empty", {})):
        add(f"no-tensor-{name}", {"a": value})
    for name, value in (("number", {"k": 1}), ("list", {"k": ["v"]}),
                        ("object", {"k": {}}), ("itself-null", None)):
        add(f"no-metadata-{name}", {"__metadata__": value})
    add("no-metadata-twice", '{"__metadata__":{},"__metadata__":{}}')
    add("no-metadata-key-twice", '{"__metadata__":{"k":"v","k":"w"}}')

    # JSON.
    for name, text in (("nothing", ""), ("list", "[]"), ("two", "{}{}"),
                       ("more", "{} x"),
                       ("last-comma", '{"__metadata__":{},}'),
                       ("comment", "{/**/}"), ("cut", '{"a":{"dty'),
                       ("leading-space", " {}"), ("bom", "\ufeff{}"),
                       ("control-byte", '{"__metadata__":{"k":"\n"}}'),
                       ("bad-escape", r'{"__metadata__":{"k":"\x"}}'),
                       ("short-escape", r'{"__metadata__":{"k":"\u12"}}')):
        add(f"no-json-{name}", text)
    for name, text in (("nul-behind", b"{}\0     "), ("nul-inside",
                                                      b'{"__metadata__":'
                                                      b'{"k":"\0"}}'),
                       ("bad-utf-8", b'{"__metadata__":{"k":"\xff"}}'),
                       ("overlong-utf-8", b'{"__metadata__":{"k":"\xc0\xaf"}}'),
                       ("cut-utf-8", b'{"__metadata__":{"k":"\xe6\xbc"}}'),
                       ("surrogate-utf-8",
                        b'{"__metadata__":{"k":"\xed\xa0\x80"}}')):
        add(f"no-json-{name}", text)
    for name, padding in (("tabs", b"\t\t"), ("line-feeds", b"\n\r")):
        add(f"ok-json-padded-with-{name}", padded(b"{}" + padding))
    add("no-depth-4", '{"a":{"b":{"c":{}}}}')
    add("no-depth-1000-lists", '{"a":' + "[" * 1000)
    add("no-depth-1000-objects", '{"a":' * 1000)

    # Where chunks lie in the whole.
    add("ok-sharded", sharded({"a": {"saved_offsets": [4],
                                     "global_shape": [6]}}), 8)
    add("ok-sharded-offsets-only", sharded({"a": {"saved_offsets": [4]}}), 8)
    add("ok-sharded-more-members",
        sharded({"a": {"saved_offsets": [4], "x": {"y": [1]}}}), 8)
    add("ok-sharded-none", sharded({}), 8)
    add("ok-sharded-step", {**one, "__metadata__": {"weft_step": "20"}}, 4)
    for name, info in (
            ("empty", ""), ("cut", '{"a":'), ("of-another", {"b": {"saved_offsets": [4]}}),
            ("number", {"a": 5}), ("of-lists", {"a": [4]}),
            ("more-dims", {"a": {"saved_offsets": [0, 0]}}),
            ("negative", {"a": {"saved_offsets": [-1]}}),
            ("fraction", {"a": {"saved_offsets": [1.5]}}),
            ("outside", {"a": {"saved_offsets": [5], "global_shape": [6]}}),
            ("far-outside", {"a": {"saved_offsets": [HUGE - 1],
                                   "global_shape": [6]}}),
            ("larger-than-whole", {"a": {"saved_offsets": [0],
                                         "global_shape": [1]}}),
            ("whole-overflows", {"a": {"saved_offsets": [0, 0],
                                       "global_shape": [2**32, 2**32]}}),
            ("whole-alone", {"a": {"global_shape": [6]}}),
            ("whole-of-more-dims", {"a": {"saved_offsets": [4],
                                          "global_shape": [6, 1]}}),
            ("twice", '{"a":{"saved_offsets":[4]},"a":{"saved_offsets":[4]}}'),
            ("nul", "{}\0")):
        add(f"no-sharded-{name}", sharded(info), 8)


H0, H1 = "0" * 16, "ffffffffffffffff"
SHA = "0123456789abcdef" * 4


def chunk(file, offset, shape, begin=64, end=96, hashes=(H1,), **more):
    return {"file": file, "offset": offset, "shape": shape,
            "bytes": [begin, end], "xxh3": list(hashes), **more}


def manifest(**more):
    """Two matrices in three files, with a tensor of no elements."""
    files = {f"{name}.safetensors": {"bytes": 96, "header_bytes": 64,
                                     "header_xxh3": H0} for name in "abc"}
    chunks = [chunk("a.safetensors", [0, 0], [4, 2]),
              chunk("b.safetensors", [0, 2], [4, 2]),
              chunk("c.safetensors", [4, 0], [2, 4])]
    whole = {"dtype": "F32", "shape": [6, 4], "placements": "[S(0), R]",
             "mesh": "dp=2 tp=2", "chunks": chunks}
    empty = {"dtype": "F16", "shape": [0, 3], "placements": "", "mesh": "",
             "chunks": []}
    return {"format": "weft.checkpoint", "version": 1, "step": 7,
            "created": "2026-01-02T03:04:05Z", "weft": "0.1.0",
            "torch": "2.15.0", "piece_bytes": 4096, "files": files,
            "tensors": {"w": whole, "e": empty},
            "state": {"cursor": [1, 2.5, {"a": None}], "b": 2**64 - 1},
            "layout": {"x": {}}, **more}


def signed():
    content = manifest()
    for record in content["files"].values():
        record["header_sha256"] = SHA
    for one in content["tensors"]["w"]["chunks"]:
        one["sha256"] = [SHA]
    return content


def manifest_text(content, hmac=False):
    text = json.dumps(content)[:-1]
    if hmac:
        text += ',\n"hmac_sha256": "' + "0" * 64 + '"'
    return text + ',\n"xxh3": "' + H0 + '"\n}\n'


def manifest_corpus():
    corpus = Corpus("manifest")

    def add(name, content, hmac=False):
        text = content
        if isinstance(content, dict):
            text = manifest_text(content, hmac)
        corpus.add(name, text if isinstance(text, bytes) else text.encode())

    def edit(name, *path_and_value, base=manifest, hmac=False):
        """Sets the value at the path, or deletes it if there is none."""
        content = base()
        *path, last, value = path_and_value
        at = content
        for key in path:
            at = at[key]
        if value is DELETE:
            del at[last]
        else:
            at[last] = value
        add(name, content, hmac)

    def replace(name, old, new):
        text = manifest_text(manifest())
        assert old in text, old
        add(name, text.replace(old, new, 1))

    DELETE = object()
    add("ok-whole", manifest())
    add("ok-sha256", signed())
    add("ok-signed", signed(), hmac=True)
    add("no-signed-without-sha256", manifest(), hmac=True)
    edit("no-signed-header-without", "files", "a.safetensors",
         "header_sha256", DELETE, base=signed, hmac=True)
    edit("no-signed-piece-without", "tensors", "w", "chunks", 1, "sha256",
         DELETE, base=signed, hmac=True)
    edit("ok-sha256-of-some", "tensors", "w", "chunks", 1, "sha256", DELETE,
         base=signed)
    edit("no-sha256-too-many", "tensors", "w", "chunks", 1, "sha256",
         [SHA, SHA], base=signed)
    edit("no-sha256-short", "tensors", "w", "chunks", 1, "sha256", [SHA[1:]],
         base=signed)
    edit("no-sha256-upper", "tensors", "w", "chunks", 1, "sha256",
         [SHA.upper()], base=signed)
    edit("no-sha256-number", "tensors", "w", "chunks", 1, "sha256", [1],
         base=signed)
    edit("no-sha256-string", "tensors", "w", "chunks", 1, "sha256", SHA,
         base=signed)
    edit("no-header-sha256-list", "files", "a.safetensors", "header_sha256",
         [SHA], base=signed)
    edit("no-hmac-number", "hmac_sha256", 1)
    edit("ok-hmac-not-looked-at", "hmac_sha256", "x")
    add("ok-nothing", manifest(files={}, tensors={}))

    root = list(manifest())
    for member in root:
        edit(f"no-without-{member}", member, DELETE)
    edit("no-created-number", "created", 1)
    edit("no-created-null", "created", None)
    edit("no-files-list", "files", [])
    edit("no-state-list", "state", [])
    edit("no-format-another", "format", "moth.checkpoint")
    edit("no-version-2", "version", 2)
    for name, value in (("negative", -7), ("fraction", 7.5), ("string", "7"),
                        ("10-18", 10**18), ("2-63", HUGE)):
        edit(f"no-step-{name}", "step", value)
    edit("ok-step-largest", "step", 10**18 - 1)
    for value in (0, 4095, 2**30 + 1):
        edit(f"no-piece-bytes-{value}", "piece_bytes", value)
    edit("ok-piece-bytes-1-gib", "piece_bytes", 2**30)

    for name, member in (("bytes", "bytes"), ("header-bytes", "header_bytes"),
                         ("header-xxh3", "header_xxh3")):
        edit(f"no-file-without-{name}", "files", "a.safetensors", member,
             DELETE)
    for value in (63, 95, HUGE - 1):
        edit(f"no-file-bytes-{value}", "files", "a.safetensors", "bytes",
             value)
    for value in (0, 56, 63, 100_000_016):
        edit(f"no-file-header-bytes-{value}", "files", "a.safetensors",
             "header_bytes", value)
    for name, value in (("upper", H1.upper()), ("short", "05"), ("number", 5)):
        edit(f"no-file-hash-{name}", "files", "a.safetensors", "header_xxh3",
             value)
    record = {"bytes": 96, "header_bytes": 64, "header_xxh3": H0}
    for name, value in (
            ("up", "../a.safetensors"), ("absolute", "/etc/a.safetensors"),
            ("nul", "a\0.safetensors"),
            ("line-feed", "a\n.safetensors"), ("dots", ".."), ("empty", ""),
            ("manifest", "manifest.json"),
            ("256-bytes", "n" * 244 + ".safetensors")):
        content = manifest()
        del content["files"]["a.safetensors"]
        content["files"][value] = record
        content["tensors"]["w"]["chunks"][0]["file"] = value
        add(f"no-name-{name}", content)
    for name, value in (("255-bytes", "n" * 243 + ".safetensors"),
                        ("backslash", "x\\a.safetensors")):
        content = manifest()
        del content["files"]["a.safetensors"]
        content["files"][value] = record
        content["tensors"]["w"]["chunks"][0]["file"] = value
        add(f"ok-name-{name}", content)
    edit("no-name-case-clash", "files", "B.safetensors",
         {**record, "bytes": 64})
    edit("no-file-without-chunks", "files", "d.safetensors", record)
    edit("ok-file-without-data", "files", "d.safetensors",
         {**record, "bytes": 64})
    edit("no-file-not-listed", "files", "a.safetensors", DELETE)
    edit("no-file-list", "files", "a.safetensors", [])

    for member in ("dtype", "shape", "placements", "mesh", "chunks"):
        edit(f"no-tensor-without-{member}", "tensors", "w", member, DELETE)
    for name, value in (("F33", "F33"), ("F64", "F64")):
        edit(f"no-dtype-{name}", "tensors", "w", "dtype", value)
    edit("ok-dtype-I32", "tensors", "w", "dtype", "I32")
    for name, shape in (("7-4", [7, 4]), ("5-4", [5, 4]),
                        ("6-4-1", [6, 4, 1]), ("0-4", [0, 4]), ("none", []),
                        ("overflow", [2**62, 4]),
                        ("9-dims", [1] * 7 + [6, 4]), ("nested", [6, [4]])):
        edit(f"no-shape-{name}", "tensors", "w", "shape", shape)
    edit("no-empty-of-1", "tensors", "e", "shape", [1, 3])
    edit("no-empty-overflows", "tensors", "e", "shape", [0, 2**32, 2**32])
    edit("no-tensor-list", "tensors", "w", [])
    content = manifest()
    content["tensors"][""] = content["tensors"].pop("w")
    add("no-tensor-name-empty", content)
    content = manifest()
    content["tensors"]["n" * 513] = content["tensors"].pop("w")
    add("no-tensor-name-513", content)
    content = manifest()
    content["tensors"]["__metadata__"] = content["tensors"].pop("w")
    add("no-tensor-name-metadata", content)
    content = manifest()
    content["tensors"]["copy"] = content["tensors"]["w"]
    add("no-tensor-double", content)

    first = ("tensors", "w", "chunks", 0)
    for member in ("file", "offset", "shape", "bytes", "xxh3"):
        edit(f"no-chunk-without-{member}", *first, member, DELETE)
    for name, offset in (("moved", [1, 0]), ("overlap", [0, 2]),
                         ("short", [0]), ("far", [HUGE - 1, 0])):
        edit(f"no-offset-{name}", *first, "offset", offset)
    for name, shape in (("turned", [2, 4]), ("0-2", [0, 2]),
                        ("large", [HUGE - 1, 2])):
        edit(f"no-chunk-shape-{name}", *first, "shape", shape)
    for name, value in (("short", [64, 92]), ("moved", [60, 92]),
                        ("backwards", [96, 64]), ("three", [64, 96, 96]),
                        ("huge", [HUGE - 33, HUGE - 1]),
                        ("in-the-header", [32, 64])):
        edit(f"no-bytes-{name}", *first, "bytes", value)
    for name, value in (("none", []), ("two", [H1, H1]), ("number", [1]),
                        ("string", H1)):
        edit(f"no-hashes-{name}", *first, "xxh3", value)
    edit("no-chunk-of-another-file", *first, "file", "b.safetensors")
    edit("no-hole", *first, DELETE)
    content = manifest()
    content["tensors"]["w"]["chunks"].append(
        content["tensors"]["w"]["chunks"][0])
    add("no-chunk-double", content)
    edit("no-chunk-list", *first, [])
    # A pinwheel: no grid, and yet every element once.
    content = manifest(files={f"{i}.safetensors": {
        "bytes": 64 + size, "header_bytes": 64, "header_xxh3": H0}
        for i, size in enumerate((2, 2, 2, 2, 1))})
    content["tensors"] = {"p": {
        "dtype": "U8", "shape": [3, 3], "placements": "", "mesh": "",
        "chunks": [chunk(f"{i}.safetensors", *box, 64, 64 + size)
                   for i, (box, size) in enumerate((
                       (([0, 0], [1, 2]), 2), (([0, 2], [2, 1]), 2),
                       (([2, 1], [1, 2]), 2), (([1, 0], [2, 1]), 2),
                       (([1, 1], [1, 1]), 1)))]}}
    add("ok-pinwheel", content)
    content["tensors"]["p"]["chunks"][4]["offset"] = [0, 1]
    add("no-pinwheel-spoiled", content)
    # All 8 dims are cut.
    corners = [[i >> d & 1 for d in range(8)] for i in range(16)]
    content = manifest(files={}, tensors={"d": {
        "dtype": "U8", "shape": [2] * 8, "placements": "", "mesh": "",
        "chunks": [chunk("a.safetensors", at, [1] * 8, 64, 65)
                   for at in corners]}})
    add("no-eight-dims", content)

    replace("no-twice-step", '"step": 7', '"step": 7, "step": 7')
    replace("no-twice-file", '"b.safetensors": {', '"a.safetensors": {')
    replace("no-twice-in-state", '"a": null', '"a": null, "a": null')
    replace("ok-more-in-root", '"step"', '"more": [1, {"shape": ["x"]}], '
            '"step"')
    replace("ok-more-in-tensor", '"dtype"', '"more": {"chunks": {}}, "dtype"')
    replace("ok-more-in-chunk", '"offset"', '"more": -1.5e3, "offset"')
    replace("ok-more-in-file", '"bytes"', '"more": null, "bytes"')
    replace("no-number-leading-0", '"step": 7', '"step": 07')
    replace("no-number-1e999", '"step": 7', '"step": 1e999')
    replace("ok-state-number-1e300", "2.5", "1e300")
    replace("no-state-number-1e999", "2.5", "1e999")
    replace("no-leading-space", "{", " {")
    replace("no-bom", "{", "\ufeff{")
    replace("no-escape", "dp=2", "\\x")
    replace("no-line-feed-in-string", "dp=2", "dp\n2")
    for name, depth in (("30", 30), ("31", 31), ("1000", 1000)):
        replace(("ok" if depth == 30 else "no") + f"-depth-{name}", '"x": {}',
                '"x": ' + "[" * depth + "]" * depth)
    whole = manifest_text(manifest()).encode()
    add("no-nul", whole.replace(b"dp=2", b"d\0=2"))
    add("no-bad-utf-8", whole.replace(b"dp=2", b"d\xff=2"))
    add("no-more-behind", whole + b"\n")
    add("no-cut", whole[:-30])
    add("no-last-line-alone", whole[-26:])
    add("no-empty", b"")
    add("no-not-json", b'{{"x", "xxh3": "' + H0.encode() + b'"\n}\n')


# A recipe that needs no more; keys are put in its place of `optimizer`.
RECIPE = """name: r
mesh: {dp: 1, tp: 1}
model: {dim: 8, layers: 1, heads: 2, ffn_dim: 16}
data: {paths: [a.txt], sequence_length: 8}
train: {steps: 3, global_batch_size: 2}
optimizer: {lr: 1.0e-3}
"""


def recipe_corpus():
    corpus = Corpus("recipe")

    def add(name, content):
        if isinstance(content, str):
            content = content.encode()
        corpus.add(name + ".yaml", content)

    def replace(name, old, new):
        assert RECIPE.count(old) == 1, old
        add(name, RECIPE.replace(old, new))

    add("ok-least", RECIPE)
    add("ok-mark", "\ufeff" + RECIPE)
    add("ok-crlf", RECIPE.replace("\n", "\r\n"))
    add("ok-comments", "# a\n\n" + RECIPE + "# b")
    add("ok-no-line-end", RECIPE[:-1])
    add("ok-document", "---\n" + RECIPE + "...\n")
    add("ok-json", json.dumps({
        "name": "r", "mesh": {"dp": 1, "tp": 1},
        "model": {"dim": 8, "layers": 1, "heads": 2, "ffn_dim": 16},
        "data": {"paths": ["a.txt"], "sequence_length": 8},
        "train": {"steps": 3, "global_batch_size": 2},
        "optimizer": {"lr": 0.001}}))
    add("no-empty", "")
    add("no-comment-alone", "# a\n")
    add("no-list", "- 1\n- 2\n")
    add("no-word", "word")
    add("no-null", "~\n")
    add("no-mark-alone", "\ufeff")
    add("no-two-documents", RECIPE + "---\n" + RECIPE)
    add("no-utf-16", RECIPE.encode("utf-16"))
    add("no-bad-utf-8", RECIPE.encode() + b"# \xff\n")
    add("no-long-utf-8", RECIPE.encode() + b"# \xc0\xaf\n")
    add("no-surrogate", RECIPE.encode() + b"# \xed\xa0\x80\n")
    add("no-nul", RECIPE.replace("name: r", "name: r\0"))
    add("no-control", RECIPE.replace("name: r", "name: r\x07"))
    add("no-escape", RECIPE.replace("name: r", "name: \x1b[31m"))
    add("no-cut", RECIPE[:70])
    for name, text in (("map", "{foo:"), ("map-2", "{foo: {"), ("list", "[1, "),
                       ("quote", "'a"), ("double-quote", '"a'),
                       ("key", "? a"), ("block", "a: |"), ("colon", ":"),
                       ("brace", "}"), ("bracket", "]"), ("comma", ","),
                       ("percent", "%YAML 9.9\n---\n"), ("at", "@a: 1"),
                       ("backquote", "`a`: 1"), ("tab", "a:\n\tb: 1\n")):
        add(f"no-open-{name}", text)
        add(f"no-behind-{name}", RECIPE + text)
    for name, text in (("braces", "{a: " * 40), ("brackets", "[" * 40),
                       ("closed", "{a: " * 40 + "1" + "}" * 40),
                       ("many", "[" * 4000), ("dashes", "- " * 40 + "1"),
                       ("questions", "? " * 40 + "1"),
                       ("indents", "".join(" " * i + "a:\n" for i in range(40)))):
        add(f"no-deep-{name}", text)
    lr = "{lr: 1.0e-3}"
    for name, value in (("anchor", "&a {lr: 1.0e-3}"), ("alias", "*a"),
                        ("tag", "!!map {lr: 1.0e-3}"), ("merge", "{<<: {lr: 1}}"),
                        ("word", "fast"), ("null", "~"), ("list", "[1]"),
                        ("unknown", "{lr: 1, momentun: 2}"),
                        ("repeated", "{lr: 1, lr: 1}"), ("dotted", "{a.lr: 1}"),
                        ("empty-key", "{'': 1, lr: 1}"), ("nan", "{lr: .nan}"),
                        ("inf", "{lr: .inf}"), ("huge", "{lr: 1e999}"),
                        ("negative", "{lr: -1}"), ("text", "{lr: '1'}"),
                        ("list-key", "{[lr]: 1}"), ("map-key", "{{lr: 1}: 1}")):
        replace(f"no-optimizer-{name}", lr, value)
    for name, value in (("half", "0.5"), ("octal", "0o7"), ("octal-11", "007"),
                        ("hex", "0x1F"), ("exponent", "1e3"),
                        ("huge", "9" * 40), ("too-large", "9223372036854775808"),
                        ("underscore", "1_000"), ("text", "'3'"), ("no", "no"),
                        ("true", "true"), ("negative", "-1"), ("plus", "+ 3"),
                        ("nan", ".nan"), ("nothing", ""), ("seconds", "3:20"),
                        ("date", "2001-01-01"), ("list", "[3]")):
        replace(f"no-steps-{name}", "steps: 3", f"steps: {value}")
    for name, value in (("number", "12"), ("null", "~"),
                        ("slash", "a/b"), ("block", "|\n  a\n  b"),
                        ("map", "{a: b}")):
        replace(f"no-name-{name}", "name: r", f"name: {value}")
    replace("ok-name-no", "name: r", "name: no")  # a text since YAML 1.2
    replace("ok-name-quoted", "name: r", 'name: "no"')
    replace("ok-steps-large", "steps: 3", "steps: 1000000000")
    replace("no-unknown-section", "name: r", "nane: r")
    replace("no-repeated-section", "name: r", "name: r\nname: r")
    add("no-many-keys", "".join(f"a{i}: 1\n" for i in range(400)))
    add("no-long-key", "a" * 3000 + ": 1\n")
    add("no-long-value", "name: " + "a" * 3000 + "\n")


def rendezvous_corpus():
    """Names say nothing here: tests/fuzz/rendezvous_fuzz.cpp lets nobody in."""
    corpus = Corpus("rendezvous")
    answer = b"WEFTRUN1" + b"c\0\0\0" + bytes(4 + 8 + 32 + 32 + 32)
    corpus.add("raw", b"\0" + answer)
    corpus.add("raw-short", b"\0" + answer[:50])
    corpus.add("raw-long", b"\0" + answer * 3)
    corpus.add("stream", b"\1")
    corpus.add("other-token", b"\2" + bytes(32))
    corpus.add("replayed", b"\3")
    corpus.add("replayed-changed", b"\3" + bytes(90) + b"\1")
    corpus.add("frame", struct.pack("<I", 2) + b"{}" + bytes(32))
    corpus.add("frame-huge", struct.pack("<I", 2**32 - 1) + bytes(64))
    corpus.add("end", b'join\n{"type":"end","code":3,"signal":0,"age_ms":5,'
               b'"lost_peer":0,"line":"ERROR 3 rank=2 op=launch nan"}\n')
    corpus.add("stops", b'join\n{"type":"failed"}\n{"type":"signal","signal":15}')
    corpus.add("join", b'{"type":"join","host":"h","node":1,"nodes":2,'
               b'"workers":2,"version":"fuzz","command":"00"}\n{"type":"ready"}')
    corpus.add("start", b'{"type":"start","epoch":1,"random":"' + b"a" * 64 +
               b'","node":1,"nodes":2,"first":2,"world":4,"restarts":0}\n'
               b'{"type":"stop","signal":15,"requested":1}\n'
               b'{"type":"verdict","code":1,"line":"x","restart_ms":1000}')


header_corpus()
manifest_corpus()
rendezvous_corpus()
recipe_corpus()
files = [path for path in FOLDER.rglob("*") if path.is_file()]
print(f"{len(files)} files, {sum(path.stat().st_size for path in files)} bytes")
