//! How full the socket of another process on this machine is.

use std::net::{IpAddr, SocketAddr};

use rustix::net::AddressFamily;

use crate::sock_diag::{Answer, SockDiag};

/// The attribute with the socket's memory (`linux/inet_diag.h`).
const MEMORY: u16 = 7;
/// The word in it that counts what was dropped (`SK_MEMINFO_DROPS`, Linux 4.6).
const DROPPED: usize = 8;
/// Bytes of a request, and of the fixed part of the answer.
const REQUEST: usize = 56;
const MESSAGE: usize = 72;

/// The bytes that wait in a socket to be received. The kernel counts its bookkeeping too.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ReceiveQueue {
    pub(crate) waiting: u32,
    /// How many bytes may wait.
    pub(crate) room: u32,
    /// How many datagrams found no room so far.
    pub(crate) dropped: u32,
}

/// Asks the kernel about sockets.
#[derive(Debug, Default)]
pub(crate) struct Diagnosis {
    kernel: Option<SockDiag>,
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
        if self.kernel.is_none() {
            self.kernel = Some(SockDiag::open()?);
        }
        read(&self.kernel.as_ref()?.ask(&request(from, to))?)
    }

    /// Is there no socket of this network namespace that gets datagrams from `from` to `to`,
    /// addresses of this machine? `from` must be a socket's.
    pub(crate) fn has_none(&mut self, from: SocketAddr, to: SocketAddr) -> bool {
        // A kernel that tells of no socket does not tell of this one either.
        let tells = self.receive_queue(to, from).is_some();
        tells && self.kernel.as_ref().is_some_and(|kernel| kernel.denies(&request(from, to)))
    }
}

fn request(from: SocketAddr, to: SocketAddr) -> [u8; REQUEST] {
    let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let mut out = [0; REQUEST];
    let mut at = 0;
    let mut put = |bytes: &[u8]| {
        out[at..at + bytes.len()].copy_from_slice(bytes);
        at += bytes.len();
    };
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

fn read(answer: &Answer) -> Option<ReceiveQueue> {
    // The message itself has the queue's length too, but without bytes that were received and still
    // count against the room.
    let memory = answer.attribute(MESSAGE, MEMORY)?;
    let word = |index: usize| Some(u32::from_ne_bytes(*memory.get(4 * index..)?.first_chunk()?));
    Some(ReceiveQueue { waiting: word(0)?, room: word(1)?, dropped: word(DROPPED)? })
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
                return crate::skips::lacks("this kernel does not tell (CONFIG_INET_UDP_DIAG)");
            };
            assert!(empty.waiting == 0 && empty.room > 1000, "{empty:?}");
            assert!(!diagnosis.has_none(a, b));
            from.send_to(&[1; 1000], b).unwrap();
            assert!(diagnosis.receive_queue(a, b).unwrap().waiting >= 1000);
            to.recv(&mut [0; 1000]).unwrap();
            assert_eq!(diagnosis.receive_queue(a, b), Some(empty));
            drop(to);
            assert_eq!(diagnosis.receive_queue(a, b), None, "the socket is closed");
            assert!(diagnosis.has_none(a, b), "and the kernel says so");
        }
    }
}
