//! What `libremora_sysfs.so` (`crates/sysfs`) asks of this library: where the files are that a
//! program looks for below `/sys/class/infiniband` and `/dev/infiniband` by itself.

use std::ffi::{CString, c_char};
use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::OnceLock;

use crate::{process, sysfs};

/// The answer, once it has been computed.
#[derive(Debug, Default)]
struct Answer(OnceLock<Option<&'static CString>>);

/// The directory that stands for `/sys`, and whose `dev` stands for `/dev`; null if there is none.
/// The text stays valid to the end of the process.
#[unsafe(no_mangle)]
pub extern "C" fn remora_sysfs() -> *const c_char {
    let process = process::current();
    let answer = process.shared::<Answer>();
    let known = answer.0.get_or_init(|| {
        // Opening the cards writes their files.
        let cards = process.cards();
        let root = sysfs::directory().filter(|_| !cards.is_empty())?;
        let devices: Vec<String> =
            cards.iter().map(|card| format!("uverbs{}", card.index)).collect();
        place_holders(&root, devices.iter().map(String::as_str).chain(["rdma_cm"]));
        fs::create_dir_all(root.join("class/misc/rdma_cm")).ok();
        fs::write(root.join("class/misc/rdma_cm/abi_version"), "4\n").ok();
        let root = CString::new(root.into_os_string().into_encoded_bytes()).ok()?;
        Some(Box::leak(Box::new(root)))
    });
    known.map_or(ptr::null(), |root| root.as_ptr())
}

/// Makes device files that exist but cannot be opened: sockets. Programs check that such files
/// exist and do not open them, as they talk to the device through this library.
fn place_holders<'a>(root: &Path, names: impl Iterator<Item = &'a str>) {
    let folder: PathBuf = root.join("dev/infiniband");
    DirBuilder::new().recursive(true).mode(0o700).create(&folder).ok();
    for name in names {
        // A failure is harmless: few programs look for these files.
        UnixDatagram::bind(folder.join(name)).ok();
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use super::*;

    #[test]
    fn the_answer_is_a_directory_in_which_every_card_is_found() {
        let root = remora_sysfs();
        assert!(!root.is_null());
        // SAFETY: it is not null, as just asserted, and the text is never freed.
        let root = Path::new(unsafe { CStr::from_ptr(root) }.to_str().unwrap());
        for card in process::current().cards() {
            assert!(root.join("class/infiniband").join(&card.name).join("node_guid").is_file());
            assert!(root.join(format!("dev/infiniband/uverbs{}", card.index)).exists());
        }
        assert!(root.join("class/infiniband_verbs/abi_version").is_file());
    }
}
