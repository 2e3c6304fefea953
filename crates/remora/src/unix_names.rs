//! The abstract names of this machine's Unix sockets, and whose they are.
//!
//! Programs on one machine find each other by such names. The kernel prints all of them in
//! `/proc/net/unix`, raw: a name, which any user chooses, may have bytes that are no text, look
//! like another one's, or break lines. So the table only gives hints. For each, [`SockDiag`] tells
//! which name a socket really has, and who owns it.

use std::fs::File;
use std::io::{self, Read};

use crate::sock_diag::SockDiag;

/// Room for a kernel's table of sockets, in bytes. A longer one takes more calls to read.
const TABLE_BYTES: usize = 16 << 10;
/// The words of a line of the table before the name; the last is the inode's number.
const WORDS: usize = 7;

/// A datagram socket with an abstract name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Named {
    /// The number of its inode.
    pub inode: u32,
    /// What follows the prefix that was asked for.
    pub rest: String,
    /// The user who made it; `None` if the kernel does not tell (`CONFIG_UNIX_DIAG`, Linux 5.3).
    pub owner: Option<u32>,
}

/// A table of the kernel's, read at once as long as it is short.
///
/// # Errors
/// As for any file, such as that `/proc` is not mounted.
pub fn read_table(path: &str) -> io::Result<Vec<u8>> {
    let mut table = Vec::with_capacity(TABLE_BYTES);
    File::open(path)?.read_to_end(&mut table)?;
    Ok(table)
}

/// The datagram sockets of this network namespace whose abstract names begin with `prefix`.
///
/// # Errors
/// The kernel's table cannot be read.
pub fn named(prefix: &str) -> io::Result<Vec<Named>> {
    let table = read_table("/proc/net/unix")?;
    let hints: Vec<Named> = table.split(|byte| *byte == b'\n').filter_map(hint(prefix)).collect();
    if hints.is_empty() {
        return Ok(hints);
    }
    let kernel = SockDiag::open();
    let true_one = |hint: &Named| {
        let socket = kernel.as_ref()?.unix_socket(hint.inode)?;
        let name = socket.name.strip_prefix(b"\0")?.strip_prefix(prefix.as_bytes())?;
        let same = socket.is_datagram && name == hint.rest.as_bytes();
        Some(same.then(|| Named { owner: Some(socket.owner), ..hint.clone() }))
    };
    let told: Vec<Option<Option<Named>>> = hints.iter().map(true_one).collect();
    // If none of the sockets is known to the kernel, it tells of no socket.
    if told.iter().all(Option::is_none) {
        return Ok(hints);
    }
    Ok(told.into_iter().flatten().flatten().collect())
}

/// Reads a line of the table; `None` if no abstract name that begins with `prefix` is in it.
fn hint(prefix: &str) -> impl Fn(&[u8]) -> Option<Named> {
    move |line| {
        let mut rest = line;
        let mut word = &line[..0];
        for _ in 0..WORDS {
            rest = rest.trim_ascii_start();
            let end = rest.iter().position(|byte| *byte == b' ')?;
            (word, rest) = rest.split_at(end);
        }
        let name = rest.strip_prefix(b" @")?.strip_prefix(prefix.as_bytes())?;
        let inode = str::from_utf8(word).ok()?.parse().ok()?;
        Some(Named { inode, rest: str::from_utf8(name).ok()?.to_owned(), owner: None })
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener};

    use super::*;

    fn bind(name: impl AsRef<[u8]>) -> UnixDatagram {
        UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(name).unwrap()).unwrap()
    }

    fn inode(socket: impl AsFd) -> u32 {
        rustix::fs::fstat(socket).unwrap().st_ino as u32
    }

    /// A name that no other test has.
    fn prefix(of: &str) -> String {
        format!("remora/test/{of}/{}", std::process::id())
    }

    fn rests(prefix: &str) -> Vec<String> {
        named(prefix).unwrap().into_iter().map(|named| named.rest).collect()
    }

    #[test]
    fn names_are_told_with_their_owners() {
        let prefix = prefix("told");
        assert_eq!(named(&prefix).unwrap(), []);
        let socket = bind(format!("{prefix}/a b"));
        let found = named(&prefix).unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].rest.as_str(), found[0].inode), ("/a b", inode(&socket)));
        let user = rustix::process::geteuid().as_raw();
        assert!(found[0].owner.is_none_or(|owner| owner == user));
    }

    #[test]
    fn bytes_that_are_no_text_hide_nothing() {
        let prefix = prefix("bytes");
        let _odd = [bind(b"\xff\xfe"), bind([prefix.as_bytes(), b"/\xff"].concat())];
        let _socket = bind(format!("{prefix}/mine"));
        assert_eq!(rests(&prefix), ["/mine"]);
    }

    /// A path, a broken line and a socket of another kind look like the name, and are not.
    #[test]
    fn what_looks_like_a_name_is_none() {
        let prefix = prefix("forged");
        let socket = bind(format!("{prefix}/mine"));
        let top = std::env::temp_dir().join(format!("names-{} @remora", std::process::id()));
        let folder = top.join(prefix.strip_prefix("remora/").unwrap());
        let path = folder.join("thief");
        std::fs::create_dir_all(&folder).unwrap();
        let _path = UnixDatagram::bind(&path).unwrap();
        let at = format!("{} 00000002 00000000 00010000 0001 01", "0000000000000000:");
        let _lines = bind(format!("x\n{at} {} @{prefix}/thief\n", inode(&socket)));
        let stream = SocketAddr::from_abstract_name(format!("{prefix}/mine")).unwrap();
        let _stream = UnixListener::bind_addr(&stream).unwrap();
        let found = named(&prefix).unwrap();
        std::fs::remove_dir_all(&top).unwrap();
        if found.first().is_none_or(|named| named.owner.is_none()) {
            return crate::skips::lacks("this kernel does not tell of sockets (CONFIG_UNIX_DIAG)");
        }
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!((found[0].rest.as_str(), found[0].inode), ("/mine", inode(&socket)));
    }

    #[test]
    fn only_the_last_word_is_a_name() {
        let hint = |name: &str| {
            let line = format!("0000: 00000002 00000000 00010000 0002 01  4711{name}");
            super::hint("x/")(line.as_bytes()).map(|hint| (hint.inode, hint.rest))
        };
        assert_eq!(hint(" @x/y z"), Some((4711, "y z".into())));
        assert_eq!(hint(""), None);
        assert_eq!(hint(" /run/a @x/y"), None);
        assert_eq!(super::hint("x/")(b"Num RefCount Protocol"), None);
    }
}
