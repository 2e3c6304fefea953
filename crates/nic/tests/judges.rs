//! Packets of every op-code, compared byte for byte with two independent implementations:
//! Wireshark's dissector (`tshark`) and `scapy.contrib.roce`.
//!
//! `REMORA_SKIP_JUDGES=1` skips these tests, for machines where the two cannot be installed.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use remora_nic::Psn;
use remora_nic::split_mix::SplitMix;
use remora_nic::wire::icrc::{Flow, Icrc, IcrcChecker};
use remora_nic::wire::ip::{Ipv4, Ipv6, Udp};
use remora_nic::wire::opcode::{Follows, TABLE};
use remora_nic::wire::{
    Aeth, AtomicEth, Bth, Deth, Dialect, Extensions, Feth, ICRC_LEN, MAX_HEADER, Op, Operation,
    Packet, ROCE_PORT, Reth, Transport, Xrceth,
};
use serde_json::{Map, Value, json};

const INSTALL: &str = "`./ci.sh setup` installs it; REMORA_SKIP_JUDGES=1 skips the judges";

const PAYLOAD_LENGTHS: [usize; 10] = [0, 1, 2, 3, 4, 5, 6, 7, 256, 1024];

const ETHERNET_LEN: usize = 14;

/// A packet and its outer headers.
struct Case {
    op: &'static Op,
    flow: Flow,
    tos: u8,
    hop_limit: u8,
    ip_id: u16,
    bth: Bth,
    ext: Extensions,
    payload: Vec<u8>,
}

impl Case {
    fn name(&self) -> String {
        let family = if self.flow.src.is_ipv4() { "IPv4" } else { "IPv6" };
        format!("{}, {} bytes, {family}", self.op, self.payload.len())
    }

    /// Ethernet, IP, UDP, RoCE.
    fn frame(&self) -> Vec<u8> {
        let datagram = self.datagram();
        [&self.outer_headers(datagram.len())[..], &datagram].concat()
    }

    fn datagram(&self) -> Vec<u8> {
        let mut buf = [0; MAX_HEADER];
        let len = Packet::emit_headers(&self.bth, self.op, &self.ext, &mut buf);
        let headers = &buf[..len];
        let pad = vec![0; usize::from(self.bth.pad)];
        let total = len + self.payload.len() + pad.len() + ICRC_LEN;
        let mut icrc = Icrc::start(&self.flow, self.ip_id, total, headers);
        icrc.update(&self.payload);
        icrc.update(&pad);
        [headers, &self.payload, &pad, &icrc.finish()].concat()
    }

    fn outer_headers(&self, datagram_len: usize) -> Vec<u8> {
        let Flow { src_port, dst_port, .. } = self.flow;
        let udp = Udp { src_port, dst_port, payload_len: datagram_len, checksum: 0 };
        let payload_len = Udp::LEN + datagram_len;
        let (ethertype, ip) = match (self.flow.src, self.flow.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let (tos, id, ttl) = (self.tos, self.ip_id, self.hop_limit);
                (0x0800u16, Ipv4 { src, dst, tos, id, ttl, payload_len }.emit().to_vec())
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                let (traffic_class, hop_limit, flow_label) = (self.tos, self.hop_limit, 0);
                let ip = Ipv6 { src, dst, traffic_class, flow_label, hop_limit, payload_len };
                (0x86DD, ip.emit().to_vec())
            }
            _ => panic!("a flow of two families"),
        };
        let macs = [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
        [&macs[..], &ethertype.to_be_bytes(), &ip, &udp.emit()].concat()
    }

    /// Everything that the scapy judge needs to build the same frame.
    fn to_json(&self) -> Value {
        let mut case = fields(self.op, &self.bth, &self.ext, &self.payload);
        case["name"] = json!(self.name());
        let strom = self.op.dialect == Dialect::KERNELS;
        case["dialect"] = json!(if strom { "strom" } else { "standard" });
        case["frame"] = json!(hex(&self.frame()));
        case["outer"] = json!({
            "version": if self.flow.src.is_ipv4() { 4 } else { 6 },
            "src": self.flow.src,
            "dst": self.flow.dst,
            "tos": self.tos,
            "hop_limit": self.hop_limit,
            "ip_id": self.ip_id,
            "src_port": self.flow.src_port,
        });
        case
    }
}

