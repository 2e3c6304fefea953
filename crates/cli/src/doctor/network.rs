//! Checks of the card's address, its UDP port, its GID and MTU, its socket's buffer (`rmem_max`),
//! and of other users of UDP port 4791.

use std::env;
use std::fs;
use std::io::ErrorKind;
use std::net::{IpAddr, UdpSocket};
use std::time::Duration;

use remora::interface::Interface;
use remora::nic::qp::Mtu;
use remora::nic::wire::ip::gid;
use remora::{Device, DeviceOptions};

use super::check::{Check, Status};
use crate::output;

/// How long a datagram from this machine to itself may take.
const PATIENCE: Duration = Duration::from_secs(1);
/// The last index of the GID table; all its entries are the same.
const LAST_GID: u32 = 3;
/// The size that a socket's receive buffer should be allowed to have.
const ENOUGH_BUFFER: u64 = 4 << 20;

/// The card that a program would have.
#[derive(Debug)]
pub(super) struct OpenCard {
    /// The card, opened to test whether that is possible.
    pub(super) device: Device,
    /// The MTU of the interface, in bytes.
    pub(super) link_mtu: u32,
}

/// Checks the address, or the interface, that a card is to have.
pub(super) fn look(addr: &str, checks: &mut Vec<Check>) -> Option<OpenCard> {
    let automatic = matches!(addr, "" | "auto");
    let wanted = if automatic { "127.0.0.1" } else { addr };
    let interface = find(wanted, checks)?;
    let mut options = DeviceOptions::new();
    if !automatic {
        options = options.bind(addr);
    }
    let device = match options.open() {
        Ok(device) => device,
        Err(error) => {
            checks.push(in_use(&interface, &error));
            checks.extend(kernel_card());
            return None;
        }
    };
    let info = device.info();
    // A daemon's card is not always where this command would open one.
    let interface = match device.is_attached() {
        true => find(&info.address.to_string(), checks)?,
        false => interface,
    };
    checks.push(Check::ok("address", whose_address(&device, automatic, &interface)));
    if info.address.is_loopback() {
        checks.push(Check::note(
            "reach",
            "a card on loopback reaches only programs of this machine (or container); for \
             others, set --addr or REMORA_ADDR to an address or interface",
        ));
    }
    let whose = if device.is_attached() { "the daemon's" } else { "free" };
    checks.push(Check::ok("UDP port", format!("{} is {whose} on {}", info.port, info.address)));
    checks.extend(kernel_card());
    checks.push(to_itself(&info.address));
    checks.push(Check::ok(
        "GID",
        format!(
            "{}, RoCE v2, at index 0 to {LAST_GID}: use `-g 0` for programs that need an index",
            gid(info.address)
        ),
    ));
    checks.extend(gid_variables(|name| env::var(name).ok()));
    checks.push(mtu(&interface));
    if !device.is_attached() {
        checks.push(same_machine(device.ring_peers().is_some()));
        checks.extend(buffers(&device));
    }
    Some(OpenCard { device, link_mtu: interface.link_mtu })
}

/// The interface that has an address, or this name.
fn find(wanted: &str, checks: &mut Vec<Check>) -> Option<Interface> {
    let found = Interface::find(wanted).map_err(|error| {
        let advice = "set REMORA_ADDR or --addr to an address or interface of this machine";
        checks.push(Check::fail("address", error.to_string(), advice));
    });
    found.ok()
}

/// What there is to say of the card's address.
fn whose_address(device: &Device, automatic: bool, interface: &Interface) -> String {
    let address = device.info().address;
    match (device.is_attached(), automatic) {
        (true, _) => format!("{address}: the card of a daemon, which programs share"),
        (false, true) => {
            format!("{address} is free; each process takes a loopback address of its own")
        }
        (false, false) => format!("{address} on {}", interface.name),
    }
}

/// How packets go to cards of this machine.
fn same_machine(rings: bool) -> Check {
    let found = match rings {
        true => {
            "cards of this user on this machine share memory, and all others are reached by UDP; \
             REMORA_FABRIC=udp has all packets go by UDP"
        }
        false => "packets to cards of this machine go by UDP, as REMORA_FABRIC=udp asks",
    };
    Check::note("same machine", found)
}

fn in_use(interface: &Interface, error: &dyn std::error::Error) -> Check {
    let mut text = error.to_string();
    // Some errors leave the reason to their source.
    if let Some(source) = error.source().map(ToString::to_string)
        && !text.contains(&source)
    {
        text = format!("{text}: {source}");
    }
    let other = Interface::find("lo").is_ok_and(|lo| lo.name == interface.name);
    let advice = if other {
        "leave the address out: each process then takes a free loopback address"
    } else {
        "only one card can have an address: give each program another (`ip address add`), or \
         stop the program that has it"
    };
    Check::fail("UDP port", text, advice)
}

