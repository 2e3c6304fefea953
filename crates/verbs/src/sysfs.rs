//! The directory that stands for `/sys/class/infiniband`: the files that programs read there.
//!
//! Each process has one, because each has cards of its own: `ROOT/sys/class/infiniband/remora0/…`,
//! with the files that the kernel shows for its soft-RoCE card. `ibv_device.ibdev_path` names it.
//! For programs that open `/sys` themselves, the preload of `crates/sysfs` asks
//! [`crate::preload`]. The files are written once, when a card is opened, so counters are not among
//! them: `remora stats` shows those, and `counters.rs` of `remora-nic` lists the card's.
//!
//! A process that is killed leaves its directory behind. Each process holds a lock in its directory
//! as long as it lives; the next process removes directories that are not locked.

use std::fs::{self, DirBuilder, File, TryLockError};
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use remora::interface::Interface;
use remora::runtime;

use crate::card::{CAPABILITIES, FIRMWARE, GID_TABLE_LEN, ListedCard};
use crate::process::{self, Process};

/// The folder that holds the processes' directories, in the user's runtime folder.
const PROCESSES: &str = "sysfs";
/// The file that a living process keeps locked.
const LOCK: &str = "lock";

/// This process's directory.
#[derive(Debug, Default)]
struct Root(Mutex<Option<Made>>);

#[derive(Debug)]
struct Made {
    path: PathBuf,
    /// Unlocked by the system when the process ends.
    _lock: File,
}

/// The directory that stands for `/sys` in this process, with the devices in `class/infiniband`
/// below it. `None` if it could not be made.
pub fn directory() -> Option<PathBuf> {
    let root = process::current().shared::<Root>();
    let made = root.0.lock().unwrap_or_else(PoisonError::into_inner);
    made.as_ref().map(|made| made.path.join("sys"))
}

/// The directory of a device in `infiniband_verbs`, for `ibv_device.dev_path`.
pub(crate) fn verbs_path(card: &ListedCard) -> String {
    let path = directory()
        .map(|sys| sys.join("class/infiniband_verbs").join(format!("uverbs{}", card.index)));
    path.unwrap_or_default().to_string_lossy().into_owned()
}

/// Reads a file below `directory`, without the newline at its end, as callers in C expect.
pub(crate) fn read(directory: &str, file: &str) -> io::Result<Vec<u8>> {
    let mut text = fs::read(format!("{directory}/{file}"))?;
    if text.last() == Some(&b'\n') {
        text.pop();
    }
    Ok(text)
}

/// Removes this process's directory, at exit.
pub(crate) fn remove(process: &Process) {
    let root = process.shared::<Root>();
    let made = root.0.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(made) = made {
        fs::remove_dir_all(made.path).ok();
    }
}

/// The number and name of the interface that has `address`.
pub(crate) fn interface_of(address: IpAddr) -> (u32, String) {
    let Ok(interface) = Interface::find(&address.to_string()) else { return (0, String::new()) };
    let index = fs::read_to_string(format!("/sys/class/net/{}/ifindex", interface.name));
    let index = index.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0);
    (index, interface.name)
}

/// Writes a card's files, and returns its directory.
pub(crate) fn publish(card: &ListedCard) -> io::Result<String> {
    let root = process::current().shared::<Root>();
    let mut made = root.0.lock().unwrap_or_else(PoisonError::into_inner);
    let root = match &*made {
        Some(made) => &made.path,
        None => &made.insert(make_root()?).path,
    };
    let directory = root.join("sys/class/infiniband").join(&card.name);
    write_card(root, &directory, card)?;
    directory.into_os_string().into_string().map_err(|_| io::ErrorKind::InvalidData.into())
}

fn make_root() -> io::Result<Made> {
    let processes = runtime::folder().map_err(io::Error::other)?.join(PROCESSES);
    DirBuilder::new().recursive(true).mode(0o700).create(&processes)?;
    remove_those_of_the_dead(&processes);
    // A process in another container that shares the folder may have the same process id.
    let pid = std::process::id();
    let (path, lock) = (0..64)
        .find_map(|attempt| take(&processes.join(format!("{pid}.{attempt}"))))
        .ok_or(io::ErrorKind::AlreadyExists)?;
    let made = Made { _lock: lock, path };
    let root = &made.path;
    write(root, "sys/class/infiniband_verbs/abi_version", "6")?;
    link(Path::new("/sys/class/net"), &root.join("sys/class/net"));
    Ok(made)
}

/// Makes `path` and locks it; `None` if another process has it.
fn take(path: &Path) -> Option<(PathBuf, File)> {
    DirBuilder::new().mode(0o700).create(path).ok()?;
    let lock = File::create_new(path.join(LOCK)).ok()?;
    lock.try_lock().ok()?;
    Some((path.to_owned(), lock))
}