/// A packet's fields under the names that `judges/scapy_judge.py` uses.
fn fields(op: &Op, bth: &Bth, ext: &Extensions, payload: &[u8]) -> Value {
    let Extensions { xrceth, deth, feth, reth, atomic, aeth, .. } = ext;
    let mut all = Map::new();
    all.insert("bth".into(), bth_fields(bth));
    all.insert("payload".into(), json!(hex(payload)));
    for header in op.follows {
        let (name, value) = match header {
            Follows::XRCETH => ("xrceth", json!({"srqn": xrceth.srqn})),
            Follows::FETH => {
                let Feth { placement, selectivity } = feth;
                ("feth", json!({"placement": placement, "selectivity": selectivity}))
            }
            Follows::DETH => ("deth", json!({"qkey": deth.qkey, "src_qp": deth.src_qp})),
            Follows::RETH => {
                ("reth", json!({"addr": reth.addr, "rkey": reth.rkey, "len": reth.len}))
            }
            Follows::ATOMIC => ("atomic", atomic_fields(atomic)),
            Follows::AETH => ("aeth", json!({"syndrome": aeth.syndrome, "msn": aeth.msn})),
            Follows::ATOMIC_ACK => ("atomic_ack", json!({"original": ext.atomic_ack})),
            Follows::IMM => ("imm", json!({"data": ext.imm_or_key})),
            Follows::IETH => ("ieth", json!({"rkey": ext.imm_or_key})),
            _ => continue,
        };
        all.insert(name.into(), value);
    }
    Value::Object(all)
}

fn bth_fields(bth: &Bth) -> Value {
    json!({
        "opcode": bth.opcode,
        "solicited": u8::from(bth.solicited),
        "migreq": u8::from(bth.migreq),
        "padcount": bth.pad,
        "version": bth.version,
        "pkey": bth.pkey,
        "fecn": u8::from(bth.fecn),
        "becn": u8::from(bth.becn),
        "dqpn": bth.dest_qp,
        "ackreq": u8::from(bth.ack_req),
        "psn": bth.psn.value(),
    })
}

fn atomic_fields(atomic: &AtomicEth) -> Value {
    json!({
        "addr": atomic.addr,
        "rkey": atomic.rkey,
        "swap_add": atomic.swap_add,
        "compare": atomic.compare,
    })
}

/// Every op-code with every payload length that it can have, over IPv4 and IPv6. All other fields
/// are random.
fn cases() -> Vec<Case> {
    let mut random = Random(SplitMix::new(1));
    let mut cases = Vec::new();
    for row in TABLE.iter().filter(|row| is_known_elsewhere(row)) {
        let op = Op::lookup(row.code, row.dialect).expect("a row of the table");
        for len in PAYLOAD_LENGTHS {
            let len = match op.operation {
                Operation::Cnp => 16,
                _ if op.follows.contains(Follows::PAYLOAD) => len,
                // Each is drawn several times, for different values in the headers.
                _ => 0,
            };
            cases.push(random.case(op, len, true));
            cases.push(random.case(op, len, false));
        }
    }
    cases
}

/// Random packets.
struct Random(SplitMix);

impl Random {
    fn next(&mut self) -> u64 {
        self.0.number()
    }

    fn bit(&mut self) -> bool {
        self.next() & 1 == 1
    }

    fn case(&mut self, op: &'static Op, len: usize, v4: bool) -> Case {
        Case {
            op,
            flow: self.flow(v4),
            tos: self.next() as u8,
            hop_limit: self.next() as u8 | 1,
            ip_id: if v4 { self.next() as u16 } else { 0 },
            bth: self.bth(op, len),
            ext: self.extensions(),
            payload: self.payload(len),
        }
    }

    /// Random bytes. The first ones are chosen so that tshark does not take them for an Ethernet
    /// type.
    fn payload(&mut self, len: usize) -> Vec<u8> {
        let mut payload: Vec<u8> = (0..len).map(|_| self.next() as u8).collect();
        if let Some(first) = payload.first_mut() {
            *first = *first & 0x44 | 0x11;
        }
        payload
    }

    fn flow(&mut self, v4: bool) -> Flow {
        let mut addr = || -> IpAddr {
            match v4 {
                true => Ipv4Addr::from(0x0A00_0001 | self.next() as u32 & 0xFF_FFFE).into(),
                false => Ipv6Addr::from(0xFD << 120 | u128::from(self.next())).into(),
            }
        };
        let (src, dst) = (addr(), addr());
        Flow { src, dst, src_port: 0xC000 | self.next() as u16, dst_port: ROCE_PORT }
    }

