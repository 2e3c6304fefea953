//! The time that a message takes in the card itself: two cards, without a socket between them.
//!
//! `cargo bench -p remora-nic`. An iteration takes a batch of messages from post to completion:
//! elements are written and fetched, packets built, sealed with their ICRC, checked, carried out,
//! acknowledged and completed.

use std::net::{IpAddr, Ipv4Addr};

use divan::Bencher;
use divan::counter::{BytesCount, ItemsCount};
use remora_nic::qp::{Mtu, QpAttr, State};
use remora_nic::queue::{
    Completion, Data, RecvRequest, RemoteAddress, RingInit, SendFlags, SendOp, SendRequest, Sge,
};
use remora_nic::wire::icrc::{Flow, Icrc};
use remora_nic::wire::{ICRC_LEN, ROCE_PORT, Transport};
use remora_nic::{
    Access, Config, Datagram, Memory, MemoryFault, MrInit, Nic, PageTable, Path, PayloadRef, Psn,
    QpFlags, QpInit, Time, TransmitBatch,
};

fn main() {
    divan::main();
}

struct Bytes(Vec<u8>);

impl Memory for Bytes {
    fn read(&mut self, addr: u64, dst: &mut [u8]) -> Result<(), MemoryFault> {
        dst.copy_from_slice(&self.0[addr as usize..][..dst.len()]);
        Ok(())
    }

    fn write(&mut self, addr: u64, src: &[u8]) -> Result<(), MemoryFault> {
        self.0[addr as usize..][..src.len()].copy_from_slice(src);
        Ok(())
    }

    fn compare_swap(&mut self, addr: u64, _: u64, _: u64) -> Result<u64, MemoryFault> {
        Err(MemoryFault { addr })
    }

    fn fetch_add(&mut self, addr: u64, _: u64) -> Result<u64, MemoryFault> {
        Err(MemoryFault { addr })
    }
}

const REGION: u64 = 1 << 24;
const REGION_LEN: u64 = 1 << 22;
const RING: u64 = 64 * 64;

struct End {
    nic: Nic,
    memory: Bytes,
    address: IpAddr,
    cq: u32,
    key: u32,
    qps: Vec<u32>,
    batch: TransmitBatch,
}

impl End {
    fn new(last: u8, qps: usize) -> End {
        let address = IpAddr::V4(Ipv4Addr::new(127, 0, 0, last));
        let mut nic = Nic::new(Config::new(address), [last; 32]);
        let pd = nic.alloc_pd().unwrap();
        let cq = nic.create_cq(1 << 16).unwrap();
        let pages = PageTable::contiguous(21, REGION, REGION_LEN);
        let access = Access::all();
        let key = nic.reg_mr(pd, MrInit { iova: REGION, len: REGION_LEN, access, pages }).unwrap();
        let ring = |i: usize| RingInit { addr: i as u64 * RING, depth: 64, stride: 64 };
        let qps = (0..qps).map(|i| {
            let init = QpInit {
                pd,
                transport: Transport::Rc,
                send_cq: cq,
                recv_cq: cq,
                srq: None,
                sq: ring(i),
                rq: ring(qps + i),
                signal_all: false,
                flags: QpFlags::empty(),
                client: 0,
            };
            nic.create_qp(init).unwrap()
        });
        let qps = qps.collect();
        let memory = Bytes(vec![0; (REGION + REGION_LEN) as usize]);
        End { nic, memory, address, cq, key, qps, batch: TransmitBatch::new() }
    }

    fn connect(&mut self, peer: &End) {
        for (&qpn, &dest) in self.qps.iter().zip(&peer.qps) {
            let steps = [
                QpAttr {
                    state: Some(State::Init),
                    access: Some(Access::all()),
                    ..QpAttr::default()
                },
                QpAttr {
                    state: Some(State::Rtr),
                    path: Some(Path::new(peer.address, qpn)),
                    path_mtu: Some(Mtu::B4096),
                    dest_qp: Some(dest),
                    rq_psn: Some(Psn::new(0)),
                    max_dest_rd_atomic: Some(16),
                    min_rnr_timer: Some(1),
                    ..QpAttr::default()
                },
                QpAttr {
                    state: Some(State::Rts),
                    sq_psn: Some(Psn::new(0)),
                    max_rd_atomic: Some(16),
                    timeout: Some(14),
                    retry_cnt: Some(7),
                    rnr_retry: Some(7),
                    ..QpAttr::default()
                },
            ];
            for attr in steps {
                self.nic.modify_qp(Time(0), &mut self.memory, qpn, &attr).unwrap();
            }
        }
    }