/// The kernel's own software card takes UDP port 4791 on all addresses of its network namespace.
fn kernel_card() -> Option<Check> {
    let devices: Vec<String> = fs::read_dir("/sys/class/infiniband")
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    let loaded = fs::exists("/sys/module/rdma_rxe").unwrap_or(false);
    if loaded {
        return Some(Check::warn(
            "rdma_rxe",
            format!("the kernel's software card is loaded (devices: {})", list(&devices)),
            "a link of it holds UDP port 4791: remove it by `rdma link delete`, or use another \
             namespace",
        ));
    }
    (!devices.is_empty()).then(|| {
        let found =
            format!("this machine has {}; programs on Remora do not see them", list(&devices));
        Check::note("other devices", found)
    })
}

fn list(names: &[String]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

/// Does a datagram from this machine to itself arrive? A firewall may drop even such a datagram. It
/// goes between ports that the system chooses, so that the card is not disturbed; `peer` tests port
/// 4791.
fn to_itself(address: &IpAddr) -> Check {
    let probe = || {
        let to = UdpSocket::bind((*address, 0))?;
        to.set_read_timeout(Some(PATIENCE))?;
        UdpSocket::bind((*address, 0))?.send_to(b"remora", to.local_addr()?)?;
        to.recv(&mut [0; 16])
    };
    match probe() {
        Ok(_) => Check::ok("firewall", format!("UDP on {address} reaches this machine itself")),
        Err(error) => {
            // The system's text for a timeout ("resource temporarily unavailable") would mislead.
            let why = match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::TimedOut => String::new(),
                _ => format!(": {error}"),
            };
            Check::fail(
                "firewall",
                format!("a datagram from {address} to itself does not arrive{why}"),
                "a firewall drops UDP: allow UDP port 4791 in and out (see `nft list ruleset`)",
            )
        }
    }
}

/// Variables by which programs and libraries are set up for another card.
fn gid_variables(variable: impl Fn(&str) -> Option<String>) -> Vec<Check> {
    let mut checks = Vec::new();
    for name in ["NCCL_IB_GID_INDEX", "UCX_IB_GID_INDEX"] {
        if let Some(value) = variable(name).filter(|value| {
            value != "auto" && !value.parse().is_ok_and(|index: u32| index <= LAST_GID)
        }) {
            let found =
                format!("{name}={value}, but Remora's card has the indices 0 to {LAST_GID}");
            checks.push(Check::warn("GID", found, format!("unset {name}")));
        }
    }
    if variable("NCCL_IB_DISABLE").is_some_and(|value| value == "1") {
        checks.push(Check::warn("NCCL", "NCCL_IB_DISABLE=1: NCCL does not use verbs", "unset it"));
    }
    for name in ["NCCL_IB_HCA", "UCX_NET_DEVICES", "FI_VERBS_DEVICE_NAME"] {
        let named = variable(name).filter(|value| !value.contains("remora") && value != "all");
        if let Some(value) = named {
            let found = format!("{name}={value} does not name Remora's card");
            checks.push(Check::warn("device", found, format!("unset {name}, or name remora0")));
        }
    }
    checks
}

fn mtu(interface: &Interface) -> Check {
    let path = interface.path_mtu();
    let found = format!(
        "path MTU {} bytes, because {} carries packets of {}",
        path.bytes(),
        interface.name,
        interface.link_mtu
    );
    if path < Mtu::B1024 {
        let advice =
            "many programs ask for a path MTU of 1024: raise the link's MTU to 1500 if you can";
        return Check::warn("MTU", found, advice);
    }
    Check::ok("MTU", found)
}

/// Small buffers only cost speed.
fn buffers(device: &Device) -> Option<Check> {
    let granted = device.socket_info().ok()?.recv_buffer as u64;
    let limit: u64 = fs::read_to_string("/proc/sys/net/core/rmem_max").ok()?.trim().parse().ok()?;
    let found = format!("{} granted, net.core.rmem_max is {limit}", output::bytes(granted));
    if limit >= ENOUGH_BUFFER {
        return Some(Check::ok("socket buffer", found));
    }
    let advice = "optional, for more bandwidth: `sysctl -w net.core.rmem_max=16777216`";
    Some(Check { advice: advice.to_owned(), ..Check::new("socket buffer", Status::Note, found) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_for_other_cards_are_reported() {
        let none = gid_variables(|_| None);
        assert!(none.is_empty());
        let some = gid_variables(|name| match name {
            "NCCL_IB_GID_INDEX" => Some("7".into()),
            "NCCL_IB_HCA" => Some("mlx5_0".into()),
            "UCX_NET_DEVICES" => Some("remora0:1".into()),
            _ => None,
        });
        assert_eq!(some.len(), 2, "{some:?}");
        assert!(some.iter().all(|check| check.status == Status::Warn));
    }
}