    fn bth(&mut self, op: &Op, len: usize) -> Bth {
        Bth {
            opcode: op.code,
            solicited: self.bit(),
            migreq: self.bit(),
            pad: (len.next_multiple_of(4) - len) as u8,
            version: 0,
            pkey: self.next() as u16,
            fecn: self.bit(),
            becn: self.bit(),
            // Not 0 or 1, since tshark takes the payload of those for management.
            dest_qp: self.next() as u32 & 0xFF_FFFF | 2,
            ack_req: self.bit(),
            psn: Psn::new(self.next() as u32),
        }
    }

    fn extensions(&mut self) -> Extensions {
        Extensions {
            leth: None,
            sack: None,
            xrceth: Xrceth { srqn: self.next() as u32 & 0xFF_FFFF },
            feth: Feth { placement: self.next() as u8 & 15, selectivity: self.next() as u8 & 3 },
            deth: Deth { qkey: self.next() as u32, src_qp: self.next() as u32 & 0xFF_FFFF | 2 },
            reth: Reth { addr: self.next(), rkey: self.next() as u32, len: self.next() as u32 },
            atomic: AtomicEth {
                addr: self.next(),
                rkey: self.next() as u32,
                swap_add: self.next(),
                compare: self.next(),
            },
            aeth: Aeth { syndrome: self.next() as u8, msn: self.next() as u32 & 0xFF_FFFF },
            atomic_ack: self.next(),
            imm_or_key: self.next() as u32,
        }
    }
}

#[test]
fn scapy_agrees() {
    if skipped() {
        return;
    }
    let dir = temp_dir("scapy");
    let (ours, theirs) = (dir.join("ours.json"), dir.join("theirs.json"));
    let cases: Vec<Value> = cases().iter().map(Case::to_json).collect();
    fs::write(&ours, Value::from(cases).to_string()).unwrap();
    run(Command::new(python()).arg(script("scapy_judge.py")).arg(&ours).arg(&theirs));

    let built: Vec<Value> = serde_json::from_slice(&fs::read(&theirs).unwrap()).unwrap();
    assert!(built.len() >= TABLE.iter().filter(|row| is_known_elsewhere(row)).count());
    for case in &built {
        reads_like(case);
    }
}

/// Reads the frame of a case that scapy built, and compares.
fn reads_like(case: &Value) {
    let frame = unhex(case["frame"].as_str().unwrap());
    let flow = Flow {
        src: case["outer"]["src"].as_str().unwrap().parse().unwrap(),
        dst: case["outer"]["dst"].as_str().unwrap().parse().unwrap(),
        src_port: case["outer"]["src_port"].as_u64().unwrap() as u16,
        dst_port: ROCE_PORT,
    };
    let ip_len = if flow.src.is_ipv4() { Ipv4::LEN } else { Ipv6::LEN };
    let datagram = &frame[ETHERNET_LEN + ip_len + Udp::LEN..];
    let ip_id = case["outer"]["ip_id"].as_u64().unwrap() as u16;
    let mut checker = IcrcChecker::new();
    assert!(checker.check(&flow, Some(ip_id), datagram), "ICRC of {case}");
    assert!(checker.check(&flow, None, datagram), "ICRC without identification of {case}");

    let bth = Packet::bth(datagram).unwrap();
    let strom = case["dialect"] == "strom";
    let dialect = if strom { Dialect::KERNELS } else { Dialect::STANDARD };
    let op = Op::lookup(bth.opcode, dialect).unwrap();
    let packet = Packet::parse(bth, op, datagram).unwrap();
    let ours = fields(op, &packet.bth, &packet.ext, packet.payload);
    for (name, value) in ours.as_object().unwrap() {
        assert_eq!(value, &case[name], "{name} of {case}");
    }
}

/// The protocols that tshark would take some random payloads for.
const GUESSES: [&str; 9] = [
    "smc",
    "smb_direct",
    "rpcordma",
    "nvme-rdma",
    "lnet",
    "iser",
    "infiniband.eoib",
    "infiniband_sdp",
    "fcoib",
];

