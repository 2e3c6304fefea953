//! Checks of the way to a peer: is there a route, from which address, how large may packets be, and
//! does a card answer there?

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::Result;
use remora::interface::route_to;
use remora::nic::qp::Mtu;
use remora::nic::wire::ROCE_PORT;
use remora::{ConnectFailure, ConnectionParams, QueuePairOptions};
use remora_command::node::address::NodeAddress;

use super::check::Check;
use super::network::OpenCard;
use crate::failure::told;

/// How long the peer has to answer. RDMA CM repeats its request within that time.
const PATIENCE: Duration = Duration::from_secs(3);
/// A port of RDMA CM's TCP space that no program listens on: a card answers that it refuses, which
/// shows that it is there.
const UNUSED_PORT: u16 = 1;
const START_IT: &str = "start the program there, on that address: Remora's card lives only as long \
                        as its program";

/// Checks the way from `card` to `peer`.
pub(super) fn look(peer: &str, card: Option<&OpenCard>, checks: &mut Vec<Check>) {
    let to = match peer.parse::<NodeAddress>() {
        Ok(peer) => peer.ip,
        Err(error) => {
            let found = told(&error.into());
            return checks.push(Check::fail("peer", found, "give the peer's IP address"));
        }
    };
    let route = match route_to((to, ROCE_PORT).into()) {
        Ok(route) => route,
        Err(error) => {
            let found = format!("there is no route to {to}: {error}");
            return checks.push(Check::fail("route", found, "see `ip route get`, and add a route"));
        }
    };
    let from = route.local_addr().map(|addr| addr.ip()).unwrap_or(to);
    let Some(card) = card else {
        let found = format!("the way to {to} starts at {from}; no card could be opened here");
        return checks.push(Check::note("route", found));
    };
    let ours = card.device.info().address;
    if ours == to && !card.device.is_attached() {
        // This command's card has just taken the address, so no other card had it.
        let found = format!("no card has {to}: it was free, on UDP port 4791");
        return checks.push(Check::fail("peer", found, START_IT));
    }
    checks.push(fits(ours, from, to));
    if let Some(check) = mtu(&route, card.link_mtu, to) {
        checks.push(check);
    }
    checks.push(answer(card, to));
}

/// Can a card at `ours` reach `to`, which the kernel would reach from `from`?
fn fits(ours: IpAddr, from: IpAddr, to: IpAddr) -> Check {
    if ours.is_ipv4() != to.is_ipv4() {
        let found = format!("the card has {ours} and the peer {to}: one is IPv4, the other IPv6");
        let advice = format!("give the card an address of the peer's family: --addr {from}");
        return Check::fail("route", found, advice);
    }
    if from == to {
        return Check::ok(
            "route",
            format!("from {ours} to {to}, an address of this machine's own"),
        );
    }
    if ours.is_loopback() && !to.is_loopback() {
        let found = format!("the card is on loopback ({ours}), and {to} is not on this machine");
        return Check::fail("route", found, format!("`remora run --addr {from} -- …`"));
    }
    if ours != from && !(ours.is_loopback() && to.is_loopback()) {
        let found = format!("the card has {ours}, but the way to {to} starts at {from}");
        let advice = format!("if answers do not come back, try --addr {from}");
        return Check::warn("route", found, advice);
    }
    Check::ok("route", format!("from {ours} to {to}"))
}

/// The path MTU that the kernel has learnt from routers on the way.
fn mtu(route: &std::net::UdpSocket, link_mtu: u32, to: IpAddr) -> Option<Check> {
    let path = match to {
        IpAddr::V4(_) => rustix::net::sockopt::ip_mtu(route),
        IpAddr::V6(_) => rustix::net::sockopt::ipv6_mtu(route),
    };
    let path = path.ok()?;
    let (fits, assumed) = (Mtu::fitting(path as usize), Mtu::fitting(link_mtu as usize));
    let found = format!("packets of {path} bytes fit the way: path MTU {}", fits.bytes());
    if fits < assumed {
        let advice = format!(
            "the link allows {}, and packets are never fragmented: ask programs for {} (perftest: \
             -m {})",
            assumed.bytes(),
            fits.bytes(),
            fits.bytes()
        );
        return Some(Check::fail("path MTU", found, advice));
    }
    Some(Check::ok("path MTU", found))
}

