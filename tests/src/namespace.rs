//! A network namespace for the tests, with two joined interfaces: the host's end of the wire, which
//! has addresses, and the end from which the wire takes frames.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::process::Command;

/// The interface that has the host's addresses.
pub const HOST: &str = "rxe-host";
/// The interface whose frames go to the machine.
pub const WIRE: &str = "rxe-wire";

/// The host's IPv4 address.
pub const HOST_V4: Ipv4Addr = Ipv4Addr::new(10, 91, 0, 1);
/// The host's IPv6 address.
pub const HOST_V6: Ipv6Addr = Ipv6Addr::new(0xfd91, 0, 0, 0, 0, 0, 0, 1);
/// The machine's IPv4 address.
pub const MACHINE_V4: Ipv4Addr = Ipv4Addr::new(10, 91, 0, 2);
/// The machine's IPv6 address.
pub const MACHINE_V6: Ipv6Addr = Ipv6Addr::new(0xfd91, 0, 0, 0, 0, 0, 0, 2);

/// Moves this process into a new network namespace, and unless it is root into a new user namespace
/// too. The process must have one thread only.
///
/// # Errors
/// The system does not allow it.
pub fn enter() -> io::Result<()> {
    let (uid, gid) = (rustix::process::getuid(), rustix::process::getgid());
    if rustix::process::geteuid().is_root() && unshare(libc::CLONE_NEWNET).is_ok() {
        return Ok(());
    }
    unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNET)?;
    std::fs::write("/proc/self/setgroups", "deny")?;
    std::fs::write("/proc/self/uid_map", format!("0 {} 1", uid.as_raw()))?;
    std::fs::write("/proc/self/gid_map", format!("0 {} 1", gid.as_raw()))
}

fn unshare(flags: i32) -> io::Result<()> {
    // SAFETY: the call takes no pointers.
    if unsafe { libc::unshare(flags) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Makes the two interfaces and gives the host's its addresses.
///
/// # Errors
/// The system does not allow it, or has no `ip`.
pub fn furnish(mtu: u32) -> io::Result<()> {
    ip("link set lo up")?;
    ip(&format!("link add {HOST} type veth peer name {WIRE}"))?;
    // Without IPv6, the kernel sends no packets of its own from the wire's interface.
    std::fs::write(format!("/proc/sys/net/ipv6/conf/{WIRE}/disable_ipv6"), "1").ok();
    set_mtu(mtu)?;
    ip(&format!("addr add {HOST_V4}/24 dev {HOST}"))?;
    ip(&format!("-6 addr add {HOST_V6}/64 dev {HOST} nodad"))?;
    offloads_off()?;
    ip(&format!("link set {WIRE} up"))?;
    ip(&format!("link set {HOST} up"))
}

/// Sets the MTU of both interfaces.
///
/// # Errors
/// `ip` cannot be run, or fails.
pub fn set_mtu(mtu: u32) -> io::Result<()> {
    ip(&format!("link set {HOST} mtu {mtu}"))?;
    ip(&format!("link set {WIRE} mtu {mtu}"))
}

/// Runs `ip` with these arguments.
///
/// # Errors
/// `ip` cannot be run, or fails.
pub fn ip(arguments: &str) -> io::Result<()> {
    let output = Command::new("ip").args(arguments.split_whitespace()).output()?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(format!("ip {arguments}: {}", said.trim())))
}

/// Turns offloads off, so that frames of the host's interface have checksums and are no longer than
/// the MTU. (Between two joined interfaces the kernel would leave both undone.)
fn offloads_off() -> io::Result<()> {
    const ETHTOOL_STXCSUM: u32 = 0x17;
    const ETHTOOL_STSO: u32 = 0x1f;
    const ETHTOOL_SGSO: u32 = 0x24;
    #[repr(C)]
    struct Value {
        command: u32,
        data: u32,
    }
    let socket = std::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    for command in [ETHTOOL_STSO, ETHTOOL_SGSO, ETHTOOL_STXCSUM] {
        let mut value = Value { command, data: 0 };
        // SAFETY: all fields are integers, for which zeroes are valid.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        for (to, from) in request.ifr_name.iter_mut().zip(HOST.bytes()) {
            *to = from.cast_signed() as _;
        }
        request.ifr_ifru.ifru_data = (&raw mut value).cast();
        let fd = std::os::fd::AsRawFd::as_raw_fd(&socket);
        // SAFETY: the name ends with a zero byte; the data are the two words that each of these
        // commands reads, and live until the call is over.
        if unsafe { libc::ioctl(fd, libc::SIOCETHTOOL as _, &mut request) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}
