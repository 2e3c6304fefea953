//! How full the socket of another process on this machine is. The kernel tells any process, as it
//! tells `ss` (`NETLINK_SOCK_DIAG`, see sock_diag(7)).

use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with,
};

/// The kind of a request for a socket by its addresses (`linux/sock_diag.h`).
const BY_FAMILY: u16 = 20;
/// The flag that marks a request (`linux/netlink.h`).
const REQUEST: u16 = 1;
/// The attribute with the socket's memory (`linux/inet_diag.h`).
const MEMORY: u8 = 7;
/// Bytes of a netlink header, and of an `inet_diag_msg`.
const HEADER: usize = 16;
const MESSAGE: usize = 72;

/// The bytes that wait in a socket to be received. The kernel counts its bookkeeping too.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ReceiveQueue {
    pub(crate) waiting: u32,
    /// How many bytes may wait.
    pub(crate) room: u32,
}

/// Asks the kernel about sockets.
#[derive(Debug, Default)]
pub(crate) struct Diagnosis {
    netlink: Option<OwnedFd>,
}

impl Diagnosis {
    /// The receive queue of the UDP socket that gets the datagrams from `from` to `to`. `None` if
    /// that socket is not in this network namespace of this machine, or if the kernel does not
    /// tell.
    pub(crate) fn receive_queue(
        &mut self,
        from: SocketAddr,
        to: SocketAddr,
    ) -> Option<ReceiveQueue> {
        if self.netlink.is_none() {
            let (kind, flags) = (SocketType::RAW, SocketFlags::CLOEXEC);
            let opened = socket_with(AddressFamily::NETLINK, kind, flags, Some(netlink::SOCK_DIAG));
            self.netlink = Some(opened.ok()?);
        }
        let netlink = self.netlink.as_ref()?;
        send(netlink, &request(from, to), SendFlags::empty()).ok()?;
        // The kernel has answered before `send` returns.
        let mut answer = [0; 512];
        let (len, _) = recv(netlink, &mut answer[..], RecvFlags::DONTWAIT).ok()?;
        read(answer.get(..len)?)
    }
}

fn request(from: SocketAddr, to: SocketAddr) -> [u8; 72] {
    let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let mut out = [0; 72];
    let mut at = 0;
    let mut put = |bytes: &[u8]| {
        out[at..at + bytes.len()].copy_from_slice(bytes);
        at += bytes.len();
    };
    put(&72u32.to_ne_bytes());
    put(&BY_FAMILY.to_ne_bytes());
    put(&REQUEST.to_ne_bytes());
    put(&[0; 8]);
    put(&[family.as_raw() as u8, libc::IPPROTO_UDP as u8, 1 << (MEMORY - 1), 0]);
    // Sockets in any state.
    put(&u32::MAX.to_ne_bytes());
    put(&from.port().to_be_bytes());
    put(&to.port().to_be_bytes());
    put(&octets(from.ip()));
    put(&octets(to.ip()));
    // On any interface, with any cookie.
    put(&[0; 4]);
    put(&[0xFF; 8]);
    out
}

/// An address in 16 bytes, of which IPv4 takes the first four.
fn octets(addr: IpAddr) -> [u8; 16] {
    match addr {
        IpAddr::V4(v4) => {
            let mut octets = [0; 16];
            octets[..4].copy_from_slice(&v4.octets());
            octets
        }
        IpAddr::V6(v6) => v6.octets(),
    }
}

fn read(answer: &[u8]) -> Option<ReceiveQueue> {
    let short = |at: usize| Some(u16::from_ne_bytes(answer.get(at..at + 2)?.try_into().ok()?));
    let word = |at: usize| Some(u32::from_ne_bytes(answer.get(at..at + 4)?.try_into().ok()?));
    if short(4)? != BY_FAMILY {
        return None;
    }
    let mut at = HEADER + MESSAGE;
    loop {
        let (len, kind) = (usize::from(short(at)?), short(at + 2)?);
        if kind == u16::from(MEMORY) {
            // The message itself has the queue's length too, but without bytes that were received
            // and still count against the room.
            return Some(ReceiveQueue { waiting: word(at + 4)?, room: word(at + 8)? });
        }
        at += len.max(4).next_multiple_of(4);
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    #[test]
    fn the_queue_of_another_socket_is_known() {
        for own in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(to) = UdpSocket::bind(own) else { continue };
            let from = UdpSocket::bind(own).unwrap();
            let (a, b) = (from.local_addr().unwrap(), to.local_addr().unwrap());
            let mut diagnosis = Diagnosis::default();
            let Some(empty) = diagnosis.receive_queue(a, b) else {
                println!("skipped: this kernel does not tell (CONFIG_INET_UDP_DIAG)");
                return;
            };
            assert!(empty.waiting == 0 && empty.room > 1000, "{empty:?}");
            from.send_to(&[1; 1000], b).unwrap();
            assert!(diagnosis.receive_queue(a, b).unwrap().waiting >= 1000);
            to.recv(&mut [0; 1000]).unwrap();
            assert_eq!(diagnosis.receive_queue(a, b), Some(empty));
            drop(to);
            assert_eq!(diagnosis.receive_queue(a, b), None, "the socket is closed");
        }
    }

    #[test]
    fn answers_of_any_length_are_read() {
        for len in 0..200 {
            let mut answer = vec![0; len];
            assert_eq!(read(&answer), None);
            if len > 5 {
                answer[4..6].copy_from_slice(&BY_FAMILY.to_ne_bytes());
                assert_eq!(read(&answer), None);
            }
        }
    }
}
