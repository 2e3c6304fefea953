//! What a socket's errors mean for the sender and the receiver.

use std::io;

/// What a failed [`Socket::send`](super::Socket::send) means for the sender.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SendFailure {
    /// The socket's or the interface's queue is full: send the same again, later.
    Full,
    /// This route takes no group of datagrams of this size: send them one by one, each with the
    /// ICRC of a packet that has identification 0.
    GroupRefused,
    /// As [`SendFailure::GroupRefused`], for every group: the network device cannot cut them.
    NoSegmentation,
    /// A datagram is longer than the path allows.
    TooLong,
    /// The error of an *earlier* packet, reported now; nothing was sent. Send the same again.
    Stale,
    /// The peer cannot be reached from here.
    Unreachable,
}

impl SendFailure {
    /// Sorts an error of [`Socket::send`](super::Socket::send); `group` says that the call was to
    /// send more than one datagram.
    pub fn of(error: &io::Error, group: bool) -> SendFailure {
        match error.raw_os_error() {
            Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM | libc::EINTR) => SendFailure::Full,
            Some(libc::EINVAL | libc::EMSGSIZE) if group => SendFailure::GroupRefused,
            Some(libc::EIO) if group => SendFailure::NoSegmentation,
            Some(libc::EMSGSIZE) => SendFailure::TooLong,
            Some(libc::ECONNREFUSED) => SendFailure::Stale,
            _ => SendFailure::Unreachable,
        }
    }
}

/// Did this error arrive by ICMP, and not come from the call itself? (These are all that the kernel
/// makes of ICMP's types and codes, in both families.)
pub(super) fn is_icmp_error(error: &io::Error) -> bool {
    let icmp = [
        libc::ECONNREFUSED,
        libc::EHOSTUNREACH,
        libc::ENETUNREACH,
        libc::EHOSTDOWN,
        libc::ENONET,
        libc::EPROTO,
        libc::EMSGSIZE,
        libc::EOPNOTSUPP,
        libc::ENOPROTOOPT,
        libc::EACCES,
    ];
    error.raw_os_error().is_some_and(|code| icmp.contains(&code))
}
