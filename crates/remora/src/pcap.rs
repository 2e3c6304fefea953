//! A capture file of what a card sends and receives, for Wireshark.
//!
//! The format is pcapng (draft-ietf-opsawg-pcapng): a section header, interfaces, and a block for
//! each packet, all in this machine's byte order, which the file states. Packets are whole IP
//! packets. A UDP socket does not show the outer headers of packets that arrive, so their unknown
//! fields are made up (IPv4 identification 0, time to live 64).

mod recorder;

use std::fs::{File, TryLockError};
use std::io::{self, BufWriter, Write};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use remora_nic::Datagram;
use remora_nic::wire::ip::{Flow, Ipv4, Ipv6, Udp};

pub(crate) use self::recorder::Recorder;
use crate::egress::Sent;

const SECTION_HEADER: u32 = 0x0A0D_0D0A;
const INTERFACE_DESCRIPTION: u32 = 1;
const ENHANCED_PACKET: u32 = 6;
const BYTE_ORDER_MAGIC: u32 = 0x1A2B_3C4D;
/// IP packets without a link header.
const LINKTYPE_RAW: u16 = 101;

/// The time to live that is written where none is known.
const HOP_LIMIT: u8 = 64;

/// Writes packets to a pcapng file.
///
/// Writing is buffered; call [`Capture::flush`] before the file is read.
#[derive(Debug)]
pub struct Capture<W: Write> {
    out: W,
    packet: Vec<u8>,
    block: Vec<u8>,
    /// The interface of the next packets, by its number.
    interface: u32,
}

/// Which way a packet went, as the bits of the block's flags.
#[derive(Clone, Copy)]
enum Direction {
    Inbound = 1,
    Outbound = 2,
}

/// The fields of a packet's IP and UDP headers.
struct Outer {
    flow: Flow,
    tos: u8,
    ip_id: u16,
    hop_limit: u8,
}

impl Capture<BufWriter<File>> {
    /// Makes or overwrites the file at `path`, with an interface called `name`.
    ///
    /// # Errors
    /// Those of making and writing a file; [`io::ErrorKind::ResourceBusy`] if another card, of this
    /// process or another, writes to the file.
    pub fn create(path: impl AsRef<Path>, name: &str) -> io::Result<Self> {
        let file = File::options().write(true).create(true).truncate(false).open(path)?;
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => {
                return Err(io::Error::new(
                    io::ErrorKind::ResourceBusy,
                    "another card writes to it: name another file",
                ));
            }
            // Not every file system has locks, and a pipe has no length.
            Ok(()) | Err(TryLockError::Error(_)) => {}
        }
        if file.metadata()?.is_file() {
            file.set_len(0)?;
        }
        Capture::new(BufWriter::new(file), name)
    }

    /// As [`Capture::create`]. If another card writes to that file, takes the first free one of
    /// `path-2.pcapng`, `path-3.pcapng` and so on.
    ///
    /// # Errors
    /// Those of making and writing a file, with the file's path.
    pub fn create_beside(path: &Path, name: &str) -> Result<Self, (PathBuf, io::Error)> {
        let mut number = 1;
        loop {
            let path = numbered(path, number);
            match Capture::create(&path, name) {
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => number += 1,
                made => return made.map_err(|error| (path, error)),
            }
        }
    }
}

/// The path itself for number 1; else the path with the number behind the name.
fn numbered(path: &Path, number: u32) -> PathBuf {
    if number == 1 {
        return path.to_owned();
    }
    let mut name = path.file_stem().unwrap_or_default().to_owned();
    name.push(format!("-{number}"));
    if let Some(extension) = path.extension() {
        name.push(".");
        name.push(extension);
    }
    path.with_file_name(name)
}

impl<W: Write> Capture<W> {
    /// Begins a capture on an interface called `name` in `out`, which should be buffered.
    ///
    /// # Errors
    /// Those of writing to `out`.
    pub fn new(out: W, name: &str) -> io::Result<Capture<W>> {
        Capture::of(out, [name])
    }

