//! Finds the verbs library, and makes the links by which programs find it.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

/// The variable that names a folder with the libraries.
pub(crate) const DIR_VARIABLE: &str = "REMORA_LIB_DIR";
/// The library that is libibverbs and librdmacm in one.
pub(crate) const VERBS: &str = "libremora_verbs.so";
/// The preload that shows `/sys/class/infiniband`.
pub(crate) const SYSFS: &str = "libremora_sysfs.so";

/// The names under which programs look for the library: programs are linked to those that end in a
/// number, and `dlopen` finds any of them.
const NAMES: [&str; 4] = ["libibverbs.so.1", "librdmacm.so.1", "libibverbs.so", "librdmacm.so"];

/// The libraries on this machine.
#[derive(Clone, Debug)]
pub(crate) struct Libraries {
    /// The path of [`VERBS`], absolute and without links.
    pub(crate) verbs: PathBuf,
    /// The path of [`SYSFS`]. Only programs that read `/sys` themselves need it.
    pub(crate) sysfs: Option<PathBuf>,
}

impl Libraries {
    /// Looks in `REMORA_LIB_DIR` if that is set, else beside this program, else in `lib/remora` if
    /// this program is in `bin`.
    pub(crate) fn find() -> Result<Libraries> {
        let places = match env::var_os(DIR_VARIABLE).filter(|dir| !dir.is_empty()) {
            Some(dir) => vec![PathBuf::from(dir)],
            None => {
                let program = env::current_exe().context("cannot find this program's own file")?;
                let beside = program.parent().context("this program is in no folder")?;
                vec![beside.to_owned(), beside.join("../lib/remora")]
            }
        };
        for place in &places {
            if let Ok(verbs) = place.join(VERBS).canonicalize() {
                for path in [&verbs, place] {
                    can_be_listed(path)?;
                }
                let sysfs = place.join(SYSFS).canonicalize().ok();
                let sysfs = sysfs.filter(|path| can_be_listed(path).is_ok());
                return Ok(Libraries { verbs, sysfs });
            }
        }
        let looked: Vec<String> = places.iter().map(|p| p.display().to_string()).collect();
        bail!(
            "the verbs library, {VERBS}, is not in {}; build it (`cargo build --release`), or \
             name the folder that has it in {DIR_VARIABLE}",
            looked.join(" or ")
        )
    }

    /// A folder of this user with the library under the names that programs look for. Made or
    /// repaired if need be; several processes may do so at once.
    pub(crate) fn links(&self) -> Result<PathBuf> {
        let base = remora::runtime::folder()?.join("lib");
        // One folder for each library, so that several builds do not disturb each other.
        let folder = base.join(hash_of(&self.verbs));
        can_be_listed(&folder)?;
        fs::create_dir_all(&folder)
            .with_context(|| format!("cannot make the folder {}", folder.display()))?;
        for name in NAMES {
            let link = folder.join(name);
            place(&self.verbs, &link)
                .with_context(|| format!("cannot make the link {}", link.display()))?;
        }
        Ok(folder)
    }
}

/// Makes `link` point to `target`. A process that looks meanwhile finds the old link or the new
/// one.
fn place(target: &Path, link: &Path) -> io::Result<()> {
    if fs::read_link(link).is_ok_and(|to| to == target) {
        return Ok(());
    }
    let mut new = link.as_os_str().to_owned();
    new.push(format!(".{}", std::process::id()));
    let new = PathBuf::from(new);
    symlink(target, &new)?;
    fs::rename(&new, link).inspect_err(|_| drop(fs::remove_file(&new)))
}

/// Checks that a path fits into `LD_LIBRARY_PATH` and `LD_PRELOAD`: lists that colons and blanks
/// divide, without quoting.
fn can_be_listed(path: &Path) -> Result<()> {
    let bytes = path.as_os_str().as_encoded_bytes();
    ensure!(
        !bytes.iter().any(|byte| matches!(byte, b':' | b';' | b' ' | b'\n' | b'$')),
        "the path `{}` has a blank, colon, semicolon or dollar sign, which the dynamic \
         linker cannot take it; put the libraries elsewhere and name that folder in {DIR_VARIABLE}",
        path.display()
    );
    Ok(())
}

/// 16 hexadecimal digits for a path (FNV-1a).
fn hash_of(path: &Path) -> String {
    let bytes = path.as_os_str().as_encoded_bytes().iter();
    let hash = bytes.fold(0xCBF2_9CE4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01B3)
    });
    format!("{hash:016x}")
}

/// `first`, then the parts of the list `rest`, without empty parts and without repeating `first`.
pub(crate) fn put_first(first: &OsStr, rest: Option<&OsStr>, separators: &[u8]) -> Vec<u8> {
    let mut list = first.as_encoded_bytes().to_vec();
    let rest = rest.map_or(&[][..], |rest| rest.as_encoded_bytes());
    for part in rest.split(|byte| separators.contains(byte)) {
        if !part.is_empty() && part != first.as_encoded_bytes() {
            list.push(b':');
            list.extend_from_slice(part);
        }
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_get_a_first_part_once() {
        let put = |rest: &str, separators| {
            String::from_utf8(put_first("/a".as_ref(), Some(rest.as_ref()), separators)).unwrap()
        };
        assert_eq!(put("", b":"), "/a");
        assert_eq!(put("/b::/a:/c", b":"), "/a:/b:/c");
        assert_eq!(put("/b /c:/a", b": "), "/a:/b:/c");
        assert_eq!(put_first("/a".as_ref(), None, b":"), b"/a");
    }

    #[test]
    fn links_are_made_repaired_and_left_alone() {
        let folder = env::temp_dir().join(format!("remora-links-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let link = folder.join("libibverbs.so.1");
        for target in ["/one", "/one", "/two"] {
            place(Path::new(target), &link).unwrap();
            assert_eq!(fs::read_link(&link).unwrap(), Path::new(target));
        }
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "no temporary file is left");
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn paths_that_the_linker_cannot_take_are_refused() {
        assert!(can_be_listed(Path::new("/usr/lib/remora")).is_ok());
        assert!(can_be_listed(Path::new("/my programs/remora")).is_err());
    }
}