/// A column that tshark prints for a frame, and how to read it.
#[derive(Clone, Copy)]
enum Column {
    Number(&'static str),
    Bytes(&'static str),
}

use Column::{Bytes, Number};

/// The columns that mean something for every op-code, also for those that tshark does not know.
const EVERY_OPCODE: [Column; 17] = [
    Number("ip.checksum.status"),
    Number("ip.id"),
    Number("ip.dsfield"),
    Number("ip.ttl"),
    Number("ipv6.tclass"),
    Number("ipv6.hlim"),
    Number("udp.length"),
    Number("infiniband.bth.opcode"),
    Number("infiniband.bth.se"),
    Number("infiniband.bth.m"),
    Number("infiniband.bth.padcnt"),
    Number("infiniband.bth.tver"),
    Number("infiniband.bth.p_key"),
    // The byte of FECN and BECN.
    Bytes("infiniband.reserved"),
    Number("infiniband.bth.destqp"),
    Number("infiniband.bth.a"),
    Number("infiniband.bth.psn"),
];

/// The columns that tshark fills in, or leaves empty, by the op-code.
const KNOWN_OPCODE: [Column; 14] = [
    Number("infiniband.deth.q_key"),
    Number("infiniband.deth.srcqp"),
    Number("infiniband.reth.va"),
    Number("infiniband.reth.r_key"),
    Number("infiniband.reth.dmalen"),
    Number("infiniband.atomiceth.swapdt"),
    Number("infiniband.atomiceth.cmpdt"),
    Number("infiniband.aeth.syndrome"),
    Number("infiniband.aeth.msn"),
    Number("infiniband.atomicacketh.origremdt"),
    Bytes("infiniband.immdt"),
    Bytes("infiniband.ieth"),
    Bytes("data.data"),
    Number("infiniband.invariant.crc"),
];

impl Column {
    fn name(self) -> &'static str {
        match self {
            Number(name) | Bytes(name) => name,
        }
    }

    /// The printed value, as a number or as hexadecimal digits; null if tshark saw no such field.
    fn read(self, printed: &str) -> Value {
        match self {
            _ if printed.is_empty() => Value::Null,
            Bytes(_) => json!(printed.replace(':', "")),
            Number(_) => match printed.strip_prefix("0x") {
                Some(digits) => json!(u64::from_str_radix(digits, 16).unwrap()),
                None => printed.to_lowercase().parse::<bool>().map_or_else(
                    |_| json!(printed.parse::<u64>().unwrap()),
                    |set| json!(u64::from(set)),
                ),
            },
        }
    }
}

#[test]
fn tshark_agrees() {
    if skipped() {
        return;
    }
    let cases = cases();
    let file = temp_dir("tshark").join("cases.pcap");
    fs::write(&file, pcap(&cases)).unwrap();

    let columns: Vec<Column> = EVERY_OPCODE.into_iter().chain(KNOWN_OPCODE).collect();
    let mut tshark = Command::new("tshark");
    tshark.args(["-n", "-T", "fields", "-E", "separator=/t", "-E", "occurrence=f"]);
    tshark.args(GUESSES.iter().flat_map(|p| ["--disable-protocol", p]));
    tshark.args(["-o", "ip.check_checksum:TRUE", "-r"]).arg(&file);
    tshark.args(columns.iter().flat_map(|c| ["-e", c.name()]));
    let printed = String::from_utf8(run(&mut tshark).stdout).unwrap();

    assert_eq!(printed.lines().count(), cases.len());
    for (case, line) in cases.iter().zip(printed.lines()) {
        let expected = expected_by_tshark(case);
        let known = tshark_knows(case.op);
        let compared = if known { columns.len() } else { EVERY_OPCODE.len() };
        for (column, value) in columns.iter().zip(line.split('\t')).take(compared) {
            let wanted = expected.get(column.name()).unwrap_or(&Value::Null);
            assert_eq!(&column.read(value), wanted, "{} of {}", column.name(), case.name());
        }
    }
}

/// Can another dissector know the op-code? The lossy dialect's are the card's own.
fn is_known_elsewhere(op: &Op) -> bool {
    !op.dialect.contains(Dialect::LOSSY)
}

/// Does tshark read more than the BTH? Version 4.0 does not for StRoM's op-codes, the CNP, XRC,
/// FLUSH and ATOMIC WRITE.
fn tshark_knows(op: &Op) -> bool {
    op.dialect == Dialect::STANDARD
        && op.transport != Transport::Xrc
        && !matches!(op.operation, Operation::Cnp | Operation::Flush | Operation::AtomicWrite)
}

/// What tshark should print for a case, by the names of its fields.
fn expected_by_tshark(case: &Case) -> Map<String, Value> {
    let Case { op, bth, .. } = case;
    let datagram = case.datagram();
    let (body, icrc) = datagram.split_last_chunk().unwrap();
    let mut all = json!({
        "udp.length": Udp::LEN + datagram.len(),
        "infiniband.bth.opcode": op.code,
        "infiniband.bth.se": u8::from(bth.solicited),
        "infiniband.bth.m": u8::from(bth.migreq),
        "infiniband.bth.padcnt": bth.pad,
        "infiniband.bth.tver": 0,
        "infiniband.bth.p_key": bth.pkey,
        "infiniband.reserved": hex(&[u8::from(bth.fecn) << 7 | u8::from(bth.becn) << 6]),
        "infiniband.bth.destqp": bth.dest_qp,
        "infiniband.bth.a": u8::from(bth.ack_req),
        "infiniband.bth.psn": bth.psn.value(),
        "infiniband.invariant.crc": u32::from_be_bytes(*icrc),
    });
    let mut add =
        |more: Value| all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    add(match case.flow.src {
        IpAddr::V4(_) => json!({
            "ip.checksum.status": 1,
            "ip.id": case.ip_id,
            "ip.dsfield": case.tos,
            "ip.ttl": case.hop_limit,
        }),
        IpAddr::V6(_) => json!({"ipv6.tclass": case.tos, "ipv6.hlim": case.hop_limit}),
    });
    for header in op.follows {
        add(header_expected_by_tshark(header, case, body));
    }
    let Value::Object(all) = all else { unreachable!() };
    all
}

/// What tshark should print for one of the headers, or the payload, of a packet.
fn header_expected_by_tshark(header: Follows, case: &Case, body: &[u8]) -> Value {
    let Case { op, ext, .. } = case;
    match header {
        Follows::DETH => json!({
            "infiniband.deth.q_key": ext.deth.qkey,
            "infiniband.deth.srcqp": ext.deth.src_qp,
        }),
        Follows::RETH => json!({
            "infiniband.reth.va": ext.reth.addr,
            "infiniband.reth.r_key": ext.reth.rkey,
            "infiniband.reth.dmalen": ext.reth.len,
        }),
        Follows::ATOMIC => json!({
            "infiniband.reth.va": ext.atomic.addr,
            "infiniband.reth.r_key": ext.atomic.rkey,
            "infiniband.atomiceth.swapdt": ext.atomic.swap_add,
            "infiniband.atomiceth.cmpdt": ext.atomic.compare,
        }),
        Follows::AETH => json!({
            "infiniband.aeth.syndrome": ext.aeth.syndrome,
            "infiniband.aeth.msn": ext.aeth.msn,
        }),
        Follows::ATOMIC_ACK => json!({"infiniband.atomicacketh.origremdt": ext.atomic_ack}),
        Follows::IMM => json!({"infiniband.immdt": hex(&ext.imm_or_key.to_be_bytes())}),
        Follows::IETH => json!({"infiniband.ieth": hex(&ext.imm_or_key.to_be_bytes())}),
        Follows::PAYLOAD if !case.payload.is_empty() => {
            json!({"data.data": hex(&body[op.header_len()..])})
        }
        _ => json!({}),
    }
}

/// A capture file in the classic format: a header of 24 bytes, and one of 16 before each frame.
fn pcap(cases: &[Case]) -> Vec<u8> {
    const MAGIC: u32 = 0xA1B2_C3D4;
    const VERSION: u32 = 4 << 16 | 2;
    const SNAP_LEN: u32 = 65_535;
    const ETHERNET: u32 = 1;
    let mut file = [MAGIC, VERSION, 0, 0, SNAP_LEN, ETHERNET].map(u32::to_le_bytes).concat();
    for case in cases {
        let frame = case.frame();
        let len = frame.len() as u32;
        file.extend([0, 0, len, len].map(u32::to_le_bytes).concat());
        file.extend(frame);
    }
    file
}

fn skipped() -> bool {
    std::env::var_os("REMORA_SKIP_JUDGES").is_some_and(|v| v == "1")
}

/// Runs a judge. Panics with its output if it is missing or fails.
fn run(command: &mut Command) -> Output {
    let program = command.get_program().to_owned();
    let output = command
        .output()
        .unwrap_or_else(|e| panic!("{} does not start: {e}; {INSTALL}", program.display()));
    assert!(
        output.status.success(),
        "{}: {}\n{}{}",
        program.display(),
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    output
}

/// The Python of the environment that `scripts/judges-venv.sh` makes.
fn python() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("judges-venv").join("bin/python")
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/judges").join(name)
}

fn temp_dir(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("judges").join(name);
    fs::create_dir_all(&dir).unwrap();
    dir
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn unhex(digits: &str) -> Vec<u8> {
    let pair = |i| u8::from_str_radix(&digits[i..i + 2], 16).unwrap();
    (0..digits.len()).step_by(2).map(pair).collect()
}