    /// Sends all packets that are ready to `peer`, with the ICRC that a driver adds.
    fn send_to(&mut self, peer: &mut End, wire: &mut [u8]) {
        loop {
            self.batch.clear();
            self.nic.poll_transmit(Time(1), &mut self.memory, &mut self.batch, 64);
            if self.batch.is_empty() {
                return;
            }
            for packet in self.batch.packets() {
                let flow = Flow {
                    src: self.address,
                    dst: peer.address,
                    src_port: ROCE_PORT,
                    dst_port: ROCE_PORT,
                };
                let len = packet.datagram_len();
                let mut at = packet.header().len();
                wire[..at].copy_from_slice(packet.header());
                let PayloadRef::Segments(segments) = self.batch.payload(packet) else { continue };
                for s in segments {
                    self.memory.read(s.addr, &mut wire[at..at + s.len as usize]).unwrap();
                    at += s.len as usize;
                }
                wire[at..at + packet.pad()].fill(0);
                let covered = len - ICRC_LEN;
                let icrc = Icrc::start(&flow, 0, len, &wire[..covered]).finish();
                wire[covered..len].copy_from_slice(&icrc);
                let datagram = Datagram {
                    src: self.address,
                    src_port: ROCE_PORT,
                    dst: peer.address,
                    ip_id: None,
                    tos: 0,
                    bytes: &wire[..len],
                };
                peer.nic.handle_packets(Time(1), &mut peer.memory, [datagram]);
            }
        }
    }
}

/// The operation that is measured.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Verb {
    Write,
    Send,
}

fn messages(bencher: Bencher<'_, '_>, verb: Verb, qps: usize, per_qp: usize, len: u32) {
    let (mut a, mut b) = (End::new(1, qps), End::new(2, qps));
    a.connect(&b);
    b.connect(&a);
    let mut wire = vec![0; 8192];
    let items = qps * per_qp;
    bencher
        .counter(ItemsCount::new(items))
        .counter(BytesCount::new(items as u64 * u64::from(len)))
        .bench_local(|| {
            for i in 0..per_qp {
                let flags = if i + 1 == per_qp { SendFlags::SIGNALED } else { SendFlags::empty() };
                for (&qpn, &dest) in a.qps.iter().zip(&b.qps) {
                    let sges = [Sge { addr: REGION, len, lkey: a.key }];
                    let op = match verb {
                        Verb::Write => {
                            let to = RemoteAddress { addr: REGION, rkey: b.key };
                            SendOp::Write { to, imm: None }
                        }
                        Verb::Send => {
                            let sges = [Sge { addr: REGION, len, lkey: b.key }];
                            let request = RecvRequest { wr_id: 2, sges: &sges };
                            b.nic.post_recv(&mut b.memory, dest, &request).unwrap();
                            SendOp::Send { imm: None, to: None }
                        }
                    };
                    let request = SendRequest { wr_id: 1, op, data: Data::Sges(&sges), flags };
                    a.nic.post_send(&mut a.memory, qpn, &request).unwrap();
                }
            }
            let mut out = [Completion::default(); 64];
            let mut done = 0;
            while done < qps {
                a.send_to(&mut b, &mut wire);
                b.send_to(&mut a, &mut wire);
                done += a.nic.poll_cq(a.cq, &mut out).unwrap();
            }
            while b.nic.poll_cq(b.cq, &mut out).unwrap() > 0 {}
        });
}

/// 64-byte WRITEs over many queue pairs, eight at a time.
#[divan::bench(args = [1, 64, 1024])]
fn write_64_bytes(bencher: Bencher<'_, '_>, qps: usize) {
    messages(bencher, Verb::Write, qps, 8, 64);
}

/// 64-byte SENDs over many queue pairs, eight at a time.
#[divan::bench(args = [1, 64, 1024])]
fn send_64_bytes(bencher: Bencher<'_, '_>, qps: usize) {
    messages(bencher, Verb::Send, qps, 8, 64);
}

/// One 1 MiB WRITE.
#[divan::bench]
fn write_1_mib(bencher: Bencher<'_, '_>) {
    messages(bencher, Verb::Write, 1, 1, 1 << 20);
}