    /// As [`Capture::new`], on several interfaces; the first is that of the first packets.
    ///
    /// # Errors
    /// Those of writing to `out`.
    pub fn of<'a>(out: W, names: impl IntoIterator<Item = &'a str>) -> io::Result<Capture<W>> {
        let mut capture = Capture { out, packet: Vec::new(), block: Vec::new(), interface: 0 };
        capture.write_section_header()?;
        names.into_iter().try_for_each(|name| capture.write_interface(name))?;
        Ok(capture)
    }

    /// The next packets are of this interface, by its place among the names.
    pub fn on(&mut self, interface: u32) {
        self.interface = interface;
    }

    /// Writes a datagram that arrived on UDP port `dst_port` at `at` (nanoseconds since 1970).
    ///
    /// # Errors
    /// Those of writing.
    pub fn received(&mut self, at: u64, datagram: &Datagram<'_>, dst_port: u16) -> io::Result<()> {
        let Datagram { src, src_port, dst, .. } = *datagram;
        let outer = Outer {
            flow: Flow { src, dst, src_port, dst_port },
            tos: datagram.tos,
            ip_id: datagram.ip_id.unwrap_or(0),
            hop_limit: HOP_LIMIT,
        };
        self.write_packet(at, Direction::Inbound, &outer, datagram.bytes)
    }

    /// Writes packets that left at `at` (nanoseconds since 1970).
    ///
    /// # Errors
    /// Those of writing.
    pub fn sent(&mut self, at: u64, sent: &Sent<'_>) -> io::Result<()> {
        let hop_limit = if sent.to.hop_limit == 0 { HOP_LIMIT } else { sent.to.hop_limit };
        for (ip_id, bytes) in sent.datagrams() {
            let outer = Outer { flow: sent.flow, tos: sent.to.tos, ip_id, hop_limit };
            self.write_packet(at, Direction::Outbound, &outer, bytes)?;
        }
        Ok(())
    }

    /// Hands everything that is buffered to the file.
    ///
    /// # Errors
    /// Those of writing.
    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    fn write_section_header(&mut self) -> io::Result<()> {
        self.block.clear();
        self.put_u32(BYTE_ORDER_MAGIC);
        self.put_u16(1); // Version 1.0.
        self.put_u16(0);
        self.put_u32(u32::MAX); // The section's length is not known, 64 bits of ones.
        self.put_u32(u32::MAX);
        self.put_option(4, b"Remora"); // shb_userappl
        self.end_options();
        self.write_block(SECTION_HEADER)
    }

    fn write_interface(&mut self, name: &str) -> io::Result<()> {
        self.block.clear();
        self.put_u16(LINKTYPE_RAW);
        self.put_u16(0); // Reserved.
        self.put_u32(0); // Packets are kept whole.
        self.put_option(2, name.as_bytes()); // if_name
        self.put_option(9, &[9]); // if_tsresol: 10^-9 s
        self.end_options();
        self.write_block(INTERFACE_DESCRIPTION)
    }

    fn write_packet(
        &mut self,
        at: u64,
        direction: Direction,
        outer: &Outer,
        bytes: &[u8],
    ) -> io::Result<()> {
        self.packet.clear();
        emit_outer(outer, bytes, &mut self.packet);
        self.packet.extend_from_slice(bytes);
        let len = self.packet.len() as u32;

        self.block.clear();
        self.put_u32(self.interface);
        self.put_u32((at >> 32) as u32);
        self.put_u32(at as u32);
        self.put_u32(len); // Captured, and as it was on the wire.
        self.put_u32(len);
        self.block.extend_from_slice(&self.packet);
        self.pad();
        self.put_option(2, &(direction as u32).to_ne_bytes()); // epb_flags
        self.end_options();
        self.write_block(ENHANCED_PACKET)
    }

    /// Writes the block's type, its length before and behind, and what `self.block` holds.
    fn write_block(&mut self, kind: u32) -> io::Result<()> {
        let len = (self.block.len() as u32 + 12).to_ne_bytes();
        self.out.write_all(&kind.to_ne_bytes())?;
        self.out.write_all(&len)?;
        self.out.write_all(&self.block)?;
        self.out.write_all(&len)
    }

    fn put_u16(&mut self, value: u16) {
        self.block.extend_from_slice(&value.to_ne_bytes());
    }

    fn put_u32(&mut self, value: u32) {
        self.block.extend_from_slice(&value.to_ne_bytes());
    }

    fn put_option(&mut self, code: u16, value: &[u8]) {
        let value = &value[..value.len().min(usize::from(u16::MAX))];
        self.put_u16(code);
        self.put_u16(value.len() as u16);
        self.block.extend_from_slice(value);
        self.pad();
    }

    fn end_options(&mut self) {
        self.put_u32(0);
    }

    /// Fills up to a multiple of 4 bytes.
    fn pad(&mut self) {
        self.block.resize(self.block.len().next_multiple_of(4), 0);
    }
}

/// Appends the IP and UDP headers that go before `payload`.
fn emit_outer(outer: &Outer, payload: &[u8], packet: &mut Vec<u8>) {
    let Flow { src, dst, src_port, dst_port } = outer.flow;
    let udp = Udp { src_port, dst_port, payload_len: payload.len(), checksum: 0 };
    let payload_len = Udp::LEN + payload.len();
    let (tos, ttl) = (outer.tos, outer.hop_limit);
    match (src.to_canonical(), dst.to_canonical()) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let ip = Ipv4 { src, dst, tos, id: outer.ip_id, ttl, payload_len };
            packet.extend_from_slice(&ip.emit());
            packet.extend_from_slice(&udp.emit());
        }
        (src, dst) => {
            let (src, dst) = (as_v6(src), as_v6(dst));
            let (traffic_class, hop_limit, flow_label) = (tos, ttl, 0);
            let ip = Ipv6 { src, dst, traffic_class, flow_label, hop_limit, payload_len }.emit();
            let checksum = checksum(&ip[8..], &udp.emit(), payload);
            packet.extend_from_slice(&ip);
            packet.extend_from_slice(&Udp { checksum, ..udp }.emit());
        }
    }
}

fn as_v6(ip: IpAddr) -> std::net::Ipv6Addr {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    }
}

/// The UDP checksum, which IPv6 demands, over `addresses`, `udp` and `payload`.
fn checksum(addresses: &[u8], udp: &[u8], payload: &[u8]) -> u16 {
    const PROTOCOL_UDP: u64 = 17;
    let len = (udp.len() + payload.len()) as u64;
    let mut sum = PROTOCOL_UDP + len;
    for bytes in [addresses, udp, payload] {
        for pair in bytes.chunks(2) {
            sum += u64::from(pair[0]) << 8 | u64::from(pair.get(1).copied().unwrap_or(0));
        }
    }
    while sum > 0xFFFF {
        sum = (sum & 0xFFFF) + (sum >> 16);
    }
    // A checksum of zero would mean that there is none.
    if sum == 0xFFFF { 0xFFFF } else { !(sum as u16) }
}

#[cfg(test)]
mod tests;
