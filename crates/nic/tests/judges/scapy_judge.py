"""Compares Remora's packets with those of scapy.

Reads a JSON list of cases: the fields of a packet, and `frame`, the bytes that Remora made of them.
Builds the same packet from the fields and reports every frame that differs in a byte. Then builds
packets of its own, for Remora to read, and writes them in the same form.

usage: scapy_judge.py CASES OWN
"""

import json
import logging
import random
import sys

logging.getLogger("scapy").setLevel(logging.ERROR)

from scapy.contrib.roce import AETH, BTH
from scapy.fields import IntField, LongField, XBitField, XByteField
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw, raw

MAX_COMPLAINTS = 5


# The headers that scapy lacks, from the InfiniBand specification, volume 1, chapter 9.
class DETH(Packet):
    fields_desc = [IntField("qkey", 0), XByteField("reserved", 0), XBitField("src_qp", 0, 24)]


class XRCETH(Packet):
    fields_desc = [XByteField("reserved", 0), XBitField("srqn", 0, 24)]


class FETH(Packet):
    fields_desc = [
        XBitField("reserved", 0, 26),
        XBitField("selectivity", 0, 2),
        XBitField("placement", 0, 4),
    ]


class RETH(Packet):
    fields_desc = [LongField("addr", 0), IntField("rkey", 0), IntField("len", 0)]


class AtomicETH(Packet):
    fields_desc = [
        LongField("addr", 0),
        IntField("rkey", 0),
        LongField("swap_add", 0),
        LongField("compare", 0),
    ]


class AtomicAckETH(Packet):
    fields_desc = [LongField("original", 0)]


class ImmDt(Packet):
    fields_desc = [IntField("data", 0)]


class IETH(Packet):
    fields_desc = [IntField("rkey", 0)]


HEADERS = {
    "xrceth": XRCETH,
    "feth": FETH,
    "deth": DETH,
    "reth": RETH,
    "atomic": AtomicETH,
    "aeth": AETH,
    "atomic_ack": AtomicAckETH,
    "imm": ImmDt,
    "ieth": IETH,
}


def connected(base):
    """Op-codes that RC, UC and XRC share, and the headers behind the BTH."""
    sends = {0: [], 1: [], 2: [], 3: ["imm"], 4: [], 5: ["imm"]}
    writes = {6: ["reth"], 7: [], 8: [], 9: ["imm"], 10: ["reth"], 11: ["reth", "imm"]}
    return {base + code: headers for code, headers in (sends | writes).items()}


def reliable(base):
    """Op-codes that RC and XRC share."""
    more = {
        0x0C: ["reth"],
        0x0D: ["aeth"],
        0x0E: [],
        0x0F: ["aeth"],
        0x10: ["aeth"],
        0x11: ["aeth"],
        0x12: ["aeth", "atomic_ack"],
        0x13: ["atomic"],
        0x14: ["atomic"],
        0x16: ["ieth"],
        0x17: ["ieth"],
    }
    return connected(base) | {base + code: headers for code, headers in more.items()}


def xrc():
    """The op-codes of XRC: its requests begin with a header of their own (annex A14)."""
    answers = range(0xAD, 0xB3)
    codes = reliable(0xA0).items()
    return {code: headers if code in answers else ["xrceth", *headers] for code, headers in codes}


FOLLOWS = (
    reliable(0x00)
    | connected(0x20)
    | xrc()
    | {
        # FLUSH and ATOMIC WRITE are those of annex A19.
        0x1C: ["feth", "reth"],
        0x1D: ["reth"],
        0x64: ["deth"],
        0x65: ["deth", "imm"],
        0x81: [],
    }
)
# Read request, acknowledges and atomics, Remora's calculation among them.
WITHOUT_PAYLOAD = {0x0C, 0x11, 0x12, 0x13, 0x14, 0x1E, 0xAC, 0xB1, 0xB2, 0xB3, 0xB4}
# The RPC op-codes of StRoM (2020), section 5.1: as RDMA WRITE. Remora's own are 0x1E, as an atomic,
# and those from 0xC0 on, which also acknowledge.
STROM = {
    0x18: ["reth"],
    0x19: ["reth"],
    0x1A: [],
    0x1B: [],
    0x1C: ["reth"],
    0x1E: ["atomic"],
    0xCA: ["reth", "aeth"],
    0xCB: ["reth", "aeth", "imm"],
    0xD8: ["reth", "aeth"],
    0xDC: ["reth", "aeth"],
}
DIALECTS = {"standard": FOLLOWS, "strom": STROM}