/// Asks the card at `to` for a connection that it must refuse.
fn answer(card: &OpenCard, to: IpAddr) -> Check {
    let start = Instant::now();
    let answer = ask(card, to);
    let after = start.elapsed().as_millis();
    match answer {
        Ok(()) => Check::ok("peer", format!("a card at {to} answers, after {after} ms")),
        Err(error) => match error.downcast_ref::<ConnectFailure>() {
            Some(ConnectFailure::Rejected { .. } | ConnectFailure::Mtu { .. }) => Check::ok(
                "peer",
                format!("a card at {to} answers RDMA connection management, after {after} ms"),
            ),
            Some(ConnectFailure::Unreachable(_) | ConnectFailure::Timeout(_)) => {
                let refused = has_no_socket(to);
                let found = match refused {
                    true => format!("{to} says that nothing listens on its UDP port 4791"),
                    false => format!("no card at {to} answers on UDP port 4791"),
                };
                let advice = match refused {
                    true => START_IT,
                    false => {
                        "check that its program runs, and that this is its card's address; if so, \
                         a firewall on the way drops UDP port 4791 (try both directions), or the \
                         card there does not speak RDMA CM"
                    }
                };
                Check::fail("peer", found, advice)
            }
            _ => Check::warn("peer", format!("cannot ask {to}: {}", told(&error)), "try again"),
        },
    }
}

fn ask(card: &OpenCard, to: IpAddr) -> Result<()> {
    let domain = card.device.alloc_pd()?;
    let queue = card.device.create_cq(4)?;
    let queue_pair = domain.create_qp(&QueuePairOptions::rc(&queue))?;
    let params = ConnectionParams::new(card.device.info().mtu);
    let to = SocketAddr::new(to, UNUSED_PORT);
    card.device.connect(queue_pair, to, b"", &params).wait(PATIENCE)?;
    Ok(())
}

/// Does the peer's system say that the UDP port is closed?
fn has_no_socket(to: IpAddr) -> bool {
    let refused = || {
        let socket = route_to((to, ROCE_PORT).into())?;
        socket.set_read_timeout(Some(Duration::from_millis(300)))?;
        // Too short for a RoCE packet, so a card drops it.
        socket.send(&[0])?;
        socket.recv(&mut [0; 16])
    };
    refused()
        .is_err_and(|error: std::io::Error| error.kind() == std::io::ErrorKind::ConnectionRefused)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Status;

    fn status(ours: &str, from: &str, to: &str) -> Status {
        let ip = |text: &str| text.parse().unwrap();
        fits(ip(ours), ip(from), ip(to)).status
    }

    #[test]
    fn the_card_must_have_the_address_at_which_the_way_starts() {
        assert_eq!(status("127.0.0.2", "127.0.0.1", "127.0.0.9"), Status::Ok);
        assert_eq!(status("10.0.0.1", "10.0.0.1", "10.0.0.9"), Status::Ok);
        assert_eq!(status("10.0.0.2", "10.0.0.1", "10.0.0.9"), Status::Warn);
        // The kernel reaches an address of its own from that address.
        assert_eq!(status("127.0.0.1", "10.0.0.9", "10.0.0.9"), Status::Ok);
        assert_eq!(status("10.0.0.2", "10.0.0.9", "10.0.0.9"), Status::Ok);
        assert_eq!(status("127.0.0.1", "10.0.0.1", "10.0.0.9"), Status::Fail);
        assert_eq!(status("127.0.0.1", "fe80::1", "fe80::2"), Status::Fail);
    }
}