/// Removes the directories of processes that have been killed or have ended without removing them.
fn remove_those_of_the_dead(processes: &Path) {
    for entry in fs::read_dir(processes).into_iter().flatten().flatten() {
        let path = entry.path();
        // A directory without the file is just being made.
        let Ok(lock) = File::open(path.join(LOCK)) else { continue };
        match lock.try_lock() {
            Ok(()) => drop(fs::remove_dir_all(path)),
            Err(TryLockError::WouldBlock | TryLockError::Error(_)) => {}
        }
    }
}

fn write_card(root: &Path, directory: &Path, card: &ListedCard) -> io::Result<()> {
    let guid = words(&card.guid.to_be_bytes());
    let lid = card.lid();
    let device = "device/infiniband_verbs";
    let (name, uverbs) = (card.name.as_str(), format!("uverbs{}", card.index));
    let files: &[(&str, &str)] = &[
        ("node_type", "1: CA"),
        ("node_guid", &guid),
        ("sys_image_guid", &guid),
        ("node_desc", &format!("Remora {}", card.address)),
        ("fw_ver", FIRMWARE),
        ("device/numa_node", "-1"),
        (&format!("{device}/{uverbs}/ibdev"), name),
        ("ports/1/state", "4: ACTIVE"),
        ("ports/1/phys_state", "5: LinkUp"),
        ("ports/1/link_layer", "Ethernet"),
        ("ports/1/rate", "100 Gb/sec (4X EDR)"),
        ("ports/1/lid", &format!("{lid:#x}")),
        ("ports/1/lid_mask_count", "0"),
        ("ports/1/sm_lid", "0x0"),
        ("ports/1/sm_sl", "0"),
        ("ports/1/cap_mask", &format!("{CAPABILITIES:#010x}")),
        ("ports/1/pkeys/0", "0xffff"),
        ("hw_rev", "0x0"),
        ("hca_type", "remora"),
        ("board_id", "remora"),
        ("parent", &card.ifname),
    ];
    for (path, text) in files {
        write(directory, path, text)?;
    }
    let gid = words(&card.gid());
    for index in 0..GID_TABLE_LEN {
        write(directory, &format!("ports/1/gids/{index}"), &gid)?;
        write(directory, &format!("ports/1/gid_attrs/types/{index}"), "RoCE v2")?;
        write(directory, &format!("ports/1/gid_attrs/ndevs/{index}"), &card.ifname)?;
    }
    let class = root.join("sys/class/infiniband_verbs").join(&uverbs);
    write(&class, "ibdev", name)?;
    write(&class, "abi_version", "1")?;
    // The kernel's links: from the character device to the device, and from there to its children.
    link(&directory.join("device"), &class.join("device"));
    link(directory, &directory.join("device/infiniband").join(name));
    link(
        &Path::new("/sys/class/net").join(&card.ifname),
        &directory.join("device/net").join(&card.ifname),
    );
    Ok(())
}

fn write(below: &Path, path: &str, text: &str) -> io::Result<()> {
    let path = below.join(path);
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(path, format!("{text}\n"))
}

/// Makes a link, ignoring errors: most programs follow none of these links.
fn link(to: &Path, path: &Path) {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).ok();
    }
    symlink(to, path).ok();
}

/// GUIDs and GIDs in their written form: `0011:2233:4455:6677`.
fn words(bytes: &[u8]) -> String {
    let words: Vec<String> = bytes
        .chunks(2)
        .map(|pair| pair.iter().map(|byte| format!("{byte:02x}")).collect())
        .collect();
    words.join(":")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_as_the_kernel_writes_them() {
        assert_eq!(words(&[0, 0x11, 0x22, 0x33]), "0011:2233");
        let gid = crate::card::gid_of("127.0.0.1".parse().unwrap());
        assert_eq!(words(&gid), "0000:0000:0000:0000:0000:ffff:7f00:0001");
    }

    #[test]
    fn a_device_has_its_files_and_the_dead_leave_none() {
        let card = &process::current().cards()[0];
        // Left by a process that has ended, so that no process holds its lock.
        let processes = runtime::folder().unwrap().join(PROCESSES);
        let dead = processes.join("0.0");
        fs::create_dir_all(dead.join("sys")).unwrap();
        fs::write(dead.join(LOCK), "").unwrap();
        remove_those_of_the_dead(&processes);
        let read = |path: &str| {
            fs::read_to_string(Path::new(&card.directory).join(path)).unwrap().trim().to_owned()
        };
        assert_eq!(read("node_guid"), words(&card.guid.to_be_bytes()));
        assert_eq!(read("ports/1/gids/0"), words(&card.gid()));
        assert_eq!(read("ports/1/gid_attrs/ndevs/0"), "lo");
        assert_eq!(read("device/infiniband_verbs/uverbs0/ibdev"), "remora0");
        assert!(!dead.exists());
    }
}
