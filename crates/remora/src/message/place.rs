//! Where a daemon listens: at a socket, or behind a device of a virtual machine, which the folder
//! of the device in `/sys` stands for.

use std::path::{Path, PathBuf};
use std::{env, fs};

use crate::runtime;

/// The environment variable that names a daemon's socket, or says `ivshmem` or `off`.
pub const SOCKET_VARIABLE: &str = "REMORA_NIC";
/// The socket of the machine's daemon.
const SYSTEM: &str = "/run/remora/nic.sock";
const FILE: &str = "nic.sock";
/// The folders of PCI devices.
pub(crate) const PCI_DEVICES: &str = "/sys/bus/pci/devices";
/// What the files `vendor` and `device` of an ivshmem device have.
pub(crate) const IVSHMEM: [(&str, &str); 2] = [("vendor", "0x1af4"), ("device", "0x1110")];

/// Where to look for a daemon.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DaemonPlace {
    /// Nowhere: the program has a card of its own.
    Off,
    /// At this socket or device, and it is an error if no daemon listens there.
    Named(PathBuf),
    /// At the first of these where one listens, if any does.
    Usual(Vec<PathBuf>),
}

/// Where this process looks for a daemon: where [`SOCKET_VARIABLE`] says, else at the user's own
/// place, else at the machine's, else, in a virtual machine, behind its first ivshmem device.
pub fn place() -> DaemonPlace {
    let device = || ivshmem_device(Path::new(PCI_DEVICES));
    let named = env::var_os(SOCKET_VARIABLE).filter(|value| !value.is_empty());
    match named.as_ref().and_then(|value| value.to_str()) {
        Some("off") => return DaemonPlace::Off,
        // Where there is none, the attempt to attach says so.
        Some("ivshmem") => {
            return DaemonPlace::Named(device().unwrap_or_else(|| PCI_DEVICES.into()));
        }
        _ => {}
    }
    if let Some(path) = named {
        return DaemonPlace::Named(path.into());
    }
    let sockets: Vec<PathBuf> = user_socket().into_iter().chain([SYSTEM.into()]).collect();
    let is_there = sockets.iter().any(|socket| socket.exists());
    let device = if is_there { None } else { device() };
    DaemonPlace::Usual(sockets.into_iter().chain(device).collect())
}

/// The first ivshmem device among those whose folders are in `devices`.
fn ivshmem_device(devices: &Path) -> Option<PathBuf> {
    let entries = fs::read_dir(devices).ok()?;
    let folders = entries.flatten().map(|entry| entry.path());
    folders.filter(|folder| is_ivshmem(folder)).min()
}

/// Is this the folder of an ivshmem device?
pub(crate) fn is_ivshmem(folder: &Path) -> bool {
    IVSHMEM.iter().all(|(file, id)| {
        fs::read_to_string(folder.join(file)).is_ok_and(|text| text.trim_end() == *id)
    })
}

/// The socket of this user's own daemon, in a folder that no other user can reach; `None` if there
/// can be no such folder.
pub(crate) fn user_socket() -> Option<PathBuf> {
    runtime::folder().ok().map(|folder| folder.join(FILE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_ivshmem_device_is_found() {
        let name = format!("remora-pci-{}", std::process::id());
        let devices = env::temp_dir().join(name);
        let rows = [
            ("0000:00:05.0", "0x1af4\n", "0x1110\n"),
            ("0000:00:04.0", "0x1af4\n", "0x1110\n"),
            ("0000:00:03.0", "0x1af4\n", "0x1000\n"),
            ("0000:00:02.0", "0x8086\n", "0x1110\n"),
        ];
        for (device, vendor, id) in rows {
            let folder = devices.join(device);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("vendor"), vendor).unwrap();
            fs::write(folder.join("device"), id).unwrap();
        }
        assert_eq!(ivshmem_device(&devices), Some(devices.join("0000:00:04.0")));
        fs::remove_dir_all(&devices).unwrap();
        assert_eq!(ivshmem_device(&devices), None);
    }
}
