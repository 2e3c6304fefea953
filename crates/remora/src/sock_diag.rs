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
/// Asks for the name and the owner of a Unix socket, and the attributes with them.
const SHOW_NAME_AND_OWNER: u32 = 0x41;
const NAME: u16 = 0;
const OWNER: u16 = 7;

/// A Unix socket.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnixSocket {
    /// The user who made it.
    pub owner: u32,
    /// Its name, an abstract one with the zero byte before it; empty if it has none.
    pub name: Vec<u8>,
    /// It sends datagrams, so that each name belongs to one such socket only.
    pub is_datagram: bool,
}

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

    /// The Unix socket with this inode number. `None` if there is no such socket in this network
    /// namespace, or if the kernel does not tell (`CONFIG_UNIX_DIAG`, Linux 5.3). The kernel looks
    /// through its whole table for it.
    pub fn unix_socket(&self, inode: u32) -> Option<UnixSocket> {
        let mut request = [0; UNIX_REQUEST];
        request[0] = AddressFamily::UNIX.as_raw() as u8;
        // Sockets in any state, with any cookie.
        request[4..8].fill(0xff);
        request[8..12].copy_from_slice(&inode.to_ne_bytes());
        request[12..16].copy_from_slice(&SHOW_NAME_AND_OWNER.to_ne_bytes());
        request[16..24].fill(0xff);
        let answer = self.ask(&request)?;
        if answer.word(4)? != inode {
            return None;
        }
        Some(UnixSocket {
            owner: u32::from_ne_bytes(*answer.attribute(UNIX_MESSAGE, OWNER)?.first_chunk()?),
            name: answer.attribute(UNIX_MESSAGE, NAME).unwrap_or_default().to_vec(),
            is_datagram: answer.0.get(1) == Some(&(SocketType::DGRAM.as_raw() as u8)),
        })
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

    /// The bytes of an attribute that stands behind the first `fixed` bytes.
    pub(crate) fn attribute(&self, fixed: usize, kind: u16) -> Option<&[u8]> {
        let mut rest = self.0.get(fixed..)?;
        loop {
            let short = |at: usize| Some(u16::from_ne_bytes(*rest.get(at..)?.first_chunk()?));
            let (len, found) = (usize::from(short(0)?).max(4), short(2)?);
            if found == kind {
                return rest.get(4..len);
            }
            rest = rest.get(len.next_multiple_of(4)..)?;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixDatagram};

    use super::*;

    #[test]
    fn the_owner_and_the_name_of_a_socket_are_known() {
        let name = [b"remora/test/\xff/", std::process::id().to_string().as_bytes()].concat();
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let socket = UnixDatagram::bind_addr(&address).unwrap();
        let inode = rustix::fs::fstat(&socket).unwrap().st_ino as u32;
        let kernel = SockDiag::open().unwrap();
        let Some(told) = kernel.unix_socket(inode) else {
            return crate::skips::lacks("this kernel does not tell (CONFIG_UNIX_DIAG)");
        };
        assert_eq!(told.owner, rustix::process::geteuid().as_raw());
        assert_eq!((told.name.strip_prefix(b"\0"), told.is_datagram), (Some(&name[..]), true));
        drop(socket);
        assert_eq!(kernel.unix_socket(inode), None, "the socket is closed");
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
