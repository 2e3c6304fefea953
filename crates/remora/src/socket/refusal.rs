//! What other machines refuse: packets for ports that nobody has (ICMP, port unreachable). The
//! kernel keeps such news beside the datagrams (`IP_RECVERR`, see ip(7)).

use std::net::IpAddr;
use std::os::fd::BorrowedFd;

use super::sys::{self, Slot};

/// The address and port to which a packet was that was refused.
pub(crate) type Refusal = (IpAddr, u16);

/// The most refusals that are kept until somebody looks.
const REFUSALS_MAX: usize = 256;
/// The most news that one call takes. The kernel tells of the rest as it does of the first.
const NEWS_MAX: usize = 64;

/// Takes the news that wait on a socket, and adds what was refused. Returns whether any has come by
/// ICMP.
#[cold]
pub(super) fn take(fd: BorrowedFd, refusals: &mut Vec<Refusal>) -> bool {
    let mut slot = Slot::EMPTY;
    let mut any = false;
    for _ in 0..NEWS_MAX {
        if !sys::receive_news(fd, &mut slot).unwrap_or(false) {
            break;
        }
        let Some(news) = slot.control.news() else { continue };
        any |= news.by_icmp;
        let refused = news.by_icmp && news.errno == libc::ECONNREFUSED;
        if refused && let Some(to) = slot.from.get() {
            let refusal = (to.ip().to_canonical(), to.port());
            if refusals.len() < REFUSALS_MAX && !refusals.contains(&refusal) {
                refusals.push(refusal);
            }
        }
    }
    any
}
