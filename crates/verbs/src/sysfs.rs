//! What stands for `/sys/class/infiniband`: a directory with the files that programs read.
//!
//! It is `$XDG_RUNTIME_DIR/remora/PID`, or `/tmp/remora-UID/PID`, and has the shape of `/sys` below
//! `class/infiniband` and `class/infiniband_verbs`. Only this user can look into it. A process
//! keeps its directory locked; what is not locked belonged to one that is gone, and is removed by
//! the next that comes.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::{env, process};

use remora::interface::Interface;

use crate::ibverbs::port::GID_TABLE_LEN;
use crate::process::Card;

/// The file in a process's directory that it keeps locked.
const LOCK: &str = ".lock";
/// Longer paths would not fit the fields of `ibv_device`.
const LONGEST_BASE: usize = 150;

/// A process's directory, and the lock that keeps it.
#[derive(Debug)]
struct Tree {
    root: PathBuf,
    _lock: File,
}

#[derive(Debug, Default)]
struct Trees(OnceLock<Option<Tree>>);

/// What stands for `/sys` in this process: the devices are in `class/infiniband` below. `None` if
/// it could not be made.
pub fn directory() -> Option<PathBuf> {
    let trees = crate::process::current().shared::<Trees>();
    let tree = trees.0.get_or_init(|| match plant() {
        Ok(tree) => Some(tree),
        Err(error) => {
            tracing::warn!(%error, "cannot make a directory that stands for /sys");
            None
        }
    });
    tree.as_ref().map(|tree| tree.root.clone())
}

/// The number and name of the interface that has `address`.
pub(crate) fn interface_of(address: IpAddr) -> (u32, String) {
    let Ok(interface) = Interface::find(&address.to_string()) else { return (0, String::new()) };
    let Ok(name) = std::ffi::CString::new(interface.name.clone()) else { return (0, String::new()) };
    // SAFETY: the name ends with a zero byte.
    (unsafe { libc::if_nametoindex(name.as_ptr()) }, interface.name)
}

/// Makes this process's directory.
fn plant() -> io::Result<Tree> {
    let base = base()?;
    sweep(&base);
    let root = base.join(process::id().to_string());
    // Of a process that had this number before, or is this one before `exec`.
    fs::remove_dir_all(&root).ok();
    make_private(&root)?;
    let lock = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW)
        .open(root.join(LOCK))?;
    lock_exclusively(&lock)?;
    DirBuilder::new().recursive(true).mode(0o700).create(root.join("class"))?;
    symlink("/sys/class/net", root.join("class/net"))?;
    Ok(Tree { root, _lock: lock })
}

/// The directory of all processes of this user.
fn base() -> io::Result<PathBuf> {
    // SAFETY: no arguments.
    let uid = unsafe { libc::geteuid() };
    let runtime = env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|dir| {
        dir.is_absolute()
            && dir.as_os_str().len() < LONGEST_BASE
            && fs::metadata(dir).is_ok_and(|meta| meta.uid() == uid)
    });
    let candidates = [runtime.map(|dir| dir.join("remora")), Some(format!("/tmp/remora-{uid}").into())];
    let mut result = Err(io::ErrorKind::NotFound.into());
    for path in candidates.into_iter().flatten() {
        result = make_private(&path).map(|()| path);
        if result.is_ok() {
            break;
        }
    }
    result
}

/// A directory that only this user can look into. In `/tmp` anybody may have made one before us,
/// or a link to somewhere.
fn make_private(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let meta = fs::symlink_metadata(path)?;
    // SAFETY: no arguments.
    let ours = meta.uid() == unsafe { libc::geteuid() };
    if !meta.is_dir() || !ours || meta.mode() & 0o077 != 0 {
        let path = path.display();
        return Err(io::Error::other(format!("{path} is not a directory of this user alone")));
    }
    Ok(())
}

fn lock_exclusively(file: &File) -> io::Result<()> {
    // SAFETY: a descriptor that is open.
    match unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Removes what processes left that are gone.
fn sweep(base: &Path) {
    let Ok(entries) = fs::read_dir(base) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        let lock = OpenOptions::new()
            .write(true)
            .custom_flags(libc::O_NOFOLLOW)
            .open(path.join(LOCK));
        // One without a lock is just being made, or removed.
        if lock.is_ok_and(|lock| lock_exclusively(&lock).is_ok()) {
            fs::remove_dir_all(&path).ok();
        }
    }
}

