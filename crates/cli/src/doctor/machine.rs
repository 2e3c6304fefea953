//! Checks of the machine: firewalls, confinement of programs, listeners, and things that need no
//! check.

use std::fs;
use std::net::IpAddr;
use std::process::{Command, Stdio};

use remora::daemon::{ObserveError, Observer};
use remora::message::{DaemonPlace, place};
use remora::unix_names;

use super::check::Check;

/// A listener of rdma_cm: `remora/cm/<port space>/<port>/<address>/<card>`, an abstract Unix
/// socket, by which clients on this machine find it.
const LISTENER: &str = "remora/cm/";

/// Checks all of them.
pub(super) fn look(checks: &mut Vec<Check>) {
    checks.extend(firewall_rules());
    checks.extend(confinement());
    checks.push(match unix_names::named(LISTENER) {
        Ok(names) => listeners(names.iter().map(|name| name.rest.as_str())),
        Err(error) => Check::note("listeners", format!("cannot read /proc/net/unix: {error}")),
    });
    checks.push(shared_card(&place()));
    checks.push(Check::note(
        "not needed",
        "limits on locked memory (ulimit -l), /dev/infiniband and kernel modules",
    ));
}

/// Does a daemon share one card among the programs of this user or machine?
fn shared_card(place: &DaemonPlace) -> Check {
    const NAME: &str = "shared card";
    match (place, Observer::connect(None).and_then(|observer| observer.status())) {
        (DaemonPlace::Off, _) => {
            Check::note(NAME, "REMORA_NIC=off: each program has a card of its own")
        }
        (_, Ok(status)) => Check::ok(
            NAME,
            format!(
                "a daemon serves the card at {}; sessions: {} (remora nic status)",
                status.card.address,
                status.sessions.len()
            ),
        ),
        (_, Err(ObserveError::OnHost(device))) => Check::note(
            NAME,
            format!(
                "programs of root use the card of this virtual machine’s host, by the device {}",
                device.display()
            ),
        ),
        (DaemonPlace::Named(path), Err(error)) => Check::fail(
            NAME,
            format!("REMORA_NIC names {}, where no daemon answers: {error}", path.display()),
            "start one there (remora nic --socket PATH), or unset REMORA_NIC",
        ),
        (DaemonPlace::Usual(_), Err(_)) => Check::note(
            NAME,
            "no daemon: each program has a card of its own, with an address of its own; `remora \
             nic` shares one",
        ),
    }
}

/// Could a firewall rule drop packets? The rules are only read.
fn firewall_rules() -> Option<Check> {
    let run = |program: &str, args: &[&str]| {
        let mut command = Command::new(program);
        command.args(args).stdin(Stdio::null()).stderr(Stdio::null());
        let output = command.output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let rules = run("nft", &["list", "ruleset"]).or_else(|| run("iptables-save", &[]));
    match rules {
        Some(rules) => verdict(&rules),
        None => None,
    }
}

fn verdict(rules: &str) -> Option<Check> {
    let drops = |line: &str| {
        let line = line.trim();
        let policy = line.contains("policy drop") || line.starts_with(":INPUT DROP");
        policy
            || (line.contains("drop") || line.contains("DROP") || line.contains("REJECT"))
                && line.contains("udp")
    };
    let about_us = rules.lines().any(|line| line.contains("4791"));
    let dropping = rules.lines().find(|line| drops(line));
    match (dropping, about_us) {
        (Some(rule), false) => Some(Check::warn(
            "firewall rules",
            format!("a rule may drop RoCE packets: {}", rule.trim()),
            "allow UDP port 4791, in and out; for example: nft add rule inet filter input udp \
             dport 4791 accept",
        )),
        (Some(_), true) => {
            Some(Check::note("firewall rules", "some drop packets; a rule names port 4791"))
        }
        (None, _) => Some(Check::ok("firewall rules", "none drops UDP")),
    }
}

/// Security mechanisms that may forbid sockets or preloads; reported only if they are in force.
fn confinement() -> Vec<Check> {
    let mut checks = Vec::new();
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let field = |name: &str| {
        status.lines().find_map(|line| line.strip_prefix(name)).map(|value| value.trim())
    };
    if field("Seccomp:") == Some("2") {
        let found = "a seccomp filter is in force (a container's, most likely); sockets work, or \
                     the card could not have been opened above";
        checks.push(Check::note("seccomp", found));
    }
    if fs::read_to_string("/sys/fs/selinux/enforce").is_ok_and(|on| on.trim() == "1") {
        let found = "SELinux is enforcing: programs of confined domains may be kept from UDP port \
                     4791, and lose LD_PRELOAD when they change domain";
        let advice = "`ausearch -m avc -ts recent` shows what SELinux has refused";
        checks.push(Check::warn("SELinux", found, advice));
    }
    checks
}

/// The listeners for connections, by what follows [`LISTENER`] in their names.
fn listeners<'a>(names: impl Iterator<Item = &'a str>) -> Check {
    let mut found: Vec<String> = names.filter_map(describe).collect();
    found.sort_unstable();
    found.dedup();
    match found.as_slice() {
        [] => {
            Check::note("listeners", "no program on this machine listens by rdma_cm at the moment")
        }
        found => Check::ok("listeners", found.join("; ")),
    }
}

/// Describes a listener by its name; `None` if its port is only held.
fn describe(name: &str) -> Option<String> {
    let mut parts = name.split('/');
    let (space, port, address) = (parts.next()?, parts.next()?, parts.next()?);
    let card = parts.next().filter(|card| card.parse::<IpAddr>().is_ok())?;
    let space = match space {
        "0106" => "TCP",
        "0111" => "UDP",
        "013f" => "IB",
        "0002" => "IPoIB",
        other => other,
    };
    let address = match address {
        "*" => "any address",
        "*4" => "any IPv4 address",
        "*6" => "any IPv6 address",
        one => one,
    };
    Some(format!("{space} port {port} of {address}, on the card {card}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Status;

    #[test]
    fn rules_that_drop_are_distinguished_from_others() {
        let status = |rules: &str| verdict(rules).map(|check| check.status);
        assert_eq!(status(""), Some(Status::Ok));
        let drop = "chain input { type filter hook input priority 0; policy drop;";
        assert_eq!(status(drop), Some(Status::Warn));
        assert_eq!(status(&format!("{drop}\nudp dport 4791 accept")), Some(Status::Note));
        assert_eq!(status(":INPUT DROP [0:0]"), Some(Status::Warn));
        assert_eq!(status(":INPUT ACCEPT [0:0]\n-A INPUT -p tcp -j DROP"), Some(Status::Ok));
    }

    #[test]
    fn listeners_are_found_among_other_names() {
        let names = ["0106/7471/*4/127.0.0.2", "0106/7471/*4", "0106/7471", "x"];
        let check = listeners(names.into_iter());
        let expected = "TCP port 7471 of any IPv4 address, on the card 127.0.0.2";
        assert_eq!(check.found, expected);
        assert_eq!(listeners(std::iter::empty()).status, Status::Note);
    }
}