def build(case):
    """The frame that `case` describes."""
    outer, bth = case["outer"], case["bth"]
    ether = Ether(dst="02:00:00:00:00:02", src="02:00:00:00:00:01")
    if outer["version"] == 4:
        ip = IP(src=outer["src"], dst=outer["dst"], tos=outer["tos"], id=outer["ip_id"],
                ttl=outer["hop_limit"], flags="DF")
    else:
        ip = IPv6(src=outer["src"], dst=outer["dst"], tc=outer["tos"], hlim=outer["hop_limit"])
    udp = UDP(sport=outer["src_port"], dport=4791, chksum=0)
    packet = ether / ip / udp / BTH(**bth)
    for name in DIALECTS[case["dialect"]][bth["opcode"]]:
        packet /= HEADERS[name](**case[name])
    return raw(packet / Raw(bytes.fromhex(case["payload"]) + bytes(bth["padcount"])))


def judge(cases):
    """How many frames differ from scapy's; the first few are shown."""
    wrong = 0
    for case in cases:
        theirs = build(case).hex()
        if theirs == case["frame"]:
            continue
        wrong += 1
        if wrong <= MAX_COMPLAINTS:
            print(f"{case['name']}\n  scapy {theirs}\n  ours  {case['frame']}")
    return wrong


def draw(rng, dialect, opcode, version):
    """Fields for a packet of this op-code."""
    bare = opcode in WITHOUT_PAYLOAD or (dialect, opcode) == ("standard", 0x1C)
    n = 0 if bare else rng.choice([0, 1, 2, 3, 4, 17, 1024])
    case = {
        "dialect": dialect,
        "outer": draw_outer(rng, version),
        "bth": {
            "opcode": opcode,
            "solicited": rng.getrandbits(1),
            "migreq": rng.getrandbits(1),
            "padcount": -n % 4,
            "version": 0,
            "pkey": rng.getrandbits(16),
            "fecn": rng.getrandbits(1),
            "becn": rng.getrandbits(1),
            "dqpn": rng.getrandbits(24),
            "ackreq": rng.getrandbits(1),
            "psn": rng.getrandbits(24),
        },
        "payload": rng.randbytes(n).hex(),
    }
    for name in DIALECTS[dialect][opcode]:
        fields = HEADERS[name]().fields_desc
        case[name] = {f.name: rng.getrandbits(int(f.sz * 8)) for f in fields if f.name != "reserved"}
    return case


def draw_outer(rng, version):
    """Fields of the IP and UDP headers."""
    net = "10.0.0." if version == 4 else "fd00::"
    return {
        "version": version,
        "src": net + str(rng.randint(1, 250)),
        "dst": net + str(rng.randint(1, 250)),
        "tos": rng.getrandbits(8),
        "hop_limit": rng.randint(1, 255),
        "ip_id": rng.getrandbits(16) if version == 4 else 0,
        "src_port": rng.randint(0xC000, 0xFFFF),
    }


def own_packets():
    """Packets for the other side to read."""
    rng = random.Random(20260101)
    known = [(dialect, opcode) for dialect, all in DIALECTS.items() for opcode in all]
    for dialect, opcode in known:
        for version in (4, 6):
            for _ in range(4):
                case = draw(rng, dialect, opcode, version)
                yield case | {"frame": build(case).hex()}


def main():
    cases, own = sys.argv[1:]
    with open(cases) as f:
        wrong = judge(json.load(f))
    with open(own, "w") as f:
        json.dump(list(own_packets()), f)
    if wrong:
        sys.exit(f"{wrong} frames differ from scapy's")


main()
