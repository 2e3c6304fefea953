//! What the kernel tells any process of the sockets of this machine, as it tells `ss`
//! (`NETLINK_SOCK_DIAG`, see sock_diag(7)).

use std::os::fd::OwnedFd;

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with,
};

/// The kind of a request for one socket (`linux/sock_diag.h`).
const BY_FAMILY: u16 = 20;
/// The kind of an answer with an error (`linux/netlink.h`).
const ERROR: u16 = 2;
/// The flag that marks a request (`linux/netlink.h`).
const REQUEST: u16 = 1;
/// Bytes of a netlink header.
const HEADER: usize = 16;
/// Bytes of a request for a Unix socket, and of the fixed part of the answer (`linux/unix_diag.h`).
const UNIX_REQUEST: usize = 24;
const UNIX_MESSAGE: usize = 16;
/// Asks for the owner of a Unix socket, and the attribute with it.
const SHOW_OWNER: u32 = 0x40;
const OWNER: u16 = 7;

/// A way to ask the kernel.
#[derive(Debug)]
pub struct SockDiag(OwnedFd);

impl SockDiag {
    /// `None` if the kernel has no such way, or the process no descriptor left.
    pub fn open() -> Option<SockDiag> {
        let (kind, flags) = (SocketType::RAW, SocketFlags::CLOEXEC);
        let opened = socket_with(AddressFamily::NETLINK, kind, flags, Some(netlink::SOCK_DIAG));
        opened.ok().map(SockDiag)
    }

    /// Asks for one socket with a request of its family. `None` if there is no such socket, or if
    /// the kernel does not tell.
    pub(crate) fn ask(&self, request: &[u8]) -> Option<Answer> {
        Answer::parse(&self.reply_to(request)?)
    }

    /// Does the kernel say that there is no such socket? It says the same if it does not tell of
    /// such sockets at all.
    pub(crate) fn denies(&self, request: &[u8]) -> bool {
        let reply = self.reply_to(request);
        let word = |at: usize| Some(i32::from_ne_bytes(*reply.as_ref()?.get(at..)?.first_chunk()?));
        let kind = reply.as_ref().and_then(|reply| reply.get(4..)?.first_chunk().copied());
        kind.map(u16::from_ne_bytes) == Some(ERROR) && word(HEADER) == Some(-libc::ENOENT)
    }

    fn reply_to(&self, request: &[u8]) -> Option<Vec<u8>> {
        let mut message = Vec::with_capacity(HEADER + request.len());
        message.extend_from_slice(&u32::try_from(HEADER + request.len()).ok()?.to_ne_bytes());
        message.extend_from_slice(&BY_FAMILY.to_ne_bytes());
        message.extend_from_slice(&REQUEST.to_ne_bytes());
        message.extend_from_slice(&[0; 8]);
        message.extend_from_slice(request);
        send(&self.0, &message, SendFlags::empty()).ok()?;
        // The kernel has answered before `send` returns.
        let mut bytes = [0; 512];
        let (len, _) = recv(&self.0, &mut bytes[..], RecvFlags::DONTWAIT).ok()?;
        Some(bytes.get(..len)?.to_vec())
    }

    /// The user who owns the Unix socket with this inode number: the one who made it. `None` if
    /// there is no such socket in this network namespace, or if the kernel does not tell
    /// (`CONFIG_UNIX_DIAG`, Linux 5.3). The kernel looks through its whole table for it.
    pub fn unix_owner(&self, inode: u32) -> Option<u32> {
        let mut request = [0; UNIX_REQUEST];
        request[0] = AddressFamily::UNIX.as_raw() as u8;
        // Sockets in any state, with any cookie.
        request[4..8].fill(0xff);
        request[8..12].copy_from_slice(&inode.to_ne_bytes());
        request[12..16].copy_from_slice(&SHOW_OWNER.to_ne_bytes());
        request[16..24].fill(0xff);
        let answer = self.ask(&request)?;
        if answer.word(4)? != inode {
            return None;
        }
        answer.word(answer.attribute(UNIX_MESSAGE, OWNER)?)
    }
}

/// An answer about one socket, without its netlink header.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Answer(Vec<u8>);

impl Answer {
    fn parse(message: &[u8]) -> Option<Answer> {
        let kind = u16::from_ne_bytes(*message.get(4..)?.first_chunk()?);
        (kind == BY_FAMILY).then(|| Answer(message.get(HEADER..).unwrap_or_default().to_vec()))
    }

    /// The word at an offset.
    pub(crate) fn word(&self, at: usize) -> Option<u32> {
        Some(u32::from_ne_bytes(*self.0.get(at..)?.first_chunk()?))
    }

    /// Where the bytes of an attribute begin that stands behind the first `fixed` bytes.
    pub(crate) fn attribute(&self, fixed: usize, kind: u16) -> Option<usize> {
        let short = |at: usize| Some(u16::from_ne_bytes(*self.0.get(at..)?.first_chunk()?));
        let mut at = fixed;
        loop {
            let (len, found) = (usize::from(short(at)?), short(at + 2)?);
            if found == kind {
                return Some(at + 4);
            }
            at += len.max(4).next_multiple_of(4);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;

    use super::*;

    #[test]
    fn the_owner_of_a_socket_is_known() {
        let socket = UnixDatagram::unbound().unwrap();
        let inode = rustix::fs::fstat(&socket).unwrap().st_ino as u32;
        let kernel = SockDiag::open().unwrap();
        let Some(owner) = kernel.unix_owner(inode) else {
            println!("skipped: this kernel does not tell (CONFIG_UNIX_DIAG)");
            return;
        };
        assert_eq!(owner, rustix::process::geteuid().as_raw());
        drop(socket);
        assert_eq!(kernel.unix_owner(inode), None, "the socket is closed");
    }

    #[test]
    fn answers_of_any_length_are_read() {
        for len in 0..100 {
            let mut message = vec![0; len];
            assert_eq!(Answer::parse(&message), None);
            if len > 5 {
                message[4..6].copy_from_slice(&BY_FAMILY.to_ne_bytes());
                let answer = Answer::parse(&message).unwrap();
                assert_eq!(answer.attribute(UNIX_MESSAGE, OWNER), None);
            }
        }
    }
}