/// Writes a card's files, and returns its directory.
pub(crate) fn publish(card: &Card) -> io::Result<String> {
    let class = directory().ok_or(io::ErrorKind::NotFound)?.join("class");
    let device = class.join("infiniband").join(&card.name);
    for (name, text) in device_files(card) {
        write(&device.join(name), &text)?;
    }
    for (name, text) in port_files(card) {
        write(&device.join("ports/1").join(name), &text)?;
    }
    let verbs = class.join("infiniband_verbs").join(format!("uverbs{}", card.index));
    write(&verbs.join("ibdev"), &card.name)?;
    write(&verbs.join("abi_version"), "1")?;
    write(&class.join("infiniband_verbs/abi_version"), "6")?;
    Ok(device.to_string_lossy().into_owned())
}

/// The directory of a device in `infiniband_verbs`, for `ibv_device.dev_path`.
pub(crate) fn verbs_path(card: &Card) -> String {
    let path = directory().map(|root| {
        root.join("class/infiniband_verbs").join(format!("uverbs{}", card.index))
    });
    path.unwrap_or_default().to_string_lossy().into_owned()
}

fn device_files(card: &Card) -> Vec<(&'static str, String)> {
    let guid = card.guid.to_be_bytes();
    let guid: Vec<String> =
        guid.chunks(2).map(|pair| pair.iter().map(|byte| format!("{byte:02x}")).collect()).collect();
    let guid = guid.join(":");
    vec![
        ("node_type", "1: CA".into()),
        ("node_guid", guid.clone()),
        ("sys_image_guid", guid),
        ("node_desc", format!("{} {}", card.name, card.address)),
        ("fw_ver", FIRMWARE.into()),
        ("hw_rev", "0x0".into()),
        ("hca_type", "remora".into()),
        ("board_id", "remora".into()),
        ("parent", card.ifname.clone()),
        ("device/numa_node", "-1".into()),
        ("device/vendor", "0x0000".into()),
        ("device/device", "0x0000".into()),
    ]
}

/// What stands for the firmware's version.
pub(crate) const FIRMWARE: &str = env!("CARGO_PKG_VERSION");

fn port_files(card: &Card) -> Vec<(String, String)> {
    let own = |(name, text): (&str, String)| (name.to_owned(), text);
    let mut files: Vec<(String, String)> = [
        ("state", "4: ACTIVE".into()),
        ("phys_state", "5: LinkUp".into()),
        ("link_layer", "Ethernet".into()),
        ("rate", "100 Gb/sec (4X EDR)".into()),
        ("lid", format!("{:#x}", card.lid())),
        ("lid_mask_count", "0".into()),
        ("sm_lid", "0x0".into()),
        ("sm_sl", "0".into()),
        ("cap_mask", format!("{:#010x}", crate::ibverbs::port::CAPABILITIES)),
        ("pkeys/0", "0xffff".into()),
    ]
    .into_iter()
    .map(own)
    .collect();
    let gid: Vec<String> =
        card.gid().chunks(2).map(|pair| format!("{:02x}{:02x}", pair[0], pair[1])).collect();
    for index in 0..GID_TABLE_LEN {
        files.push((format!("gids/{index}"), gid.join(":")));
        files.push((format!("gid_attrs/types/{index}"), "RoCE v2".into()));
        files.push((format!("gid_attrs/ndevs/{index}"), card.ifname.clone()));
    }
    files
}

/// Writes a file of one line, and the directories above it.
fn write(path: &Path, text: &str) -> io::Result<()> {
    if let Some(above) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o700).create(above)?;
    }
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    writeln!(file, "{text}")
}

/// Reads a file below `directory`, as the C library's callers want it: without the line's end.
pub(crate) fn read(directory: &str, file: &str) -> io::Result<Vec<u8>> {
    let mut text = fs::read(format!("{directory}/{file}"))?;
    if text.last() == Some(&b'\n') {
        text.pop();
    }
    Ok(text)
}

/// Removes this process's directory, at its end.
pub(crate) fn remove() {
    let trees = crate::process::current().shared::<Trees>();
    if let Some(Some(tree)) = trees.0.get() {
        fs::remove_dir_all(&tree.root).ok();
    }
}
