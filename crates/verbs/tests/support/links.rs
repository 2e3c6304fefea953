//! The library under the names that programs look for, and whether these programs are installed.

#[path = "../../../remora/tests/support/skips.rs"]
pub(crate) mod skips;

use std::io::ErrorKind;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::{env, fs, process};

/// Cargo puts the library beside the tests.
pub(crate) fn library() -> PathBuf {
    env::current_exe().unwrap().with_file_name("libremora_verbs.so")
}

/// A directory that holds the library under the names that programs look for.
pub(crate) fn links() -> PathBuf {
    let links = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("links-{}", process::id()));
    fs::create_dir_all(&links).unwrap();
    for name in ["libibverbs.so.1", "librdmacm.so.1"] {
        // Another test's thread may have made it already.
        if let Err(error) = symlink(library(), links.join(name)) {
            assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error}");
        }
    }
    links
}

/// Is the program installed? If not, says what to install; in CI that is a failure.
pub(crate) fn is_installed(program: &str) -> bool {
    let package = match program {
        name if name.starts_with("ibv_") => "ibverbs-utils",
        name if name.starts_with("ib_") => "perftest",
        _ => "rdmacm-utils",
    };
    skips::has(program, package)
}
